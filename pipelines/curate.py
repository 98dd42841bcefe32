"""`altalign curate CONFIG`: image/alt-text pairs in, audited shards out. `steps` is the pipeline, in order."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from rich.console import Console

from altalign import storage
from altalign.curation import CurateConfig, InputSettings
from pipelines import extract, fetch, judge, pool, progress, runs, summary, tables, write
from pipelines.engines import MapUnits, options, raised
from pipelines.units import STAGES, Facts, Grounds, Run, Unit

Transform = Callable[[Run, str], beam.PTransform[Any, Any]]


class Step(NamedTuple):
    """One Beam pipeline: where its units leave their marks, what they are, and what is done with them."""

    name: str
    plan: Callable[[Run], list[Unit]]
    transform: Transform


def each(work: Callable[[Run, Unit], Facts]) -> Transform:
    """A map-only step."""
    return lambda run, step: MapUnits(run, step, work)


# The whole curation, in order: the steps of each stage, then what is made of all their units.
PIPELINE: dict[str, tuple[list[Step], Callable[[Run], None]]] = {
    "extract": ([Step("extract", extract.plan, each(extract.extract))], extract.conclude),
    "tables": ([Step("tables/units", pool.units, tables.Count)], tables.conclude),
    "judge": ([Step("judge/units", pool.units, judge.Judge)], judge.conclude),
    "fetch": ([Step("fetch/gathered", fetch.plan_gather, fetch.Gather), Step("fetch/units", fetch.plan, each(fetch.fetch))], fetch.conclude),
    "write": ([Step("write", write.plan, each(write.write))], write.conclude),
}


def main(argv: Sequence[str]) -> int:
    """Run, or continue, a curation."""
    arguments, flags = _parse(argv)
    config = CurateConfig.load(arguments.config, arguments.set)
    pipeline_options = options(config.engine, flags)
    run = runs.find_run(config, config_path=str(arguments.config))
    out = Console(file=sys.stdout, markup=False, highlight=False)
    if arguments.dry_run:
        summary.print_plan(run, out)
        return 0
    runs.check_folder(run)
    if STAGES.index(arguments.until) >= STAGES.index("fetch") and not any(_holds_images(settings) for settings in config.input):
        progress.stderr().print("no input holds images, so every pair will end as not_in_archive; --until judge stops before that", soft_wrap=True)
    with storage.locked(run.folder):
        grounds = runs.open_run(run, is_rerun=arguments.rerun, is_restart=arguments.restart)
        if not run.is_done(STAGES[-1]):
            for stage in STAGES[: STAGES.index(arguments.until) + 1]:
                if not run.is_done(stage):
                    run_stage(run, stage, grounds[stage], pipeline_options)
        if run.is_done(STAGES[-1]):
            runs.check_finished(run)
        if run.is_done(STAGES[-1]) and not config.run.keep_work:
            storage.delete_units([run.path("work")])
    summary.print_summary(run, out)
    return 0


def _holds_images(settings: InputSettings) -> bool:
    return settings.kind in ("warc", "webdataset") or bool(settings.image_column)


def run_stage(run: Run, stage: str, grounds: Grounds, pipeline_options: PipelineOptions) -> None:
    """All pipelines of a stage, then its conclusion; its mark last."""
    steps, conclude = PIPELINE[stage]
    with runs.recording(run, stage, grounds):
        for step in steps:
            units = step.plan(run)
            if not units:
                continue
            with progress.watched(run, step.name, units, progress.stderr()), raised(run, step.name), beam.Pipeline(options=pipeline_options) as pipeline:
                _ = pipeline | "NameUnits" >> beam.Create(units) | "RunStep" >> step.transform(run, step.name)
    runs.counts_of(run).reconcile(runs.counted_stages(run, and_now=stage))
    conclude(run)
    if stage != STAGES[-1]:  # the manifest is the last one's mark
        storage.write_json(run.mark(stage, "done"), {})


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    own, flags = (list(argv[: argv.index("--")]), list(argv[argv.index("--") + 1 :])) if "--" in argv else (list(argv), [])
    parser = argparse.ArgumentParser(
        prog="altalign curate",
        description="Curate image/alt-text pairs into training shards. Run again, it continues where it stopped.",
        epilog="Flags after -- go to Beam.",
    )
    parser.add_argument("config", type=Path, help="settings (TOML)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a setting; repeatable")
    parser.add_argument("--until", choices=STAGES, default=STAGES[-1], help="stop after this stage")
    parser.add_argument("--dry-run", action="store_true", help="show files, units, resolved settings and the disk needed; do nothing")
    parser.add_argument("--rerun", action="store_true", help="run the first stage whose settings or files changed, and what follows, anew")
    parser.add_argument("--restart", action="store_true", help="run everything anew")
    return parser.parse_args(own), flags
