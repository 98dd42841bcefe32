"""Samples a second, peak memory and use of a device's arithmetic, contestant by contestant. Imports torch.

`benchmarks.train_gpu` starts it.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from altalign.train.step import flops, learner
from benchmarks.report import target, write
from benchmarks.train_contestants import PEERS, Contestant, Sizes, Way, open_clip, ours
from benchmarks.train_gpu import BATCHES, absent

WARM_UP = 3  # steps
FLOPS_OF = 16  # pairs whose arithmetic is counted
PX, VIT_PX, EMBEDDINGS = 289, 224, 640
TIMES_AT_LEAST = {"open_clip": 1.2, "AlignModel": 1.5}
GOALS = {"b3-mini": 2_500, "b5-base": 1_100, "b7-base": 650, "l2-large": 150, "vit_b16-base": 2_000}  # pairs/s, a H200
COMPILED = ", compiled,"
WHOLE_AT_MOST = 1.35  # times the seconds of one pass
PACKAGES = ("numpy", "open_clip_torch", "safetensors", "timm", "tokenizers", "torch", "transformers")

Figures = dict[str, Any]
Measurement = tuple[int, str, Callable[[], list[Figures]]]  # its turn, its name, what measures it


def measure_all(arguments: argparse.Namespace, *, is_full: bool) -> None:
    """Measure until the time is up; prints a line each and writes the JSON after each."""
    device = Device(arguments.device)
    device.prepare()
    models = {
        name: Sizes(
            name, arguments.px or (VIT_PX if "vit_" in name else PX), arguments.tokens, arguments.vocabulary, EMBEDDINGS
        )
        for name in arguments.models
    }
    batches = {name: arguments.batches or BATCHES[name] for name in models}
    facts = {"device": device.model, "batches": batches, "global_batch": arguments.whole, "not_measured": {}}
    facts["flops"] = flops_of = dict[str, float]()
    is_full = is_full and device.is_gpu
    results: dict[str, list[Figures]] = {}
    until = time.monotonic() + arguments.seconds
    every = [
        (turn, model, title, measurement)
        for model, sizes in models.items()
        for turn, title, measurement in measurements(sizes, batches[model], device, arguments)
    ]
    for _, model, title, measurement in sorted(every, key=lambda one: one[0]):
        is_in_time = time.monotonic() < until
        try:
            if is_in_time and model not in flops_of:
                flops_of[model] = _flops(models[model], device)
            steps = measurement() if is_in_time else "the time was up"
        except Exception as error:  # a contestant that fails does not keep the others from being measured
            is_memory = isinstance(error, torch.OutOfMemoryError)
            steps = "out of memory" if is_memory else f"{type(error).__name__}: {error}"[:300]
        if isinstance(steps, str):
            facts["not_measured"][title] = steps
            print(f"{title}: not measured, {steps}", flush=True)
            continue
        if "altalign" in title and device.peak_flops:
            of_the_peak = flops_of[model] / device.peak_flops
            steps = [{**step, "utilisation": step["samples_per_s"] * of_the_peak} for step in steps]
        results[title] = steps
        print(f"{title}: {rate(steps):.4g} samples a second, {steps[-1]}", flush=True)
        _write(results, [], arguments.out, is_full=is_full, facts=facts)
    _write(results, targets(results, batches, device.model), arguments.out, is_full=is_full, facts=facts)


def measurements(
    sizes: Sizes, batches: Sequence[int], device: "Device", arguments: argparse.Namespace
) -> Iterator[Measurement]:
    """Turn, name and measurement of each contestant and size of batch; turn 0 has the fastest way and the peers'."""
    model, parts, (small, middle, large) = sizes.model, arguments.parts, batches
    peers = [peer for peer in PEERS if not absent([peer] if peer == "open_clip" else [])]
    peers = [peer for peer in peers if not (peer == "AlignModel" and sizes.is_vit)]

    def one(made: Callable[..., Contestant], batch: int, steps: int = arguments.steps, **way: Any) -> Any:
        contestant = partial(made, sizes, Way(device.name, "bfloat16", **way), batch)
        return partial(measured, device, contestant, batch, steps, 1 if steps < WARM_UP else WARM_UP)

    for place, batch in enumerate((middle, small, large)):  # of one size in a row: convolutions are searched for once
        is_first, is_small = place == 0, place == 1
        if "graphs" in parts:
            turn = 0 if is_first and not sizes.is_vit else 2
            yield turn, f"{model} altalign, CUDA graphs, {batch}", one(ours, batch, graphs=True)
        if "compiled" in parts and not is_small:
            turn = 0 if is_first and sizes.is_vit else 3
            yield turn, f"{model} altalign, compiled, {batch}", one(ours, batch, compiled=True)
        if "sizes" in parts:
            yield 1 if is_first else 2, f"{model} altalign {batch}", one(ours, batch)
    if "sizes" in parts and not sizes.is_vit:
        yield (
            3,
            f"{model} altalign, batch norm over the batch, {middle}",
            one(partial(ours, batch_norm="local"), middle),
        )
    for peer in peers if "peers" in parts else ():
        yield 0, f"{model} {peer}, channels last, {middle}", one(PEERS[peer], middle, channels_last=True)
        if "compiled" in parts and sizes.is_vit:  # of an EfficientNet that takes many minutes
            yield 0, f"{model} {peer}, compiled, {middle}", one(PEERS[peer], middle, channels_last=True, compiled=True)
        yield 1, f"{model} {peer} {middle}", one(PEERS[peer], middle)
    if "global" in parts:
        whole = arguments.whole - arguments.whole % middle
        chunked = partial(ours, chunk=middle)
        yield 3, f"{model} altalign, global batch {whole:,}", one(chunked, whole, steps=1, graphs="graphs" in parts)
        if "open_clip" in peers:
            accumulated = partial(open_clip, accumulate=whole // middle)
            yield 3, f"{model} open_clip, global batch {whole:,}", one(accumulated, whole, steps=1, channels_last=True)


def targets(
    results: Mapping[str, list[Figures]], batches: Mapping[str, Sequence[int]], gpu: str
) -> list[dict[str, Any]]:
    """Pairs a second that are aimed at, what a second pass may cost, and ours beside the faster way of each peer."""
    rates = {title: rate(steps) for title, steps in results.items()}
    aims: list[dict[str, Any]] = []
    for model, (_, middle, _) in batches.items():
        own = {title: value for title, value in rates.items() if title.startswith(f"{model} altalign")}
        in_one_pass = [value for title, value in own.items() if "global" not in title]
        if in_one_pass and model in GOALS and "H200" in gpu:
            aims.append(target(f"{model}, pairs a second", max(in_one_pass), at_least=GOALS[model]))
        whole = [value for title, value in own.items() if "global" in title]
        beside = own.get(f"{model} altalign, CUDA graphs, {middle}") or own.get(f"{model} altalign {middle}")
        if whole and beside:
            what = f"{model}, seconds of a global batch in two passes, times one"
            aims.append(target(what, beside / whole[0], at_most=WHOLE_AT_MOST))
        for peer, least in TIMES_AT_LEAST.items():
            theirs = {way: rates.get(f"{model} {peer}{way} {middle}", 0) for way in ("", ", channels last,", COMPILED)}
            compiled = theirs.pop(COMPILED)
            for way in ("", ", CUDA graphs,", COMPILED):
                mine = own.get(f"{model} altalign{way} {middle}")
                beside = compiled if way == COMPILED else max(theirs.values())
                if mine and beside:
                    what = f"{model}{way or ','} times the samples a second of {peer}"
                    aims.append(target(what, mine / beside, at_least=least))
    return aims


class Device:
    """A GPU; or the CPU, which has nothing to wait for, to try out all the rest."""

    def __init__(self, name: str) -> None:
        self.name, self.is_gpu = name, name == "cuda"
        self.model = torch.cuda.get_device_name() if self.is_gpu else "CPU"
        self.peak_flops = flops.peak_of(self.model)  # dense bfloat16 operations a second, where they are known

    def prepare(self) -> None:
        """Set the device up as `altalign train` does; the peers run on the same."""
        learner.prepare("bfloat16", torch.device(self.name))

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
        """The most bytes that torch has taken of the GPU since `empty`."""
        return {"peak_bytes": torch.cuda.max_memory_reserved()} if self.is_gpu else {}


def measured(device: Device, made: Callable[[], Contestant], batch: int, steps: int, warm_up: int) -> list[Figures]:
    """Figures of each step that is timed.

    Raises:
        torch.OutOfMemoryError: the batch does not fit.
    """
    device.empty()
    began = time.perf_counter()
    contestant = made()
    for _ in range(warm_up):
        contestant.step()
    device.wait()
    start_s, timed = time.perf_counter() - began, []
    for _ in range(steps):
        start = time.perf_counter()
        loss = contestant.step()
        device.wait()
        timed.append({"samples_per_s": batch / (time.perf_counter() - start), "loss": loss})
    facts = {"batch": batch, "start_s": start_s, **device.peak(), "others_cores": None}
    del contestant
    device.empty()
    return [step | facts for step in timed]


def rate(steps: Sequence[Figures]) -> float:
    """Samples a second, the median of the steps."""
    return statistics.median(step["samples_per_s"] for step in steps)


def _flops(sizes: Sizes, device: Device) -> float:
    """Convolutions and products of matrices of a pair's forward and backward through the towers, as torch counts."""
    contestant = ours(sizes, Way(device.name, "bfloat16"), FLOPS_OF)
    with torch.backends.cudnn.flags(benchmark=False), flops.counter() as counted:
        contestant.step()
    return counted.get_total_flops() / FLOPS_OF


def _write(
    results: Mapping[str, list[Figures]],
    aims: Sequence[dict[str, Any]],
    out: Path | None,
    *,
    is_full: bool,
    facts: dict[str, Any],
) -> None:
    if not (out or torch.cuda.is_available()):
        return
    rounds = [
        {title: figures for title, figures in zip(results, steps, strict=True) if figures is not None}
        for steps in zip_longest(*results.values())
    ]
    python = [Path(sys.executable)]
    write("train_gpu", rounds, aims, is_full=is_full, packages=PACKAGES, environments=python, to=out, **facts)
