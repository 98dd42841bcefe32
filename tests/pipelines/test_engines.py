"""The pool of threads inside a stage, what runners take, and errors of pipelines as users read them."""

import errno
import http.server
import json
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, StandardOptions
from apache_beam.testing.util import assert_that, equal_to

from altalign import interrupts, storage
from altalign.curation import CurateConfig, EngineSettings
from altalign.errors import AltalignError, CountsError, FullDiskError, UnreadableError, UsageError
from pipelines import flink_cluster, jars
from pipelines.engines import ELEMENTS_AT_MOST, create, options, started, threads
from pipelines.pooled import Pooled, pooled
from pipelines.trouble import raised
from pipelines.units import Run

PATIENCE_S = 30  # a test that waits longer has failed


def run_of(folder: Path) -> Run:
    return Run(str(folder / "run"), CurateConfig.from_values({"input": {"paths": ["none"]}}, where="test"), ())


def waited(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


def in_order(pool: Pooled, elements: Iterator[Any]) -> Iterator[Any]:
    """What a bundle brings, as a runner works it; the windows are taken off."""
    pool.setup()
    try:
        pool.start_bundle()
        for element in elements:
            yield from pool.process(element)
        yield from (windowed.value for windowed in pool.finish_bundle() or ())
    finally:
        pool.teardown()


# The pool ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_pool_keeps_the_order_of_elements_and_of_what_each_brings(count: int) -> None:
    found = list(in_order(Pooled(lambda x: [(x, i) for i in range(x % 4)], count), iter(range(50))))
    assert found == [(x, i) for x in range(50) for i in range(x % 4)]


def test_an_element_that_ends_first_waits_for_those_before_it() -> None:
    second_is_over = threading.Event()

    def work(x: int) -> list[int]:
        if x == 0:
            waited(second_is_over)
        else:
            second_is_over.set()
        return [x]

    assert list(in_order(Pooled(work, 2), iter([0, 1]))) == [0, 1]


def test_as_many_elements_as_threads_are_worked_on_at_once() -> None:
    together = threading.Barrier(3, timeout=PATIENCE_S)  # breaks, and so raises, unless three are there at once
    assert list(in_order(Pooled(lambda x: [(together.wait(), x)[1]], 3), iter(range(9)))) == list(range(9))


def test_at_most_twice_the_threads_are_in_flight() -> None:
    taken = []

    def elements() -> Iterator[int]:
        for x in range(20):
            taken.append(x)
            yield x

    for out, value in enumerate(in_order(Pooled(lambda x: [x], 2), elements()), start=1):
        assert value == out - 1
        assert len(taken) - out < 4
    assert len(taken) == 20


def test_a_full_pool_holds_the_next_element_back_until_the_oldest_is_done() -> None:
    gates = [threading.Event() for _ in range(4)]

    def work(x: int) -> list[int]:
        waited(gates[x])
        return [x]

    pool = Pooled(work, 2)
    pool.setup()
    pool.start_bundle()
    try:
        assert [list(pool.process(x)) for x in range(3)] == [[], [], []]  # two wait at their gates, one in the queue; nothing is held back
        gates[0].set()
        assert list(pool.process(3)) == [0]  # the fourth: comes back with the oldest, and with no other
        for gate in gates:
            gate.set()
        assert [windowed.value for windowed in pool.finish_bundle()] == [1, 2, 3]
    finally:
        for gate in gates:
            gate.set()
        pool.teardown()


def test_a_failing_element_raises_and_those_that_have_not_begun_never_do() -> None:
    begun, may_fail, gate = [], threading.Event(), threading.Event()

    def work(x: int) -> list[int]:
        begun.append(x)
        waited(may_fail if x == 0 else gate)
        if x == 0:
            raise UnreadableError("page 0 of the file")
        return [x]

    pool = Pooled(work, 3)
    pool.setup()
    pool.start_bundle()
    try:
        for x in range(5):  # 0, 1 and 2 are worked on; the thread of 0 takes 3 when 0 has failed; none is left for 4
            assert list(pool.process(x)) == []
        may_fail.set()
        with pytest.raises(UnreadableError, match="page 0"):
            list(pool.finish_bundle())
        gate.set()
        pool.start_bundle()
        list(pool.process(5))  # would come after 4
        assert [windowed.value for windowed in pool.finish_bundle()] == [5]
    finally:
        gate.set()
        pool.teardown()
    assert sorted(begun) == [0, 1, 2, 3, 5]


def test_a_failing_element_raises_while_elements_still_come() -> None:
    def work(x: int) -> list[int]:
        if x == 2:
            raise UnreadableError("page 2 of the file")
        return [x]

    found = []
    with pytest.raises(UnreadableError, match="page 2"):  # noqa: PT012 - what was found before it counts
        for x in in_order(Pooled(work, 2), iter(range(1_000_000_000))):  # whoever went on to the end would never end
            found.append(x)
    assert found == [0, 1]


def test_what_is_held_is_held_as_long_as_there_may_be_work() -> None:
    said = []

    @contextmanager
    def held() -> Iterator[None]:
        said.append("opened")
        yield
        said.append("closed")

    pool = Pooled(lambda x: said.append(x) or [x], 2, held)
    assert list(in_order(pool, iter("ab"))) == ["a", "b"]
    assert (said[0], sorted(said[1:3]), said[3:]) == ("opened", ["a", "b"], ["closed"])


@pytest.mark.parametrize("failing", [0, 1])
def test_what_works_while_another_element_fails_is_told_to_end(failing: int) -> None:
    """Also where the failing one is not the oldest, for whose results everybody waits."""
    begun, met = threading.Event(), []

    def work(x: int) -> list[int]:
        if x == failing:
            waited(begun)
            raise UnreadableError("page 0 of the file")
        begun.set()
        for _ in range(1_000 * PATIENCE_S):
            time.sleep(0.001)
            try:
                interrupts.check()
            except interrupts.GivenUpError:
                met.append(x)
                raise
        return [x]

    with pytest.raises(UnreadableError, match="page 0"):
        list(in_order(Pooled(work, 2), iter(range(2))))
    assert met == [1 - failing]


# A real pipeline -----------------------------------------------------------------------------------------------------


def fails_with(folder: Path, work: Callable[[Any], Any]) -> pytest.ExceptionInfo[AltalignError]:
    run = run_of(folder)
    with pytest.raises(AltalignError) as caught, raised(run, "tables/units"), beam.Pipeline(options=options(run.config.engine, [])) as pipeline:
        _ = pipeline | beam.Create([1, 2, 3]) | pooled(run, work)
    return caught


def no_space(_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device", "some/file")


def unreadable(_: Any) -> Any:
    raise UnreadableError("a.parquet: cut after 12 bytes")


def unexpected(_: Any) -> Any:
    raise ZeroDivisionError("not foreseen")


@pytest.mark.parametrize(
    ("work", "kind", "words"),
    [(no_space, FullDiskError, "no space left"), (unreadable, UnreadableError, "12 bytes"), (unexpected, AltalignError, "tables/units failed: unit ")],
)
def test_a_pipeline_that_fails_raises_one_error_of_its_kind(tmp_path: Path, work: Callable[[Any], Any], kind: type[AltalignError], words: str) -> None:
    caught = fails_with(tmp_path, work)
    assert caught.type is kind
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


# Errors --------------------------------------------------------------------------------------------------------------


def chained(*errors: BaseException) -> RuntimeError:
    """What a runner raises: an error of its own, caused by the others in turn."""
    top = RuntimeError("the runner failed\nin several lines")
    last: BaseException = top
    for error in errors:
        last.__cause__ = error
        last = error
    return top


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (chained(UsageError("setting x")), UsageError, "setting x"),
        (chained(ValueError("y"), UnreadableError("file z [while running 'DoUnits']")), UnreadableError, "file z"),
        (chained(KeyError("k"), OSError(errno.ENOSPC, "No space left on device")), FullDiskError, "no space left on the device ("),
        (chained(OSError(errno.EDQUOT, "Quota exceeded")), FullDiskError, "(the quota is used up); make room"),
        (chained(OSError(errno.EACCES, "Permission denied", "in/a.warc")), AltalignError, "in/a.warc: Permission denied (judge/units); put that right and run"),
        (chained(MemoryError("Unable to allocate 8 MiB")), AltalignError, "judge/units: out of memory (Unable to allocate 8 MiB); give the command more"),
        (chained(OSError(errno.ENOMEM, "Cannot allocate memory")), AltalignError, "out of memory"),
        (chained(RuntimeError("can't start new thread")), AltalignError, "out of memory"),
        (chained(OSError(errno.EACCES, "Permission denied")), AltalignError, "judge/units failed: RuntimeError"),
        (CountsError("counts of a"), CountsError, "counts of a"),
        (ValueError(""), AltalignError, "judge/units failed: ValueError"),
    ],
)
def test_whatever_a_pipeline_raises_becomes_the_error_that_a_user_can_read(tmp_path: Path, error: Exception, kind: type[AltalignError], message: str) -> None:
    with pytest.raises(AltalignError) as caught, raised(run_of(tmp_path), "judge/units"):
        raise error
    assert caught.type is kind
    assert message in str(caught.value)
    assert "while running" not in str(caught.value)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [chained(KeyboardInterrupt()), KeyboardInterrupt()])
def test_an_interrupt_stays_one(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(KeyboardInterrupt), raised(run_of(tmp_path), "judge/units"):
        raise error


@pytest.mark.parametrize("is_swallowed", [True, False])
def test_an_interrupt_from_outside_ends_the_command_whatever_the_runner_made_of_it(tmp_path: Path, is_swallowed: bool) -> None:  # noqa: FBT001 - of the test
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), raised(run_of(tmp_path), "judge/units"):  # noqa: PT012 - what a runner does meanwhile
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        if not is_swallowed:
            raise RuntimeError("a unit failed")  # its cause is lost, as from a thread of the runner's own
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_that_only_speaks_of_interrupts_is_none(tmp_path: Path) -> None:
    with pytest.raises(AltalignError, match="judge/units failed"), raised(run_of(tmp_path), "judge/units"):
        raise ValueError("KeyboardInterrupt.html")


def test_an_error_of_another_process_is_read_from_the_run_and_an_old_one_is_not(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    trouble = {"kind": "UnreadableError", "message": "b.csv: cut"}
    storage.write_json(run.path("log", "trouble.json"), trouble)
    with pytest.raises(AltalignError, match="extract failed: RuntimeError: in several lines"), raised(run, "extract"):
        raise chained()
    with pytest.raises(UnreadableError, match=r"b\.csv: cut"), raised(run, "extract"):  # noqa: PT012 - written while the pipeline runs
        storage.write_json(run.path("log", "trouble.json"), trouble)
        raise chained()
    with raised(run, "extract"):
        storage.write_json(run.path("log", "trouble.json"), trouble)  # a unit that failed and was done again
    assert not storage.exists(run.path("log", "trouble.json"))


SPARK = """java.lang.RuntimeException: org.apache.spark.SparkException: Job aborted: Task 0 failed 4 times
\tat org.apache.spark.Scheduler.run(Scheduler.scala:1)
\t... 3 more
Driver stacktrace:"""
CAUSED = (
    SPARK
    + """
Caused by: java.io.IOException: no room
\tat x.Y.z(Y.java:3)
"""
)
PYTHON = """bundle inst005 failed:Traceback (most recent call last):
  File "a.py", line 3, in work
ValueError: planned"""


@pytest.mark.parametrize(
    ("said", "gist"),
    [
        (SPARK, "RuntimeError: java.lang.RuntimeException: org.apache.spark.SparkException: Job aborted: Task 0 failed 4 times;"),
        (CAUSED, "RuntimeError: java.io.IOException: no room;"),
        (PYTHON, "RuntimeError: ValueError: planned;"),
        ("", "RuntimeError;"),
    ],
)
def test_of_what_an_engine_says_the_line_that_tells_most_is_shown_and_all_of_it_kept(tmp_path: Path, said: str, gist: str) -> None:
    with pytest.raises(AltalignError) as caught, raised(run_of(tmp_path), "extract"):
        raise RuntimeError(said)
    trace = tmp_path / "run" / "log" / "trace.txt"
    assert str(caught.value) == f"{tmp_path}/run: extract failed: {gist} {trace} has the rest"
    assert said in trace.read_text()


# Runners -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def jars_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Files where the job servers' jars are meant to be; no job server is started here."""
    monkeypatch.setenv("ALTALIGN_JARS", str(tmp_path))
    for runner, variable in jars.VARIABLES.items():
        monkeypatch.delenv(variable, raising=False)
        (tmp_path / f"{runner}-job-server.jar").touch()
    return tmp_path


@pytest.mark.parametrize(("runner", "master"), [("spark", "local[3]"), ("flink", "[local]")])
def test_spark_and_flink_run_on_this_machine_unless_a_flag_names_a_cluster(jars_there: Path, runner: Any, master: str) -> None:
    found = options(EngineSettings(runner=runner, workers=3), []).get_all_options(retain_unknown_options=True)
    assert found[f"{runner}_master_url" if runner == "spark" else "flink_master"] == master
    assert found["environment_type"] == "LOOPBACK"
    assert found["environment_cache_millis"] == 60_000
    assert found["files_to_stage"] == [str(jars_there / f"{runner}-job-server.jar")]
    if runner == "flink":
        assert found["parallelism"] == 3
    of_user = options(EngineSettings(runner=runner), ["--environment_cache_millis=5", "--files_to_stage=mine.jar", "--job_endpoint=host:1"])
    mine = of_user.get_all_options(retain_unknown_options=True)
    assert (mine["environment_cache_millis"], mine["files_to_stage"], mine["job_endpoint"]) == ("5", ["mine.jar"], "host:1")


@pytest.mark.parametrize(
    ("runner", "workers", "flags", "said"),
    [
        ("spark", 0, ["--spark_master_url=spark://host:7077"], "how Python starts on its machines is not said; give --environment_type=EXTERNAL"),
        ("flink", 0, ["--flink_master=host:8081"], "how Python starts on its machines is not said"),
        ("spark", 4, ["--spark_master_url=spark://host:7077", "--environment_type=DOCKER"], r"workers = 4: how many work at once is the cluster's to say"),
        ("spark", 0, ["--spark_job_server_jar=no/such.jar"], "spark_job_server_jar=no/such.jar: no such file"),
        (
            "flink",
            0,
            ["--job_server_java_launcher=no-such-java"],
            "no-such-java: no such program, and job servers of Spark and Flink run on Java; install Java 11 or 17",
        ),
        ("flink", 0, ["--flink_master=localhost:9", "--environment_type=DOCKER"], "flink_master=localhost:9: no Flink cluster answers there"),
        ("prism", 4, [], "workers = 4: Prism decides itself how many work at once; leave it 0"),
    ],
)
@pytest.mark.usefixtures("jars_there")
def test_what_an_engine_cannot_honour_is_refused(monkeypatch: pytest.MonkeyPatch, runner: Any, workers: int, flags: list[str], said: str) -> None:
    monkeypatch.setenv("ALTALIGN_PRISM", sys.executable)
    with pytest.raises(UsageError, match=re.escape(said)):
        options(EngineSettings(runner=runner, workers=workers), flags)


def test_spark_needs_a_job_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALTALIGN_JARS", str(tmp_path))
    monkeypatch.delenv("SPARK_JOB_SERVER_JAR", raising=False)
    with pytest.raises(UsageError, match="no job server; `make jars` brings one"):
        options(EngineSettings(runner="spark"), [])


class _Rest(http.server.BaseHTTPRequestHandler):
    """A cluster's REST interface, as far as it is asked: what it answers and what it was told to cancel."""

    answers: ClassVar[dict[str, Any]] = {}
    cancelled: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self._say(self.answers[self.path])

    def do_PATCH(self) -> None:
        self.cancelled.append(self.path)
        job = self.path.split("/")[2].split("?")[0]
        self.answers["/jobs/overview"]["jobs"] = [each for each in self.answers["/jobs/overview"]["jobs"] if each["jid"] != job]
        self._say({})

    def _say(self, value: Any) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's names
        """Say nothing."""


@pytest.fixture
def rest() -> Iterator[tuple[str, type[_Rest]]]:
    """Address of a REST interface, and what it answers."""
    answering = type("Rest", (_Rest,), {"answers": {}, "cancelled": []})
    with http.server.HTTPServer(("localhost", 0), answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"localhost:{server.server_address[1]}", answering
        server.shutdown()


@pytest.mark.parametrize(("strategy", "is_fit"), [({}, False), ({"restart-strategy.type": "none"}, False), ({"restart-strategy.type": "fixed-delay"}, True)])
def test_a_flink_cluster_that_restarts_nothing_is_refused(rest: tuple[str, type[_Rest]], strategy: dict[str, str], is_fit: bool) -> None:  # noqa: FBT001 - of the test
    rest[1].answers["/jobmanager/config"] = [{"key": key, "value": value} for key, value in {"rest.port": "1", **strategy}.items()]
    if is_fit:
        flink_cluster.check_restarts(rest[0])
    else:
        with pytest.raises(UsageError, match=r'no restart strategy, so that one lost worker would end the job; put "restart-strategy.type: fixed-delay"'):
            flink_cluster.check_restarts(rest[0])


def test_jobs_that_a_killed_command_left_are_ended_and_no_others(rest: tuple[str, type[_Rest]]) -> None:
    jobs = [
        ("a", "altalign-1-judge", "RUNNING"),
        ("b", "altalign-1-extract", "FINISHED"),
        ("c", "altalign-2-judge", "RUNNING"),
        ("d", "altalign-1-x", "RESTARTING"),
    ]
    rest[1].answers["/jobs/overview"] = {"jobs": [{"jid": jid, "name": name, "state": state} for jid, name, state in jobs]}
    flink_cluster.cancel(rest[0], "altalign-1-")
    assert sorted(rest[1].cancelled) == ["/jobs/a?mode=cancel", "/jobs/d?mode=cancel"]


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
    with pytest.raises(AltalignError, match=r"Prism does not answer on port \d+; .*prism.log has what it said"), started(run, options(config.engine, [])):
        raise AssertionError


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
