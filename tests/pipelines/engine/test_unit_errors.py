"""Errors of pipelines as users read them."""

import errno
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from altalign import storage
from altalign.errors import AltalignError, CountsError, FullDiskError, UnreadableError, UsageError
from altalign.pipelines.engine.map_units import pooled
from altalign.pipelines.engine.options import options
from altalign.pipelines.engine.unit_errors import raised
from tests.support.runs import run_of

# A real pipeline -----------------------------------------------------------------------------------------------------


def fails_with(folder: Path, work: Callable[[Any], Any]) -> pytest.ExceptionInfo[AltalignError]:
    run = run_of(folder / "run")
    with (
        pytest.raises(AltalignError) as caught,
        raised(run, "tables/units"),
        beam.Pipeline(options=options(run.config.engine, [])) as pipeline,
    ):
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
    [
        (no_space, FullDiskError, "no space left"),
        (unreadable, UnreadableError, "12 bytes"),
        (unexpected, AltalignError, "tables/units failed: unit "),
    ],
)
def test_a_pipeline_that_fails_raises_one_error_of_its_kind(
    tmp_path: Path, work: Callable[[Any], Any], kind: type[AltalignError], words: str
) -> None:
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
        (
            chained(KeyError("k"), OSError(errno.ENOSPC, "No space left on device")),
            FullDiskError,
            "no space left on the device (",
        ),
        (chained(OSError(errno.EDQUOT, "Quota exceeded")), FullDiskError, "(the quota is used up); make room"),
        (
            chained(OSError(errno.EACCES, "Permission denied", "in/a.warc")),
            AltalignError,
            "in/a.warc: Permission denied (judge/units); put that right and run",
        ),
        (
            chained(MemoryError("Unable to allocate 8 MiB")),
            AltalignError,
            "judge/units: out of memory (Unable to allocate 8 MiB); give the command more",
        ),
        (chained(OSError(errno.ENOMEM, "Cannot allocate memory")), AltalignError, "out of memory"),
        (chained(RuntimeError("can't start new thread")), AltalignError, "out of memory"),
        (chained(OSError(errno.EACCES, "Permission denied")), AltalignError, "judge/units failed: RuntimeError"),
        (CountsError("counts of a"), CountsError, "counts of a"),
        (ValueError(""), AltalignError, "judge/units failed: ValueError"),
    ],
)
def test_whatever_a_pipeline_raises_becomes_the_error_that_a_user_can_read(
    tmp_path: Path, error: Exception, kind: type[AltalignError], message: str
) -> None:
    with pytest.raises(AltalignError) as caught, raised(run_of(tmp_path / "run"), "judge/units"):
        raise error
    assert caught.type is kind
    assert message in str(caught.value)
    assert "while running" not in str(caught.value)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [chained(KeyboardInterrupt()), KeyboardInterrupt()])
def test_an_interrupt_stays_one(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(KeyboardInterrupt), raised(run_of(tmp_path / "run"), "judge/units"):
        raise error


@pytest.mark.parametrize("is_swallowed", [True, False])
def test_an_interrupt_from_outside_ends_the_command_whatever_the_runner_made_of_it(
    tmp_path: Path,
    is_swallowed: bool,  # noqa: FBT001
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), raised(run_of(tmp_path / "run"), "judge/units"):  # noqa: PT012 - what a runner does meanwhile
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        if not is_swallowed:
            raise RuntimeError("a unit failed")  # its cause is lost, as from a thread of the runner's own
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_that_only_speaks_of_interrupts_is_none(tmp_path: Path) -> None:
    with pytest.raises(AltalignError, match="judge/units failed"), raised(run_of(tmp_path / "run"), "judge/units"):
        raise ValueError("KeyboardInterrupt.html")


def test_an_error_of_another_process_is_read_from_the_run_and_an_old_one_is_not(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
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
CHAINED = """bundle inst005 failed:Traceback (most recent call last):
  File "a.py", line 3, in work
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 5, in work
ValueError: planned

"""

GRPC = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: connection refused"
\tdebug_error_string = "UNKNOWN:Error received from peer {grpc_status:14}"
>"""


@pytest.mark.parametrize(
    ("message", "gist"),
    [
        (
            SPARK,
            "RuntimeError: java.lang.RuntimeException: org.apache.spark.SparkException: Job aborted: "
            "Task 0 failed 4 times;",
        ),
        (CAUSED, "RuntimeError: java.io.IOException: no room;"),
        (PYTHON, "RuntimeError: ValueError: planned;"),
        (CHAINED, "RuntimeError: ValueError: planned;"),
        (
            GRPC,
            "RuntimeError: failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: "
            "connection refused;",
        ),
        ("", "RuntimeError;"),
    ],
)
def test_of_what_an_engine_says_the_line_that_tells_most_is_shown_and_all_of_it_kept(
    tmp_path: Path, message: str, gist: str
) -> None:
    with pytest.raises(AltalignError) as caught, raised(run_of(tmp_path / "run"), "extract"):
        raise RuntimeError(message)
    trace = tmp_path / "run" / "log" / "trace.txt"
    assert str(caught.value) == f"{tmp_path}/run: extract failed: {gist} {trace} has the rest"
    assert message in trace.read_text()
