"""`altalign trial CONFIG`: the text stages in full, then a sample of the images, and what follows for all of them.

    RUN/work/trial/DIGEST/      the sample, in the form of a run: `altalign.pipelines.run.sampled`
    RUN/trial/trial.json        what is predicted
    RUN/trial/report.html       the same to look at, with samples at each threshold
    RUN/trial/policy.toml       settings, input and prediction, to be approved

The run itself has its text stages done then, and a later curation goes on from there. The sample is fetched by this
process, whichever engine the run is made on.
"""

import hashlib
import json
import resource
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from altalign import storage
from altalign.curation import CurateConfig
from altalign.errors import UsageError
from altalign.machine import processes
from altalign.pipelines import curate
from altalign.pipelines.engine.options import options
from altalign.pipelines.opening import reopen
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.opening.grounds import Grounds, grounds_of
from altalign.pipelines.opening.record import recording
from altalign.pipelines.run import outputs
from altalign.pipelines.run.artefacts.fetched import FETCHED
from altalign.pipelines.run.artefacts.judged import GROUPED
from altalign.pipelines.run.sampled import FOLDER, Sampled
from altalign.pipelines.run.units import Run
from altalign.pipelines.trial import drawing, outcomes, prediction
from altalign.pipelines.trial.outcomes import Outcomes
from altalign.pipelines.trial.prediction import Measured, Prediction
from altalign.stages import STAGES, own_files

TEXT_STAGES, SAMPLE_STAGES = STAGES[:3], STAGES[3:]
_CPU = "cpu.json"
_ASKED_AT_LEAST = 0.1  # of the sample: CPU seconds of fewer images say nothing of all


class Wanted(NamedTuple):
    """What is wanted of a trial beside its settings."""

    images: int
    seed: int
    flags: Sequence[str]  # for Beam: of the text stages


class Tried(NamedTuple):
    """A trial that is done: the run, its sample, what became of that, and what follows; None where nothing was left."""

    run: Run
    sample: Sampled
    outcomes: Outcomes | None
    prediction: Prediction | None


def tried(config: CurateConfig, wanted: Wanted, *, config_path: str) -> Tried:
    """Try a curation, or go on with a trial; errors name `config_path`.

    Raises:
        UsageError: the run has begun to fetch, so there is nothing left to try.
    """
    run = find_run(config, config_path=config_path)
    _check_not_begun(run)
    with _Cpu() as of_text:
        of_curation = curate.Wanted(until=TEXT_STAGES[-1], rerun="", flags=wanted.flags)
        run = curate.curate(config, of_curation, config_path=config_path)
    with storage.locked(run.folder), own_files(run.folder):
        _check_not_begun(run)
        grounds = grounds_of(run.config, run.files, run.modules)
        sample = _sample(run, grounds, wanted)
        if of_text.attempts_of(run):
            storage.write_json(run.work(FOLDER, "text.json"), {"digest": _digest_of_text(grounds), "cpu": of_text.s})
        if not any(facts.row_groups for _, facts in run.all_facts(GROUPED)):
            return Tried(run, sample, None, None)
        drawing.draw(sample, wanted.images, wanted.seed)
        with storage.temporary(sample.work("temporary")):
            for stage in SAMPLE_STAGES:
                _do(sample, stage, grounds[stage])
        image_ids, drawn = drawing.drawn(sample, wanted.images)
        of = outcomes.of_sample(sample, image_ids)
        predicted = prediction.predict(config, drawn, drawing.hosts(sample), of, _measured(sample, grounds, of))
        return Tried(run, sample, of, predicted)


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


# The sample ----------------------------------------------------------------------------------------------------------


def _sample(run: Run, grounds: Mapping[str, Grounds], wanted: Wanted) -> Sampled:
    """The run of the sample, opened for work."""
    said = json.dumps([grounds[TEXT_STAGES[-1]].digest, wanted.images, wanted.seed])
    name = hashlib.sha256(said.encode()).hexdigest()[:12]
    audit = run.config.audit.model_copy(update={"keep_dropped": True})
    dedup = run.config.dedup.model_copy(update={"within_pool": "off"})  # a sample of pairs has few pairs
    workers = run.config.engine.workers if _is_embedded(run) else 0
    engine = run.config.engine.model_copy(update={"runner": "embedded", "workers": workers})
    config = run.config.model_copy(update={"audit": audit, "dedup": dedup, "engine": engine})
    sample = Sampled(run.work(FOLDER, name), config, run.files, run.modules, of=run)
    recorded: dict[str, Any] = storage.read_json(sample.path("run.json")).get("stages", {})
    stale = (stage for stage in SAMPLE_STAGES if recorded.get(stage, {}).get("digest", "") != grounds[stage].digest)
    if recorded and (first := next(stale, None)):
        reopen.forget(sample, first)
        recorded = {stage: of for stage, of in recorded.items() if stage in STAGES[: STAGES.index(first)]}
    storage.write_sealed(sample.path("run.json"), reopen.of_this_call(config, recorded))
    return sample


def _is_embedded(run: Run) -> bool:
    return run.config.engine.runner == "embedded"


def _do(sample: Sampled, stage: str, grounds: Grounds) -> None:
    """Run the steps of a stage on the sample, and note their CPU seconds: all units are done by this process."""
    known, path = storage.read_json(sample.path(_CPU)), sample.path(_CPU)
    before = units = 0
    with recording(sample, stage, grounds), _Cpu() as cpu:
        for step in curate.PIPELINE[stage][0]:
            before += len(sample.finished(step.marks.step))
            in_threads = step._replace(seconds=lambda _run, _units: 0.0)
            curate.run_step(sample, in_threads, options(sample.config.engine, []))
            units += len(sample.finished(step.marks.step))
    if units > before:  # those of an earlier try took about as long as these
        known[stage] = cpu.s * units / (units - before)
        storage.write_json(path, known)


# CPU -----------------------------------------------------------------------------------------------------------------


class _Cpu:
    """CPU seconds of the block, of this process and of those that it has ended."""

    s = 0.0

    def __enter__(self) -> "_Cpu":
        self._before, self._begin = _cpu_s(), time.time()
        return self

    def __exit__(self, *_: object) -> None:
        processes.OF_COMMAND.close()
        self.s = _cpu_s() - self._before

    def attempts_of(self, run: Run) -> bool:
        """Whether all text stages of a run were done in the block, at the first attempt, by this machine."""
        stages = storage.read_json(run.path("run.json")).get("stages", {})
        of_text = [stages.get(stage, {}) for stage in TEXT_STAGES]
        begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._begin))
        return _is_embedded(run) and all(of.get("attempts") == 1 and of["started"] >= begun for of in of_text)


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _digest_of_text(grounds: Mapping[str, Grounds]) -> str:
    return grounds[TEXT_STAGES[-1]].digest


def _measured(sample: Sampled, grounds: Mapping[str, Grounds], of: Outcomes) -> Measured:
    """CPU seconds: of the text stages where they were measured whole, of the others scaled to the whole sample."""
    assert sample.of
    text = storage.read_json(sample.of.work(FOLDER, "text.json"))
    of_text = text.get("cpu") if text.get("digest") == _digest_of_text(grounds) else None
    known = storage.read_json(sample.path(_CPU))
    fetch = known.get("fetch")
    if fetch is not None and sample.config.fetch.source == "web" and of.seconds.any():
        there = int((of.seconds > 0).sum())
        fetch = fetch * there / of.asked if of.asked >= _ASKED_AT_LEAST * there else None
    return Measured(of_text, fetch, known.get("decontaminate"), known.get("write"))


def exact(run: Run) -> list[dict[str, Any]]:
    """The pairs of the text stages by reason: they are counted, not estimated."""
    counts = outputs.counts_of(run)
    return [
        {"stage": stage.value, "reason": reason, "pairs": pairs}
        for stage in outputs.counted_stages(run)
        if stage.value in TEXT_STAGES
        for reason, pairs in [*counts.dropped(stage).items(), ("kept", counts.kept(stage))]
    ]
