"""What runners take, and what they cannot honour."""

import os
import re
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, StandardOptions
from apache_beam.testing.util import assert_that, equal_to

from altalign import storage
from altalign.curation import CurateConfig, EngineSettings
from altalign.errors import AltalignError, UsageError
from altalign.pipelines.engine import engines, jars
from altalign.pipelines.engine.engines import ELEMENTS_AT_MOST, create, options, pipeline, started, threads
from altalign.pipelines.run.units import Run


@pytest.fixture
def jars_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Files where the job servers' jars are meant to be; no job server is started here."""
    monkeypatch.setenv("ALTALIGN_JARS", str(tmp_path))
    for runner, variable in jars.VARIABLES.items():
        monkeypatch.delenv(variable, raising=False)
        (tmp_path / f"{runner}-job-server.jar").touch()
    return tmp_path


@pytest.mark.parametrize(("runner", "master"), [("spark", "local[3]"), ("flink", "[local]")])
def test_spark_and_flink_run_on_this_machine_unless_a_flag_names_a_cluster(
    jars_there: Path, runner: Any, master: str
) -> None:
    found = options(EngineSettings(runner=runner, workers=3), []).get_all_options(retain_unknown_options=True)
    assert found[f"{runner}_master_url" if runner == "spark" else "flink_master"] == master
    assert found["environment_type"] == "LOOPBACK"
    assert found["environment_cache_millis"] == 60_000
    assert found["files_to_stage"] == [str(jars_there / f"{runner}-job-server.jar")]
    if runner == "flink":
        assert found["parallelism"] == 3
    of_user = options(
        EngineSettings(runner=runner),
        ["--environment_cache_millis=5", "--files_to_stage=mine.jar", "--job_endpoint=host:1"],
    )
    mine = of_user.get_all_options(retain_unknown_options=True)
    assert (mine["environment_cache_millis"], mine["files_to_stage"], mine["job_endpoint"]) == (
        "5",
        ["mine.jar"],
        "host:1",
    )


@pytest.mark.parametrize(
    ("runner", "workers", "flags", "said"),
    [
        (
            "spark",
            0,
            ["--spark_master_url=spark://host:7077"],
            "how Python starts on its machines is not said; give --environment_type=EXTERNAL",
        ),
        ("flink", 0, ["--flink_master=host:8081"], "how Python starts on its machines is not said"),
        (
            "spark",
            4,
            ["--spark_master_url=spark://host:7077", "--environment_type=DOCKER"],
            r"workers = 4: how many work at once is the cluster's to say",
        ),
        ("spark", 0, ["--spark_job_server_jar=no/such.jar"], "spark_job_server_jar=no/such.jar: no such file"),
        (
            "flink",
            0,
            ["--job_server_java_launcher=no-such-java"],
            "no-such-java: no such program, and job servers of Spark and Flink run on Java; install Java 11 or 17",
        ),
        (
            "flink",
            0,
            ["--flink_master=localhost:9", "--environment_type=DOCKER"],
            "flink_master=localhost:9: no Flink cluster answers there",
        ),
        ("prism", 4, [], "workers = 4: Prism decides itself how many work at once; leave it 0"),
    ],
)
@pytest.mark.usefixtures("jars_there")
def test_what_an_engine_cannot_honour_is_refused(
    monkeypatch: pytest.MonkeyPatch, runner: Any, workers: int, flags: list[str], said: str
) -> None:
    monkeypatch.setenv("ALTALIGN_PRISM", sys.executable)
    with pytest.raises(UsageError, match=re.escape(said)):
        options(EngineSettings(runner=runner, workers=workers), flags)


def test_spark_needs_a_job_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALTALIGN_JARS", str(tmp_path))
    monkeypatch.delenv("SPARK_JOB_SERVER_JAR", raising=False)
    with pytest.raises(UsageError, match="no job server; `make jars` brings one"):
        options(EngineSettings(runner="spark"), [])


def test_many_elements_are_read_from_a_file_of_the_run(tmp_path: Path) -> None:
    config = CurateConfig.from_values({"input": {"paths": ["none"]}, "engine": {"runner": "prism"}}, where="test")
    run = Run(str(tmp_path), config, ())
    units = [{"name": f"{number:06d}", "caption": "ä\n" * (number % 3)} for number in range(2 * ELEMENTS_AT_MOST + 1)]
    with beam.Pipeline(runner="FnApiRunner") as built:
        found = built | create(run, units)
        assert_that(found, equal_to(units))
    assert built.to_runner_api().ByteSize() < 100 * ELEMENTS_AT_MOST
    assert len(storage.names(run.work("elements"))) == 1


def test_prism_needs_its_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ALTALIGN_PRISM", raising=False)
    with pytest.raises(UsageError, match="make prism"):
        options(EngineSettings(runner="prism"), [])
    for place in ("/no/such/prism", str(tmp_path)):
        monkeypatch.setenv("ALTALIGN_PRISM", place)
        with pytest.raises(UsageError, match=f"ALTALIGN_PRISM = {place}: no program"):
            options(EngineSettings(runner="prism"), [])
    monkeypatch.setenv("ALTALIGN_PRISM", sys.executable)
    assert options(EngineSettings(runner="prism"), []).view_as(StandardOptions).runner == "PrismRunner"


def test_a_server_that_does_not_start_is_an_error_with_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = CurateConfig.from_values({"input": {"paths": ["none"]}, "engine": {"runner": "prism"}}, where="test")
    run = Run(str(tmp_path), config, ())
    (tmp_path / "log").mkdir()
    monkeypatch.setenv("ALTALIGN_PRISM", shutil.which("false") or "/bin/false")
    with (
        pytest.raises(AltalignError, match=r"Prism does not answer on port \d+; .*prism.log has what it said"),
        started(run, options(config.engine, [])),
    ):
        raise AssertionError


@pytest.mark.parametrize(
    ("master", "losses", "leaves", "jobs"),
    [
        ("spark://host:7077", 2, ["workers/host-1"], 3),
        ("spark://host:7077", 3, ["workers/host-1"], 3),
        ("spark://host:7077", 2, ["workers/host-1", "trouble.json"], 1),  # a unit says why
        ("spark://host:7077", 2, [], 1),  # nothing can work
        ("local[2]", 2, ["workers/host-1"], 1),
    ],
)
@pytest.mark.usefixtures("jars_there")
def test_a_job_that_a_cluster_gives_up_is_begun_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    master: str,
    losses: int,
    leaves: list[str],
    jobs: int,
) -> None:
    config = CurateConfig.from_values({"input": {"paths": ["none"]}, "engine": {"runner": "spark"}}, where="test")
    run, seen = Run(str(tmp_path / "run"), config, ()), []
    given = options(
        config.engine, [f"--spark_master_url={master}", "--environment_type=DOCKER", "--job_endpoint=host:1"]
    )

    class Job:
        def wait_until_finish(self) -> None:
            seen.append(storage.names(run.path("log", "workers")))
            for name in leaves:
                storage.write_json(run.path("log", *name.split("/")), {"kind": "defect", "message": "unit 1"})
            if len(seen) <= losses:
                raise RuntimeError(
                    "Pipeline x failed in state FAILED: java.lang.Exception: a worker is lost\n\tat some.Place(Place.java:1)"
                )

        def cancel(self) -> None:
            pass

    monkeypatch.setattr(beam.Pipeline, "run", lambda _: Job())
    with (
        nullcontext() if losses < jobs else pytest.raises(RuntimeError, match="a worker is lost"),
        pipeline(run, "tables/units", given),
    ):
        pass
    assert seen == [[]] * jobs  # signs of workers are those of one job
    line = "tables/units: Spark gave the job up (RuntimeError: Pipeline x failed in state FAILED: java.lang.Exception: a worker is lost); it is begun again\n"
    assert capsys.readouterr().err == line * (jobs - 1)


def test_flags_go_to_beam_and_unknown_ones_are_refused() -> None:
    found = options(EngineSettings(), ["--direct_running_mode=in_memory", "--direct_num_workers=1"])
    assert found.view_as(StandardOptions).runner == "FnApiRunner"
    assert found.view_as(DirectOptions).direct_running_mode == "in_memory"
    with pytest.raises(UsageError, match="no_such_flag: Beam has no such flag"):
        options(EngineSettings(), ["--no_such_flag=1"])
    for flags in (["--runner=PrismRunner"], ["--runner", "PrismRunner"]):
        with pytest.raises(UsageError, match="runner"):
            options(EngineSettings(), flags)


def test_threads_are_those_asked_for_and_one_where_the_runner_has_its_own_workers() -> None:
    assert threads(EngineSettings(workers=7)) == 7
    assert threads(EngineSettings()) >= 1
    assert threads(EngineSettings(runner="prism", workers=7)) == 1


@pytest.mark.parametrize("runner", ["embedded", "prism", "spark"])
def test_units_that_workers_have_left_elsewhere_are_missed(
    tmp_path: Path, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "MARKS_SHOW_WITHIN_S", 0.0)
    run = Run(
        str(tmp_path),
        CurateConfig.from_values({"input": {"paths": ["none"]}, "engine": {"runner": runner}}, where="test"),
        (),
    )
    units = [{"name": "000000"}, {"name": "000001"}]
    storage.write_json(run.mark("extract", "000000"), {})
    with pytest.raises(
        AltalignError,
        match=re.escape(
            f"extract: {runner} says that it is done, but 1 of 2 units have left no mark in {run.work('extract')}; let workers see"
        ),
    ):
        engines.check_marks(run, "extract", units)
    storage.write_json(run.mark("extract", "000001"), {})
    engines.check_marks(run, "extract", units)


def test_marks_that_a_file_system_of_the_network_shows_late_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(
        str(tmp_path),
        CurateConfig.from_values({"input": {"paths": ["none"]}, "engine": {"runner": "spark"}}, where="test"),
        (),
    )
    monkeypatch.setattr(engines.time, "sleep", lambda _: storage.write_json(run.mark("extract", "000000"), {}))
    engines.check_marks(run, "extract", [{"name": "000000"}])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--streaming", "---"], "-- ---: no flag of Beam, which are --NAME or --NAME=VALUE"),
        (["--=x"], "-- --=x: no flag of Beam"),
        (["x"], "-- x: no flag of Beam"),
        (["--parallelism=abc"], "-- --parallelism: invalid int value: 'abc'; give a value that Beam takes"),
        (["--job_server_timeout"], "expected one argument; give a value that Beam takes"),
    ],
)
@pytest.mark.parametrize("runner", ["embedded", "spark", "flink"])
@pytest.mark.usefixtures("jars_there")
def test_what_beam_cannot_read_is_one_line(
    runner: Any, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        options(EngineSettings(runner=runner), flags)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("named", "wanted"), [("", "localhost,127.0.0.1"), ("example.org,localhost", "example.org,localhost,127.0.0.1")]
)
def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch, named: str, wanted: str) -> None:
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("no_proxy", named)
    for _ in range(2):
        engines._go_past_proxies()  # pyright: ignore[reportPrivateUsage]
        assert os.environ["no_grpc_proxy"] == wanted  # noqa: SIM112 - the name that gRPC reads
