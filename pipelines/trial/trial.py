"""`altalign trial CONFIG`: the text stages in full, then a sample of the images, and what follows for all of them.

A later curation goes on from the text stages. The sample is fetched by this process, whichever engine the run has.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

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
from altalign.settings.curate import CurateConfig
from altalign.terminal import many, shown

TEXT_STAGES, SAMPLE_STAGES = STAGES[:3], STAGES[3:]
_LEAST_HOURS = 0.01  # that are told apart
_CPU = "cpu.json"

Facts = dict[str, Any]  # of trial.json; no `predicted` where no pair passed the text rules


def trial(config: CurateConfig, images: int, seed: int, flags: Sequence[str], *, config_path: str) -> int:
    """Try a curation on about so many images, or go on with a trial, and print what follows; returns the exit code.

    `flags` go to Beam, for the text stages; `config_path` is the file of the settings, for errors.
    """
    facts = _measured(config, images, seed, flags, config_path)
    path = storage.join(facts["run"], "trial", "trial.json")
    storage.write_json(path, facts)
    _show(facts)
    terminal.stdout().print(shown(path), soft_wrap=True)
    return 0 if "predicted" in facts else 1


def _measured(config: CurateConfig, images: int, seed: int, flags: Sequence[str], config_path: str) -> Facts:
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
        pool = sample.count_hosts(run)
        sample.draw(drawn_from, pool, images, seed)
        if not any(unit.row_groups for _, unit in drawn_from.all_facts(GROUPED)):
            raise UsageError(f"--images {images}: no image was drawn of {run.folder}; give more, or another --seed")
        with storage.temporary(drawn_from.work("temporary")):
            for stage in SAMPLE_STAGES:
                _do(drawn_from, stage, grounds[stage])
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
    if outcomes.requested_share < prediction.ASKED_AT_LEAST:
        notes.append("CPU seconds of fetching are not in the hours: an earlier trial fetched most of the images")
    notes.append("intervals are of the sampling alone: hosts may answer otherwise another day")
    return facts | {"predicted": predicted, "notes": notes}


def _sample(run: Run, grounds: Mapping[str, Grounds], images: int, seed: int) -> Sampled:
    """The run of the sample, opened for work; with other settings it is another one, which takes over what came."""
    stamps = [stamp.to_json() for stamp in run.stamps()]  # grounds name files, and not what is in them
    drawn_from = json.dumps([grounds[STAGES[-1]].digest, stamps, images, seed])
    name = hashlib.sha256(drawn_from.encode()).hexdigest()[:12]
    audit = run.config.audit.model_copy(update={"keep_dropped": True})
    dedup = run.config.dedup.model_copy(update={"within_pool": "off"})  # a sample of pairs has few pairs
    workers = run.config.engine.workers if run.config.engine.runner == "embedded" else 0
    engine = run.config.engine.model_copy(update={"runner": "embedded", "workers": workers})
    config = run.config.model_copy(update={"audit": audit, "dedup": dedup, "engine": engine})
    opened = Sampled(run.work(FOLDER, name), config, run.files, run.modules, whole=run)
    recorded = storage.read_json(opened.path("run.json")).get("stages", {})
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


def _show(facts: Facts) -> None:
    """Print the counts of the text stages, what is predicted of the others, and amounts of bytes and time."""
    out, table = terminal.stdout(), Table(box=None, padding=(0, 1), pad_edge=False)
    for number, head in enumerate(("stage", "pairs", "95 %", "images", "95 %")):
        table.add_column(head, justify="right" if number else "left", overflow="fold")
    predicted = {(row["stage"], row["reason"], row["of"]): row for row in facts.get("predicted", [])}
    of_pairs = [(row["stage"], row["reason"], [f"{row['pairs']:,}"]) for row in facts["counted"]]
    for (stage, reason, of), row in predicted.items():
        if of == "pairs":
            images = predicted[stage, reason, "images"]
            of_pairs.append((stage, reason, [*_words(row), *_words(images)]))
    for stage, reason, words in of_pairs:
        is_kept = reason == KEPT
        table.add_row(f"{stage} kept" if is_kept else f"  {reason}", *words, style="green" if is_kept else None)
    lead = "no pair passes the text rules, so there is nothing to fetch"
    if predicted:
        value, interval = _words(predicted[Stage.DECONTAMINATE.value, KEPT, "pairs"])
        result = f"about {value} pairs will be kept ({interval})" if interval else f"{value} pairs will be kept"
        of_pool = f"{many(facts['pool']['images'], 'image')} of {many(facts['pool']['hosts'], 'host')}"
        lead = f"{facts['sample']['images']:,} of {of_pool} were tried; {result}"
    out.print(f"{shown(facts['run'])}: {lead}", soft_wrap=True)
    out.print(table)
    for (_, _, of), row in predicted.items():
        if of not in ("pairs", "images") and row["value"]:
            value, interval = _words(row)
            if of == prediction.HOURS and (row["most"] or row["value"]) < _LEAST_HOURS:
                value, interval = f"less than {_LEAST_HOURS:g}", ""
            out.print(f"{of}: {value}{f' ({interval})' if interval else ''}", soft_wrap=True)
    for note in facts.get("notes", []):
        out.print(note, soft_wrap=True)


def _words(row: Mapping[str, Any]) -> tuple[str, str]:
    """A predicted value and its interval, in three digits; an empty interval where there is none."""

    def short(value: Any) -> str:
        rounded = float(f"{value:.3g}")
        return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"

    has_interval = row["least"] is not None and row["least"] < row["most"]
    return short(row["value"]), f"{short(row['least'])}–{short(row['most'])}" if has_interval else ""
