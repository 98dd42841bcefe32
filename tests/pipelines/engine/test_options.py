"""What runners take, and what they refuse."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions

from altalign.errors import UsageError
from altalign.pipelines.engine.options import JOB_SERVER_VERSION, jar_of, options
from altalign.settings.curate import EngineSettings


@pytest.mark.parametrize(("runner", "master"), [("spark", "local[3]"), ("flink", "[local]")])
def test_spark_and_flink_run_on_this_machine_unless_a_flag_names_a_cluster(
    jars_there: Path, runner: Any, master: str
) -> None:
    values = options(EngineSettings(runner=runner, workers=3), []).get_all_options(retain_unknown_options=True)
    assert values[f"{runner}_master_url" if runner == "spark" else "flink_master"] == master
    assert values["environment_type"] == "LOOPBACK"
    assert values["environment_cache_millis"] == 60_000
    jar = str(jars_there / f"{runner}-job-server-{JOB_SERVER_VERSION}.jar")
    assert (values["files_to_stage"], values[f"{runner}_job_server_jar"]) == ([jar], jar)
    if runner == "flink":
        assert values["parallelism"] == 3
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
    ("runner", "workers", "flags", "message"),
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
        ("prism", 4, [], "workers = 4: Prism decides itself how many work at once; leave it 0"),
    ],
)
@pytest.mark.usefixtures("jars_there")
def test_what_an_engine_cannot_honour_is_refused(
    monkeypatch: pytest.MonkeyPatch, runner: Any, workers: int, flags: list[str], message: str
) -> None:
    monkeypatch.setenv("ALTALIGN_PRISM", sys.executable)
    with pytest.raises(UsageError, match=re.escape(message)):
        options(EngineSettings(runner=runner, workers=workers), flags)


@pytest.mark.parametrize("runner", ["spark", "flink"])
def test_a_job_server_is_the_one_that_is_named_else_the_one_that_was_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runner: str
) -> None:
    monkeypatch.setenv("ALTALIGN_JARS", str(tmp_path))
    variable, given = f"{runner.upper()}_JOB_SERVER_JAR", PipelineOptions([])
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UsageError, match=f"no job server; `make jars` brings one, or name its jar: {variable}=PATH"):
        jar_of(runner, given)
    made, named = tmp_path / f"{runner}-job-server-{JOB_SERVER_VERSION}.jar", tmp_path / "mine.jar"
    made.touch()
    assert jar_of(runner, given) == str(made)
    monkeypatch.setenv(variable, str(named))
    with pytest.raises(UsageError, match=rf"{variable} = .*mine\.jar: no such file"):
        jar_of(runner, given)
    named.touch()
    assert jar_of(runner, given) == str(named)


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


def test_flags_go_to_beam_and_unknown_ones_are_refused() -> None:
    given = options(EngineSettings(), ["--direct_running_mode=in_memory", "--direct_num_workers=1"])
    assert given.view_as(StandardOptions).runner == "FnApiRunner"
    assert given.view_as(DirectOptions).direct_running_mode == "in_memory"
    with pytest.raises(UsageError, match="no_such_flag: Beam has no such flag"):
        options(EngineSettings(), ["--no_such_flag=1"])
    for flags in (["--runner=PrismRunner"], ["--runner", "PrismRunner"]):
        with pytest.raises(UsageError, match="runner"):
            options(EngineSettings(), flags)


def test_threads_are_those_asked_for_and_one_where_the_runner_has_its_own_workers() -> None:
    assert EngineSettings(workers=7).threads == 7
    assert EngineSettings().threads >= 1
    assert EngineSettings(runner="prism", workers=7).threads == 1


@pytest.mark.parametrize(
    ("flags", "message"),
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
    runner: Any, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        options(EngineSettings(runner=runner), flags)
    assert capsys.readouterr().err == ""
