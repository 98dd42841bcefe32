"""Jobs of an engine: their elements, their workers, their marks."""

import re
from contextlib import nullcontext
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from altalign import storage
from altalign.errors import AltalignError
from altalign.pipelines.engine import jobs
from altalign.pipelines.engine.jobs import ELEMENTS_AT_MOST, create, pipeline
from altalign.pipelines.engine.options import options
from tests.support.runs import run_of


def test_many_elements_are_read_from_a_file_of_the_run(tmp_path: Path) -> None:
    run = run_of(tmp_path, engine={"runner": "prism"})
    units = [{"name": f"{number:06d}", "caption": "ä\n" * (number % 3)} for number in range(2 * ELEMENTS_AT_MOST + 1)]
    with beam.Pipeline(runner="FnApiRunner") as built:
        elements = built | create(run, units)
        assert_that(elements, equal_to(units))
    assert built.to_runner_api().ByteSize() < 100 * ELEMENTS_AT_MOST
    assert len(storage.names(run.work("elements"))) == 1


@pytest.mark.parametrize(
    ("master", "losses", "leaves", "count"),
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
    count: int,
) -> None:
    run, seen = run_of(tmp_path / "run", engine={"runner": "spark"}), []
    given = options(
        run.config.engine, [f"--spark_master_url={master}", "--environment_type=DOCKER", "--job_endpoint=host:1"]
    )

    class Job:
        def wait_until_finish(self) -> None:
            seen.append(storage.names(run.path("log", "workers")))
            for name in leaves:
                storage.write_json(run.path("log", *name.split("/")), {"kind": "defect", "message": "unit 1"})
            if len(seen) <= losses:
                raise RuntimeError(
                    "Pipeline x failed in state FAILED: java.lang.Exception: a worker is lost\n"
                    "\tat some.Place(Place.java:1)"
                )

        def cancel(self) -> None:
            pass

    monkeypatch.setattr(beam.Pipeline, "run", lambda _: Job())
    with (
        nullcontext() if losses < count else pytest.raises(RuntimeError, match="a worker is lost"),
        pipeline(run, "tables/units", given),
    ):
        pass
    assert seen == [[]] * count  # signs of workers are those of one job
    why = "RuntimeError: Pipeline x failed in state FAILED: java.lang.Exception: a worker is lost"
    line = f"tables/units: Spark gave the job up ({why}); it is begun again\n"
    assert capsys.readouterr().err == line * (count - 1)


@pytest.mark.parametrize("runner", ["embedded", "prism", "spark"])
def test_units_that_workers_have_left_elsewhere_are_missed(
    tmp_path: Path, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MARKS_SHOW_WITHIN_S", 0.0)
    run = run_of(tmp_path, engine={"runner": runner})
    units = [{"name": "000000"}, {"name": "000001"}]
    storage.write_json(run.mark("extract", "000000"), {})
    with pytest.raises(
        AltalignError,
        match=re.escape(
            f"extract: {runner} says that it is done, but 1 of 2 units have left no mark in {run.work('extract')}; let"
        ),
    ):
        jobs.check_marks(run, "extract", units)
    storage.write_json(run.mark("extract", "000001"), {})
    jobs.check_marks(run, "extract", units)


def test_marks_that_a_file_system_of_the_network_shows_late_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, engine={"runner": "spark"})
    monkeypatch.setattr(jobs.time, "sleep", lambda _: storage.write_json(run.mark("extract", "000000"), {}))
    jobs.check_marks(run, "extract", [{"name": "000000"}])
