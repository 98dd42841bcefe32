"""CUDA graphs of an image tower: a pass of thousands of kernels is recorded once, and started by one call after that.

Where a GPU takes few pairs at a time it is done with a kernel before its processor has started the next one, and waits.
A graph reads and writes at places of its own: what is given is copied there, features and gradients are copied from
there. It is of one shape, and keeps the memory of its activations for good, which is what a pass holds at its peak.
Random numbers go on from where the generator is at each replay, as they would without a graph.

Captions have another number of tokens in each batch: their tower is not recorded.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from altalign.train.model import batch_norm
from altalign.train.model.vision_transformer import VisionTower

Given = tuple[torch.Tensor | None, ...]
_TRIES = 3  # before a pass is recorded: what is compiled, searched for or loaded is not part of it

_many: Any = torch  # `_foreach_*` are private by name alone


def record(tower: nn.Module) -> None:
    """Have the passes of an image tower recorded on a GPU, in training, when they are first taken.

    Activations that are computed again, and statistics over ranks, cannot be recorded; the settings refuse them.
    """
    name = "states" if isinstance(tower, VisionTower) else "forward"
    setattr(tower, name, _Recorder(tower, getattr(tower, name)))


class _Recorder:
    """Takes the place of a tower's method."""

    def __init__(self, tower: nn.Module, plain: Callable[..., torch.Tensor]) -> None:
        self._tower, self._plain = tower, plain
        self._passes: dict[Hashable, _Pass] = {}
        self._pool: Any = None  # one for all: they never compute at the same time

    def __call__(self, *given: torch.Tensor | None) -> torch.Tensor:
        if not self._tower.training or not all(one is None or one.is_cuda for one in given):
            return self._plain(*given)
        shapes = (None if one is None else (one.shape, one.dtype) for one in given)
        kind = (torch.is_grad_enabled(), batch_norm.collects(self._tower), *shapes)
        if kind not in self._passes:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with batch_norm.sums_kept(self._tower), _twins(self._tower) as parameters:
                self._passes[kind] = _Pass(self._plain, given, parameters, self._pool)
        return self._passes[kind](given)


@contextmanager
def _twins(tower: nn.Module) -> Iterator[dict[nn.Parameter, nn.Parameter]]:
    """Others in the place of the parameters that are trained, if any are now, by those; in the same memory.

    What autograd remembers of a parameter is the stream where it was first used. A graph is recorded on a stream of its
    own, on which gradients would be added up from then on.
    """
    places = [
        (module, name, one)
        for module in tower.modules()
        for name, one in module.named_parameters(recurse=False)
        if one.requires_grad and torch.is_grad_enabled()
    ]
    found = {own: nn.Parameter(own.detach()) for _, _, own in places}
    for module, name, own in places:
        setattr(module, name, found[own])
    try:
        yield found
    finally:
        for module, name, own in places:
            setattr(module, name, own)


class _Pass:
    """A forward of one shape, and its backward where parameters are trained."""

    def __init__(
        self,
        plain: Callable[..., torch.Tensor],
        given: Given,
        parameters: dict[nn.Parameter, nn.Parameter],
        pool: Any,
    ) -> None:
        self._given = tuple(None if one is None else one.clone() for one in given)
        self._parameters, self._twins = list(parameters), list(parameters.values())
        self.number = 0  # of the last pass, whose activations there are
        random = torch.cuda.get_rng_state()
        # autocast would keep the weights that it has cast from one pass to the next
        precision, is_rounded = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", dtype=precision, enabled=is_rounded, cache_enabled=False):
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(_TRIES):
                    tried = plain(*self._given)
                    if parameters:
                        self._backward_of(tried, torch.zeros_like(tried))
                    del tried
            torch.cuda.current_stream().wait_stream(aside)
            # only this thread's work is recorded: another one reads batches at the same time
            of_graph: dict[str, Any] = {"pool": pool, "capture_error_mode": "thread_local"}
            self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._forward, **of_graph):
                self._features = plain(*self._given)
            self._towards = torch.empty_like(self._features)
            if parameters:
                with torch.cuda.graph(self._backward, **of_graph):
                    self._gradients = self._backward_of(self._features, self._towards)
        torch.cuda.set_rng_state(random)

    def _backward_of(self, features: torch.Tensor, towards: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return torch.autograd.grad(features, self._twins, towards, allow_unused=True)

    def __call__(self, given: Given) -> torch.Tensor:
        """Features, with a gradient where parameters are trained: to be gone back through before the next call."""
        for place, one in zip(self._given, given, strict=True):
            if place is not None and one is not None:
                place.copy_(one)
        return _Replayed.apply(self, *self._parameters)  # type: ignore[return-value]

    def forward(self) -> torch.Tensor:
        """Features of what was given."""
        self.number += 1
        self._forward.replay()
        return self._features.detach().clone()

    def backward(self, towards: torch.Tensor) -> list[torch.Tensor | None]:
        """Gradients of the parameters."""
        self._towards.copy_(towards)
        self._backward.replay()
        there = iter(_many._foreach_mul([one for one in self._gradients if one is not None], 1.0))
        return [None if one is None else next(there) for one in self._gradients]


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recorded: _Pass, *_: nn.Parameter) -> torch.Tensor:  # type: ignore[override]
        features = recorded.forward()
        ctx.recorded, ctx.number = recorded, recorded.number
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, towards: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        assert ctx.number == ctx.recorded.number, "the activations are those of a later pass"
        return None, *ctx.recorded.backward(towards)
