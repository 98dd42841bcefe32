"""How the passes of a model are taken: its blocks compiled, spread over ranks, or recorded as CUDA graphs.

Compiled (`torch.compile`): a whole model of 55 blocks is one program, which takes many minutes to compile. Blocks of
one shape share theirs, and the rest runs as it is.

Spread over ranks (FSDP2): each holds its part of every weight, gradient and moment. A block is gathered while it
computes. What is no block (stem, embeddings, linear layers) is gathered with the model; the temperature stays whole.

Recorded: where a GPU takes few pairs at a time it waits for its processor; a graph of thousands of kernels is started
by one call. It reads and writes at places of its own, is of one shape, and keeps the memory of its activations for
good. Random numbers go on from where the generator is at each replay. Captions have another number of tokens in each
batch: their tower is not recorded.
"""

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from timm.models._efficientnet_blocks import DepthwiseSeparableConv, InvertedResidual
from timm.models.vision_transformer import Block
from torch import _dynamo, distributed, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from transformers.models.bart.modeling_bart import BartDecoderLayer, BartEncoderLayer

from altalign.train.model import batch_norm
from altalign.train.model.text_tower import Layer
from altalign.train.model.vision_transformer import VisionTower

_OF_IMAGES = (DepthwiseSeparableConv, InvertedResidual, Block)
BLOCKS = (*_OF_IMAGES, Layer, BartEncoderLayer, BartDecoderLayer)
# in training with and without gradient, and once more for the last chunk, which may be smaller
_WAYS = 4


def compile_blocks(model: nn.Module, **options: Any) -> int:
    """Have the blocks of all towers compiled, with options of torch's, when they are first called; gives their number.

    The model is not wrapped; its activations are checkpointed before, if at all.
    """
    blocks = [module for module in model.modules() if isinstance(module, BLOCKS)]
    # all blocks of a class are one piece of code to torch, which gives up compiling it after so many shapes
    programs: Any = _dynamo.config
    programs.recompile_limit = max(programs.recompile_limit, _WAYS * len(blocks))
    programs.accumulated_recompile_limit = max(programs.accumulated_recompile_limit, _WAYS * len(blocks))
    for block in blocks:
        # As soon as it sees a second block, torch would take the sides of images for numbers that may be any, and
        # compile for many minutes. How many tokens captions have is another number in each step: left to itself, torch
        # compiles for one number first, and what a checkpoint computes again may then come from another program.
        given = {**options, "dynamic": not isinstance(block, _OF_IMAGES)}
        wrapped = block.__dict__.get("forward")
        if isinstance(wrapped, partial):  # it computes activations again: what it does twice is compiled
            block.forward = partial(wrapped.func, torch.compile(wrapped.args[0], **given), **wrapped.keywords)
        else:
            block.compile(**given)
    return len(blocks)


# Spread over ranks ----------------------------------------------------------------------------------------------------


def shard(
    model: Any, group: distributed.ProcessGroup | None = None, *, blocks: tuple[type[nn.Module], ...] = BLOCKS
) -> None:
    """Leave each rank of a group its part of a model that all have alike, on the device that it computes on.

    Everything is let go after each forward, so that the model's parameters are always these parts between steps.
    """
    device = next(model.parameters()).device
    mesh = DeviceMesh.from_group(group or distributed.distributed_c10d._get_default_group(), device.type)  # pyright: ignore[reportPrivateUsage] - no other name
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()  # it takes no other; channels last are one, but for the stem
    for module in reversed(list(model.modules())):
        if isinstance(module, blocks):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=True, ignored_params=set(model.temperature.parameters()))
    for name in ("encode_image", "encode_text"):
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)


def is_sharded(model: nn.Module) -> bool:
    """Whether ranks hold parts of it."""
    return isinstance(model, FSDPModule)


# Recorded -------------------------------------------------------------------------------------------------------------

Given = tuple[torch.Tensor | None, ...]
_TRIES = 3  # before a pass is recorded: what is compiled, searched for or loaded is not part of it

_many: Any = torch  # `_foreach_*` are private by name alone


def record(tower: nn.Module) -> None:
    """Have the passes of an image tower recorded on a GPU, in training, when they are first taken."""
    name = "states" if isinstance(tower, VisionTower) else "forward"
    setattr(tower, name, _Recorder(tower, getattr(type(tower), name)))


class _Recorder:
    """Takes the place of a tower's method."""

    def __init__(self, tower: nn.Module, plain: Callable[..., torch.Tensor]) -> None:
        self._tower = weakref.ref(tower)  # a cycle would hold the memory of graphs until it is looked for
        self._plain = plain
        self._passes: dict[Hashable, _Pass] = {}
        self._pool: Any = None  # one for all: they never compute at the same time
        self.turn = 0  # number of the last pass: the activations are its own

    def __call__(self, *given: torch.Tensor | None) -> torch.Tensor:
        tower = self._tower()
        assert tower is not None
        if not tower.training or not all(one is None or one.is_cuda for one in given):
            return self._plain(tower, *given)
        kind = (torch.is_grad_enabled(), batch_norm.collects(tower), *(one is not None and one.shape for one in given))
        if kind not in self._passes:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            random_numbers_kept = torch.random.fork_rng(devices=[torch.cuda.current_device()])
            with batch_norm.sums_kept(tower), random_numbers_kept, _twins(tower) as parameters:
                self._passes[kind] = _Pass(partial(self._plain, tower), given, parameters, self._pool)
        self.turn += 1
        recorded = self._passes[kind]
        recorded.take(given)
        return _Replayed.apply(self, recorded, *recorded.parameters)  # type: ignore[return-value]


@contextmanager
def _twins(tower: nn.Module) -> Iterator[dict[nn.Parameter, nn.Parameter]]:
    """Swap the trained parameters for others in the same memory; yields these by the originals.

    What autograd remembers of a parameter is the stream where it was first used. A graph is recorded on a stream of its
    own, on which gradients would be added up from then on. Without gradients nothing is swapped.
    """
    places = [
        (module, name, one)
        for module in tower.modules()
        for name, one in module.named_parameters(recurse=False)
        if one.requires_grad and torch.is_grad_enabled()
    ]
    twins = {own: nn.Parameter(own.detach()) for _, _, own in places}
    for module, name, own in places:
        setattr(module, name, twins[own])
    try:
        yield twins
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
        # towers take pixels for floats, as mixed ones are: so all are of one kind
        self._places = tuple(
            None if one is None else one.float() if one.dtype == torch.uint8 else one.clone() for one in given
        )
        self.parameters, self._twins = list(parameters), list(parameters.values())
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_TRIES):
                tried = self._forward_of(plain)
                if parameters:
                    self._backward_of(tried, torch.zeros_like(tried))
                del tried
        torch.cuda.current_stream().wait_stream(aside)
        # only this thread's work is recorded: another one reads batches at the same time
        of_graph: dict[str, Any] = {"pool": pool, "capture_error_mode": "thread_local"}
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._forward, **of_graph):
            self._features = self._forward_of(plain)
        self._towards = torch.empty_like(self._features)
        if parameters:
            with torch.cuda.graph(self._backward, **of_graph):
                self._gradients = self._backward_of(self._features, self._towards)

    def _forward_of(self, plain: Callable[..., torch.Tensor]) -> torch.Tensor:
        # autocast would keep the weights that it has cast from one pass to the next
        precision, is_rounded = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", dtype=precision, enabled=is_rounded, cache_enabled=False):
            return plain(*self._places)

    def _backward_of(self, features: torch.Tensor, towards: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        with torch.autocast("cuda", enabled=False):  # as of a step
            return torch.autograd.grad(features, self._twins, towards, allow_unused=True)

    def take(self, given: Given) -> None:
        """Copy to the graph's places what the next forward is of."""
        for place, one in zip(self._places, given, strict=True):
            if place is not None and one is not None:
                place.copy_(one)

    def forward(self) -> torch.Tensor:
        """Features."""
        self._forward.replay()
        return self._features.detach().clone()

    def backward(self, towards: torch.Tensor) -> list[torch.Tensor | None]:
        """Gradients of the parameters."""
        self._towards.copy_(towards)
        self._backward.replay()
        gradients = iter(_many._foreach_mul([one for one in self._gradients if one is not None], 1.0))
        return [None if one is None else next(gradients) for one in self._gradients]


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recorder: _Recorder, recorded: _Pass, *_: nn.Parameter) -> torch.Tensor:  # type: ignore[override]
        ctx.recorder, ctx.recorded, ctx.turn = recorder, recorded, recorder.turn
        return recorded.forward()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, towards: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        if ctx.turn != ctx.recorder.turn:
            raise RuntimeError("a recorded pass is gone back through after the next one: its activations are gone")
        return None, None, *ctx.recorded.backward(towards)
