"""A batch: the pairs of one step that one process has, or a chunk of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

TOKENS_MULTIPLE = 8  # batches are padded to a multiple of this: matrix units like it, and fewer shapes are compiled


@dataclass(frozen=True)
class Batch:
    """Pairs, as towers take them."""

    keys: list[str]  # of the samples, 32 hex digits
    sources: list[str]  # names
    epochs: list[int]  # how often the source of each had been gone through before
    images: Tensor  # uint8 (n, 3, h, w), perhaps channels last in memory
    # int64 (n, tokens), padded with 0, which no tower looks at: as long as the longest caption, rounded up to 8
    tokens: Tensor
    mask: Tensor  # bool (n, tokens): where there are tokens
    # tokens and mask of what NLIP's captioner reads beside the image, where there is one
    prompted: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def chunk(self, first: int, after: int) -> "Batch":
        """The pairs first … after - 1, of the same memory."""
        part = slice(first, after)
        rows = self.each(lambda tensor: tensor[part])
        return replace(rows, keys=self.keys[part], sources=self.sources[part], epochs=self.epochs[part])

    def to(self, device: "torch.device | str") -> "Batch":
        """The same on a device; from pinned memory (`loader.batches`) while other work goes on."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    def each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The same with every tensor changed."""
        prompted = (change(self.prompted[0]), change(self.prompted[1])) if self.prompted else None
        images, tokens, mask = (change(tensor) for tensor in (self.images, self.tokens, self.mask))
        return replace(self, images=images, tokens=tokens, mask=mask, prompted=prompted)


def widened(batch: Batch, width: int) -> Batch:
    """The same pairs, their captions padded to `width` tokens."""
    if not (missing := width - batch.tokens.shape[1]):
        return batch
    tokens, mask = (functional.pad(tensor, (0, missing)) for tensor in (batch.tokens, batch.mask))
    return replace(batch, tokens=tokens, mask=mask)


def padded(tokens: Sequence[Sequence[int]], tokens_at_most: int, *, width: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens and mask of a `Batch`; as wide as `width`, where it is given."""
    lengths = torch.tensor([len(one) for one in tokens])
    longest = max((len(one) for one in tokens), default=1)
    width = width or min(-(-longest // TOKENS_MULTIPLE) * TOKENS_MULTIPLE, tokens_at_most)
    filled = torch.zeros(len(tokens), width, dtype=torch.int64)
    for row, one in zip(filled, tokens, strict=True):
        row[: len(one)] = torch.as_tensor(one)
    return filled, torch.arange(width)[None, :] < lengths[:, None]
