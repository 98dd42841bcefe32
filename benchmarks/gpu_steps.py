"""Samples a second, peak memory and use of a device's arithmetic, contestant by contestant. Imports torch.

`benchmarks.train_gpu` starts it.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from altalign.train import flops
from altalign.train.step import arithmetic
from benchmarks.train_contestants import PEERS, Contestant, Sizes, Way, open_clip, ours

WARM_UP, STEPS = 3, 8
FLOPS_OF = 16  # pairs whose arithmetic is counted

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
        if self.is_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def peak(self) -> Figures:
        """Peak memory in bytes since `empty`."""
        return {"peak_bytes": torch.cuda.max_memory_allocated()} if self.is_gpu else {}


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
    """

    device: Device
    way: Way
    models: Mapping[str, Sizes]
    batches: Mapping[str, Sequence[int]]
    whole: int
    parts: Sequence[str]
    peers: Sequence[str]
    steps: tuple[int, int] = (STEPS, WARM_UP)

    def measurements(self) -> Iterator[tuple[str, Callable[[], list[Figures]]]]:
        """Name and measurement of each, in order."""
        for model, sizes in self.models.items():
            small, middle, large = self.batches[model]
            mine = partial(ours, sizes)
            if "sizes" in self.parts:
                for batch in (small, middle, large):
                    yield f"{model} altalign {batch}", self._measurement(mine, batch)
                yield (
                    f"{model} altalign, batch norm over the batch, {middle}",
                    self._measurement(partial(mine, batch_norm="local"), middle),
                )
            if "compiled" in self.parts:
                for batch in (middle, large):
                    yield f"{model} altalign, compiled, {batch}", self._measurement(mine, batch, compiled=True)
            for peer in self.peers:
                yield from self._of_peer(f"{model} {peer}", partial(PEERS[peer], sizes), middle)
            if "global" in self.parts:
                whole = self.whole - self.whole % middle
                yield (
                    f"{model} altalign, global batch {whole:,}",
                    self._measurement(partial(mine, chunk=middle), whole, steps=(1, 1)),
                )
                if "open_clip" in self.peers:
                    made = partial(open_clip, sizes, accumulate=whole // middle)
                    yield (
                        f"{model} open_clip, global batch {whole:,}",
                        self._measurement(made, whole, steps=(1, 1), channels_last=True),
                    )

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
        return partial(
            measured, self.device, partial(made, replace(self.way, **way), batch), batch, steps or self.steps
        )

    def _flops(self, sizes: Sizes) -> float:
        contestant = ours(sizes, self.way, FLOPS_OF)
        with flops.counter() as counted:
            contestant.step()
        return counted.get_total_flops() / FLOPS_OF


def measured(device: Device, made: Callable[[], Contestant], batch: int, steps: tuple[int, int]) -> list[Figures]:
    """Figures of each step that is timed.

    Raises:
        torch.OutOfMemoryError: the batch does not fit.
    """
    device.empty()
    began = time.perf_counter()
    contestant = made()
    for _ in range(steps[1]):
        contestant.step()
    device.wait()
    facts = {
        "batch": batch,
        "start_s": time.perf_counter() - began,
        "parameters": sum(one.numel() for one in contestant.model.parameters()),
    }
    found: list[Figures] = []
    for _ in range(steps[0]):
        start = time.perf_counter()
        loss = contestant.step()
        device.wait()
        found.append({"samples_per_s": batch / (time.perf_counter() - start), "loss": loss, **facts})
    return [{**one, **device.peak(), "others_cores": None} for one in found]


def rate(found: Sequence[Figures]) -> float:
    """Samples a second, the median of the steps."""
    return statistics.median(one["samples_per_s"] for one in found)
