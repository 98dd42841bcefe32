"""What each runner needs. The only place that knows runners by name.

A stage is one pipeline; inside it units go through `Pooled`, which works on a few at a time in threads of one process:
kernels, codecs and Parquet release the GIL. What goes between stages of a pipeline is small: units (JSON), numbers and `(int, bytes)`.
"""

import collections
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection, PValue
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from altalign import storage
from altalign.curation import EngineSettings
from altalign.errors import AltalignError, FullDiskError, UnreadableError, UsageError
from pipelines.units import Facts, Run, Unit, map_unit


class Pooled(beam.DoFn):
    """process(x) -> work(x) in a pool of threads; results in order, at most twice the threads in flight (global window only)."""

    def __init__(self, work: Callable[[Any], list[Any]], threads: int):
        self._work, self._threads = work, threads

    def setup(self) -> None:
        """Open the pool."""
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None

    def start_bundle(self) -> None:
        """Begin with an empty queue."""
        self._queue: collections.deque[Future[list[Any]]] = collections.deque()

    def process(self, element: Any) -> Iterator[Any]:
        """Hand the element to the pool; yield what older ones have brought."""
        if self._pool is None:
            yield from self._work(element)
            return
        self._queue.append(self._pool.submit(self._work, element))
        while len(self._queue) >= 2 * self._threads:
            yield from self._queue.popleft().result()

    def finish_bundle(self) -> Any:  # an iterator of WindowedValue: Beam's own method returns None, as a type checker reads it
        """Yield the rest. A failed unit cancels those that have not begun."""
        try:
            while self._queue:
                for value in self._queue.popleft().result():
                    yield WindowedValue(value, GlobalWindow().max_timestamp(), (GlobalWindow(),))
        finally:
            for future in self._queue:
                future.cancel()

    def teardown(self) -> None:
        """Close the pool."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def pooled(run: Run, work: Callable[[Any], Iterable[Any]]) -> beam.ParDo:
    """ParDo of `work` with the threads that the engine wants in one process."""
    return beam.ParDo(Pooled(_Reporting(run, work), threads(run.config.engine)))


class _Reporting:
    """Calls `work`; an error that a user can see is also left in the run, for no exception leaves another process whole."""

    def __init__(self, run: Run, work: Callable[[Any], Iterable[Any]]):
        self._run, self._work = run, work

    def __call__(self, element: Any) -> list[Any]:
        try:
            return list(self._work(element))
        except AltalignError as error:
            with suppress(OSError, AltalignError):
                storage.write_json(self._run.path("log", "trouble.json"), {"kind": type(error).__name__, "message": str(error)})
            raise


class MapUnits(beam.PTransform[Any, Any]):
    """Units in, names of finished units out: a map-only step."""

    def __init__(self, run: Run, step: str, work: Callable[[Run, Unit], Facts]):
        super().__init__()
        self._run, self._step, self._do = run, step, work

    def expand(self, input_or_inputs: PCollection[Any]) -> PValue:
        """Do every unit that is not finished."""
        return input_or_inputs | "DoUnits" >> pooled(self._run, self._work)

    def _work(self, unit: Unit) -> Iterator[str]:
        map_unit(self._run, self._step, unit, self._do)
        yield unit["name"]


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
        raise UsageError(f"-- --{min(unknown)}: Beam has no such flag")
    if engine.runner == "embedded":
        # In memory and one worker: threads are ours. "DirectRunner" would look for Prism first.
        return PipelineOptions(["--runner=FnApiRunner", *flags])
    if engine.runner == "prism":
        location = os.environ.get("ALTALIGN_PRISM", "")
        if not location:
            raise UsageError("[engine] runner = prism: no Prism binary; build one with `make prism` and set ALTALIGN_PRISM to its path")
        return PipelineOptions(["--runner=PrismRunner", f"--prism_location={location}", "--environment_type=LOOPBACK", *flags])
    raise UsageError(f"[engine] runner = {engine.runner}: not supported yet; there are embedded and prism")


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
            if storage.is_full_disk(cause):
                raise FullDiskError(f"{run.folder}: no space left on the device; make room and run the same command again, it continues") from error
        trouble = storage.read_json(run.path("log", "trouble.json"))
        if trouble:
            kind = next((k for k in (UnreadableError, FullDiskError, UsageError) if k.__name__ == trouble["kind"]), AltalignError)
            raise kind(trouble["message"]) from error
        last = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise AltalignError(f"{run.folder}: {step} failed: {type(error).__name__}: {last}; --debug shows the traceback") from error


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C in any moment of a pipeline ends it: Beam swallows some, and calls others an error of a unit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_asked = threading.Event()

    def ask(_signal: int, _frame: object) -> None:
        is_asked.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    except Exception as error:
        if is_asked.is_set():
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if is_asked.is_set():
        raise KeyboardInterrupt


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
