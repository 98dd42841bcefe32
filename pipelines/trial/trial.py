"""`altalign trial CONFIG`: the text stages in full, then a sample of the images, and what follows for all of them.

A later curation goes on from the text stages. The sample is fetched by this process, whichever engine the run has.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.table import Table

from altalign import __version__, storage, terminal
from altalign.data.reasons import KEPT, Stage
from altalign.data.stages import STAGES, own_files
from altalign.errors import UsageError
from altalign.pipelines import curate
from altalign.pipelines.engine.options import options
from altalign.pipelines.opening import reopen
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.opening.reopen import Grounds, grounds_of, recording
from altalign.pipelines.run import outputs
from altalign.pipelines.run.image_tables import FETCHED
from altalign.pipelines.run.text_tables import GROUPED
from altalign.pipelines.run.units import FOLDER, Run, Sampled
from altalign.pipelines.trial import prediction, sample
from altalign.pipelines.trial.prediction import BYTES, HOURS, SHARD_BYTES, Estimate, Prediction, Quantity
from altalign.settings.curate import CurateConfig
from altalign.terminal import many, shown

TEXT_STAGES, SAMPLE_STAGES = STAGES[:3], STAGES[3:]
_CPU = "cpu.json"
_UNITS = ((1e12, "T", 1e12), (1e9, "G", 1e9), (1e6, "M", 1e6), (1e4, "k", 1e3))


@dataclass(frozen=True)
class Trial:
    """A trial that is done."""

    run: Run  # that was tried; its text stages are done
    counted: list[dict[str, Any]]  # the pairs of the text stages by reason: they are counted, not estimated
    requested: int = 0  # images that this sample asked for, and no earlier one
    prediction: Prediction | None = None  # None where no pair passed the text rules


def run_trial(config: CurateConfig, images: int, seed: int, flags: Sequence[str], *, config_path: str) -> Trial:
    """Try a curation on about so many images, or go on with a trial; `flags` go to Beam, for the text stages.

    `config_path` is the file of the settings, for errors.
    """
    _check_not_begun(find_run(config, config_path=config_path))
    until_judge = curate.Request(until=TEXT_STAGES[-1], rerun="", flags=flags)
    run = curate.curate(config, until_judge, config_path=config_path)
    with storage.locked(run.folder), own_files(run.folder):
        _check_not_begun(run)
        counts, grounds = outputs.counts_of(run), grounds_of(run.config, run.files, run.modules)
        counted = [
            {"stage": stage.value, "reason": reason, "pairs": pairs}
            for stage in outputs.counted_stages(run)
            if stage.value in TEXT_STAGES
            for reason, pairs in [*counts.dropped(stage).items(), (KEPT, counts.kept(stage))]
        ]
        drawn_from = _sample(run, grounds, images, seed)
        if not any(facts.row_groups for _, facts in run.all_facts(GROUPED)):
            return Trial(run, counted)
        sample.draw(drawn_from, images, seed)
        if not any(facts.row_groups for _, facts in drawn_from.all_facts(GROUPED)):
            raise UsageError(f"--images {images}: no image was drawn of {run.folder}; give more, or another --seed")
        with storage.temporary(drawn_from.work("temporary")):
            for stage in SAMPLE_STAGES:
                _do(drawn_from, stage, grounds[stage])
        pool = sample.hosts(drawn_from)
        image_ids, drawn = sample.drawn(drawn_from, pool, images)
        outcomes = prediction.of_sample(drawn_from, image_ids)
        cpu_s: dict[str, float] = storage.read_json(drawn_from.path(_CPU))
        predicted = prediction.predict(run.config, drawn, pool, outcomes, cpu_s)
        return Trial(run, counted, outcomes.requested, predicted)


def _check_not_begun(run: Run) -> None:
    """Refuse a run whose images are being fetched, or were."""
    if storage.exists(run.path("manifest.json")):
        raise UsageError(f"{run.folder}: finished: its counts are exact, and there is nothing to try")
    units = run.work(*FETCHED.step.split("/"))
    if storage.kind(units) == "folder" and (run.finished(FETCHED.step) or storage.names(units, ".journal")):
        raise UsageError(
            f"{run.folder}: its images are being fetched already; `altalign curate` goes on with it, and `altalign "
            "status` shows how far it is"
        )


def _sample(run: Run, grounds: Mapping[str, Grounds], images: int, seed: int) -> Sampled:
    """The run of the sample, opened for work."""
    drawn_from = json.dumps([grounds[TEXT_STAGES[-1]].digest, images, seed])
    name = hashlib.sha256(drawn_from.encode()).hexdigest()[:12]
    audit = run.config.audit.model_copy(update={"keep_dropped": True})
    dedup = run.config.dedup.model_copy(update={"within_pool": "off"})  # a sample of pairs has few pairs
    workers = run.config.engine.workers if run.config.engine.runner == "embedded" else 0
    engine = run.config.engine.model_copy(update={"runner": "embedded", "workers": workers})
    config = run.config.model_copy(update={"audit": audit, "dedup": dedup, "engine": engine})
    opened = Sampled(run.work(FOLDER, name), config, run.files, run.modules, whole=run)
    recorded: dict[str, Any] = storage.read_json(opened.path("run.json")).get("stages", {})
    stale = (stage for stage in SAMPLE_STAGES if recorded.get(stage, {}).get("digest", "") != grounds[stage].digest)
    if recorded and (first := next(stale, None)):
        reopen.forget(opened, first)
        recorded = {stage: record for stage, record in recorded.items() if stage in STAGES[: STAGES.index(first)]}
    storage.write_sealed(opened.path("run.json"), reopen.of_this_call(config, recorded))
    return opened


def _do(sampled: Sampled, stage: str, grounds: Grounds) -> None:
    """Run the steps of a stage on the sample, and note their CPU seconds."""
    with recording(sampled, stage, grounds):
        for step in curate.PIPELINE[stage][0]:
            name = step.marks.step
            before, begin_s = len(sampled.finished(name)), time.process_time()  # this process does all the work
            in_threads = step._replace(seconds=lambda _run, _units: 0.0)
            curate.run_step(sampled, in_threads, options(sampled.config.engine, []))
            units = len(sampled.finished(name))
            if units > before:  # units of an earlier try took about as long as these
                known = storage.read_json(sampled.path(_CPU))
                known[name] = (time.process_time() - begin_s) * units / (units - before)
                storage.write_json(sampled.path(_CPU), known)


# The report ----------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A stage and reason, with pairs and images and their intervals in words; empty where nothing is known."""

    stage: str
    reason: str
    pairs: str
    pairs_interval: str = ""
    images: str = ""
    images_interval: str = ""


def conclude(trial: Trial, page: bytes, images: int, seed: int) -> int:
    """Write page and `trial.json`, and print the same; returns the exit code."""
    facts: dict[str, Any] = {
        "altalign": __version__,
        "run": trial.run.folder,
        "counted": trial.counted,
        "sample": {"asked_for": images, "seed": seed},
    }
    if predicted := trial.prediction:
        names, of_hosts, pairs = predicted.pool
        tried = {"images": predicted.images, "pairs": predicted.pairs, "images_asked_for_now": trial.requested}
        facts["sample"] |= tried
        facts["pool"] = {"hosts": len(names), "images": int(of_hosts.sum()), "pairs": int(pairs.sum())}
        facts |= {"predicted": prediction.rows(predicted), "notes": _notes(trial)}
    paths = [trial.run.path("trial", name) for name in ("trial.json", "report.html")]
    storage.write_bytes(paths[1], page)
    storage.write_json(paths[0], facts)
    out = terminal.stdout()
    out.print(_lead(trial), highlight=False, soft_wrap=True)
    table = _table("stage", "pairs", "95 %", "images", "95 %")
    for line in lines(trial):
        name = f"{line.stage} {line.reason}" if line.reason in (KEPT, "received") else f"  {line.reason}"
        table.add_row(name, *line[2:], style="green" if line.reason == KEPT else None)
    out.print(table)
    if amounts := _amounts(trial):
        table = _table("", "in all", "95 %")
        for row in amounts:
            table.add_row(*row)
        out.print(table)
    for text in (*_notes(trial), *map(shown, paths)):
        out.print(text, highlight=False, soft_wrap=True)
    return 0 if predicted else 1


def for_page(trial: Trial) -> dict[str, Any]:
    """What the page shows."""
    return {"lead": _lead(trial), "lines": lines(trial), "amounts": _amounts(trial), "notes": _notes(trial)}


def _lead(trial: Trial) -> str:
    """The result in a sentence."""
    predicted, folder = trial.prediction, shown(trial.run.folder)
    if predicted is None:
        return f"{folder}: no pair passes the text rules, so there is nothing to fetch"
    kept = predicted.estimates[Quantity(Stage.DECONTAMINATE.value, KEPT, "pairs")]
    images, hosts = int(predicted.pool.images.sum()), len(predicted.pool.names)
    tried = f"{predicted.images:,} of {many(images, 'image')} of {many(hosts, 'host')} were tried"
    pairs, interval = f"{_short(kept.value)} pairs will be kept", _interval(kept)
    return f"{folder}: {tried}; " + (f"about {pairs} ({interval})" if interval else pairs)


def lines(trial: Trial) -> list[Line]:
    """A line for each stage and reason, in the order of stages."""
    result = list[Line]()
    for stage in dict.fromkeys(row["stage"] for row in trial.counted):
        of_stage = [row for row in trial.counted if row["stage"] == stage]
        result.append(Line(stage, "received", _short(sum(row["pairs"] for row in of_stage))))
        result += [Line(stage, row["reason"], _short(row["pairs"])) for row in of_stage]
    if (predicted := trial.prediction) is None:
        return result
    result[-1] = result[-1]._replace(images=_short(predicted.pool.images.sum()))
    for name, pairs in predicted.estimates.items():
        if name.of == "pairs":
            images = predicted.estimates[name._replace(of="images")]
            intervals = ["" if name in predicted.is_rare else _interval(value) for value in (pairs, images)]
            values = _short(pairs.value), intervals[0], _short(images.value), intervals[1]
            result.append(Line(name.stage, name.reason, *values))
    return result


def _amounts(trial: Trial) -> list[tuple[str, str, str]]:
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


def _notes(trial: Trial) -> list[str]:
    """What a reader has to know."""
    if trial.prediction is None:
        return []
    notes = list[str]()
    if trial.run.config.dedup.within_pool != "off":
        notes.append("dedup.within_pool drops pairs that a sample cannot show: what is left is at most this")
    if not trial.prediction.is_timed:
        notes.append("CPU seconds are not in the hours: an earlier trial fetched most of the images")
    return [*notes, "intervals are of the sampling alone: hosts may answer otherwise another day"]


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
