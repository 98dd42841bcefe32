"""Results of evaluators: metrics.json, and a table for a terminal of 80 columns."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from altalign import storage
from altalign.terminal import shown

if TYPE_CHECKING:
    from rich.table import Table

Metrics = Mapping[str, Mapping[str, float]]  # {"retrieval/NAME": {metric: value}}

_RETRIEVAL = "retrieval/"
_KS = (1, 5, 10)


def write_metrics(path: str, metrics: Metrics) -> None:
    """Write metrics.json.

    Raises:
        ValueError: a value is not a finite number, which JSON cannot hold.
        FullDiskError: no space is left.
    """
    for name, values in metrics.items():
        for metric, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"{name} {metric}: {value}")
    storage.write_json(path, {name: dict(values) for name, values in metrics.items()})


def retrieval_table(metrics: Metrics) -> "Table":
    """Retrieval in percent, two rows for each set: captions searched by images, and images searched by captions."""
    from rich.table import Table  # takes a tenth of a second, for which --help need not wait

    table = Table()
    table.add_column("set", overflow="fold")
    table.add_column("search")
    for name in ("of", "R@1", "R@5", "R@10", "sum"):
        table.add_column(name, justify="right")
    for name, values in metrics.items():
        if name.startswith(_RETRIEVAL):
            table.add_row(
                shown(name.removeprefix(_RETRIEVAL)), "captions by image", *_cells(values, "image_to_text", "captions")
            )
            table.add_row(
                _below(values), "images by caption", *_cells(values, "text_to_image", "images"), end_section=True
            )
    return table


def _cells(values: Mapping[str, float], direction: str, of: str) -> list[str]:
    recalls = [values[f"{direction}_r{k}"] for k in _KS]
    return [f"{values[of]:,.0f}", *(f"{recall:.1f}" for recall in recalls), f"{sum(recalls):.1f}"]


def _below(values: Mapping[str, float]) -> str:
    """The note under a set's name: the recall of chance, and the number of images that could not be decoded."""
    chance = f"chance: R@1 {values['chance_r1']:.2g}"
    return f"{chance}\n{values['undecodable']:,.0f} undecodable" if values.get("undecodable") else chance
