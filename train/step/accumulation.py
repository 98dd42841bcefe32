"""Gradients of a global batch that does not fit: embeddings first, then towers by chunks (decoupled accumulation).

Pass 1 encodes the chunks and keeps embeddings alone. The loss of the global batch gives the gradients of embeddings and
temperature. Pass 2 encodes each chunk again and goes back through the towers from the gradients of its embeddings. The
sum over chunks is the gradient of the global batch, for every weight, and the temperature has its gradient once. It is
so only where both passes compute the same embeddings: a chunk's dropout is drawn from (seed, step, place of the chunk
in the global batch), and batch norm has the chunk's statistics, or fixed ones. `StepResult.drift` says how far they
were apart. Captions are as wide as the global batch's longest, for dropout is drawn for padding too: so a chunk's is
the same on any number of ranks. Where every rank's share fits into one chunk there is one pass.
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from altalign.errors import UsageError
from altalign.train.data.batches import widened
from altalign.train.model import batch_norm
from altalign.train.step.global_batch import GlobalBatch, Group, global_batch
from altalign.train.step.loss import Mixed
from altalign.train.step.mixup import Mixup
from altalign.train.step.token_drop import TokenDrop

if TYPE_CHECKING:
    from altalign.train.data.batches import Batch
    from altalign.train.model.dual_encoder import DualEncoder

Embeddings = tuple[torch.Tensor, torch.Tensor]  # of images and texts (n, d)


class Loss(Protocol):
    """This process's part of the loss of the global batch: `contrastive_loss` with all but these bound."""

    def __call__(  # noqa: D102
        self,
        images: torch.Tensor,
        texts: torch.Tensor,
        temperature: torch.Tensor,
        *,
        targets: Mixed | None,
        group: Group,
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class StepResult:
    """What a step's global batch came to: the same on all ranks but for the embeddings.

    loss: of the global batch. Where it is not finite, no parameter has a gradient and batch norm is as it was.
    temperature: what the loss was computed with.
    pairs: of the global batch.
    drift: root of the mean squared distance of a pair's two embeddings from those of the first pass; 0 where there was
    one pass.
    embeddings: of this process's images and texts, without gradient.
    """

    loss: float
    temperature: float
    pairs: int
    drift: float
    embeddings: Embeddings

    @property
    def is_finite(self) -> bool:
        """Whether the step may be taken."""
        return math.isfinite(self.loss)


class Towers(nn.Module):
    """A dual encoder without its temperature, which the forward does not use: what DistributedDataParallel can wrap."""

    def __init__(self, model: "DualEncoder") -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: part for name, part in model.named_children() if name != "temperature"})
        self._model = (model,)  # in a tuple: not registered as a part

    def forward(self, images: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor, **drawn: Any) -> Embeddings:
        """Encode images and texts, with what is drawn for them."""
        return self._model[0](images, tokens, mask, **drawn)


# Buffers (running statistics) stay each rank's own. torch 2.15 has the option under a new name.
_OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
_OWN_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers": False
}


def towers_of(model: "DualEncoder", group: Group = None) -> nn.Module:
    """The towers as `gradients` wants them: in DistributedDataParallel if there are several ranks.

    Their first weights are those of rank 0.

    `model.compile()`, where it is wanted, comes before.
    """
    towers = Towers(model)
    alone = not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size(group) > 1)
    if alone or not _is_trained(towers):
        return towers
    return DistributedDataParallel(towers, process_group=group, gradient_as_bucket_view=True, **_OWN_BUFFERS)


def gradients(
    towers: nn.Module,
    model: "DualEncoder",
    batch: "Batch",
    *,
    chunk: int,
    loss: Loss,
    seed: int,
    step: int,
    mixup: Mixup | None = None,
    token_drop: TokenDrop | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    group: Group = None,
) -> StepResult:
    """Leave the gradient of the global batch's loss in `.grad` of every parameter of a model.

    Batch norm's running statistics move once.

    A collective: all ranks call it. Gradients from before are dropped. Random numbers of torch are seeded anew.

    Args:
        towers: the model's, of `towers_of`.
        model: in training mode.
        batch: this rank's pairs, those of rank 0 first in the global batch; their number may differ between ranks, and
            is at least 1.
        chunk: pairs in the towers at a time.
        loss: this process's part of the loss.
        seed: of the run.
        step: its number.
        token_drop: the patches that a ViT leaves out, in both passes.
        mixup: how pairs are mixed, in both passes; `chunk` and every rank's pairs are whole groups.
        autocast: the arithmetic of the towers; loss and embeddings are not in it.
        group: the ranks; default all.
    """
    whole = global_batch(len(batch.keys), _device(model), group, width=batch.tokens.shape[1])
    held = widened(batch, whole.width)
    passes = _Passes(towers, model, held, chunk, mixup, token_drop, autocast, (seed, step), whole)
    model.zero_grad(set_to_none=True)
    check_sync(model, passes.whole.sizes, chunk)
    fits = max(passes.whole.sizes) <= chunk  # the same on all ranks: collectives keep their order
    encoded = (
        [passes.encoded(towers, start, collects=True) for start in passes.starts] if fits else passes.without_gradient()
    )
    images, texts = (torch.cat(parts).detach().requires_grad_() for parts in zip(*encoded, strict=True))
    value = model.temperature.value()
    temperature = value.detach().requires_grad_()
    targets = mixup.targets(images.detach()) if mixup is not None else None
    part = loss(images, texts, temperature, targets=targets, group=group)
    part.backward()
    assert images.grad is not None and texts.grad is not None and temperature.grad is not None  # noqa: PT018 - for the type checker
    if fits:
        passes.back(encoded[0], (images.grad, texts.grad))
        apart = torch.zeros((), device=images.device)
    else:
        apart = passes.with_gradient((images.detach(), texts.detach()), (images.grad, texts.grad))
    statistics = batch_norm.collected(model)
    total = torch.cat(
        [torch.stack([part.detach().double(), temperature.grad.double(), apart.double()]), statistics.double()]
    )
    # with DistributedDataParallel's sum of the towers' gradients the one all-reduce that grows with neither batch nor
    # chunks
    passes.whole.summed(total)
    summed, _, squares, sigma = torch.cat([total[:3], temperature.detach().double()[None]]).tolist()
    result = StepResult(
        summed, sigma, passes.whole.size, math.sqrt(squares / passes.whole.size), (images.detach(), texts.detach())
    )
    if not result.is_finite:
        model.zero_grad(set_to_none=True)
        batch_norm.apply_collected(model, torch.zeros_like(statistics))
        return result
    if value.requires_grad:
        value.backward(total[1].to(value.dtype))
    batch_norm.apply_collected(model, total[3:].to(statistics.dtype))
    return result


@dataclass(frozen=True)
class _Passes:
    """The passes of a step over this rank's pairs, a chunk at a time."""

    towers: nn.Module
    model: "DualEncoder"
    batch: "Batch"
    chunk: int
    mixup: Mixup | None
    token_drop: TokenDrop | None
    autocast: Callable[[], AbstractContextManager[Any]]
    seed: tuple[int, int]  # of the run, and the step
    whole: GlobalBatch

    @property
    def starts(self) -> range:
        """Where chunks begin among this rank's pairs."""
        return range(0, self.whole.sizes[self.whole.rank], self.chunk)

    def encoded(self, towers: nn.Module, start: int, *, collects: bool) -> Embeddings:
        """Embeddings of the chunk that begins here, with its own random numbers; `collects` batch norm's sums."""
        held = self.batch.chunk(start, min(start + self.chunk, len(self.batch.keys))).to(_device(self.model))
        drawn: dict[str, Any] = {} if self.mixup is None else {"mixup": self.mixup}
        if self.token_drop is not None:
            drawn["kept"] = self.token_drop.kept(held.keys, held.images)
        torch.manual_seed(chunk_seed(*self.seed, self.whole.first + start))
        with self.autocast(), batch_norm.collecting(self.model) if collects else nullcontext():
            return towers(held.images, held.tokens, held.mask, **drawn)

    def without_gradient(self) -> list[Embeddings]:
        """Pass 1."""
        with torch.no_grad():
            return [self.encoded(_inner(self.towers), start, collects=False) for start in self.starts]

    def with_gradient(self, first: Embeddings, towards: Embeddings) -> torch.Tensor:
        """Pass 2, from gradients of embeddings (n, d); returns squared distances from pass 1, summed."""
        apart = torch.zeros((), device=first[0].device)
        for start in self.starts:
            rows = slice(start, start + self.chunk)
            is_last = start == self.starts[-1]
            with (
                nullcontext()
                if is_last or not isinstance(self.towers, DistributedDataParallel)
                else self.towers.no_sync()
            ):
                again = self.encoded(self.towers, start, collects=True)
                self.back(again, (towards[0][rows], towards[1][rows]))
            apart += sum(
                (after.detach() - before[rows]).float().square().sum()
                for after, before in zip(again, first, strict=True)
            )
        return apart

    def back(self, embeddings: Embeddings, towards: Embeddings) -> None:
        """Go back through the towers that are trained, from the gradients of embeddings."""
        # it divides the sum of gradients by them
        ranks = len(self.whole.sizes) if isinstance(self.towers, DistributedDataParallel) else 1
        trained = [
            (embedding, gradient * ranks)
            for embedding, gradient in zip(embeddings, towards, strict=True)
            if embedding.requires_grad
        ]
        if trained:
            torch.autograd.backward([embedding for embedding, _ in trained], [gradient for _, gradient in trained])


def chunk_seed(seed: int, step: int, place: int) -> int:
    """The seed of torch's generators for the chunk at a place of the global batch, on CPU and GPU, in both passes."""
    return int.from_bytes(hashlib.blake2b(f"chunk {seed} {step} {place}".encode(), digest_size=8).digest(), "little")


def check_sync(model: nn.Module, sizes: Sequence[int], chunk: int) -> None:
    """Refuse batch norm over all devices where ranks have different numbers of chunks: one would wait forever."""
    chunks = [math.ceil(size / chunk) for size in sizes]
    if len(set(chunks)) > 1 and any(
        isinstance(layer, batch_norm.BatchNorm) and layer.statistics == "sync" for layer in model.modules()
    ):
        raise UsageError(
            f'[image_tower] batch_norm = "sync": ranks have {chunks} chunks of {chunk}; give [loop] chunk or '
            "global_batch so that they have as many"
        )


def _inner(towers: nn.Module) -> nn.Module:
    return towers.module if isinstance(towers, DistributedDataParallel) else towers


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
