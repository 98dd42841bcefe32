"""Results of evaluators: files of an evaluation's folder, and tables for a terminal of 80 columns.

`metrics.json` has the numbers, TASK/NAME: {metric: value}; `sets.json` what belongs to them: intervals, what was left
out, which sets are missing; `outcomes/TASK-NAME.parquet` a row an image, which two evaluations are compared by.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.eval.evaluation import Evaluated, Evaluation
from altalign.eval.near_duplicates import Without
from altalign.terminal import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Metrics = Mapping[str, Mapping[str, float]]  # {"retrieval/NAME": {metric: value}}

_RETRIEVAL = "retrieval/"
_KS = (1, 5, 10)
_NAMED = 20  # things left out that sets.json names, of each reason


def write_metrics(path: str, metrics: Metrics) -> None:
    """Write metrics.json.

    Raises ValueError: a value is not a finite number, which JSON cannot hold; FullDiskError: no space is left.
    """
    for name, values in metrics.items():
        for metric, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"{name} {metric}: {value}")
    storage.write_json(path, {name: dict(values) for name, values in metrics.items()})


def metrics_of(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Metrics and facts of each set, as metrics.json has them."""
    return {each.name: {**each.result.metrics, **each.result.facts} for each in evaluation.evaluated}


def write(folder: str, evaluation: Evaluation) -> None:
    """Write outcomes, sets.json and metrics.json; sets that another evaluation has left there stay."""
    for each in evaluation.evaluated:
        columns = {"name": pa.array([each.images.names[row] for row in each.result.rows])}
        columns |= {name: pa.array(column) for name, column in each.result.outcomes.items()}
        with storage.write(outcomes_path(folder, each.name)) as file:
            pq.write_table(pa.table(columns), file)
    sets, metrics = storage.join(folder, "sets.json"), storage.join(folder, "metrics.json")
    about = {each.name: _about(each) for each in evaluation.evaluated}
    missing = {name: {"missing": why} for name, why in evaluation.missing.items()}
    storage.write_json(sets, {**storage.read_json(sets), **about, **missing})
    before = {name: values for name, values in storage.read_json(metrics).items() if name not in missing}
    write_metrics(metrics, {**before, **metrics_of(evaluation)})


def outcomes_path(folder: str, name: str) -> str:
    """Where the outcomes of TASK/NAME are."""
    return storage.join(folder, "outcomes", f"{name.replace('/', '-')}.parquet")


def _about(each: Evaluated) -> dict[str, object]:
    return {
        "metric": each.settings.metric,
        "settings": each.settings.model_dump(mode="json"),
        "intervals": {name: list(ends) for name, ends in each.intervals.items()},
        "without_near_duplicates": [
            {"run": one.run, "images": one.images, "metrics": one.metrics} for one in each.without
        ],
        "left_out": {
            reason: {"number": len(names), "names": list(names[:_NAMED])}
            for reason, names in each.result.left_out.items()
        },
    }


def show(evaluation: Evaluation, out: "Console", *, of: str) -> None:
    """Print the tables, the mean of each task, and the sets that are missing; `of` says of what, and where."""
    found = metrics_of(evaluation)
    if any(name.startswith(_RETRIEVAL) for name in found):
        out.print(retrieval_table(found))
    if evaluation.evaluated:
        out.print(scores_table(evaluation.evaluated))
    for mean in evaluation.means:
        out.print(f"{mean.task}: mean {mean.value:.1f} of {mean.sets:,} of {mean.of:,} sets")
    if not any(each.without for each in evaluation.evaluated):
        out.print("near-duplicates of these images in the training data: not known", soft_wrap=True)
    for name, why in evaluation.missing.items():
        out.print(f"missing: {shown(name)}: {shown(why)}", style="yellow", soft_wrap=True)
    sets = len(evaluation.evaluated) + len(evaluation.missing)
    out.print(f"{len(evaluation.evaluated):,} of {sets:,} sets; {of}", soft_wrap=True)


# Tables --------------------------------------------------------------------------------------------------------------


def scores_table(evaluated: Sequence[Evaluated]) -> "Table":
    """A row a set: its metric with the interval, and without near-duplicates where a run has looked for them."""
    from rich.table import Table

    table = Table()
    is_known = any(each.without for each in evaluated)
    table.add_column("set", overflow="fold")
    table.add_column("metric", overflow="fold")
    for name in ("images", "score", "95 %", *(["without near"] if is_known else [])):
        table.add_column(name, justify="right")
    for each in evaluated:
        metric = each.settings.metric
        ends = each.intervals.get(metric)
        table.add_row(
            shown(each.name) + "".join(f"\n{len(some):,} {why}" for why, some in each.result.left_out.items()),
            metric,
            f"{len(each.result.rows):,}",
            f"{each.score:.1f}",
            f"{ends[0]:.1f} to {ends[1]:.1f}" if ends else "",
            *(["\n".join(_without(one, metric) for one in each.without) or "not known"] if is_known else []),
        )
    return table


def _without(one: Without, metric: str) -> str:
    """The metric without near-duplicates, and how many images went."""
    value = f"{one.metrics[metric]:.1f}" if one.metrics else "none left"
    return f"{value} (-{one.images:,})"


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
