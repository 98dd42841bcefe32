"""`altalign trial CONFIG`: the text stages in full, then a sample of the images, and what follows for all of them.

    RUN/work/trial/DIGEST/      the sample, in the form of a run: `altalign.pipelines.run.units`
    RUN/trial/trial.json        what is predicted
    RUN/trial/report.html       the same to look at

The run itself has its text stages done then, and a later curation goes on from there. The sample is fetched by this
process, whichever engine the run is made on.
"""

import hashlib
import json
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from altalign import storage
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
from altalign.pipelines.trial import drawing, outcomes
from altalign.pipelines.trial.prediction import Prediction, predict
from altalign.settings.curate import CurateConfig

TEXT_STAGES, SAMPLE_STAGES = STAGES[:3], STAGES[3:]
_CPU = "cpu.json"


@dataclass(frozen=True)
class Trial:
    """A trial that is done.

    Attributes:
        run: the run that was tried; its text stages are done.
        counted: the pairs of the text stages by reason: they are counted, not estimated.
        requested: images that this sample asked for, and no earlier one.
        prediction: None where no pair passed the text rules.
    """

    run: Run
    counted: list[dict[str, Any]]
    requested: int = 0
    prediction: Prediction | None = None


def run_trial(config: CurateConfig, images: int, seed: int, flags: Sequence[str], *, config_path: str) -> Trial:
    """Try a curation on about so many images, or go on with a trial; errors name `config_path`.

    Args:
        config: the settings of the curation.
        images: how many images are drawn.
        seed: another one draws other images.
        flags: for Beam, of the text stages.
        config_path: the file of the settings.

    Raises:
        UsageError: the run has begun to fetch, so there is nothing left to try; or no image was drawn.
    """
    _check_not_begun(find_run(config, config_path=config_path))
    until_judge = curate.Request(until=TEXT_STAGES[-1], rerun="", flags=flags)
    run = curate.curate(config, until_judge, config_path=config_path)
    with storage.locked(run.folder), own_files(run.folder):
        _check_not_begun(run)
        grounds = grounds_of(run.config, run.files, run.modules)
        sample = _sample(run, grounds, images, seed)
        if not any(facts.row_groups for _, facts in run.all_facts(GROUPED)):
            return Trial(run, _counted(run))
        drawing.draw(sample, images, seed)
        if not any(facts.row_groups for _, facts in sample.all_facts(GROUPED)):
            raise UsageError(f"--images {images}: no image was drawn of {run.folder}; give more, or another --seed")
        with storage.temporary(sample.work("temporary")):
            for stage in SAMPLE_STAGES:
                _do(sample, stage, grounds[stage])
        pool = drawing.hosts(sample)
        image_ids, drawn = drawing.drawn(sample, pool, images)
        of_sample = outcomes.of_sample(sample, image_ids)
        cpu_s: dict[str, float] = storage.read_json(sample.path(_CPU))
        prediction = predict(run.config, drawn, pool, of_sample, cpu_s)
        return Trial(run, _counted(run), of_sample.requested, prediction)


def _counted(run: Run) -> list[dict[str, Any]]:
    counts = outputs.counts_of(run)
    return [
        {"stage": stage.value, "reason": reason, "pairs": pairs}
        for stage in outputs.counted_stages(run)
        if stage.value in TEXT_STAGES
        for reason, pairs in [*counts.dropped(stage).items(), ("kept", counts.kept(stage))]
    ]


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
    sample = Sampled(run.work(FOLDER, name), config, run.files, run.modules, whole=run)
    recorded: dict[str, Any] = storage.read_json(sample.path("run.json")).get("stages", {})
    stale = (stage for stage in SAMPLE_STAGES if recorded.get(stage, {}).get("digest", "") != grounds[stage].digest)
    if recorded and (first := next(stale, None)):
        reopen.forget(sample, first)
        recorded = {stage: record for stage, record in recorded.items() if stage in STAGES[: STAGES.index(first)]}
    storage.write_sealed(sample.path("run.json"), reopen.of_this_call(config, recorded))
    return sample


def _do(sample: Sampled, stage: str, grounds: Grounds) -> None:
    """Run the steps of a stage on the sample, and note their CPU seconds."""
    with recording(sample, stage, grounds):
        for step in curate.PIPELINE[stage][0]:
            name = step.marks.step
            before, begin_s = len(sample.finished(name)), _cpu_s()
            in_threads = step._replace(seconds=lambda _run, _units: 0.0)
            curate.run_step(sample, in_threads, options(sample.config.engine, []))
            units = len(sample.finished(name))
            if units > before:  # units of an earlier try took about as long as these
                known = storage.read_json(sample.path(_CPU))
                known[name] = (_cpu_s() - begin_s) * units / (units - before)
                storage.write_json(sample.path(_CPU), known)


def _cpu_s() -> float:
    """CPU seconds of this process, which does all the work of a sample."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
