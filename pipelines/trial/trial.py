"""`altalign trial CONFIG`: the text stages in full, then a sample of the images, and what follows for all of them.

A later curation goes on from the text stages. The sample is fetched by this process, whichever engine the run has.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
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
from altalign.pipelines.trial.prediction import BYTES, HOURS, SHARD_BYTES
from altalign.settings.curate import CurateConfig
from altalign.terminal import many, shown

TEXT_STAGES, SAMPLE_STAGES = STAGES[:3], STAGES[3:]
_CPU = "cpu.json"
_UNITS = ((1e12, "T", 1e12), (1e9, "G", 1e9), (1e6, "M", 1e6), (1e4, "k", 1e3))

Facts = dict[str, Any]  # of trial.json; no `predicted` where no pair passed the text rules


def run_trial(config: CurateConfig, images: int, seed: int, flags: Sequence[str], *, config_path: str) -> Facts:
    """Try a curation on about so many images, or go on with a trial; `flags` go to Beam, for the text stages.

    `config_path` is the file of the settings, for errors.
    """
    before = find_run(config, config_path=config_path)  # looked at before any of its stages is done anew
    if storage.exists(before.path("manifest.json")):
        raise UsageError(f"{before.folder}: finished: its counts are exact, and there is nothing to try")
    units = before.work(*FETCHED.step.split("/"))
    if storage.kind(units) == "folder" and (before.finished(FETCHED.step) or storage.names(units, ".journal")):
        raise UsageError(
            f"{before.folder}: its images are being fetched already; `altalign curate` goes on with it, and `altalign "
            "status` shows how far it is"
        )
    until_judge = curate.Request(until=TEXT_STAGES[-1], rerun="", flags=flags)
    run = curate.curate(config, until_judge, config_path=config_path)
    with storage.locked(run.folder), own_files(run.folder):
        counts, grounds = outputs.counts_of(run), grounds_of(run.config, run.files, run.modules)
        counted = [
            {"stage": stage.value, "reason": reason, "pairs": pairs}
            for stage in outputs.counted_stages(run)
            if stage.value in TEXT_STAGES
            for reason, pairs in [*counts.dropped(stage).items(), (KEPT, counts.kept(stage))]
        ]
        facts: Facts = {
            "altalign": __version__,
            "run": run.folder,
            "counted": counted,
            "sample": {"asked_for": images, "seed": seed},
        }
        drawn_from = _sample(run, grounds, images, seed)
        if not any(unit.row_groups for _, unit in run.all_facts(GROUPED)):
            return facts
        sample.draw(drawn_from, images, seed)
        if not any(unit.row_groups for _, unit in drawn_from.all_facts(GROUPED)):
            raise UsageError(f"--images {images}: no image was drawn of {run.folder}; give more, or another --seed")
        with storage.temporary(drawn_from.work("temporary")):
            for stage in SAMPLE_STAGES:
                _do(drawn_from, stage, grounds[stage])
        pool = sample.hosts(drawn_from)
        image_ids, drawn = sample.drawn(drawn_from, pool, images)
        outcomes = prediction.of_sample(drawn_from, image_ids)
        predicted = prediction.predict(run.config, drawn, pool, outcomes, storage.read_json(drawn_from.path(_CPU)))
    facts["sample"] |= {
        "images": len(image_ids),
        "pairs": int(drawn.pairs.sum()),
        "images_asked_for_now": outcomes.requested,
    }
    facts["pool"] = {"hosts": len(pool.names), "images": int(pool.images.sum()), "pairs": int(pool.pairs.sum())}
    notes = []
    if run.config.dedup.within_pool != "off":
        notes.append("dedup.within_pool drops pairs that a sample cannot show: what is left is at most this")
    if not predicted.is_timed:
        notes.append("CPU seconds are not in the hours: an earlier trial fetched most of the images")
    notes.append("intervals are of the sampling alone: hosts may answer otherwise another day")
    return facts | {"predicted": predicted.rows, "notes": notes}


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


def for_page(facts: Facts) -> dict[str, Any]:
    """What the page and the terminal show.

    `lead` is the result in a sentence, `lines` has a line for each stage and reason, `amounts` name, value and interval
    of bytes and time, `notes` what a reader has to know.
    """
    lines, amounts = list[Line](), list[tuple[str, str, str]]()
    for stage, rows in groupby(facts["counted"], key=lambda row: row["stage"]):
        of_stage = list(rows)
        lines.append(Line(stage, "received", _short(sum(row["pairs"] for row in of_stage))))
        lines += [Line(stage, row["reason"], _short(row["pairs"])) for row in of_stage]
    folder = shown(facts["run"])
    if "predicted" not in facts:
        lead = f"{folder}: no pair passes the text rules, so there is nothing to fetch"
        return {"lead": lead, "lines": lines, "amounts": amounts, "notes": []}
    lines[-1] = lines[-1]._replace(images=_short(facts["pool"]["images"]))
    predicted = {(row["stage"], row["reason"], row["of"]): row for row in facts["predicted"]}
    for (stage, reason, of), row in predicted.items():
        value, unit = row["value"], 1.0
        if of == "pairs":
            images = predicted[stage, reason, "images"]
            both = _short(value), _interval(row), _short(images["value"]), _interval(images)
            lines.append(Line(stage, reason, *both))
        elif of == HOURS:
            name, unit = ("hours", 1.0) if value >= 1 else ("minutes", 60.0)
            amounts.append((f"{name}, from fetching on", _short(value * unit), _interval(row, unit)))
        elif of in (BYTES, SHARD_BYTES) and value:
            amounts.append((of, _short(value), _interval(row)))
    kept = predicted[Stage.DECONTAMINATE.value, KEPT, "pairs"]
    of_pool = f"{many(facts['pool']['images'], 'image')} of {many(facts['pool']['hosts'], 'host')}"
    pairs, interval = f"{_short(kept['value'])} pairs will be kept", _interval(kept)
    result = f"about {pairs} ({interval})" if interval else pairs
    lead = f"{folder}: {facts['sample']['images']:,} of {of_pool} were tried; {result}"
    return {"lead": lead, "lines": lines, "amounts": amounts, "notes": facts["notes"]}


def conclude(facts: Facts, page: bytes) -> int:
    """Write page and `trial.json`, and print the same; returns the exit code."""
    paths = [storage.join(facts["run"], "trial", name) for name in ("trial.json", "report.html")]
    storage.write_bytes(paths[1], page)
    storage.write_json(paths[0], facts)
    out, words = terminal.stdout(), for_page(facts)
    out.print(words["lead"], highlight=False, soft_wrap=True)
    table, amounts = _table("stage", "pairs", "95 %", "images", "95 %"), _table("", "in all", "95 %")
    for line in words["lines"]:
        name = f"{line.stage} {line.reason}" if line.reason in (KEPT, "received") else f"  {line.reason}"
        table.add_row(name, *line[2:], style="green" if line.reason == KEPT else None)
    out.print(table)
    for row in words["amounts"]:
        amounts.add_row(*row)
    if words["amounts"]:
        out.print(amounts)
    for text in (*words["notes"], *map(shown, paths)):
        out.print(text, highlight=False, soft_wrap=True)
    return 0 if "predicted" in facts else 1


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


def _interval(row: Mapping[str, Any], unit: float = 1.0) -> str:
    if row["least"] is None or row["least"] >= row["most"]:
        return ""
    return f"{_short(row['least'] * unit)}–{_short(row['most'] * unit)}"
