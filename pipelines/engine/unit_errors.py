"""Errors of units for users: one error with a repair, however the engine wraps it."""

import errno
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from altalign import storage
from altalign.errors import AltalignError, FullDiskError, UnreadableError, UsageError
from altalign.machine import interrupts
from altalign.pipelines.run.units import Run

_DEFECT = "defect"  # the kind of an error that is our fault
_OF_A_JAVA_TRACE = re.compile(r"\s*(at [\w.$/<>]+\(|\.\.\. \d+ more|Driver stacktrace)")
_OF_GRPC = re.compile(r'^\s*details = "(.+)"$', re.MULTILINE)
_CHARACTERS_SAID = 300  # so much of an engine's error is shown; its log has all


class Reporting:
    """Calls `work`, and also writes its error to the run: no exception leaves another process whole."""

    def __init__(self, run: Run, work: Callable[[Any], Iterable[Any]]):
        self._run, self._work = run, work

    def __call__(self, element: object) -> list[Any]:
        """The results of the work on one element."""
        try:
            return list(self._work(element))
        except Exception as error:
            said = error if isinstance(error, AltalignError) else _readable(error, self._run, "a unit")
            with suppress(OSError, AltalignError):
                self._leave(element, error, said)
            raise

    def _leave(self, element: object, error: Exception, said: AltalignError | None) -> None:
        if isinstance(error, interrupts.GivenUpError):
            return
        if said is None:  # a defect of ours
            unit = element["name"] if isinstance(element, dict) else element
            unit = unit[0] if isinstance(unit, tuple) else unit
            storage.write_bytes(_trace(self._run), "".join(traceback.format_exception(error)).encode())
            found = {"kind": _DEFECT, "message": f"unit {unit}: {type(error).__name__}: {error}"}
        else:
            found = {"kind": type(said).__name__, "message": str(said)}
        storage.write_json(_path(self._run), found)


@contextmanager
def raised(run: Run, step: str) -> Iterator[None]:
    """Around a pipeline: turns whatever it raises into one error that a user can read.

    Workers in other processes can send no exception, so a unit writes its error to a file, which this reads.
    """
    storage.delete(_path(run))
    try:
        with _interruptible():
            yield
        storage.delete(_path(run))  # it is from a unit that failed and was then done
    except Exception as error:
        for cause in _chain(error):
            if isinstance(cause, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            if isinstance(cause, AltalignError):
                raise type(cause)(str(cause).split(" [while running")[0]) from error
            if isinstance(cause, FileNotFoundError) and cause.filename:
                raise FileNotFoundError(cause.errno, cause.strerror, cause.filename) from error
            if (said := _readable(cause, run, step)) is not None:
                raise said from error
        raise _of_elsewhere(run, step, error) from error


def is_left(run: Run) -> bool:
    """Whether a unit of the pipeline that runs has left an error."""
    return bool(storage.read_json(_path(run)))


def _path(run: Run) -> str:
    return run.path("log", "trouble.json")


def _trace(run: Run) -> str:
    return run.path("log", "trace.txt")


def _of_elsewhere(run: Run, step: str, error: Exception) -> AltalignError:
    """The error that a unit left in the run, else what the engine said."""
    trouble = storage.read_json(_path(run))
    if trouble and trouble["kind"] != _DEFECT:
        kinds = {kind.__name__: kind for kind in (UnreadableError, FullDiskError, UsageError)}
        return kinds.get(trouble["kind"], AltalignError)(trouble["message"])
    what = trouble.get("message", "")
    if not what:
        what = gist(error)
        with suppress(OSError, AltalignError):
            storage.write_bytes(_trace(run), "".join(traceback.format_exception(error)).encode())
    return AltalignError(f"{run.folder}: {step} failed: {what}; {_trace(run)} has the rest")


def gist(error: Exception) -> str:
    """The kind of an error, and its most informative line."""
    return f"{type(error).__name__}: {_line(str(error))[:_CHARACTERS_SAID]}".removesuffix(": ")


def _line(said: str) -> str:
    """The most informative line of an error.

    In a Java trace this is the innermost cause, or the first line; in a Python trace the last line; in a gRPC error its
    details.
    """
    if (details := _OF_GRPC.search(said)) is not None:
        said = details[1].replace("\\n", "\n")
    all_lines = [line for line in said.splitlines() if line.strip()]
    lines = [line.strip() for line in all_lines if not _OF_A_JAVA_TRACE.match(line)]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    if causes:
        return causes[-1]
    is_java = len(lines) < len(all_lines) or any("Exception: " in line for line in lines[:1])
    return (lines[0] if is_java else lines[-1]) if lines else ""


def _readable(error: BaseException, run: Run, step: str) -> AltalignError | None:
    """The error for a user where the system is to blame; None where it may be a defect of ours."""
    again = "run the same command again, it continues"
    if (full := storage.full_disk(error, run.folder)) is not None:
        return full
    is_out_of_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if is_out_of_memory or "can't start new thread" in str(error):
        return AltalignError(
            f"{run.folder}: {step}: out of memory ({error}); give the command more, or fewer [engine] workers, and "
            f"{again}"
        )
    if isinstance(error, OSError) and error.filename:
        return AltalignError(f"{error.filename}: {error.strerror} ({step}); put that right and {again}")
    return None


@contextmanager
def _interruptible() -> Iterator[None]:
    """A signal at any moment of a pipeline ends it: Beam swallows some, and calls others an error of a unit."""
    with interrupts.handled():
        try:
            yield
        except Exception:
            interrupts.check()
            raise
        interrupts.check()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
