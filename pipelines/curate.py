"""`altalign curate CONFIG`: image/alt-text pairs in, audited shards out. `PIPELINE` is the whole, in order."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from altalign import storage, terminal
from altalign.curation import CurateConfig, InputSettings
from altalign.machine import processes
from altalign.pipelines.engine.engines import check_marks, check_places, create, options, pipeline, started, threads
from altalign.pipelines.engine.map_units import MapUnits
from altalign.pipelines.engine.unit_errors import raised
from altalign.pipelines.evidence import of_judge
from altalign.pipelines.near import test_side, within_pool
from altalign.pipelines.opening import runs, summary
from altalign.pipelines.run import pool, progress
from altalign.pipelines.run.units import Facts, Grounds, Run, Unit
from altalign.pipelines.stages import decontaminate, extract, fetch, fetch_from_files, judge, tables, write
from altalign.stages import STAGES, own_files

Transform = Callable[[Run, str], beam.PTransform[Any, Any]]


class Step(NamedTuple):
    """One Beam pipeline: where its units leave their marks, what they are, and what is done with them."""

    name: str
    plan: Callable[[Run], list[Unit]]
    transform: Transform
    watch: Callable[[Run], type[progress.Watch]] = lambda _: progress.Watch
    # of one core, about, in units that hold Python's lock too much for threads
    seconds: Callable[[Run, Sequence[Unit]], float] = lambda _run, _units: 0.0


def each(work: Callable[[Run, Unit], Facts]) -> Transform:
    """A map-only step."""
    return lambda run, step: MapUnits(run, step, work)


TEST_IMAGES = Step(test_side.TESTS, test_side.plan, each(test_side.read_tests))

# The whole curation, in order: the steps of each stage, then what is made of all their units.
PIPELINE: dict[str, tuple[list[Step], Callable[[Run], None]]] = {
    "extract": ([Step("extract", extract.plan, each(extract.extract), seconds=extract.seconds)], extract.conclude),
    "tables": ([Step("tables/units", pool.units, tables.Count)], tables.conclude),
    "judge": ([Step("judge/units", pool.units, judge.Judge)], of_judge.conclude),
    "fetch": (
        [
            TEST_IMAGES,  # before an image is asked for: what cannot be looked for stops the run here
            Step("fetch/gathered", fetch_from_files.plan_gather, fetch_from_files.Gather),
            Step("fetch/units", fetch.plan, fetch.Fetch, fetch.watch, fetch.seconds),
        ],
        fetch.conclude,
    ),
    "decontaminate": (
        [
            TEST_IMAGES,
            Step(test_side.LESSONS_MADE, test_side.plan_lessons, each(test_side.make_copies)),
            Step(test_side.LEARNED, test_side.plan_learned, each(test_side.learn)),
            Step(test_side.INDEX, test_side.plan_index, each(test_side.build)),
            Step(decontaminate.FOUND, decontaminate.plan_found, each(decontaminate.find)),
            Step(within_pool.CELLS, within_pool.plan_one, each(within_pool.make_cells)),
            Step(within_pool.COMPARED, within_pool.plan, within_pool.compared(decontaminate.gone)),
            Step(within_pool.REPLACED, within_pool.plan_one, each(within_pool.replace)),
            Step(decontaminate.UNITS, decontaminate.plan, each(decontaminate.drop)),
        ],
        decontaminate.conclude,
    ),
    "write": ([Step("write", write.plan, each(write.write), seconds=write.seconds)], write.conclude),
}


def curate(config: CurateConfig, arguments: argparse.Namespace, flags: list[str]) -> int:
    """Run, or continue, a curation: `arguments` of `altalign.pipelines.command`, `flags` of Beam."""
    pipeline_options = options(config.engine, flags)
    check_places(config)
    run = runs.find_run(config, config_path=str(arguments.config))
    if arguments.dry_run:
        summary.print_plan(run, terminal.stdout())
        return 0
    runs.check_folder(run)
    wants_images = config.fetch.source == "archive" and STAGES.index(arguments.until) >= STAGES.index("fetch")
    if wants_images and not any(_holds_images(settings) for settings in config.input):
        terminal.stderr().print(
            'no input holds images, so every pair will end as not_in_archive; fetch.source = "web" fetches them, --until judge stops before that',
            soft_wrap=True,
        )
    with own_files(run.folder):
        is_settled = runs.is_settled(run, rerun=arguments.rerun, is_restart=arguments.restart)
    if not is_settled:
        with storage.locked(run.folder), own_files(run.folder):
            grounds = runs.open_run(run, rerun=arguments.rerun, is_restart=arguments.restart)
            finish(run, grounds, pipeline_options, until=arguments.until)
    show(run)
    return 0


def finish(
    run: Run, grounds: Mapping[str, Grounds], pipeline_options: PipelineOptions, *, until: str = STAGES[-1]
) -> None:
    """Run the stages that are not done, up to this one. The run is open, and held."""
    with storage.temporary(run.work("temporary")):
        if not run.is_done(STAGES[-1]):
            with started(run, pipeline_options):
                for stage in STAGES[: STAGES.index(until) + 1]:
                    if not run.is_done(stage):
                        run_stage(run, stage, grounds[stage], pipeline_options)
    if run.is_done(STAGES[-1]) and not run.config.run.keep_work:
        runs.check_finished(run)
        storage.delete_units([run.path("work")])


def show(run: Run) -> None:
    """Check a finished run, and print what there is."""
    with own_files(run.folder):
        if run.is_done(STAGES[-1]):
            runs.check_finished(run)
        summary.print_summary(run, terminal.stdout())


def _holds_images(settings: InputSettings) -> bool:
    return settings.kind in ("warc", "webdataset") or bool(settings.image_column)


def run_stage(run: Run, stage: str, grounds: Grounds, pipeline_options: PipelineOptions) -> None:
    """All pipelines of a stage, then its conclusion; its mark last."""
    steps, conclude = PIPELINE[stage]
    with runs.recording(run, stage, grounds):
        for step in steps:
            run_step(run, step, pipeline_options)
    runs.counts_of(run).reconcile(runs.counted_stages(run, and_now=stage))
    conclude(run)
    if stage != STAGES[-1]:  # the manifest is the last one's mark
        storage.write_json(run.mark(stage, "done"), {})


def run_step(run: Run, step: Step, pipeline_options: PipelineOptions) -> None:
    """One Beam pipeline, of the units that are not finished."""
    units = step.plan(run)
    if not units:
        return
    watched = progress.watched(run, step.name, units, terminal.stderr(), step.watch(run))
    of_processes = processes.OF_COMMAND.used(_processes_for(run, step, units))
    with watched, raised(run, step.name), of_processes, pipeline(run, step.name, pipeline_options) as built:
        _ = built | "NameUnits" >> create(run, units) | "RunStep" >> step.transform(run, step.name)
    check_marks(run, step.name, units)


def _processes_for(run: Run, step: Step, units: Sequence[Unit]) -> int:
    """How many processes are worth what is left of a step. None where a store holds the run: each writer would have to know that it is held still."""
    if run.config.engine.runner != "embedded" or storage.is_remote(run.folder):
        return 0
    finished = set(run.finished(step.name))
    left = [unit for unit in units if unit["name"] not in finished]
    return processes.worth(step.seconds(run, left), min(threads(run.config.engine), len(left)))
