"""A trial as its user has it: `trial.json`, and the tables of the terminal and of the page."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from altalign import __version__
from altalign.data.reasons import KEPT, Stage
from altalign.pipelines.trial.bootstrap import Estimate
from altalign.pipelines.trial.prediction import BYTES, HOURS, SHARD_BYTES, Quantity, rows
from altalign.pipelines.trial.trial import Trial
from altalign.terminal import many, shown

FOLDER, FACTS, PAGE = "trial", "trial.json", "report.html"
_UNITS = ((1e12, "T", 1e12), (1e9, "G", 1e9), (1e6, "M", 1e6), (1e4, "k", 1e3))


class Line(NamedTuple):
    """A stage and reason, with pairs and images and their intervals in words; empty where nothing is known."""

    stage: str
    reason: str
    pairs: str
    pairs_interval: str = ""
    images: str = ""
    images_interval: str = ""


def facts(trial: Trial, asked_for: int, seed: int) -> dict[str, Any]:
    """The content of `trial.json`."""
    content: dict[str, Any] = {
        "altalign": __version__,
        "run": trial.run.folder,
        "counted": trial.counted,
        "sample": {"asked_for": asked_for, "seed": seed},
    }
    if (prediction := trial.prediction) is None:
        return content
    content["sample"] |= {
        "images": prediction.images,
        "pairs": prediction.pairs,
        "images_asked_for_now": trial.requested,
    }
    names, images, pairs = prediction.pool
    content["pool"] = {"hosts": len(names), "images": int(images.sum()), "pairs": int(pairs.sum())}
    return {**content, "predicted": rows(prediction), "notes": [*notes(trial)]}


def lead(trial: Trial) -> str:
    """The result in a sentence."""
    prediction, folder = trial.prediction, shown(trial.run.folder)
    if prediction is None:
        return f"{folder}: no pair passes the text rules, so there is nothing to fetch"
    kept = prediction.estimates[Quantity(Stage.DECONTAMINATE.value, KEPT, "pairs")]
    images, hosts = int(prediction.pool.images.sum()), len(prediction.pool.names)
    tried = f"{prediction.images:,} of {many(images, 'image')} of {many(hosts, 'host')} were tried"
    pairs, interval = f"{_short(kept.value)} pairs will be kept", _interval(kept)
    return f"{folder}: {tried}; " + (f"about {pairs} ({interval})" if interval else pairs)


def lines(trial: Trial) -> list[Line]:
    """A line for each stage and reason, in the order of stages."""
    result = list[Line]()
    for stage in dict.fromkeys(row["stage"] for row in trial.counted):
        of_stage = [row for row in trial.counted if row["stage"] == stage]
        result.append(Line(stage, "received", _short(sum(row["pairs"] for row in of_stage))))
        result += [Line(stage, row["reason"], _short(row["pairs"])) for row in of_stage]
    if (prediction := trial.prediction) is None:
        return result
    result[-1] = result[-1]._replace(images=_short(prediction.pool.images.sum()))
    for name, pairs in prediction.estimates.items():
        if name.of == "pairs":
            images = prediction.estimates[name._replace(of="images")]
            intervals = ["" if name in prediction.is_rare else _interval(value) for value in (pairs, images)]
            values = _short(pairs.value), intervals[0], _short(images.value), intervals[1]
            result.append(Line(name.stage, name.reason, *values))
    return result


def amounts(trial: Trial) -> list[tuple[str, str, str]]:
    """Name, value and interval of bytes and time."""
    result = list[tuple[str, str, str]]()
    for name, value in trial.prediction.estimates.items() if trial.prediction else ():
        if name.of in (BYTES, SHARD_BYTES) and value.most:
            result.append((name.of, _short(value.value), _interval(value)))
        elif name.of == HOURS:
            unit, size = ("hours", 1.0) if value.value >= 1 else ("minutes", 60.0)
            scaled = Estimate(*(amount * size for amount in value))
            result.append((f"{unit}, from fetching on", _short(scaled.value), _interval(scaled)))
    return result


def notes(trial: Trial) -> Iterator[str]:
    """What a reader has to know."""
    config, prediction = trial.run.config, trial.prediction
    if prediction is None:
        return
    if config.dedup.within_pool != "off":
        yield "dedup.within_pool drops pairs that a sample cannot show: what is left is at most this"
    if not prediction.is_timed:
        yield "CPU seconds are not in the hours: an earlier trial fetched most of the images"
    yield "intervals are of the sampling alone: hosts may answer otherwise another day"


def show(trial: Trial, out: Console) -> None:
    """Print the tables, in 80 columns."""
    out.print(lead(trial), highlight=False, soft_wrap=True)
    table = _table("stage", "pairs", "95 %", "images", "95 %")
    for line in lines(trial):
        name = f"{line.stage} {line.reason}" if line.reason in (KEPT, "received") else f"  {line.reason}"
        table.add_row(name, *line[2:], style="green" if line.reason == KEPT else None)
    out.print(table)
    if of_all := amounts(trial):
        table = _table("", "in all", "95 %")
        for row in of_all:
            table.add_row(*row)
        out.print(table)
    for note in notes(trial):
        out.print(note, highlight=False, soft_wrap=True)


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", overflow="fold")
    return table


def _short(value: float) -> str:
    """A number in three or four digits: 9,876, 12.3k, 1.23M."""
    for least, unit, size in _UNITS:
        if value >= least:
            return f"{value / size:.{max(0, 3 - len(str(int(value / size))))}f}{unit}"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _interval(value: Estimate) -> str:
    return f"{_short(value.least)}–{_short(value.most)}" if value.least < value.most else ""
