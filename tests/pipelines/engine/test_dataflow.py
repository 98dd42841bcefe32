"""Jobs for Dataflow: what is refused before any work; and jobs that are built and checked, but not sent.

The jobs are those of a real run: its steps run in this process, and before each the same step is built for Dataflow
from the same marks.
"""

import importlib.util
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    WorkerOptions,
)

# pytest would take its own name for one of tests
from apache_beam.options.pipeline_options import TestOptions as DryOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.testing.util import assert_that, equal_to

from altalign import cli
from altalign.errors import AltalignError, UsageError
from altalign.pipelines import curate
from altalign.pipelines.engine.jobs import create, pipeline
from altalign.pipelines.engine.options import DISK_GB, MACHINE_TYPE, check_places, options
from altalign.pipelines.run import progress
from altalign.pipelines.run.text_tables import EXTRACTED
from altalign.pipelines.run.units import InputFile, Run
from altalign.settings.curate import CurateConfig, EngineSettings
from tests.support.curations import CONFIG, write_input

ROOT = Path(__file__).parents[3]
IMAGE = "europe-docker.pkg.dev/project/images/altalign:0.1.0"
FLAGS = [
    "--project=made-up",
    "--region=europe-west4",
    "--temp_location=gs://bucket/tmp",
    f"--sdk_container_image={IMAGE}",
]
ENGINE = EngineSettings(runner="dataflow")
JOB_BYTES_AT_MOST = 1 << 20  # a tenth of what Dataflow takes


def has_google_cloud() -> bool:
    try:
        return importlib.util.find_spec("google.auth") is not None
    except ModuleNotFoundError:
        return False


needs_google_cloud = pytest.mark.skipif(
    not has_google_cloud(), reason="apache-beam[gcp], which brings 70 packages: make test-readers"
)


@pytest.fixture(autouse=True)
def no_machine_of_google(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks the network whether this machine is Google's."""
    monkeypatch.setenv("NO_GCE_CHECK", "true")


# What is refused ------------------------------------------------------------------------------------------------------


def test_flags_that_a_job_needs_are_named_all_at_once() -> None:
    with pytest.raises(
        UsageError,
        match=r"--region, --sdk_container_image not given; `altalign curate .*, and `altalign retry` and `altalign add "
        r"--test-set` take the same$",
    ):
        options(ENGINE, ["--project=made-up", "--temp_location=gs://bucket/tmp"])


def test_a_number_of_workers_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"workers = 4: .* leave it 0, and bound its machines by -- --max_num_workers=N"
    ):
        options(EngineSettings(runner="dataflow", workers=4), FLAGS)


def test_flags_that_beam_does_not_know_are_refused() -> None:
    with pytest.raises(UsageError, match="no_such_flag"):
        options(ENGINE, [*FLAGS, "--no_such_flag=1"])


@pytest.mark.skipif(has_google_cloud(), reason="Beam is here with Google Cloud")
def test_beam_without_google_cloud_is_refused_with_what_brings_it() -> None:
    with pytest.raises(
        UsageError,
        match=r"Beam is here without Google Cloud \(.*\); `make setup EXTRAS=dataflow` brings",
    ):
        options(ENGINE, FLAGS)


@pytest.mark.parametrize("place", ["s3://bucket/tmp", "/tmp", "gs://bucket"])
def test_a_place_of_temporary_files_that_is_no_folder_of_a_bucket_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match=f"^-- --temp_location={place}: give gs://BUCKET/PATH"):
        options(ENGINE, [*FLAGS, f"--temp_location={place}"])


ON_STORES = {
    "run": {"folder": "gs://bucket/run"},
    "input": [{"kind": "table", "paths": ["s3://crawl/*.parquet"]}],
    "decontaminate": {"test_sets": ["gs://bucket/coco"]},
    "engine": {"runner": "dataflow"},
}


@pytest.mark.parametrize(
    ("section", "value", "words"),
    [
        ("run", {"folder": "runs/demo"}, r"\[run\] folder: runs/demo: on this machine's disk"),
        (
            "input",
            [{"kind": "table", "paths": ["gs://a/*.parquet", "/mnt/*.parquet"]}],
            r"\[input\] paths: /mnt/\*.parquet: on this machine's disk",
        ),
        ("decontaminate", {"test_sets": ["coco"]}, r"\[decontaminate\] test_sets: coco: on this machine's disk"),
        (
            "decontaminate",
            {"calibration": "calibration"},
            r"calibration: workers .* give gs://BUCKET/PATH, or an absolute path that the image has",
        ),
        ("image", {"blocked_hashes": ["bad.txt"]}, "bad.txt: workers"),
        ("image", {"nsfw": {"model": "model.onnx"}}, "model.onnx: workers"),
        ("fetch", {"blocked_domains": ["domains.txt"]}, "domains.txt: workers"),
    ],
)
def test_files_that_workers_do_not_see_are_refused(section: str, value: Any, words: str) -> None:
    check_places(CurateConfig.from_values(ON_STORES, where="test"))
    wrong = CurateConfig.from_values({**ON_STORES, section: value}, where="test")
    with pytest.raises(UsageError, match=words):
        check_places(wrong)
    check_places(wrong.model_copy(update={"engine": EngineSettings()}))  # here they are seen


def test_files_in_the_image_may_be_named_by_their_absolute_path() -> None:
    check_places(
        CurateConfig.from_values({**ON_STORES, "image": {"nsfw": {"model": "/models/nsfw.onnx"}}}, where="test")
    )


def test_the_example_names_stores_alone() -> None:
    values = tomllib.loads((ROOT / "configs" / "dataflow.toml").read_text(encoding="utf-8"))
    config = CurateConfig.from_values(values, where="configs/dataflow.toml")
    assert config.engine.runner == "dataflow"
    check_places(config)


@needs_google_cloud
def test_a_run_on_a_local_disk_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_input(tmp_path, rows=10)
    assert cli.main(["curate", "config.toml", "--set", "engine.runner=dataflow", "--", *FLAGS]) == 2
    assert "[run] folder: run: on this machine's disk" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# Defaults -------------------------------------------------------------------------------------------------------------


@needs_google_cloud
def test_what_is_not_said_closes_the_traps_and_what_is_said_stays() -> None:
    given = options(ENGINE, FLAGS)
    assert given.view_as(SetupOptions).sdk_location == "container"
    assert given.view_as(SetupOptions).save_main_session is False
    assert given.view_as(DebugOptions).number_of_worker_harness_threads == 1
    worker = given.view_as(WorkerOptions)
    assert (worker.machine_type, worker.disk_size_gb, worker.sdk_container_image) == (
        MACHINE_TYPE,
        DISK_GB,
        IMAGE,
    )
    own = [
        "--machine_type=n2-highmem-8",
        "--disk_size_gb=300",
        "--number_of_worker_harness_threads=2",
        "--max_num_workers=40",
        "--resource_hint=min_ram=16GB",
    ]
    worker = (given := options(ENGINE, [*FLAGS, *own])).view_as(WorkerOptions)
    assert (worker.machine_type, worker.disk_size_gb, worker.max_num_workers) == ("n2-highmem-8", 300, 40)
    assert given.view_as(DebugOptions).number_of_worker_harness_threads == 2
    assert given.get_all_options()["resource_hints"] == ["min_ram=16GB"]


@needs_google_cloud
def test_dataflow_prime_chooses_its_machines_itself() -> None:
    assert (
        options(ENGINE, [*FLAGS, "--dataflow_service_options=enable_prime"]).view_as(WorkerOptions).machine_type is None
    )


# Jobs -----------------------------------------------------------------------------------------------------------------


def dry(*flags: str) -> PipelineOptions:
    """Options of jobs that are built and not sent."""
    given = options(ENGINE, [*FLAGS, *flags])
    given.view_as(DryOptions).dry_run = True
    return given


def on_dataflow(run: Run, **sections: Any) -> Run:
    """The same run, of the same marks, on Dataflow."""
    return replace(run, config=run.config.model_copy(update={"engine": ENGINE, **sections}))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Dataflow's part of Beam made of every pipeline."""
    return watch_jobs(monkeypatch)


def watch_jobs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

    jobs: list[Any] = []
    run_pipeline = DataflowRunner.run_pipeline

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        result: Any = run_pipeline(self, *args, **kwargs)
        jobs.append(result.job)
        return result

    monkeypatch.setattr(DataflowRunner, "run_pipeline", watched)
    return jobs


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The job of every step of a curation, by name; and of fetching from the web."""
    folder, by_step = tmp_path_factory.mktemp("dataflow"), dict[str, Any]()
    write_input(folder, rows=120)
    (folder / "config.toml").write_text(CONFIG + '\n[dedup]\nwithin_pool = "keep_one_image"\n', encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NO_GCE_CHECK", "true")
        made, run_step = watch_jobs(patch), curate.run_step

        def also_built(run: Run, step: curate.Step, given: PipelineOptions, *shown: progress.Shown | None) -> None:
            runs = {step.marks.step: on_dataflow(run)}
            if step.marks.step == "fetch/units":
                runs["from the web"] = on_dataflow(run, fetch=run.config.fetch.model_copy(update={"source": "web"}))
            for name, each in runs.items():
                with pytest.MonkeyPatch.context() as of_dry:
                    of_dry.setattr(curate, "check_marks", lambda *_: None)  # nothing is done
                    run_step(each, step, dry())
                if step.plan(each):
                    by_step[name] = made.pop()
            run_step(run, step, given, *shown)

        patch.setattr(curate, "run_step", also_built)
        assert cli.main(["curate", "config.toml"]) == 0
    return by_step


STEPS = list(dict.fromkeys(step.marks.step for steps, _ in curate.PIPELINE.values() for step in steps))

each_step = pytest.mark.parametrize("step", [*STEPS, "from the web"])


def transforms(job: Any, urn: str = "") -> Iterator[beam_runner_api_pb2.PTransform]:
    """The transforms of a job, of one kind."""
    yield from (each for each in job.proto_pipeline.components.transforms.values() if not urn or each.spec.urn == urn)


def coder(job: Any, collection: str) -> Any:
    components = job.proto_pipeline.components
    return components.coders[components.pcollections[collection].coder_id]


@needs_google_cloud
@each_step
def test_every_step_is_built_for_dataflow(jobs: dict[str, Any], step: str) -> None:
    job = jobs[step]
    assert list(transforms(job, "beam:transform:pardo:v1"))
    assert job.proto_pipeline.ByteSize() < JOB_BYTES_AT_MOST
    assert max(len(each.spec.payload) for each in transforms(job)) < JOB_BYTES_AT_MOST // 4


@needs_google_cloud
@each_step
def test_every_part_of_a_job_runs_in_our_image_with_our_hints(jobs: dict[str, Any], step: str) -> None:
    environments = list(jobs[step].proto_pipeline.components.environments.values())
    assert environments
    for environment in environments:
        assert environment.urn == "beam:env:docker:v1"
        assert beam_runner_api_pb2.DockerPayload.FromString(environment.payload).container_image == IMAGE
        assert dict(environment.resource_hints) == {"beam:resources:min_ram_bytes:v1": b"4000000000"}
        assert [each.role_urn for each in environment.dependencies] == []  # nothing is installed when a worker starts


@needs_google_cloud
@each_step
def test_a_job_has_the_options_of_workers_and_the_name_of_its_run_and_step(jobs: dict[str, Any], step: str) -> None:
    given = jobs[step].options
    worker, debug = given.view_as(WorkerOptions), given.view_as(DebugOptions)
    assert (worker.machine_type, worker.disk_size_gb) == (MACHINE_TYPE, DISK_GB)
    assert debug.number_of_worker_harness_threads == 1
    assert "use_runner_v2" in debug.experiments
    assert "no_use_multiple_sdk_containers" not in debug.experiments  # a process each vCPU
    named = {"from the web": "fetch/units"}.get(step, step).replace("/", "-").replace("_", "-")
    assert re.fullmatch(rf"altalign-[0-9a-f]{{8}}-{named}", given.view_as(GoogleCloudOptions).job_name)


@needs_google_cloud
@each_step
def test_groupings_have_keys_of_deterministic_coders_and_bytes_alone(jobs: dict[str, Any], step: str) -> None:
    job = jobs[step]
    components = job.proto_pipeline.components
    reshuffled = set(chain.from_iterable(below(job, each) for each in transforms(job, "beam:transform:reshuffle:v1")))
    for name, each in components.transforms.items():
        if each.spec.urn != "beam:transform:group_by_key:v1":
            continue
        pair = coder(job, next(iter(each.inputs.values())))
        assert pair.spec.urn == "beam:coder:kv:v1"
        key, value = (components.coders[part].spec.urn for part in pair.component_coder_ids)
        assert key == "beam:coder:varint:v1", each.unique_name
        assert name in reshuffled or value == "beam:coder:bytes:v1", each.unique_name


def below(job: Any, transform: beam_runner_api_pb2.PTransform) -> Iterator[str]:
    """Names of all parts of a transform."""
    for name in transform.subtransforms:
        yield name
        yield from below(job, job.proto_pipeline.components.transforms[name])


@needs_google_cloud
@pytest.mark.parametrize("step", ["tables/units", "judge/units", "decontaminate/compared"])
def test_the_steps_that_group_are_among_them(jobs: dict[str, Any], step: str) -> None:
    names = [each.unique_name for each in transforms(jobs[step], "beam:transform:group_by_key:v1")]
    assert any("GatherUnits" in name for name in names)


# Sizes ----------------------------------------------------------------------------------------------------------------


def run_of(folder: Path, *, files: int = 1) -> Run:
    config = CurateConfig.from_values({"input": {"paths": ["none"]}, "engine": {"runner": "dataflow"}}, where="test")
    path = (
        "gs://crawl/CC-MAIN-2026-13/segments/1771234567890.12/warc/CC-MAIN-20260313061234-20260313091234-{:05d}.warc.gz"
    )
    return Run(str(folder / "run"), config, tuple(InputFile(number, path.format(number), 0) for number in range(files)))


def units(count: int) -> list[dict[str, Any]]:
    fields = {"order": 7, "file": 123_456, "direct": True, "first": 12, "last": 34, "row": 1_000_000, "rows": 500_000}
    return [{"name": f"{number:06d}-00012", **fields} for number in range(count)]


def job_of(run: Run, elements: list[Any], built: list[Any], work: Callable[[Run, Any], Any] | None = None) -> Any:
    step = curate.each(EXTRACTED, lambda _: elements, work or (lambda _run, _unit: {}))
    with pipeline(run, "extract", dry()) as job:
        _ = job | create(run, elements) | step.transform(run)
    return built[-1]


@needs_google_cloud
def test_a_job_of_a_hundred_thousand_input_files_is_small_enough(tmp_path: Path, built: list[Any]) -> None:
    assert job_of(run_of(tmp_path, files=100_000), units(1_000), built).proto_pipeline.ByteSize() < JOB_BYTES_AT_MOST


@needs_google_cloud
def test_a_job_does_not_grow_with_the_number_of_its_units(tmp_path: Path, built: list[Any]) -> None:
    run = run_of(tmp_path)
    few, many = (job_of(run, units(count), built).proto_pipeline.ByteSize() for count in (1_000, 250_000))
    assert few < 1 << 18
    assert many < 1 << 18


def test_more_units_than_a_job_may_hold_all_come(tmp_path: Path) -> None:
    run, elements = run_of(tmp_path), units(2_501)
    with beam.Pipeline("FnApiRunner") as here:
        assert_that(here | create(run, elements), equal_to(elements))


@needs_google_cloud
def test_a_job_is_named_after_its_run_and_step_wherever_it_is_given_from(
    tmp_path: Path, built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        names.append(job_of(run_of(tmp_path), units(3), built).options.view_as(GoogleCloudOptions).job_name)
    assert names[0] == names[1]
    assert names[0].startswith("altalign-")
    assert names[0].endswith("-extract")


@needs_google_cloud
def test_a_job_that_is_at_work_already_is_not_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner
    from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError

    def refused(*_: Any) -> None:
        raise DataflowJobAlreadyExistsError(
            "There is already active job named altalign-… with id: 2026-…. … different name using --job_name."
        )

    monkeypatch.setattr(DataflowRunner, "run_pipeline", refused)
    run = run_of(tmp_path)
    with pytest.raises(
        AltalignError, match=r"extract: the job altalign-[0-9a-f]{8}-extract is at work already.* --region=europe-west4"
    ):
        job_of(run, units(1), [])


class Job:
    """A job on Dataflow, as Beam has it, that is interrupted while it is waited for."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def job_id(self) -> str:
        return "2026-11-22_00_00_00-1"

    def wait_until_finish(self) -> None:
        raise KeyboardInterrupt

    def cancel(self) -> None:
        self.is_cancelled = True


@needs_google_cloud
def test_an_interrupt_cancels_the_job_whose_page_was_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

    sent, run = Job(), run_of(tmp_path)
    monkeypatch.setattr(DataflowRunner, "run_pipeline", lambda *_: sent)
    with pytest.raises(KeyboardInterrupt), pipeline(run, "extract", dry()) as job:
        _ = job | create(run, units(1))
    assert sent.is_cancelled
    output = capsys.readouterr().err.replace("\n", "")
    assert (
        "extract: https://console.cloud.google.com/dataflow/jobs/europe-west4/2026-11-22_00_00_00-1?project=made-up"
        in output
    )
