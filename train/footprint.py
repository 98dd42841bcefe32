"""The memory of a training on a device, foreseen: no tensor is made, torch only works out shapes (`FakeTensorMode`).

Of the towers a step is gone through at two small sizes of chunk, and every storage is counted while it lives. Both the
most that lives and what is kept for the backward grow in a line with the pairs of a chunk. All goes as on a GPU.
What no tensor holds is not in it: CUDA's context, workspaces of cuDNN, gaps between tensors; batches on their way.
"""

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from altalign.errors import UsageError
from altalign.train.model.bert_layer import Packed
from altalign.train.model.compiled import BLOCKS
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.model.on_cpu import as_a_gpu
from altalign.train.ranks import Ranks, share
from altalign.train.settings import TrainConfig
from altalign.train.step import arithmetic, optimizers, token_drop
from altalign.train.step.learner import checkpoint_activations, model_of
from altalign.train.step.loss import contrastive_loss

OF_A_GPU = 0.9  # of its memory: the rest is for what no tensor holds
_KEY = "0" * 32
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Footprint:
    """Bytes on one device.

    Attributes:
        weights: parameters and buffers, float32.
        gradients: of the parameters that are trained.
        moments: what the optimiser keeps of them.
        activations: what the towers keep of a chunk for the backward, at most.
        towers: the most that lives of a chunk's activations while towers compute: not less than `activations`.
        loss: embeddings of the global batch, their gradients, and blocks of logits.
        scratch: of the optimiser, while it steps.
        gathered: weights and gradients that are whole for a while, of a sharded model.
        recorded: gradients of CUDA graphs, which keep these and the activations between steps.
    """

    weights: int
    gradients: int
    moments: int
    activations: int
    towers: int
    loss: int
    scratch: int
    gathered: int = 0
    recorded: int = 0

    @property
    def total(self) -> int:
        """The most that is held at once."""
        kept = self.weights + self.gradients + self.moments
        if self.recorded:
            return kept + self.recorded + self.towers + max(self.loss, self.scratch)
        return kept + max(self.towers + self.gathered, self.loss, self.scratch)


@dataclass(frozen=True)
class Line:
    """A number of bytes that grows with pairs in a line."""

    fixed: float
    of_a_pair: float

    @classmethod
    def through(cls, first: tuple[int, int], second: tuple[int, int]) -> "Line":
        """The line through two points (pairs, bytes)."""
        slope = (second[1] - first[1]) / (second[0] - first[0])
        return cls(first[1] - slope * first[0], slope)

    def at(self, pairs: int) -> int:
        """Bytes for so many pairs."""
        return math.ceil(self.fixed + self.of_a_pair * pairs)


@dataclass(frozen=True)
class Foreseen:
    """What a training of these settings holds on one device, for any chunk."""

    weights: int
    gradients: int
    moments: int
    scratch: int
    loss: int
    activations: Line
    towers: Line
    gathered: int = 0
    recorded: int = 0

    @classmethod
    def of(cls, config: TrainConfig, *, vocabulary: int) -> "Foreseen":
        """Go through the step of a dual encoder; a few seconds of CPU."""
        unit = unit_of(config)
        sizes = [2 * unit, 3 * unit]
        with without_memory(config, vocabulary=vocabulary) as model:
            checkpoint_activations(model, config.loop)
            steps = [_step(config, model, pairs) for pairs in sizes]
            optimizer = optimizers.make_optimizer(model, config.optimizer)
            with _Living() as living:
                optimizer.step()
            loss = _loss(config, model.width)
            gathered = _gathered(model) if config.loop.sharded else 0
            recorded = sum(map(_bytes, model.image_tower.parameters())) if config.loop.cuda_graphs else 0
        moments = sum(_bytes(one) for of in optimizer.state.values() for one in of.values() if isinstance(one, Tensor))
        weights = sum(_bytes(one) for one in (*model.parameters(), *model.buffers()))
        gradients = sum(_bytes(one) for one in model.parameters() if one.requires_grad)
        activations, towers = (Line.through(*zip(sizes, of, strict=True)) for of in zip(*steps, strict=True))
        return cls(weights, gradients, moments, living.most - moments, loss, activations, towers, gathered, recorded)

    def footprint(self, chunk: int, *, ranks: int = 1) -> Footprint:
        """The bytes for chunks of so many pairs; of a sharded model each of the ranks has a part."""
        parts = ranks if self.gathered else 1
        return Footprint(
            weights=math.ceil(self.weights / parts),
            gradients=math.ceil(self.gradients / parts),
            moments=math.ceil(self.moments / parts),
            activations=self.activations.at(chunk),
            towers=max(self.towers.at(chunk), self.activations.at(chunk)),
            loss=self.loss,
            scratch=math.ceil(self.scratch / parts),
            gathered=self.gathered if parts > 1 else 0,
            recorded=self.recorded,
        )


@contextmanager
def without_memory(config: TrainConfig, *, vocabulary: int) -> Iterator[DualEncoder]:
    """The model of the settings, in training; inside no tensor has memory, and all goes as on a GPU."""
    with torch.device("meta"):
        model = model_of(config, vocabulary=vocabulary).train()
    with FakeTensorMode(allow_non_fake_inputs=True), as_a_gpu(), _attention_of_a_gpu():
        _take_to_cpu(model)
        yield model


def unit_of(config: TrainConfig) -> int:
    """Chunks are multiples of this: of the groups of batch norm and of mixup."""
    norm = config.image_tower.ghost_group if config.image_tower.has_groups else 1
    return math.lcm(norm, config.loss.mixup_group if config.loss.mixup else 1)


def largest_chunk(config: TrainConfig, foreseen: Foreseen, *, memory_bytes: int, pairs: int, ranks: int = 1) -> int:
    """The largest chunk with which a device stays within its memory; no larger than its `pairs` of the global batch.

    Raises:
        UsageError: not even the smallest does.
    """
    unit = unit_of(config)
    numbers = range(1, math.ceil(pairs / unit) + 1)
    fitting = [n for n in numbers if foreseen.footprint(n * unit, ranks=ranks).total <= memory_bytes]
    if not fitting:
        least = foreseen.footprint(unit, ranks=ranks).total
        raise UsageError(
            f'[loop] chunk = "auto": {unit} pairs at a time take {least / 1e9:,.2f} GB, and there are '
            f"{memory_bytes / 1e9:,.2f} GB; give activation_checkpointing = true, smaller towers, or more memory"
        )
    return fitting[-1] * unit


def memory_of(config: TrainConfig, device: torch.device) -> int:
    """The bytes of a device that training may take.

    Raises:
        UsageError: nobody has said how many.
    """
    if config.loop.memory_bytes:
        return config.loop.memory_bytes
    if device.type != "cuda":
        raise UsageError('[loop] chunk = "auto" on a CPU: give memory_bytes, or a number of pairs')
    return int(OF_A_GPU * torch.cuda.get_device_properties(device).total_memory)


def with_chunk(config: TrainConfig, ranks: Ranks, *, vocabulary: int) -> TrainConfig:
    """The same settings, with a number where `chunk` is 0: the same on all ranks.

    Raises:
        UsageError: nothing fits, or nobody knows into what.
    """
    if config.loop.chunk:
        return config
    foreseen = Foreseen.of(config, vocabulary=vocabulary)
    pairs = max(len(share(config.loop.global_batch, rank, ranks.ranks)) for rank in range(ranks.ranks))
    memory = memory_of(config, ranks.device)
    own = largest_chunk(config, foreseen, memory_bytes=memory, pairs=pairs, ranks=ranks.ranks)
    smallest = -ranks.any(-own)
    return config.model_copy(update={"loop": config.loop.model_copy(update={"chunk": smallest})})


def _gathered(model: nn.Module) -> int:
    """Bytes that are whole at once: what is no block, one that computes and the next; weights and gradients of them."""
    blocks = [sum(map(_bytes, module.parameters())) for module in model.modules() if isinstance(module, BLOCKS)]
    rest = sum(map(_bytes, model.parameters())) - sum(blocks)
    return 2 * (rest + 2 * max(blocks, default=0))


def _take_to_cpu(model: nn.Module) -> None:
    """Give a model of the meta device parameters and buffers of the CPU; those that are one stay one."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))
        for name, parameter in module.named_parameters(recurse=False):
            empty = nn.Parameter(
                torch.empty(parameter.shape, dtype=parameter.dtype), requires_grad=parameter.requires_grad
            )
            setattr(module, name, made.setdefault(id(parameter), empty))


def _step(config: TrainConfig, model: DualEncoder, pairs: int) -> tuple[int, int]:
    """Forward and backward of so many pairs: bytes kept for the backward, and the most that lived."""
    given, drawn = inputs_of(config, model, pairs)
    model.zero_grad(set_to_none=True)
    kept: dict[int, int] = {}
    own = {_storage(one) for one in (*model.parameters(), *model.buffers())}

    def keep(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in own:
            kept[_storage(tensor)] = _bytes(tensor)
        return tensor

    with _Living() as living:
        with arithmetic.autocast(config.loop.precision, _CPU)(), saved_tensors_hooks(keep, lambda tensor: tensor):
            encoded = [part for part in model(*given, **drawn) if part.requires_grad]
        forward, living.most = living.most, living.now
        torch.autograd.backward(encoded, [torch.ones_like(part) for part in encoded])
        gradients = sum(_bytes(one.grad) for one in model.parameters() if one.grad is not None)
    return sum(kept.values()), max(forward, living.most - gradients)


def inputs_of(config: TrainConfig, model: DualEncoder, pairs: int) -> tuple[Sequence[Tensor], dict[str, Any]]:
    """What a forward of so many pairs is given."""
    side, length = config.data.crop_px, config.tokenizer.tokens_at_most
    images = torch.empty(pairs, side, side, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    drawn: dict[str, Any] = {}
    if (drop := token_drop.drawn(config.image_tower, seed=0, step=1)) is not None:
        patches = (side // drop.patch_px) ** 2
        drawn["kept"] = torch.zeros(pairs, max(1, patches - round(drop.share * patches)), dtype=torch.int64)
    if model.packs_captions:
        drawn["packed"] = Packed(*(torch.zeros(size, dtype=torch.int64) for size in (pairs * length, pairs)))
    if model.has_decoders:
        drawn |= {"prompted": _tokens(pairs, config.captioner.tokens_at_most), "has_losses": True}
    return (images, *_tokens(pairs, length)), drawn


def _tokens(pairs: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(pairs, length, dtype=torch.int64), torch.ones(pairs, length, dtype=torch.bool)


def _loss(config: TrainConfig, width: int) -> int:
    """The most that lives while the loss of the global batch is taken; from two blocks on it grows in a line."""
    whole, block = config.loop.global_batch, config.loss.block
    measure: Callable[[int], int] = partial(_loss_of, config, width)
    if whole <= 2 * block:
        return measure(whole)
    return Line.through((block, measure(block)), (2 * block, measure(2 * block))).at(whole)


def _loss_of(config: TrainConfig, width: int, pairs: int) -> int:
    with _Living() as living:
        images, texts = (torch.zeros(pairs, width, requires_grad=True) for _ in range(2))
        smoothing, directions = config.loss.label_smoothing, config.loss.directions
        temperature = torch.ones((), requires_grad=True)
        loss = contrastive_loss(
            images, texts, temperature, label_smoothing=smoothing, directions=directions, block=config.loss.block
        )
        loss.backward()
    return living.most


@contextmanager
def _attention_of_a_gpu() -> Iterator[None]:
    """A GPU keeps no weights of attention for the backward; a CPU does, where some of them are dropped."""
    own: Any = functional.scaled_dot_product_attention
    # no mode of torch: backward, which computes some forwards again, would leave it
    functional.scaled_dot_product_attention = lambda *given, **more: own(*given, **{**more, "dropout_p": 0.0})
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = own


class _Living(TorchDispatchMode):
    """Counts the bytes of all storages that were made inside, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, Tensor):
                self._add(tensor)
        return made

    def _add(self, tensor: Tensor) -> None:
        storage, number = tensor.untyped_storage(), _storage(tensor)
        if number in self._known:
            return
        size = storage.nbytes()
        self._known.add(number)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, number, size)

    def _gone(self, number: int, size: int) -> None:
        self._known.discard(number)
        self.now -= size


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage] - what torch knows a storage by


def _bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()
