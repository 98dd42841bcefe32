"""What each runner needs. The only place that knows runners by name.

A stage is one pipeline; inside it units go through `Pooled`, which works on a few at a time in threads of one process:
kernels, codecs and Parquet release the GIL. What goes between stages of a pipeline is small: units (JSON), numbers and `(int, bytes)`.
"""

import collections
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.pvalue import PCollection, PValue
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from altalign import interrupts, storage
from altalign.curation import EngineSettings
from altalign.errors import AltalignError, FullDiskError, UnreadableError, UsageError
from pipelines.units import Facts, Run, Unit, map_unit

PRISM_STARTS_WITHIN_S = 60.0

# Run by Python before it becomes another program: when our process dies, however it does, the program is killed.
_END_WITH_PARENT = """
import ctypes, os, signal, sys
with_parent = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it
if with_parent:
    with_parent(1, int(signal.SIGKILL))
os.execv(sys.argv[1], sys.argv[1:])
"""


class _Bundle:
    """The elements that are worked on, and whether one has failed: the others are for nothing then."""

    def __init__(self) -> None:
        self.queue: collections.deque[Future[list[Any]]] = collections.deque()
        self.given_up = threading.Event()
        self._failure: BaseException | None = None

    def part(self, work: Callable[[Any], list[Any]], element: Any) -> list[Any]:
        """Work on one element, in a thread of the pool."""
        with interrupts.part_of(self.given_up):
            try:
                return work(element)
            except interrupts.GivenUpError:
                raise
            except BaseException as error:
                self._failure = self._failure or error
                self.given_up.set()
                raise

    def oldest(self) -> list[Any]:
        """What the oldest element has brought. One that was given up raises what has failed."""
        try:
            return self.queue.popleft().result()
        except interrupts.GivenUpError:
            if self._failure is None:
                raise
            raise self._failure from None


class Pooled(beam.DoFn):
    """process(x) -> work(x) in a pool of threads; results in order, at most twice the threads in flight (global window only).

    `held` makes a context that the process is in for as long as there may be work.
    """

    def __init__(self, work: Callable[[Any], list[Any]], threads: int, held: Callable[[], AbstractContextManager[Any]] = nullcontext):
        self._work, self._threads, self._held = work, threads, held

    def setup(self) -> None:
        """Open the pool."""
        self._bundle = _Bundle()
        self._stack = ExitStack()
        self._stack.enter_context(self._held())
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None

    def start_bundle(self) -> None:
        """Begin with an empty queue."""
        self._bundle = _Bundle()

    def process(self, element: Any) -> Iterator[Any]:
        """Hand the element to the pool; yield what older ones have brought."""
        if self._pool is None:
            yield from self._work(element)
            return
        self._bundle.queue.append(self._pool.submit(self._bundle.part, self._work, element))
        while len(self._bundle.queue) >= 2 * self._threads:
            yield from self._bundle.oldest()

    def finish_bundle(self) -> Any:  # an iterator of WindowedValue: Beam's own method returns None, as a type checker reads it
        """Yield the rest. A failed unit cancels those that have not begun."""
        try:
            while self._bundle.queue:
                for value in self._bundle.oldest():
                    yield WindowedValue(value, GlobalWindow().max_timestamp(), (GlobalWindow(),))
        finally:
            for future in self._bundle.queue:
                future.cancel()

    def teardown(self) -> None:
        """Close the pool. What still works then is a part of what has failed."""
        self._bundle.given_up.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._stack.close()


def pooled(run: Run, work: Callable[[Any], Iterable[Any]], *, at_once: int = 0, held: Callable[[], AbstractContextManager[Any]] = nullcontext) -> beam.ParDo:
    """ParDo of `work`, with so many at once in one process (0: with the threads that the engine wants); `held` as `Pooled` has it."""
    return beam.ParDo(Pooled(_Reporting(run, work), at_once or threads(run.config.engine), held))


class _Reporting:
    """Calls `work`; an error that a user can see is also left in the run, for no exception leaves another process whole."""

    def __init__(self, run: Run, work: Callable[[Any], Iterable[Any]]):
        self._run, self._work = run, work

    def __call__(self, element: Any) -> list[Any]:
        try:
            return list(self._work(element))
        except Exception as error:
            said = error if isinstance(error, AltalignError) else _readable(error, self._run, "a unit")
            if said is not None:
                with suppress(OSError, AltalignError):
                    storage.write_json(self._run.path("log", "trouble.json"), {"kind": type(said).__name__, "message": str(said)})
            raise


class MapUnits(beam.PTransform[Any, Any]):
    """Units in, names of finished units out: a map-only step. `threads` has what `pooled` takes beside the work."""

    def __init__(self, run: Run, step: str, work: Callable[[Run, Unit], Facts], **threads: Any):
        super().__init__()
        self._run, self._step, self._do, self._threads = run, step, work, threads

    def expand(self, input_or_inputs: PCollection[Any]) -> PValue:
        """Do every unit that is not finished."""
        return input_or_inputs | "DoUnits" >> pooled(self._run, self._work, **self._threads)

    def _work(self, unit: Unit) -> Iterator[str]:
        map_unit(self._run, self._step, unit, self._do)
        yield unit["name"]


def create(run: Run, elements: Sequence[Any]) -> beam.Create:
    """A small collection by name, spread over the workers where there is more than one process; a reshuffle costs most of a pipeline's start."""
    return beam.Create(elements, reshuffle=run.config.engine.runner != "embedded")


def threads(engine: EngineSettings) -> int:
    """Units that one process works on at a time."""
    if engine.runner == "embedded":
        return engine.workers or os.cpu_count() or 1
    return 1


def options(engine: EngineSettings, flags: list[str]) -> PipelineOptions:
    """Beam options of a runner; `flags` are the user's own, after `--`.

    Raises:
        UsageError: a runner or shuffle that this version does not support.
    """
    if flags and not flags[0].startswith("--"):
        raise UsageError(f"-- {flags[0]}: no flag of Beam, which begins with --")
    if any(flag.split("=")[0] == "--runner" for flag in flags):
        raise UsageError("-- --runner: the runner is a setting; give --set engine.runner=NAME")
    unknown = PipelineOptions(flags).get_all_options(retain_unknown_options=True).keys() - PipelineOptions(flags).get_all_options().keys()
    if unknown:
        raise UsageError(f"-- --{min(unknown)}: Beam has no such flag; what it has are its pipeline options")
    if engine.runner == "embedded":
        # In memory and one worker: threads are ours. "DirectRunner" would look for Prism first.
        return PipelineOptions(["--runner=FnApiRunner", *flags])
    if engine.runner == "prism":
        _prism()
        return PipelineOptions(["--runner=PrismRunner", "--environment_type=LOOPBACK", *flags])
    raise UsageError(f'[engine] runner = "{engine.runner}": not supported yet; "embedded" and "prism" are')


def _prism() -> str:
    location = os.environ.get("ALTALIGN_PRISM", "")
    if not location:
        raise UsageError("[engine] runner = prism: no Prism binary; build one with `make prism` and set ALTALIGN_PRISM to its path")
    if not os.access(location, os.X_OK) or Path(location).is_dir():
        raise UsageError(f"ALTALIGN_PRISM = {location}: no program; build Prism with `make prism` and give the path of its binary")
    return location


@contextmanager
def started(run: Run, given: PipelineOptions) -> Iterator[None]:
    """What has to be there for the pipelines of a run: Prism's server, which ends with this process however that ends.

    Beam would start one too, but it outlives a killed parent, and its handler of Ctrl-C can wait for itself.
    """
    if run.config.engine.runner != "prism" or given.view_as(PortableOptions).job_endpoint:
        yield
        return
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-E", "-S", "-c", _END_WITH_PARENT, _prism(), f"--job_port={port}", "--serve_http=false", "--log_level=warn", "--log_kind=text"]
    with Path(storage.local_file(run.path("log", "prism.log"))).open("wb") as log:
        # A session of its own: Ctrl-C at a terminal is for us, and we end it.
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(server, port, storage.local_file(run.path("log", "prism.log")))
        given.view_as(PortableOptions).job_endpoint = f"localhost:{port}"
        yield
    finally:
        server.kill()  # it keeps nothing: units leave their marks themselves
        server.wait()


def _wait_for(server: "subprocess.Popen[bytes]", port: int, log: str) -> None:
    end = time.monotonic() + PRISM_STARTS_WITHIN_S
    while time.monotonic() < end and server.poll() is None:
        with suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            return
        time.sleep(0.02)
    raise AltalignError(f"Prism does not answer on port {port}; {log} has what it said")


@contextmanager
def raised(run: Run, step: str) -> Iterator[None]:
    """Around a pipeline: whatever it raises becomes one error that a user can read.

    Workers of other processes can send no exception, so a unit writes its trouble where this looks for it.
    """
    trouble_path = run.path("log", "trouble.json")
    storage.delete(trouble_path)
    try:
        with _interruptible():
            yield
        storage.delete(trouble_path)  # of a unit that failed and was done again
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
        trouble = storage.read_json(run.path("log", "trouble.json"))
        if trouble:
            kind = next((k for k in (UnreadableError, FullDiskError, UsageError) if k.__name__ == trouble["kind"]), AltalignError)
            raise kind(trouble["message"]) from error
        last = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise AltalignError(f"{run.folder}: {step} failed: {type(error).__name__}: {last}; --debug shows the traceback") from error


def _readable(error: BaseException, run: Run, step: str) -> AltalignError | None:
    """What a user has to know of trouble that the system made; None of what may be a defect of ours."""
    again = "run the same command again, it continues"
    if (full := storage.full_disk(error, run.folder)) is not None:
        return full
    is_out_of_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if is_out_of_memory or "can't start new thread" in str(error):
        return AltalignError(f"{run.folder}: {step}: out of memory ({error}); give the command more, or fewer [engine] workers, and {again}")
    if isinstance(error, OSError) and error.filename:
        return AltalignError(f"{error.filename}: {error.strerror} ({step}); put that right and {again}")
    return None


@contextmanager
def _interruptible() -> Iterator[None]:
    """A signal in any moment of a pipeline ends it: Beam swallows some, and calls others an error of a unit."""
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
