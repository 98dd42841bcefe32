"""Embeddings for tests of the loss, and the loss as the paper writes it."""

import torch
from torch.nn import functional


def drawn(
    pairs: int, width: int = 6, *, seed: int = 0, kind: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings (pairs, width) of images and of texts, leaves that want gradients."""
    generator = torch.Generator().manual_seed(seed)
    images, texts = (
        functional.normalize(torch.randn(pairs, width, generator=generator, dtype=torch.float64), dim=1).to(kind)
        for _ in range(2)
    )
    return images.requires_grad_(), texts.requires_grad_()


def plain_losses(
    images: torch.Tensor,
    texts: torch.Tensor,
    temperature: torch.Tensor,
    *,
    label_smoothing: float,
    directions: str,
    negatives: float = 1.0,
) -> torch.Tensor:
    """The loss of each pair (N,), a pair and a candidate at a time."""
    pairs = len(images)
    after = round(negatives * (pairs - 1))
    losses = []
    for i in range(pairs):
        of_pair = []
        for one, others in ((images[i], texts), (texts[i], images)):
            logits = torch.stack([one @ others[(i + k) % pairs] / temperature for k in range(after + 1)])
            target = torch.full((after + 1,), label_smoothing / (after + 1), dtype=logits.dtype)
            target[0] += 1 - label_smoothing
            of_pair.append(-(target * logits.log_softmax(0)).sum())
        losses.append(sum(of_pair) / (1 if directions == "sum" else 2))
    return torch.stack(losses)
