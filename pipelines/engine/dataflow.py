"""Jobs on Google Cloud's Dataflow: their options, refusals before any work, and one job at a time for a run."""

from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners.runner import PipelineResult

from altalign import storage, terminal
from altalign.errors import AltalignError, UsageError, bring
from altalign.pipelines.run.units import Run, files_named
from altalign.settings.curate import CurateConfig, EngineSettings

STORES = ("gs://", "s3://")  # what workers see; temporary files of Dataflow's own are on gs:// alone
NEEDED = ("project", "region", "temp_location", "sdk_container_image")

# A process each vCPU does one unit at a time in 0.5 to 1.2 GB (docs/concepts/scale.md), so that 4 GB a vCPU leave room
# for mapped tables and large images; four processes share one copy of the tables.
MACHINE_TYPE = "n2-standard-4"
# The system and the image 15, copies of tables and test side at most 3, a shard or a file of images that each of four
# processes is writing 4 x 5 (10,000 images of 500 KB); Dataflow's own 25 would not hold that.
DISK_GB = 50
MIN_RAM = "min_ram=4GB"  # of a worker of Dataflow Prime, which chooses machines itself; others do not look at it


_REFUSED = {
    "job_name": "a job is named after its run and step, so that a run is not worked on twice",
    "template_location": "a template does no work, and a run goes on with what a job has done",
    "update": "jobs are of batches, and end; give the same command again, it continues",
    "streaming": "jobs are of batches, and end",
    "dry_run": "a job that does nothing leaves nothing to count; `altalign curate CONFIG --dry-run` shows the plan",
}


def options(engine: EngineSettings, flags: list[str]) -> PipelineOptions:
    """The Beam options of a run; those of `flags` are never changed.

    Raises:
        UsageError: Beam is here without Google Cloud, a flag is missing or wrong, or a setting or a flag cannot be
            honoured.
    """
    where = '[engine] runner = "dataflow"'
    if engine.workers:
        raise UsageError(
            f"[engine] workers = {engine.workers}: how many work at once is Dataflow's to say; leave it 0, and bound "
            "its machines by -- --max_num_workers=N"
        )
    given = PipelineOptions(["--runner=DataflowRunner", *flags])
    values = given.get_all_options()
    if missing := [f"--{name}" for name in NEEDED if not values[name]]:
        raise UsageError(
            f"{where}: {', '.join(missing)} not given; `altalign curate CONFIG -- --project=ID --region=REGION "
            "--temp_location=gs://BUCKET/tmp --sdk_container_image=IMAGE` has them all, "
            "and `altalign retry` and `altalign add --test-set` take the same"
        )
    _check_flags(given)
    _fill(given)
    _check_valid(where, flags)
    return given


def _check_flags(given: PipelineOptions) -> None:
    """Refuse flags that would make a job something else than a step of a run."""
    values = given.get_all_options()
    for name, why in _REFUSED.items():
        if values[name]:
            raise UsageError(f"-- --{name}: {why}; leave it away")


def _fill(given: PipelineOptions) -> None:
    """Set the options that the user has not given."""
    setup, worker = given.view_as(SetupOptions), given.view_as(WorkerOptions)
    debug, cloud = given.view_as(DebugOptions), given.view_as(GoogleCloudOptions)
    if setup.sdk_location == "default":
        # Beam is in the image; else it is fetched from PyPI and installed anew on every worker
        setup.sdk_location = "container"
    if setup.save_main_session is None:
        # else, where pickles are cloudpickle's, the command's own process is sent along
        setup.save_main_session = False
    # nor is pip asked, for every job, what is installed here
    debug.add_experiment("disable_logging_submission_environment")
    # a process each vCPU has one unit in memory, not twelve
    debug.number_of_worker_harness_threads = debug.number_of_worker_harness_threads or 1
    worker.disk_size_gb = worker.disk_size_gb or DISK_GB
    if "enable_prime" not in (cloud.dataflow_service_options or []):
        worker.machine_type = worker.machine_type or MACHINE_TYPE
    if not any(hint.startswith("min_ram") for hint in _hints(given)):
        given.view_as(StandardOptions).resource_hints = [*_hints(given), MIN_RAM]


def _hints(given: PipelineOptions) -> list[str]:
    """The resource hints of all transforms."""
    return given.view_as(StandardOptions).resource_hints or []


def _check_valid(where: str, flags: list[str]) -> None:
    """Refuse what Dataflow's part of Beam refuses.

    Beam would only refuse it after the run has begun, and would make a bucket where none is named.
    """
    try:
        from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner
        from apache_beam.runners.dataflow.internal import apiclient  # noqa: F401 - a job cannot be made without
    except ImportError as error:
        raise UsageError(f"{where}: Beam is here without Google Cloud ({error}); {bring('dataflow')}") from None
    # as of a dry run, for no bucket is to be asked yet
    asked = PipelineOptions(["--runner=DataflowRunner", "--dry_run=True", *flags])
    validator = PipelineOptionsValidator(asked, DataflowRunner())
    # the place first: where it is wrong, Beam goes on to make a bucket of its own
    errors = validator.validate_gcs_path(asked.view_as(GoogleCloudOptions), "temp_location")
    if errors := errors or validator.validate():
        raise UsageError(f"-- {errors[0].splitlines()[0]}")


def check_places(config: CurateConfig) -> None:
    """Refuse files that workers would not see.

    Raises:
        UsageError: the error names the first such file and its setting.
    """
    for setting, path in _read_by_workers(config):
        if not (path.startswith(STORES) or storage.is_of_web(path)):
            raise UsageError(
                f'{setting}: {path}: on this machine\'s disk, which workers of engine.runner = "dataflow" do not see; '
                "give gs://BUCKET/PATH"
            )
    calibration = [config.decontaminate.calibration] if config.decontaminate.calibration else []
    for path in (*files_named(config), *config.fetch.blocked_domains, *calibration):
        if not (path.startswith(STORES) or Path(path).is_absolute()):
            raise UsageError(
                f'{path}: workers of engine.runner = "dataflow" are not in this folder; give gs://BUCKET/PATH, or an '
                "absolute path that the image has"
            )


def _read_by_workers(config: CurateConfig) -> Iterator[tuple[str, str]]:
    """Yields setting and path of everything that units read or write."""
    yield "[run] folder", config.run.folder
    for settings in config.input:
        yield from (("[input] paths", pattern) for pattern in settings.paths)
    for test_set in config.decontaminate.named_sets:
        yield "[decontaminate] test_sets", test_set.path


def submit(run: Run, step: str, built: beam.Pipeline) -> PipelineResult:
    """Send a job, and print where it can be watched.

    Raises:
        AltalignError: a job of the same run and step is still at work, whose command has ended.
    """
    from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError

    cloud = built.options.view_as(GoogleCloudOptions)
    try:
        result = built.run()
    except DataflowJobAlreadyExistsError as error:
        raise AltalignError(
            f"{run.folder}: {step}: the job {cloud.job_name} is at work already, of a command that has ended before "
            f"it; wait until `gcloud dataflow jobs list --project={cloud.project} --region={cloud.region} "
            "--status=active` no longer has it, or cancel it there, and run the same command again"
        ) from error
    if job_id := getattr(result, "job_id", None):  # a dry run's has none
        page = f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{job_id()}?project={cloud.project}"
        terminal.stderr().print(f"{step}: {page}", soft_wrap=True)
    return result
