"""Samples a second, peak memory and use of a device's arithmetic, contestant by contestant. Imports torch.

`benchmarks.train_gpu` starts it.
"""

import fcntl
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from altalign.train import flops
from altalign.train.step import arithmetic
from benchmarks.train_contestants import PEERS, Contestant, Sizes, Way, open_clip, ours

WARM_UP, STEPS = 3, 8
FLOPS_OF = 16  # pairs whose arithmetic is counted

OF_WHOLE = {"CUDA graphs": {"graphs": True}, "compiled": {"compiled": True}, "": {}}

Figures = dict[str, Any]


class Device:
    """A GPU; or the CPU, which has nothing to wait for, to try out all the rest."""

    def __init__(self, name: str) -> None:
        self.name, self.is_gpu = name, name == "cuda"

    @property
    def model(self) -> str:
        """The GPU's name."""
        return torch.cuda.get_device_name() if self.is_gpu else "CPU"

    @property
    def peak_flops(self) -> float | None:
        """Dense bfloat16 operations a second, where they are known."""
        return flops.peak_of(self.model)

    def prepare(self) -> None:
        """Set the device up as `altalign train` does; the peers run on the same."""
        arithmetic.prepare("bfloat16", torch.device(self.name))

    def empty(self) -> None:
        """Free the memory of the last contestant."""
        gc.collect()
        torch.compiler.reset()
        self.release()
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats()

    def release(self) -> None:
        """Give other processes the memory that no tensor holds."""
        if self.is_gpu:
            torch.cuda.empty_cache()

    def operations(self, step: Callable[[], float], lines: int) -> str:
        """What a step's time went to: kernels of a GPU, operations of a CPU."""
        kinds = [torch.profiler.ProfilerActivity.CPU, *[torch.profiler.ProfilerActivity.CUDA] * self.is_gpu]
        with torch.profiler.profile(activities=kinds) as seen:
            began = time.perf_counter()
            step()
            self.wait()
            wall = time.perf_counter() - began
        kind, of = ("CUDA", "self_device_time_total") if self.is_gpu else ("CPU", "self_cpu_time_total")
        found = [
            (getattr(one, of) / 1e3, one.count, one.key) for one in seen.key_averages() if kind in str(one.device_type)
        ]
        most = sorted(found, reverse=True)[:lines]
        return "\n".join(
            [
                f"  {sum(ms for ms, *_ in found):.1f} ms of {1e3 * wall:.1f} ms, by kernel:",
                *(f"  {ms:9.2f} ms {count:5d} x {name[:90]}" for ms, count, name in most),
            ]
        )

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def peak(self) -> Figures:
        """The most bytes that torch has taken of the GPU since `empty`."""
        return {"peak_bytes": torch.cuda.max_memory_reserved()} if self.is_gpu else {}


class Turns:
    """Processes that share a GPU: they warm up at the same time, and are timed one after another."""

    def __init__(self, lock: Path | None = None) -> None:
        self._file = lock.open("a") if lock else None

    @property
    def is_shared(self) -> bool:
        """Whether there are other processes."""
        return self._file is not None

    @contextmanager
    def warming(self) -> Iterator[None]:
        """Nobody is timed inside."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Nobody else computes inside."""
        with self._held(fcntl.LOCK_EX):
            yield
        time.sleep(0.2)  # those that wait for their turn come before the next warm-up of this process

    @contextmanager
    def _held(self, how: int) -> Iterator[None]:
        if self._file is None:
            yield
            return
        fcntl.flock(self._file, how)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        device: where.
        way: how, of all; the rest is of contestants.
        models: sizes by their names.
        batches: three numbers of pairs by model; the middle one is the peers'.
        whole: pairs of the global batch.
        parts: of `train_gpu.PARTS`.
        peers: those that are installed.
        steps: that are timed, and how many before them are not.
        profiled: lines of the table of operations that is printed after each measurement; 0: none.
        turns: of the processes that share the GPU.
    """

    device: Device
    way: Way
    models: Mapping[str, Sizes]
    batches: Mapping[str, Sequence[int]]
    whole: int
    parts: Sequence[str]
    peers: Sequence[str]
    steps: tuple[int, int] = (STEPS, WARM_UP)
    profiled: int = 0
    turns: Turns = field(default_factory=Turns)

    def measurements(self) -> Iterator[tuple[str, Callable[[], list[Figures]]]]:
        """Name and measurement of each, in order."""
        for model, sizes in self.models.items():
            small, middle, large = self.batches[model]
            mine = partial(ours, sizes)
            for batch in (small, middle, large):  # of one size in a row: convolutions are searched for once
                if "sizes" in self.parts:
                    yield f"{model} altalign {batch}", self._measurement(mine, batch)
                if "graphs" in self.parts:
                    yield f"{model} altalign, CUDA graphs, {batch}", self._measurement(mine, batch, graphs=True)
            if "sizes" in self.parts and not sizes.is_vit:
                yield (
                    f"{model} altalign, batch norm over the batch, {middle}",
                    self._measurement(partial(mine, batch_norm="local"), middle),
                )
            if "compiled" in self.parts:
                for batch in (middle, large):
                    yield f"{model} altalign, compiled, {batch}", self._measurement(mine, batch, compiled=True)
            for peer in self.peers_of(sizes):
                yield from self._of_peer(f"{model} {peer}", partial(PEERS[peer], sizes), middle)
            if "global" in self.parts:
                whole = self.whole - self.whole % middle
                once = partial(self._measurement, batch=whole, steps=(1, 1))
                yield (
                    f"{model} altalign, global batch {whole:,}",
                    once(partial(mine, chunk=middle), **OF_WHOLE[self.way_of_whole]),
                )
                if "open_clip" in self.peers:
                    made = partial(open_clip, sizes, accumulate=whole // middle)
                    yield (
                        f"{model} open_clip, global batch {whole:,}",
                        once(made, channels_last=True, compiled="compiled peers" in self.parts),
                    )

    @property
    def way_of_whole(self) -> str:
        """How the global batch is trained: by CUDA graphs where they are measured, else compiled where that is."""
        return "CUDA graphs" if "graphs" in self.parts else "compiled" if "compiled" in self.parts else ""

    def peers_of(self, sizes: Sizes) -> list[str]:
        """Those that have a model's towers."""
        return [peer for peer in self.peers if not (peer == "AlignModel" and sizes.is_vit)]

    def flops(self) -> dict[str, float]:
        """Arithmetic of a pair's forward and backward through the towers, by model.

        It is convolutions and products of matrices, as torch counts it.
        """
        return {model: self._flops(sizes) for model, sizes in self.models.items()}

    def _of_peer(
        self, title: str, made: Callable[..., Contestant], batch: int
    ) -> Iterator[tuple[str, Callable[[], list[Figures]]]]:
        if "peers" in self.parts:
            yield f"{title} {batch}", self._measurement(made, batch)
            yield f"{title}, channels last, {batch}", self._measurement(made, batch, channels_last=True)
        if "compiled peers" in self.parts:
            yield (
                f"{title}, channels last, compiled, {batch}",
                self._measurement(made, batch, channels_last=True, compiled=True),
            )

    def _measurement(
        self, made: Callable[..., Contestant], batch: int, *, steps: tuple[int, int] | None = None, **way: Any
    ) -> Callable[[], list[Figures]]:
        return partial(measured, self, partial(made, replace(self.way, **way), batch), batch, steps or self.steps)

    def _flops(self, sizes: Sizes) -> float:
        contestant = ours(sizes, self.way, FLOPS_OF)
        with flops.counter() as counted:
            contestant.step()
        return counted.get_total_flops() / FLOPS_OF


def measured(plan: Plan, made: Callable[[], Contestant], batch: int, steps: tuple[int, int]) -> list[Figures]:
    """Figures of each step that is timed.

    Raises:
        torch.OutOfMemoryError: the batch does not fit.
    """
    device, turns = plan.device, plan.turns
    device.empty()
    began = time.perf_counter()
    with turns.warming():
        contestant = made()
        for _ in range(steps[1]):
            contestant.step()
        device.wait()
        facts = {
            "batch": batch,
            "start_s": time.perf_counter() - began,
            "parameters": sum(one.numel() for one in contestant.model.parameters()),
        }
        if turns.is_shared:
            device.release()
    found: list[Figures] = []
    with turns.timed():
        if turns.is_shared:
            contestant.step()  # takes back the memory that it has released
        for _ in range(steps[0]):
            start = time.perf_counter()
            loss = contestant.step()
            device.wait()
            found.append({"samples_per_s": batch / (time.perf_counter() - start), "loss": loss, **facts})
        if plan.profiled:
            print(device.operations(contestant.step, plan.profiled), flush=True)
        found = [{**one, **device.peak(), "others_cores": None} for one in found]
        del contestant
        device.empty()
    return found


def rate(found: Sequence[Figures]) -> float:
    """Samples a second, the median of the steps."""
    return statistics.median(one["samples_per_s"] for one in found)
