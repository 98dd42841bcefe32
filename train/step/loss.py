"""ALIGN's loss (section 4.1, equations 1 and 2): normalised softmax over the global batch in both directions.

A rank holds the logits of its images against the texts of all ranks, a block at a time: rows of them are its images'
candidates, columns a part of the candidates of each text. So texts alone are gathered, and two vectors of the global
batch's length join the columns' parts. The backward computes the blocks again. Everything else (the match, label
smoothing, weights of pairs, mixed targets) is of vectors (n,), in plain autograd:

    loss of image i = logsumexp_j s_ij - (1 - smoothing) s_ii - smoothing mean_j s_ij    s_ij = x_i . y_j / temperature

NLIP's noise-adaptive loss (arXiv 2212.07086) has a smoothing of its own for each pair: see `Noise`.

SigLIP's loss (arXiv 2303.15343) is in the same blocks: see `sigmoid_loss`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from altalign.train.model.drawn import Mixed
from altalign.train.step.global_batch import GlobalBatch, Group, global_batch

Directions = Literal["sum", "mean"]
Form = Literal["intended", "printed"]
Hidden = bool | torch.Tensor  # all or none of a block, or (rows, columns)
Ways = tuple[int, int]  # the first and the last candidate, counted on from the own pair: (0, N - 1) are all


@dataclass(frozen=True)
class Noise:
    """How far each pair of this process is held for noisy: w (n,), from 0 to below 1, and the form of the loss.

    `intended`: targets 1 - w for the match, w / (N - 1) for each other candidate: a smoothing of w N / (N - 1).
    `printed`: equations 10 and 11 of NLIP, by which only the logits of the others are summed.
    """

    weight: torch.Tensor
    form: Form = "intended"


def contrastive_loss(*embeddings: torch.Tensor, **settings: Any) -> torch.Tensor:
    """This process's part of the global batch's loss: the sum of `pair_losses`, divided by the number of all pairs.

    The gradients of embeddings are those of the global loss, through the gather; the temperature's is this process's
    part. A collective: all ranks call it, and its backward, in the same order.
    """
    losses, pairs = pair_losses(*embeddings, **settings)
    return losses.sum() / pairs


def pair_losses(
    images: torch.Tensor,
    texts: torch.Tensor,
    temperature: torch.Tensor,
    *,
    label_smoothing: float,
    directions: Directions,
    negatives: float = 1.0,
    block: int = 2048,
    targets: Mixed | None = None,
    noise: Noise | None = None,
    group: Group = None,
) -> tuple[torch.Tensor, int]:
    """The losses (n,) of this process's pairs in the global batch, and N, the number of all pairs. A collective.

    Images and texts are embeddings (n, d), of length 1; n may differ between ranks, and is at least 1. With
    `label_smoothing` the match has 1 - this + this/N, each other candidate this/N. `negatives` is the share of the
    other pairs that each is set against (table 8): the next round(negatives (N - 1)) in a circle, in both directions; N
    is then the number of candidates. `block` rows and columns of logits are in memory at a time, float32 (float64 where
    embeddings are). `targets` are of mixed pairs, only with all negatives; `noise` is in place of both label smoothing
    and mixed targets: the settings refuse the others.
    """
    if images.shape != texts.shape or images.ndim != 2:
        raise ValueError(f"embeddings of shapes {tuple(images.shape)} and {tuple(texts.shape)} are no pairs")
    with torch.autocast(images.device.type, enabled=False):
        kind = torch.promote_types(torch.promote_types(images.dtype, texts.dtype), torch.float32)
        images, texts, scale = images.to(kind), texts.to(kind), 1 / temperature.to(kind)
        whole = global_batch(len(images), images.device, group)
        after = round(negatives * (whole.size - 1))
        is_printed = noise is not None and noise.form == "printed"
        by_image, of_images, by_text, of_texts = _Candidates.apply(
            images, texts, scale, whole, (int(is_printed), after), block
        )  # type: ignore[misc]
        matches = (images * texts).sum(1) * scale
        if noise is not None and is_printed:
            losses = _printed(by_image, matches, noise.weight, after) + _printed(by_text, matches, noise.weight, after)
        else:
            smoothing = label_smoothing if noise is None else noise.weight.to(kind) * ((after + 1) / max(1, after))
            to_text = to_image = matches
            if targets is not None:
                share, partner = targets.share, targets.partner
                to_text = share * matches + (1 - share) * (images * texts[partner]).sum(1) * scale
                to_image = share * matches + (1 - share) * (images[partner] * texts).sum(1) * scale
            losses = by_image + by_text - (1 - smoothing) * (to_text + to_image) - smoothing * (of_images + of_texts)
    return losses if directions == "sum" else losses / 2, whole.size


def sigmoid_loss(
    images: torch.Tensor, texts: torch.Tensor, logits: torch.Tensor, *, block: int = 2048, group: Group = None
) -> torch.Tensor:
    """This process's part of SigLIP's loss of the global batch (section 3.2, algorithm 1). A collective.

        - 1/N sum_i sum_j log sigmoid(z_ij (x_i . y_j / temperature + bias))    z_ij = 1 for the match, else -1

    `logits` (2) are temperature and bias. Embeddings, gradients, `block` and `group` are those of `contrastive_loss`.
    """
    with torch.autocast(images.device.type, enabled=False):
        kind = torch.promote_types(torch.promote_types(images.dtype, texts.dtype), torch.float32)
        images, texts, (temperature, bias) = images.to(kind), texts.to(kind), logits.to(kind)
        whole = global_batch(len(images), images.device, group)
        return _Sigmoids.apply(images, texts, 1 / temperature, bias, whole, block) / whole.size  # type: ignore[operator]


def _printed(by_others: torch.Tensor, match: torch.Tensor, weight: torch.Tensor, others: int) -> torch.Tensor:
    """NLIP's equation 10 (n,): log(1 + w / (B - 1) sum_j exp s_ij / ((1 - w) exp s_ii))."""
    weight = weight.to(match.dtype)
    odds = (weight / ((1 - weight) * max(1, others))).log()
    return torch.logaddexp(odds + by_others - match, torch.zeros_like(match))


@torch.no_grad()
def negatives_log_p(
    images: torch.Tensor, texts: torch.Tensor, temperature: torch.Tensor, *, block: int = 2048, group: Group = None
) -> torch.Tensor:
    """Mean logarithm of the probability of each pair's negatives, of both directions (ZeroVL, figure 4): (n,).

    High where the negatives are hard. Embeddings, `block` and `group` are those of `contrastive_loss`; a batch has at
    least two pairs.
    """
    scale = 1 / temperature
    whole = global_batch(len(images), images.device, group)
    by_image, of_images, by_text, of_texts = _Candidates.apply(images, texts, scale, whole, (0, whole.size - 1), block)  # type: ignore[misc]
    matches = (images * texts).sum(1) * scale
    of_negatives = (whole.size * (of_images + of_texts) / 2 - matches) / (whole.size - 1)
    return of_negatives - (by_image + by_text) / 2


class _Candidates(torch.autograd.Function):
    """logsumexp and mean of the logits of the candidates of each image and text of this process: four vectors (n,)."""

    @staticmethod
    def forward(
        ctx: Any,
        images: torch.Tensor,
        texts: torch.Tensor,
        scale: torch.Tensor,
        whole: GlobalBatch,
        ways: Ways,
        block: int,
    ) -> tuple[torch.Tensor, ...]:
        of_all, scaled = whole.gathered(texts), images * scale
        by_image, by_text = (images.new_full((count,), -torch.inf) for count in (len(images), whole.size))
        of_images, of_texts = torch.zeros_like(by_image), torch.zeros_like(by_text)
        for rows, columns, from_images, from_texts in _blocks(whole, ways, block, images.device):
            logits = scaled[rows] @ of_all[columns].T
            _count(logits, from_images, by_image[rows], of_images[rows])
            _count(logits.T, from_texts, by_text[columns], of_texts[columns])
        by_text, of_texts = whole.summed_in_logarithms(by_text), whole.summed(of_texts)
        ctx.save_for_backward(images, of_all, scale, by_image, by_text)
        ctx.whole, ctx.ways, ctx.block = whole, ways, block
        count = ways[1] + 1 - ways[0]
        return by_image, of_images / count, by_text[whole.own].clone(), of_texts[whole.own] / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        images, of_all, scale, by_image, by_text = ctx.saved_tensors
        count = ctx.ways[1] + 1 - ctx.ways[0]
        to_image, to_mean_of_image = gradients[0], gradients[1] / count
        to_text, to_mean_of_text = ctx.whole.gathered(torch.stack([gradients[2], gradients[3] / count], 1)).unbind(1)
        scaled, towards_images, towards_texts = images * scale, torch.zeros_like(images), torch.zeros_like(of_all)
        with torch.autocast(images.device.type, enabled=False):
            for rows, columns, from_images, from_texts in _blocks(ctx.whole, ctx.ways, ctx.block, images.device):
                logits = scaled[rows] @ of_all[columns].T
                towards = _towards(logits, from_images, by_image[rows], to_image[rows], to_mean_of_image[rows])
                towards = _towards(
                    logits.T, from_texts, by_text[columns], to_text[columns], to_mean_of_text[columns]
                ).T.add_(towards)
                towards_images[rows].addmm_(towards, of_all[columns])
                towards_texts[columns].addmm_(towards.T, scaled[rows])
        of_scale = (images * towards_images).sum()
        return towards_images.mul_(scale), ctx.whole.summed_own(towards_texts), of_scale, None, None, None


class _Sigmoids(torch.autograd.Function):
    """The sum of the losses of this process's images with all texts, (). The forward has each block's gradient too."""

    @staticmethod
    def forward(
        ctx: Any,
        images: torch.Tensor,
        texts: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor,
        whole: GlobalBatch,
        block: int,
    ) -> torch.Tensor:
        of_all, scaled = whole.gathered(texts), images * scale
        towards_images, towards_texts = torch.zeros_like(images), torch.zeros_like(of_all)
        total, of_bias = images.new_zeros(2, dtype=torch.float64)
        for rows, columns, _, _ in _blocks(whole, (0, whole.size - 1), block, images.device):
            matches = whole.first + rows.start - columns.start  # the diagonal that they are on
            against = (scaled[rows] @ of_all[columns].T).add_(bias)  # - z times the logits
            against.diagonal(matches).neg_()
            total += functional.softplus(against).sum(dtype=torch.float64)
            towards = against.sigmoid_()
            towards.diagonal(matches).neg_()
            of_bias += towards.sum(dtype=torch.float64)
            towards_images[rows].addmm_(towards, of_all[columns])
            towards_texts[columns].addmm_(towards.T, scaled[rows])
        of_scale = (images * towards_images).sum()
        of_texts = whole.summed_own(towards_texts)
        ctx.save_for_backward(towards_images.mul_(scale), of_texts, of_scale, of_bias.to(images.dtype))
        return total.to(images.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        return *(gradient * towards for towards in ctx.saved_tensors), None, None


def _count(logits: torch.Tensor, hidden: Hidden, by: torch.Tensor, sums: torch.Tensor) -> None:
    """Add a block's candidates to the logsumexps and sums of its rows, in place."""
    if hidden is True:
        return
    if isinstance(hidden, torch.Tensor):
        sums += logits.masked_fill(hidden, 0).sum(1)
        logits = logits.masked_fill(hidden, -torch.inf)
    else:
        sums += logits.sum(1)
    torch.logaddexp(by, logits.logsumexp(1), out=by)


def _towards(
    logits: torch.Tensor, hidden: Hidden, by: torch.Tensor, to_by: torch.Tensor, to_sum: torch.Tensor
) -> torch.Tensor:
    """The gradient of a block's logits, of those of its rows' logsumexps and sums."""
    if hidden is True:
        return torch.zeros_like(logits)
    towards = torch.addcmul(to_sum[:, None], torch.exp(logits - by[:, None]), to_by[:, None])
    # not times 0: there exp may be inf
    return towards.masked_fill_(hidden, 0) if isinstance(hidden, torch.Tensor) else towards


def _blocks(
    whole: GlobalBatch, ways: Ways, block: int, device: torch.device
) -> Iterator[tuple[slice, slice, Hidden, Hidden]]:
    """Rows of this process, columns of the global batch, and hidden pairs: of images, and of texts, transposed."""
    for row in range(0, own := whole.sizes[whole.rank], block):
        rows = slice(row, min(row + block, own))
        images = range(whole.first + rows.start, whole.first + rows.stop)
        for column in range(0, whole.size, block):
            texts = range(column, min(column + block, whole.size))
            from_images = _hidden(images, texts, ways, whole.size, device)
            from_texts = _hidden(texts, images, ways, whole.size, device)
            if from_images is not True or from_texts is not True:
                yield rows, slice(texts.start, texts.stop), from_images, from_texts


def _hidden(rows: range, columns: range, ways: Ways, size: int, device: torch.device) -> Hidden:
    """Which columns are no candidates of a row: those that are not `ways` on from it, in a circle of `size`."""
    first, after = ways
    has_own = rows.start < columns.stop and columns.start < rows.stop
    if not (first and has_own):
        if after >= size - 1:
            return False
        least, span = (columns[0] - rows[-1]) % size, len(rows) + len(columns) - 2  # of the ways from rows to columns
        if least + span <= after:
            return False
        if least > after and least + span < size:
            return True
    places, own = (torch.arange(each.start, each.stop, device=device) for each in (columns, rows))
    on = (places[None] - own[:, None]).remainder_(size)
    return on > after if not first else (on > after) | (on < first)
