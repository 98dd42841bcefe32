"""Work on units inside a stage: a few at a time in threads of one process; kernels, codecs and Parquet release the GIL.

A stage is one pipeline or a few, which pass only small elements on: units (JSON), numbers and `(int, bytes)`.
"""

import collections
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection, PValue
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from altalign.machine import interrupts
from altalign.machine.processes import InProcesses
from altalign.pipelines.engine.jobs import enter
from altalign.pipelines.engine.unit_errors import Reporting
from altalign.pipelines.run.units import F, Marks, Run, U, map_unit


class _Bundle:
    """The elements that are worked on; once one has failed, the others are given up."""

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
        """The results of the oldest element; where it was given up, the error of the element that failed."""
        try:
            return self.queue.popleft().result()
        except interrupts.GivenUpError:
            if self._failure is None:
                raise
            raise self._failure from None


class Pooled(beam.DoFn):
    """Maps elements by `work` in a pool of threads, in order; at most twice the threads are in flight (global window).

    The process is inside the context that `held` makes as long as there may be work.
    """

    def __init__(
        self,
        work: Callable[[Any], list[Any]],
        threads: int,
        held: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ):
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
        """Hand the element to the pool, and yield the results of older ones."""
        if self._pool is None:
            yield from self._work(element)
            return
        self._bundle.queue.append(self._pool.submit(self._bundle.part, self._work, element))
        while len(self._bundle.queue) >= 2 * self._threads:
            yield from self._bundle.oldest()

    # an iterator of WindowedValue; to a type checker Beam's own method returns None
    def finish_bundle(self) -> Any:
        """Yield the remaining results. A failed unit cancels those that have not begun."""
        try:
            while self._bundle.queue:
                for value in self._bundle.oldest():
                    yield WindowedValue(value, GlobalWindow().max_timestamp(), (GlobalWindow(),))
        finally:
            for future in self._bundle.queue:
                future.cancel()

    def teardown(self) -> None:
        """Close the pool; elements that are still worked on belong to a bundle that failed, and are given up."""
        self._bundle.given_up.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._stack.close()


def pooled(
    run: Run,
    work: Callable[[Any], Iterable[Any]],
    *,
    at_once: int = 0,
    held: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> beam.ParDo:
    """ParDo of `work`, `at_once` elements at a time in one process; 0 means the threads of the engine.

    `held` is explained at `Pooled`.
    """
    context = functools.partial(_held, run, str(Path.cwd()), held)
    return beam.ParDo(Pooled(Reporting(run, work), at_once or run.config.engine.threads, context))


def _held(run: Run, folder: str, held: Callable[[], AbstractContextManager[Any]]) -> AbstractContextManager[Any]:
    enter(run, folder)
    return held()


class MapUnits(beam.PTransform[Any, Any]):
    """Units in, names of finished units out: a map-only step; `threads` are further arguments of `pooled`."""

    def __init__(self, run: Run, marks: Marks[F], work: Callable[[Run, U], F], **threads: Any):
        super().__init__()
        self._run, self._work, self._threads = run, InProcesses(functools.partial(_done, run, marks, work)), threads

    def expand(self, input_or_inputs: PCollection[Any]) -> PValue:
        """Do every unit that is not finished."""
        return input_or_inputs | "DoUnits" >> pooled(self._run, self._work, **self._threads)


def _done(run: Run, marks: Marks[F], work: Callable[[Run, U], F], unit: U) -> list[str]:
    """Does a unit of a step, if it is not finished; returns its name."""
    map_unit(run, marks, unit, work)
    return [unit["name"]]
