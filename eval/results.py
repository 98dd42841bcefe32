"""Results of evaluators: files of an evaluation's folder, its page, tables for a terminal, and two models compared.

`metrics.json` has the numbers, TASK/NAME: {metric: value}; `sets.json` what belongs to them: intervals, what was left
out, which sets are missing; `outcomes/TASK-NAME.parquet` a row an image, which two evaluations are compared by; and
`eval.html` shows them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UsageError
from altalign.eval import outcomes
from altalign.eval.evaluation import MEASURES, Evaluated, Evaluation
from altalign.eval.image_sources import reading
from altalign.eval.outcomes import Difference, chosen
from altalign.pages import frame
from altalign.terminal import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Metrics = Mapping[str, Mapping[str, float]]  # {"retrieval/NAME": {metric: value}}

_RETRIEVAL = "retrieval/"
_NAMED = 20  # things left out that sets.json names, of each reason
_HERE, _STYLES = Path(__file__).parent, ("page.css", "evaluation.css")


def write_metrics(path: str, metrics: Metrics) -> None:
    """Write metrics.json. Raises ValueError: a value is not a finite number, which JSON cannot hold."""
    json.dumps(metrics, allow_nan=False)
    storage.write_json(path, metrics)


def write(folder: str, evaluation: Evaluation, *, model: str) -> None:
    """Write outcomes, sets.json, metrics.json and the page; sets that another evaluation has left there stay."""
    about: dict[str, object] = {}
    for each in evaluation.evaluated:
        columns = {"name": pa.array([each.result.images.names[row] for row in each.result.rows])}
        columns |= {name: pa.array(column) for name, column in each.result.outcomes.items()}
        with storage.write(_outcomes_path(folder, each.name)) as file:
            pq.write_table(pa.table(columns), file)
        left_out = each.result.left_out.items()
        about[each.name] = {
            "metric": each.settings.metric,
            "settings": each.settings.model_dump(mode="json"),
            "intervals": {name: list(ends) for name, ends in each.intervals.items()},
            "without_near_duplicates": [one._asdict() for one in each.without],
            "left_out": {reason: {"number": len(names), "names": list(names[:_NAMED])} for reason, names in left_out},
        }
    sets, metrics = storage.join(folder, "sets.json"), storage.join(folder, "metrics.json")
    missing = {name: {"missing": why} for name, why in evaluation.missing.items()}
    storage.write_json(sets, {**storage.read_json(sets), **about, **missing})
    before = {name: values for name, values in storage.read_json(metrics).items() if name not in missing}
    write_metrics(metrics, {**before, **_metrics_of(evaluation)})
    page = frame.rendered(_HERE, "evaluation.html", styles=_STYLES, evaluation=evaluation, model=model)
    storage.write_bytes(storage.join(folder, "eval.html"), page)


def _metrics_of(evaluation: Evaluation) -> Metrics:
    return {each.name: {**each.result.metrics, **each.result.facts} for each in evaluation.evaluated}


def _outcomes_path(folder: str, name: str) -> str:
    return storage.join(folder, "outcomes", f"{name.replace('/', '-')}.parquet")


def show(evaluation: Evaluation, out: "Console", *, model: str) -> None:
    """Print the tables, the mean of each task, and the sets that are missing; then the model, and where results are."""
    metrics = _metrics_of(evaluation)
    if any(name.startswith(_RETRIEVAL) for name in metrics):
        out.print(retrieval_table(metrics))
    if evaluation.evaluated:
        out.print(_scores_table(evaluation.evaluated))
    for line in evaluation.means:
        out.print(line)
    if not any(each.without for each in evaluation.evaluated):
        out.print("near-duplicates of these images in the training data: not known", soft_wrap=True)
    for name, why in evaluation.missing.items():
        out.print(f"missing: {shown(name)}: {shown(why)}", style="yellow", soft_wrap=True)
    sets = len(evaluation.evaluated) + len(evaluation.missing)
    out.print(f"{len(evaluation.evaluated):,} of {sets:,} sets; {model}", soft_wrap=True)


# Tables of 80 columns ------------------------------------------------------------------------------------------------


def _table(texts: Sequence[str], numbers: Sequence[str]) -> "Table":
    from rich.table import Table  # takes a tenth of a second, for which --help need not wait

    table = Table()
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _scores_table(evaluated: Sequence[Evaluated]) -> "Table":
    """A row a set: its metric with the interval, and without near-duplicates where a run has looked for them."""
    is_known = any(each.without for each in evaluated)
    table = _table(("set", "metric"), ("images", "score", "95 %", *(["without near"] if is_known else [])))
    for each in evaluated:
        metric = each.settings.metric
        low, high = each.intervals[metric]
        cells = [
            shown(each.name) + "".join(f"\n{len(some):,} {why}" for why, some in each.result.left_out.items()),
            metric,
            f"{len(each.result.rows):,}",
            f"{each.score:.1f}",
            f"{low:.1f} to {high:.1f}",
        ]
        if is_known:
            scores = [f"{one.metrics[metric]:.1f}" if one.metrics else "none left" for one in each.without]
            apart = [f"{score} (-{one.images:,})" for score, one in zip(scores, each.without, strict=True)]
            cells.append("\n".join(apart) or "not known")
        table.add_row(*cells)
    return table


def retrieval_table(metrics: Metrics) -> "Table":
    """Retrieval in percent, two rows for each set: captions searched by images, and images searched by captions."""
    table = _table(("set", "search"), ("of", "R@1", "R@5", "R@10", "sum"))
    for name, values in metrics.items():
        if name.startswith(_RETRIEVAL):
            cells = list[list[str]]()
            for direction, searched in (("image_to_text", "captions"), ("text_to_image", "images")):
                recalls = [values[f"{direction}_r{k}"] for k in (1, 5, 10)]
                cells.append([f"{values[searched]:,.0f}", *(f"{one:.1f}" for one in (*recalls, sum(recalls)))])
            below = f"chance: R@1 {values['chance_r1']:.2g}"
            below += f"\n{values['undecodable']:,.0f} undecodable" if values.get("undecodable") else ""
            table.add_row(shown(name.removeprefix(_RETRIEVAL)), "captions by image", *cells[0])
            table.add_row(below, "images by caption", *cells[1], end_section=True)
    return table


# Two models on the same images of the same sets: `altalign eval A B` -------------------------------------------------


class Compared(NamedTuple):
    """Two models on a set."""

    name: str  # TASK/NAME
    metric: str  # what stands for the set
    images: int  # how many both were measured on
    of_one: int  # how many only one of them was
    a: dict[str, float]  # metrics of the first on these images
    b: dict[str, float]  # of the second
    differences: dict[str, Difference]  # of the first less those of the second


def compare(a: str, b: str, *, resamples: int = outcomes.RESAMPLES) -> list[Compared]:
    """The sets that two evaluations have: their folders, or training runs, of which the newest evaluation is meant."""
    places, compared = [_place(folder) for folder in (a, b)], list[Compared]()
    abouts = [storage.read_json(storage.join(place, "sets.json")) for place in places]
    for name in sorted(abouts[0].keys() & abouts[1].keys()):
        measure = MEASURES.get(name.partition("/")[0])
        if measure is None or any("missing" in about[name] for about in abouts):
            continue
        tables = list[pa.Table]()
        for path in (_outcomes_path(place, name) for place in places):
            with reading(path, "Parquet"), storage.open_read(path) as file:
                tables.append(pq.read_table(file, use_threads=False))
        names_a, names_b = (np.array(table["name"].to_pylist(), object) for table in tables)
        of_a, of_b = ({one: table[one].to_numpy() for one in table.column_names if one != "name"} for table in tables)
        _, rows_a, rows_b = np.intersect1d(names_a, names_b, return_indices=True)
        if len(rows_a):
            first, second = chosen(of_a, rows_a), chosen(of_b, rows_b)
            of_one = len(names_a) + len(names_b) - 2 * len(rows_a)
            differences = outcomes.differences(first, second, measure, resamples=resamples)
            both = measure(first), measure(second)
            compared.append(Compared(name, abouts[0][name]["metric"], len(rows_a), of_one, *both, differences))
    if not compared:
        raise UsageError(f"{a} and {b} have no image of one set in common; evaluate both with the same --sets")
    return compared


def _place(folder: str) -> str:
    steps = sorted(name for name in storage.entries(storage.join(folder, "eval")) if name.startswith("step-"))
    for place in [folder, *(storage.join(folder, "eval", name) for name in reversed(steps))]:
        if storage.exists(storage.join(place, "sets.json")):
            return place
    raise UsageError(f"{folder}: no evaluation with --sets is there; make one, or give its folder")


def write_comparison(folder: str, compared: Sequence[Compared], *, a: str, b: str) -> None:
    """Write comparison.json and comparison.html."""
    values: dict[str, Any] = {each.name: each._asdict() for each in compared}
    for each in compared:
        values[each.name]["differences"] = {name: one._asdict() for name, one in each.differences.items()}
    storage.write_json(storage.join(folder, "comparison.json"), values)
    page = frame.rendered(_HERE, "models.html", styles=_STYLES, compared=compared, a=a, b=b)
    storage.write_bytes(storage.join(folder, "comparison.html"), page)


def comparison_table(compared: Sequence[Compared]) -> "Table":
    """A row a set: its metric of both, the difference, its interval and its p."""
    table = _table(("set, metric",), ("images", "A", "B", "A - B", "95 %", "p"))
    for each in compared:
        difference = each.differences[each.metric]
        table.add_row(
            f"{shown(each.name)}\n{each.metric}" + (f"\n{each.of_one:,} of one alone" if each.of_one else ""),
            f"{each.images:,}",
            f"{each.a[each.metric]:.1f}",
            f"{each.b[each.metric]:.1f}",
            f"{difference.value:+.1f}",
            f"{difference.low:+.1f} to\n{difference.high:+.1f}",
            f"{difference.p:.3f}",
        )
    return table
