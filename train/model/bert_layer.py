"""BERT's layers, without what nobody reads: states of padding, and all but [CLS] of the last layer.

In training the tokens of all captions stand in a row, and take their places where they look at each other. A GPU would
wait for their number: places are worked out where the loader's mask is. A graph of the whole tower has the number for
good: there captions are padded all the way.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional


class Packed(NamedTuple):
    """Captions of n x length tokens, with padding, as a row of those tokens that are there."""

    places: torch.Tensor  # of each token of the row, among n x length: int64
    firsts: torch.Tensor  # where captions begin in the row: int64 (n)

    @classmethod
    def of(cls, mask: torch.Tensor) -> "Packed":
        """Where a mask (n, length) has tokens, the first of each caption among them."""
        ends = mask.sum(1).cumsum(0)
        return cls(mask.flatten().nonzero()[:, 0], functional.pad(ends[:-1], (1, 0)))

    def to(self, device: torch.device) -> "Packed":
        """The same on a device, to which it goes while other work goes on."""
        pinned = (one.pin_memory() if device.type == "cuda" and one.device.type == "cpu" else one for one in self)
        return Packed(*(one.to(device, non_blocking=True) for one in pinned))

    def spread(self, row: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """States (tokens, width) at their places (n, length, width), and zeros for padding."""
        return row.new_zeros(mask.numel(), row.shape[1]).index_copy_(0, self.places, row).unflatten(0, mask.shape)


class Layer(nn.Module):
    """A layer of transformers' BERT (its BertLayer), with the weights of that which it replaces, and their names."""

    def __init__(self, replaced: Any, *, is_last: bool) -> None:
        super().__init__()
        self.attention, self.intermediate, self.output = replaced.attention, replaced.intermediate, replaced.output
        self.is_last = is_last

    def forward(self, states: torch.Tensor, mask: torch.Tensor, packed: Packed | None) -> torch.Tensor:
        """States after the layer, of the same form; of the last one those of [CLS] alone, (n, width).

        Args:
            states: (n, length, width); of packed captions (tokens, width).
            mask: bool (n, length), true where there is a token.
            packed: how captions are packed.
        """
        asking = states
        if self.is_last:
            asking = states[:, :1] if packed is None else states.index_select(0, packed.firsts)[:, None]
        own = self.attention.self
        query, key, value = own.query(asking), own.key(states), own.value(states)
        if packed is not None:
            key, value = packed.spread(key, mask), packed.spread(value, mask)
            query = query if self.is_last else packed.spread(query, mask)
        seen = self._seen(query, key, value, mask)
        if packed is not None and not self.is_last:
            seen = seen.flatten(0, 1).index_select(0, packed.places)
        attended = self.attention.output(seen, asking)
        after = self.output(self.intermediate(attended), attended)
        return after[:, 0] if self.is_last else after

    def _seen(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What each token of the query (n, tokens, width) sees of the others: in its shape."""
        own = self.attention.self
        by_head = [of.unflatten(-1, (own.num_attention_heads, -1)).transpose(1, 2) for of in (query, key, value)]
        attended = mask[:, None, None, :].expand(-1, 1, query.shape[1], -1)
        dropout = own.dropout.p if self.training else 0.0
        seen = functional.scaled_dot_product_attention(*by_head, attn_mask=attended, dropout_p=dropout)
        return seen.transpose(1, 2).flatten(2)
