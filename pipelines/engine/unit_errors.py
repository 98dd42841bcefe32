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
_CHARACTERS_SHOWN = 300  # so much of an engine's error is shown; its log has all


class Reporting:
    """Calls `work`, and also writes its error to the run: no exception leaves another process whole."""

    def __init__(self, run: Run, work: Callable[[Any], Iterable[Any]]):
        self._run, self._work = run, work

    def __call__(self, element: object) -> list[Any]:
        """The results of the work on one element."""
        try:
            return list(self._work(element))
        except interrupts.GivenUpError:
            raise
        except Exception as error:
            message = error if isinstance(error, AltalignError) else _readable(error, self._run, "a unit")
            with suppress(OSError, AltalignError):
                if message is None:  # a defect of ours
                    unit = element["name"] if isinstance(element, dict) else element
                    unit = unit[0] if isinstance(unit, tuple) else unit
                    _write_trace(self._run, error)
                    left = {"kind": _DEFECT, "message": f"unit {unit}: {type(error).__name__}: {error}"}
                else:
                    left = {"kind": type(message).__name__, "message": str(message)}
                storage.write_json(_path(self._run), left)
            raise


@contextmanager
def raised(run: Run, step: str) -> Iterator[None]:
    """Around a pipeline: turns whatever it raises into one error that a user can read.

    Workers in other processes can send no exception, so a unit writes its error to a file, which this reads.
    """
    storage.delete(_path(run))
    try:
        with interrupts.handled():  # a signal ends it: Beam swallows some, and calls others an error of a unit
            try:
                yield
            except Exception:
                interrupts.check()
                raise
            interrupts.check()
        storage.delete(_path(run))  # it is from a unit that failed and was then done
    except Exception as error:
        for cause in _chain(error):
            if isinstance(cause, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            if isinstance(cause, AltalignError):
                raise type(cause)(str(cause).split(" [while running")[0]) from error
            if isinstance(cause, FileNotFoundError) and cause.filename:
                raise FileNotFoundError(cause.errno, cause.strerror, cause.filename) from error
            if (message := _readable(cause, run, step)) is not None:
                raise message from error
        trouble = storage.read_json(_path(run))
        if trouble and trouble["kind"] != _DEFECT:
            kinds = {kind.__name__: kind for kind in (UnreadableError, FullDiskError, UsageError)}
            raise kinds.get(trouble["kind"], AltalignError)(trouble["message"]) from error
        if not (what := trouble.get("message", "")):  # no unit has left one: what the engine said
            what = gist(error)
            with suppress(OSError, AltalignError):
                _write_trace(run, error)
        raise AltalignError(f"{run.folder}: {step} failed: {what}; {_trace(run)} has the rest") from error


def is_left(run: Run) -> bool:
    """Whether a unit of the pipeline that runs has left an error."""
    return bool(storage.read_json(_path(run)))


def _path(run: Run) -> str:
    return run.path("log", "trouble.json")


def _trace(run: Run) -> str:
    return run.path("log", "trace.txt")


def _write_trace(run: Run, error: Exception) -> None:
    storage.write_bytes(_trace(run), "".join(traceback.format_exception(error)).encode())


def gist(error: Exception) -> str:
    """The kind of an error, and its most informative line: of a Java trace the innermost cause, or the first line."""
    text = str(error)
    if (details := _OF_GRPC.search(text)) is not None:
        text = details[1].replace("\\n", "\n")
    all_lines = [line for line in text.splitlines() if line.strip()]
    lines = [line.strip() for line in all_lines if not _OF_A_JAVA_TRACE.match(line)]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    is_java = len(lines) < len(all_lines) or any("Exception: " in line for line in lines[:1])
    line = (causes or (lines if not is_java else lines[:1]) or [""])[-1]
    return f"{type(error).__name__}: {line[:_CHARACTERS_SHOWN]}".removesuffix(": ")


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


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
