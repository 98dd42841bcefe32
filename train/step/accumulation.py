"""Gradients of a global batch that does not fit: embeddings first, then towers by chunks (decoupled accumulation).

Pass 1 encodes the chunks and keeps embeddings alone. The loss of the global batch gives the gradients of embeddings and
temperature. Pass 2 encodes each chunk again and goes back through the towers from the gradients of its embeddings: the
sum over chunks is the gradient of the global batch. It is so only where both passes compute the same embeddings: a
chunk's dropout is drawn from (seed, step, place of the chunk in the global batch), and batch norm has the chunk's
statistics, or fixed ones. Captions are as wide as the global batch's longest, for dropout is drawn for padding too.
Where every rank's share fits into one chunk there is one pass.
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from altalign.errors import UsageError
from altalign.train.data.batches import Batch, widened
from altalign.train.model import batch_norm
from altalign.train.model.drawn import Mixup, TokenDrop
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.model.passes import is_sharded
from altalign.train.model.text_tower import Packed
from altalign.train.step.global_batch import GlobalBatch, Group, global_batch

Embeddings = tuple[torch.Tensor, torch.Tensor]  # of images and texts (n, d)


@dataclass(frozen=True)
class StepResult:
    """The results of a step on the global batch: the same on all ranks, except for the embeddings."""

    loss: float  # where it is not finite, no parameter has a gradient and batch norm is as it was
    temperature: float  # that the loss was computed with
    bias: float | None  # the same; None where the loss has none
    drift: float  # root of the mean squared distance of a pair's embeddings from the first pass's; 0 of one pass
    embeddings: Embeddings  # of this process's pairs, without gradient
    own: tuple[float, ...] = ()  # means of the losses that need no other pair: of reconstruction, of captions
    broken: tuple[int, ...] = ()  # where the loss is not finite, the ranks that have an embedding that is not


class Towers(nn.Module):
    """A dual encoder without its temperature, which the forward does not use: what DistributedDataParallel can wrap."""

    def __init__(self, model: DualEncoder) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: part for name, part in model.named_children() if name != "temperature"})
        self._model = (model,)  # in a tuple: not registered as a part

    def forward(
        self, images: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor, **drawn: object
    ) -> tuple[torch.Tensor, ...]:
        """As the model's."""
        return self._model[0](images, tokens, mask, **drawn)


# Buffers (running statistics) stay each rank's own. torch 2.15 has the option under a new name.
_OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
OWN_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers": False
}


def towers_of(model: DualEncoder, group: Group = None) -> nn.Module:
    """The towers as `gradients` wants them: in DistributedDataParallel if there are several ranks with whole models.

    Their first weights are then those of rank 0. What is compiled is compiled before.
    """
    towers = Towers(model)
    alone = not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size(group) > 1)
    if alone or is_sharded(model) or not any(one.requires_grad for one in towers.parameters()):
        return towers
    return DistributedDataParallel(towers, process_group=group, gradient_as_bucket_view=True, **OWN_BUFFERS)


def gradients(
    towers: nn.Module,
    model: DualEncoder,
    batch: Batch,
    *,
    chunk: int,
    loss: Callable[..., torch.Tensor],
    seed: int,
    step: int,
    mixup: Mixup | None = None,
    token_drop: TokenDrop | None = None,
    own_weights: Sequence[float] = (),
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    group: Group = None,
) -> StepResult:
    """Leave the gradient of the global batch's loss in `.grad` of every parameter of a model. A collective.

    Earlier gradients are dropped, torch's random numbers are seeded anew, and batch norm's running statistics move
    once. A rank has at least one pair of the `batch`, those of rank 0 come first, and `chunk` of them are in the towers
    at a time; with `mixup` both are whole groups. `loss` is this process's part, `contrastive_loss` with its settings
    bound; `own_weights` are factors of the pairs' own losses, which the forward sums after the embeddings. `autocast`
    is the arithmetic of the towers, but not of the loss.
    """
    device = next(model.parameters()).device
    whole = global_batch(len(batch.keys), device, group, width=batch.tokens.shape[1])
    batch = widened(batch, whole.width)
    model.zero_grad(set_to_none=True)
    check_sync(model, whole.sizes, chunk)
    is_wrapped = isinstance(towers, DistributedDataParallel)
    divided_by = len(whole.sizes) if is_wrapped or is_sharded(model) else 1  # what both divide the sum of gradients by

    def encode(through: nn.Module, start: int, *, collects: bool) -> tuple[torch.Tensor, ...]:
        """Embeddings of the chunk that begins here; `collects` batch norm's sums, and gives the pairs' own losses."""
        part = batch.chunk(start, min(start + chunk, len(batch.keys)))
        held = part.to(device)
        drawn: dict[str, object] = {} if mixup is None else {"mixup": mixup}
        if model.packs_captions:
            drawn["packed"] = Packed.from_mask(part.mask).to(device)  # the loader's mask: nothing waits for a GPU
        if token_drop is not None:
            drawn["kept"] = token_drop.kept(held.keys, held.images)
        if own_weights:
            drawn |= {"prompted": held.prompted, "has_losses": collects}
        torch.manual_seed(chunk_seed(seed, step, whole.first + start))
        with autocast(), batch_norm.collecting(model) if collects else nullcontext():
            return through(held.images, held.tokens, held.mask, **drawn)

    def go_back(encoded: tuple[torch.Tensor, ...], towards: Embeddings) -> None:
        """Go back through the model, from the gradients of embeddings and from the pairs' own losses."""
        gradients = [gradient * divided_by for gradient in towards]
        if own_weights:
            gradients.append(encoded[2].new_tensor(own_weights) * (divided_by / whole.size))
        trained = [pair for pair in zip(encoded, gradients, strict=True) if pair[0].requires_grad]
        if trained:
            parts, of_parts = zip(*trained, strict=True)
            torch.autograd.backward(parts, of_parts)

    fits = max(whole.sizes) <= chunk  # the same on all ranks: collectives keep their order
    starts = range(0, len(batch.keys), chunk)
    if fits:
        encoded = [encode(towers, 0, collects=True)]
    else:
        inner = towers.module if isinstance(towers, DistributedDataParallel) else towers
        with torch.no_grad():
            encoded = [encode(inner, start, collects=False) for start in starts]
    of_chunks = zip(*(some[:2] for some in encoded), strict=True)
    images, texts = (torch.cat(parts).detach().requires_grad_() for parts in of_chunks)
    value = model.temperature()
    temperature = value.detach().requires_grad_()
    targets = mixup.targets(images.detach()) if mixup is not None else None
    part = loss(images, texts, temperature, targets=targets, group=group)
    part.backward()
    assert images.grad is not None and texts.grad is not None and temperature.grad is not None  # noqa: PT018 - for the type checker
    embeddings, towards = (images.detach(), texts.detach()), (images.grad, texts.grad)
    apart, sums = torch.zeros((), device=images.device), torch.zeros(len(own_weights), device=images.device)
    if fits:
        go_back(encoded[0], towards)
        sums = encoded[0][2].detach() if own_weights else sums
    for start in () if fits else starts:  # pass 2
        rows = slice(start, start + chunk)
        with towers.no_sync() if is_wrapped and start != starts[-1] else nullcontext():  # type: ignore[operator]
            again = encode(towers, start, collects=True)
            go_back(again, (towards[0][rows], towards[1][rows]))
        moved = zip(again[:2], embeddings, strict=True)
        apart += sum((after.detach() - before[rows]).float().square().sum() for after, before in moved)
        sums += again[2].detach() if own_weights else 0
    own = torch.cat([one.detach().double().reshape(-1) for one in (part, apart, temperature.grad, sums)])
    return _finished(model, whole, own, value, embeddings, own_weights)


def _finished(
    model: DualEncoder,
    whole: GlobalBatch,
    own: torch.Tensor,
    temperature: torch.Tensor,
    embeddings: Embeddings,
    own_weights: Sequence[float],
) -> StepResult:
    """Give the temperature its gradient and move running statistics; drop all gradients if one is not finite.

    `own`, float64[3 + k], is this rank's loss, squared distances between the passes, gradient of the temperature (and
    of the bias), and the sums of k losses of the pairs' own; `temperature` has the graph of its parameters.
    """
    statistics = batch_norm.collected(model)
    # with DistributedDataParallel's sum of the towers' gradients the one all-reduce that grows with neither batch nor
    # chunks
    total = whole.summed(torch.cat([own, statistics.double()]))
    values, learned = temperature.detach().double().reshape(-1), temperature.numel()
    summed, squares, *rest = torch.cat([total[: len(own)], values]).tolist()
    sums, (sigma, *bias) = rest[learned:-learned], rest[-learned:]
    means = tuple(value / whole.size for value in sums)
    for weight, mean in zip(own_weights, means, strict=True):
        summed += weight * mean
    result = StepResult(summed, sigma, bias[0] if bias else None, math.sqrt(squares / whole.size), embeddings, means)
    if not math.isfinite(summed):
        model.zero_grad(set_to_none=True)
        batch_norm.apply_collected(model, torch.zeros_like(statistics))
        is_whole = torch.stack([part.isfinite().all(1) for part in embeddings]).all(0)
        by_rank = whole.gathered(is_whole.to(torch.uint8)).split(list(whole.sizes))
        return replace(result, broken=tuple(rank for rank, rows in enumerate(by_rank) if not rows.all()))
    if temperature.requires_grad:
        temperature.backward(total[2 : 2 + learned].to(temperature.dtype).view_as(temperature))
    batch_norm.apply_collected(model, total[len(own) :].to(statistics.dtype))
    return result


def chunk_seed(seed: int, step: int, place: int) -> int:
    """The seed of torch's generators for the chunk at a place of the global batch, on CPU and GPU, in both passes."""
    return int.from_bytes(hashlib.blake2b(f"chunk {seed} {step} {place}".encode(), digest_size=8).digest(), "little")


def check_sync(model: nn.Module, sizes: Sequence[int], chunk: int) -> None:
    """Refuse different numbers of chunks where ranks meet in each of them: one would wait forever."""
    chunks = [math.ceil(size / chunk) for size in sizes]
    if len(set(chunks)) == 1:
        return
    layers = (layer for layer in model.modules() if isinstance(layer, batch_norm.BatchNorm))
    setting = '[image_tower] batch_norm = "sync"' if any(layer.statistics == "sync" for layer in layers) else ""
    if setting := "[loop] sharded = true" if is_sharded(model) else setting:
        advice = "give [loop] chunk or global_batch so that they have as many"
        raise UsageError(f"{setting}: ranks have {chunks} chunks of {chunk}; {advice}")
