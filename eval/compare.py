"""Which of two models is better, by the same images of the same sets: `altalign eval A B`."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UsageError
from altalign.eval import outcomes
from altalign.eval.evaluation import MEASURES
from altalign.eval.image_sources import reading
from altalign.eval.outcomes import Difference, Outcomes, chosen
from altalign.eval.results import outcomes_path
from altalign.terminal import shown

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Compared:
    """Two models on a set."""

    name: str  # TASK/NAME
    metric: str  # what stands for the set
    images: int  # how many both were measured on
    of_one: int  # how many only one of them was
    a: dict[str, float]  # metrics of the first on these images
    b: dict[str, float]  # of the second
    differences: dict[str, Difference]  # of the first less those of the second


def compare(a: str, b: str, *, resamples: int) -> list[Compared]:
    """The sets that both evaluations have.

    Raises UsageError: one is no evaluation, or they have no set in common.

    Args:
        a: the folder of an evaluation, or a training run: of its newest evaluation.
        b: as `a`.
        resamples: how often images are drawn anew, and outcomes exchanged.
    """
    places = [_place(folder) for folder in (a, b)]
    names = [set(_measured(place)) for place in places]
    compared = [
        found for name in sorted(names[0] & names[1]) if (found := _compared(name, places, resamples)) is not None
    ]
    if not compared:
        raise UsageError(f"{a} and {b} have no image of one set in common; evaluate both with the same --sets")
    return compared


def write(path: str, compared: list[Compared]) -> None:
    """Write comparison.json."""
    storage.write_json(path, {each.name: asdict(each) for each in compared})


def table(compared: list[Compared]) -> "Table":
    """A row a set: its metric of both, the difference, its interval and its p."""
    from rich.table import Table

    rows = Table()
    rows.add_column("set, metric", overflow="fold")
    for name in ("images", "A", "B", "A - B", "95 %", "p"):
        rows.add_column(name, justify="right")
    for each in compared:
        of = each.differences[each.metric]
        rows.add_row(
            f"{shown(each.name)}\n{each.metric}" + (f"\n{each.of_one:,} of one alone" if each.of_one else ""),
            f"{each.images:,}",
            f"{each.a[each.metric]:.1f}",
            f"{each.b[each.metric]:.1f}",
            f"{of.value:+.1f}",
            f"{of.low:+.1f} to\n{of.high:+.1f}",
            f"{of.p:.3f}",
        )
    return rows


def _place(folder: str) -> str:
    if storage.exists(storage.join(folder, "sets.json")):
        return folder
    steps = sorted(name for name in storage.entries(storage.join(folder, "eval")) if name.startswith("step-"))
    places = [storage.join(folder, "eval", name) for name in steps]
    found = [place for place in places if storage.exists(storage.join(place, "sets.json"))]
    if not found:
        raise UsageError(f"{folder}: no evaluation with --sets is there; make one, or give its folder")
    return found[-1]


def _measured(place: str) -> Iterator[str]:
    for name, about in storage.read_json(storage.join(place, "sets.json")).items():
        if "missing" not in about and name.partition("/")[0] in MEASURES:
            yield name


def _compared(name: str, places: list[str], resamples: int) -> Compared | None:
    (names_a, of_a), (names_b, of_b) = (_outcomes(outcomes_path(place, name)) for place in places)
    _, rows_a, rows_b = np.intersect1d(names_a, names_b, return_indices=True)
    if not len(rows_a):
        return None
    a, b, measure = chosen(of_a, rows_a), chosen(of_b, rows_b), MEASURES[name.partition("/")[0]]
    about = storage.read_json(storage.join(places[0], "sets.json"))[name]
    return Compared(
        name,
        about["metric"],
        len(rows_a),
        len(names_a) + len(names_b) - 2 * len(rows_a),
        measure(a),
        measure(b),
        outcomes.differences(a, b, measure, resamples=resamples),
    )


def _outcomes(path: str) -> tuple[np.ndarray, Outcomes]:
    """Names of images, and their outcomes."""
    with reading(path, "Parquet"), storage.open_read(path) as file:
        found = pq.read_table(file, use_threads=False)
    columns = {name: found[name].to_numpy() for name in found.column_names if name != "name"}
    return np.array(found["name"].to_pylist(), object), columns
