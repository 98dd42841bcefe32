"""Runs the pipelines of a run as jobs of its engine, and waits for them."""

import functools
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, PortableOptions
from apache_beam.runners.runner import PipelineResult

from altalign import storage, terminal
from altalign.errors import AltalignError
from altalign.machine import interrupts
from altalign.pipelines.engine import dataflow, job_server, unit_errors
from altalign.pipelines.engine.options import MASTER_FLAGS, is_on_cluster
from altalign.pipelines.run.units import Run, Unit

# A job itself holds this many elements; more are read from a file, because requests are bounded (Dataflow: 20 MB).
ELEMENTS_AT_MOST = 1_000
WORKER_BEGINS_WITHIN_S = 300.0  # on a cluster, which never says that no worker will come
MARKS_SHOW_WITHIN_S = 90.0  # on a cluster, to the command's machine
JOBS_OF_A_STEP_AT_MOST = 3  # on a cluster that gives them up


@contextmanager
def started(run: Run, given: PipelineOptions) -> Iterator[None]:
    """Around the pipelines of a run: starts a job server, if the engine has one and the user named none.

    Raises:
        UsageError: neither Beam nor the job server knows a flag of the user.
    """
    portable = given.view_as(PortableOptions)
    runner = run.config.engine.runner
    is_ours = runner in ("prism", *MASTER_FLAGS) and not portable.job_endpoint
    with job_server.served(run, given) if is_ours else nullcontext():
        yield
    if runner != "embedded":
        # halves of files of workers that were killed; what an engine had put into the run has come to rest
        storage.sweep(run.folder)


def create(run: Run, elements: Sequence[object]) -> beam.PTransform[Any, Any]:
    """A small collection, spread over the workers if there is more than one process.

    One process does without the reshuffle, which takes most of a pipeline's start.
    """
    if run.config.engine.runner == "embedded":
        return beam.Create(elements, reshuffle=False)
    if len(elements) <= ELEMENTS_AT_MOST:
        return beam.Create(elements)
    return _CreateFromFile(run, elements)


class _CreateFromFile(beam.PTransform[Any, Any]):
    """Elements (JSON) that workers read from a file of the run; the job holds ranges of that file."""

    def __init__(self, run: Run, elements: Sequence[object]):
        super().__init__()
        lines = [json.dumps(element).encode() + b"\n" for element in elements]
        self._path = run.work("elements", f"{hashlib.sha256(b''.join(lines)).hexdigest()[:16]}.jsonl")
        storage.write_bytes(self._path, b"".join(lines))
        self._places: list[tuple[int, int]] = []
        at, together = 0, -(-len(lines) // ELEMENTS_AT_MOST)
        for first in range(0, len(lines), together):
            size = sum(map(len, lines[first : first + together]))
            self._places.append((at, size))
            at += size

    def expand(self, input_or_inputs: object) -> Any:
        """Read the elements, and spread them."""
        read = functools.partial(_read, storage.absolute(self._path))
        return input_or_inputs | "Places" >> beam.Create(self._places) | "Read" >> beam.FlatMap(read) | beam.Reshuffle()


def _read(path: str, place: tuple[int, int]) -> list[object]:
    return [json.loads(line) for line in storage.read_range(path, *place).splitlines()]


@contextmanager
def pipeline(run: Run, step: str, given: PipelineOptions) -> Iterator[beam.Pipeline]:
    """A pipeline that runs to its end when the block is over. Whatever ends the waiting cancels the job.

    A job that a cluster gives up after workers have begun is begun again, unless a unit has left an error; it
    continues with the units that are not finished.

    Raises:
        AltalignError: no worker has begun to work within the time that one takes.
    """
    runner = run.config.engine.runner
    if runner in (*MASTER_FLAGS, "dataflow"):
        given.view_as(GoogleCloudOptions).job_name = f"{_job_name(run)}-{step.replace('/', '-').replace('_', '-')}"
    built = beam.Pipeline(options=given)
    yield built
    for jobs_left in reversed(range(JOBS_OF_A_STEP_AT_MOST if is_on_cluster(runner, given) else 1)):
        try:
            _run_to_its_end(run, step, built)
            return
        except RuntimeError as error:  # what is wrong with the job, from its engine
            if not jobs_left or unit_errors.is_left(run) or not storage.names(_workers(run)):
                raise
            said = f"{step}: {runner.capitalize()} gave the job up ({unit_errors.gist(error)}); it is begun again"
            terminal.stderr().print(terminal.shown(said), soft_wrap=True)


def _run_to_its_end(run: Run, step: str, built: beam.Pipeline) -> None:
    runner = run.config.engine.runner
    storage.delete(_workers(run))
    result = dataflow.submit(run, step, built) if runner == "dataflow" else built.run()
    with _worker_awaited(run, result) if runner in MASTER_FLAGS else nullcontext():
        try:
            result.wait_until_finish()
        except BaseException:
            with suppress(Exception):
                result.cancel()
            raise


def check_marks(run: Run, step: str, units: Sequence[Unit]) -> None:
    """Check that a pipeline that ended well has left all its marks where this command sees them.

    Workers of other machines may write elsewhere. A network file system may show their marks late: clients of NFS
    cache a folder for a minute.

    Raises:
        AltalignError: marks are missing.
    """
    end = time.monotonic() + (MARKS_SHOW_WITHIN_S if run.config.engine.runner in MASTER_FLAGS else 0.0)
    while missing := {unit["name"] for unit in units}.difference(run.finished(step)):
        if time.monotonic() >= end:
            raise AltalignError(
                f"{run.folder}: {step}: {run.config.engine.runner} says that it is done, but {len(missing)} of "
                f"{len(units)} units have left no mark in {run.work(step)}; let workers see the run folder under the "
                "same absolute path as this command, and run the same command again, it continues"
            )
        interrupts.check()
        time.sleep(1.0)


@contextmanager
def _worker_awaited(run: Run, result: PipelineResult) -> Iterator[None]:
    """Cancels a job if no worker starts while this block waits for it; engines would wait forever."""
    over, is_given_up = threading.Event(), threading.Event()

    def watch() -> None:
        end = time.monotonic() + WORKER_BEGINS_WITHIN_S
        while not over.wait(1.0) and not _have_begun(run):
            if time.monotonic() > end:
                is_given_up.set()
                result.cancel()
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    except Exception as error:
        if is_given_up.is_set():
            raise AltalignError(
                f"{run.folder}: no worker has begun within {WORKER_BEGINS_WITHIN_S:.0f} s; look whether "
                f"{run.config.engine.runner} has free machines, and whether Python starts on them with altalign "
                f"installed (environment_type); {run.path('log')} has what the job server said"
            ) from error
        raise
    finally:
        over.set()
        watching.join()


def _have_begun(run: Run) -> bool:
    with suppress(OSError, AltalignError):  # a store that does not answer now may do so the next time
        return bool(storage.names(_workers(run)))
    return False


def _workers(run: Run) -> str:
    return run.path("log", "workers")


@contextmanager
def working(run: Run, folder: str) -> Iterator[None]:
    """Around the work of one worker: enters the folder of the command, and leaves a sign in the run."""
    if run.config.engine.runner in MASTER_FLAGS:
        with suppress(FileNotFoundError):  # a machine that has no such folder can work on absolute paths
            os.chdir(folder)
        storage.write_bytes(storage.join(_workers(run), f"{socket.gethostname()}-{os.getpid()}"), b"")
    yield


def _job_name(run: Run) -> str:
    return f"altalign-{hashlib.sha256(storage.absolute(run.folder).encode()).hexdigest()[:8]}"
