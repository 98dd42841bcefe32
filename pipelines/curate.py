"""`altalign curate CONFIG` turns image/alt-text pairs into audited shards; `PIPELINE` lists all its steps in order."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from altalign import storage, terminal
from altalign.data.stages import STAGES, check_curated, own_files
from altalign.machine import processes
from altalign.pipelines.engine.jobs import check_marks, create, pipeline, started
from altalign.pipelines.engine.map_units import MapUnits
from altalign.pipelines.engine.options import check_places, options
from altalign.pipelines.engine.unit_errors import raised
from altalign.pipelines.near import index, within_pool
from altalign.pipelines.opening import find, reopen, summary
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.opening.reopen import Grounds, recording
from altalign.pipelines.run import image_tables, marks, outputs, pool, progress, shard_tables, text_tables
from altalign.pipelines.run.units import DISCARDED, F, Marks, Run, U
from altalign.pipelines.stages import decontaminate, extract, fetch, judge, tables, write
from altalign.settings.curate import CurateConfig


class Step(NamedTuple):
    """One Beam pipeline: where its units leave their marks, which units there are, and what is done with them."""

    marks: Marks[Any]
    plan: Callable[[Run], Sequence[Any]]
    transform: Callable[[Run], beam.PTransform[Any, Any]]
    watch: Callable[[Run], type[progress.Watch]] = lambda _: progress.Watch
    # about how long units take one core, where they hold Python's lock too long for threads
    seconds: Callable[[Run, Sequence[Any]], float] = lambda _run, _units: 0.0


def each(marks: Marks[F], plan: Callable[[Run], Sequence[U]], work: Callable[[Run, U], F], **more: Any) -> Step:
    """A map-only step; `more` are further fields of `Step`."""
    return Step(marks, plan, lambda run: MapUnits(run, marks, work), **more)


TEST_IMAGES = each(image_tables.TESTS, index.plan_tests, index.read_tests)

# The whole curation, in order: the steps of each stage, and what concludes it once all its units are finished.
PIPELINE: dict[str, tuple[list[Step], Callable[[Run], None]]] = {
    "extract": (
        [each(text_tables.EXTRACTED, extract.plan, extract.extract, seconds=extract.seconds)],
        extract.conclude,
    ),
    "tables": ([Step(text_tables.COUNTED, pool.units, tables.Count)], tables.conclude),
    "judge": ([Step(text_tables.JUDGED, pool.units, judge.Judge)], judge.conclude),
    "fetch": (
        [
            TEST_IMAGES,  # before any image is fetched: an unreadable test image stops the run here
            Step(image_tables.GATHERED, fetch.plan_gather, fetch.GatherTables),
            Step(image_tables.FETCHED, fetch.plan, fetch.transform, fetch.watch, fetch.seconds),
        ],
        fetch.conclude,
    ),
    "decontaminate": (
        [
            TEST_IMAGES,
            each(image_tables.LEARNED, index.only_if(index.is_searched), index.learn),
            each(
                image_tables.INDEX,
                index.only_if(lambda run: bool(run.config.decontaminate.test_sets)),
                index.build_index,
            ),
            each(image_tables.FOUND, decontaminate.plan_found, decontaminate.find),
            each(image_tables.CELLS, index.only_if(within_pool.is_searched), within_pool.make_cells),
            Step(image_tables.COMPARED, within_pool.plan, partial(within_pool.Compare, gone=decontaminate.gone)),
            each(image_tables.REPLACED, index.only_if(within_pool.is_searched), within_pool.replace),
            each(image_tables.DECONTAMINATED, decontaminate.plan, decontaminate.drop),
        ],
        decontaminate.conclude,
    ),
    "write": ([each(shard_tables.WRITTEN, write.plan, write.write, seconds=write.seconds)], write.conclude),
}


class Request(NamedTuple):
    """What a caller asks of a curation beside its settings."""

    until: str = STAGES[-1]  # the last stage to run
    rerun: str | None = None  # the first stage to run anew; "": the first whose settings or files changed
    is_restart: bool = False
    flags: Sequence[str] = ()  # for Beam
    shown: progress.Shown | None = None  # None: on standard error


def curate(config: CurateConfig, request: Request, *, config_path: str) -> Run:
    """Run or continue a curation; errors name `config_path`."""
    pipeline_options, run = _checked(config, request, config_path)
    reopen.check_folder(run)
    check_curated(run.folder)
    with own_files(run.folder):
        is_settled = reopen.is_settled(run, rerun=request.rerun, is_restart=request.is_restart)
    if not is_settled:
        with storage.locked(run.folder), own_files(run.folder):
            grounds = reopen.open_run(run, rerun=request.rerun, is_restart=request.is_restart)
            finish(run, grounds, pipeline_options, until=request.until, shown=request.shown)
    return run


def plan(config: CurateConfig, request: Request, *, config_path: str) -> None:
    """Print what a curation would do."""
    _, run = _checked(config, request, config_path)
    first = None
    if request.rerun is not None or request.is_restart:
        first = reopen.decide(run, rerun=request.rerun, is_restart=request.is_restart).first
    summary.print_plan(run, terminal.stdout(), first or "")


def _checked(config: CurateConfig, request: Request, config_path: str) -> tuple[PipelineOptions, Run]:
    """Beam's options and the run, where both are as they can be; nothing is written."""
    pipeline_options = options(config.engine, list(request.flags))
    check_places(config)
    run = find_run(config, config_path=config_path)
    if not run.is_done("tables") or request.rerun is not None or request.is_restart:
        find.check_tables(run)
    wants_images = config.fetch.source == "archive" and STAGES.index(request.until) >= STAGES.index("fetch")
    if wants_images and not run.is_done("fetch"):
        find.check_images(run)
    return pipeline_options, run


def finish(
    run: Run,
    grounds: Mapping[str, Grounds],
    pipeline_options: PipelineOptions,
    *,
    until: str = STAGES[-1],
    shown: progress.Shown | None = None,
) -> None:
    """Run the stages that are not done, up to `until`. The caller has opened the run and holds its lock."""
    with storage.temporary(run.work("temporary")), storage.emptied(run.work(DISCARDED)):
        if not run.is_done(STAGES[-1]):
            with started(run, pipeline_options):
                for stage in STAGES[: STAGES.index(until) + 1]:
                    if not run.is_done(stage):
                        run_stage(run, stage, grounds[stage], pipeline_options, shown)
    if run.is_done(STAGES[-1]) and not run.config.run.keep_work:
        reopen.check_finished(run)
        storage.delete_units([run.path("work")])


def run_stage(
    run: Run, stage: str, grounds: Grounds, pipeline_options: PipelineOptions, shown: progress.Shown | None
) -> None:
    """Run all pipelines of a stage, then its conclusion, and write its mark last."""
    steps, conclude = PIPELINE[stage]
    with recording(run, stage, grounds):
        for step in steps:
            run_step(run, step, pipeline_options, shown)
    outputs.counts_of(run).reconcile(outputs.counted_stages(run, and_now=stage))
    with storage.noted(run.work()) as block:
        conclude(run)
    if stage != STAGES[-1]:  # the manifest is the last one's mark
        units = {step: len(run.finished(step)) for step in marks.steps_of(stage)}
        run.write_mark(run.end(stage), {"units": units}, block)


def run_step(run: Run, step: Step, pipeline_options: PipelineOptions, shown: progress.Shown | None = None) -> None:
    """Run one Beam pipeline over the units that are not finished."""
    units = step.plan(run)
    if not units:
        return
    name = step.marks.step
    watched = progress.watched(run, name, units, shown or terminal.stderr(), step.watch(run))
    of_processes = processes.OF_COMMAND.used(_processes_for(run, step, units))
    with watched, raised(run, name), of_processes, pipeline(run, name, pipeline_options) as built:
        _ = built | "NameUnits" >> create(run, units) | "RunStep" >> step.transform(run)
    check_marks(run, name, units)


def _processes_for(run: Run, step: Step, units: Sequence[Any]) -> int:
    """How many processes pay for the rest of a step; 0 in a store, where each writer would have to check the lock."""
    if run.config.engine.runner != "embedded" or storage.is_remote(run.folder):
        return 0
    finished = set(run.finished(step.marks.step))
    left = [unit for unit in units if unit["name"] not in finished]
    return processes.worth(step.seconds(run, left), min(run.config.engine.threads, len(left)))


def show(run: Run) -> int:
    """Check a finished run, and print what there is; returns 1 if it is finished and nothing is left, else 0."""
    nothing_left = check(run)
    with own_files(run.folder):
        summary.print_summary(run, terminal.stdout(), nothing_left)
    return 1 if nothing_left else 0


def check(run: Run) -> str:
    """Check the files of a finished run; returns a sentence on why nothing is left, empty where something is."""
    if not run.is_done(STAGES[-1]):
        return ""
    with own_files(run.folder):
        reopen.check_finished(run)
        return summary.nothing_left(run)
