"""The pool of threads inside a stage, what runners take, and errors of pipelines as users read them."""

import errno
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DirectOptions, StandardOptions

from altalign import interrupts, storage
from altalign.curation import CurateConfig, EngineSettings
from altalign.errors import AltalignError, CountsError, FullDiskError, UnreadableError, UsageError
from pipelines.engines import options, started, threads
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
    [(no_space, FullDiskError, "no space left"), (unreadable, UnreadableError, "12 bytes"), (unexpected, AltalignError, "tables/units failed")],
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


# Runners -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", ["spark", "flink", "dataflow"])
def test_runners_that_are_not_supported_are_refused(runner: Any) -> None:
    with pytest.raises(UsageError, match=rf'runner = "{runner}": not supported yet'):
        options(EngineSettings(runner=runner), [])


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
