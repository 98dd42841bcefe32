"""Gathers rows of all ranks, which may hold different numbers: the only collectives of loss and gradients."""

from dataclasses import dataclass

import torch
from torch import distributed

Group = distributed.ProcessGroup | None


@dataclass(frozen=True)
class GlobalBatch:
    """How many pairs each rank of a group holds, in the order of the global batch, and the longest captions of all."""

    sizes: tuple[int, ...]
    rank: int
    group: Group
    width: int = 0

    @property
    def size(self) -> int:
        """Pairs of all ranks."""
        return sum(self.sizes)

    @property
    def first(self) -> int:
        """Where this rank's pairs begin."""
        return sum(self.sizes[: self.rank])

    @property
    def own(self) -> slice:
        """Where this rank's pairs are."""
        return slice(self.first, self.first + self.sizes[self.rank])

    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        """Rows (n, …) of this rank -> (N, …) of all."""
        if len(self.sizes) == 1:
            return own
        most = max(self.sizes)
        padded = own.new_zeros(most, *own.shape[1:])
        padded[: len(own)] = own
        of_all = own.new_empty(len(self.sizes) * most, *own.shape[1:])
        distributed.all_gather_into_tensor(of_all, padded, group=self.group)
        if most * len(self.sizes) == self.size:
            return of_all
        return torch.cat([of_all[most * r : most * r + n] for r, n in enumerate(self.sizes)])

    def summed_own(self, of_all: torch.Tensor) -> torch.Tensor:
        """What each rank has for rows of all (N, …) -> the sums for this rank's rows (n, …)."""
        if len(self.sizes) == 1:
            return of_all
        if distributed.get_backend(self.group) == "gloo":  # which has no reduce_scatter in every release
            return self.summed(of_all)[self.own]
        most = max(self.sizes)
        padded = of_all
        if most * len(self.sizes) != self.size:
            padded = of_all.new_zeros(len(self.sizes) * most, *of_all.shape[1:])
            for r, rows in enumerate(of_all.split(list(self.sizes))):
                padded[most * r : most * r + len(rows)] = rows
        own = of_all.new_empty(most, *of_all.shape[1:])
        distributed.reduce_scatter_tensor(own, padded, group=self.group)
        return own[: self.sizes[self.rank]]

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' values, in place."""
        if len(self.sizes) > 1:
            distributed.all_reduce(values, group=self.group)
        return values

    def summed_in_logarithms(self, values: torch.Tensor) -> torch.Tensor:
        """The log of the sum over ranks of exp(value); -inf adds nothing."""
        if len(self.sizes) == 1:
            return values
        largest = values.clone()
        distributed.all_reduce(largest, distributed.ReduceOp.MAX, group=self.group)
        return self.summed(torch.exp(values - largest)).log_().add_(largest)


def global_batch(pairs: int, device: torch.device, group: Group = None, *, width: int = 0) -> GlobalBatch:
    """The global batch of a group of ranks (default: all), of which this process holds `pairs`, `width` wide."""
    sizes, widths, rank = (pairs,), (width,), 0
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size(group) > 1:
        rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
        counted = torch.zeros(2, ranks, dtype=torch.int64, device=device)
        counted[:, rank] = torch.tensor([pairs, width])
        distributed.all_reduce(counted, group=group)
        sizes, widths = map(tuple, counted.tolist())
    if not all(sizes):
        raise ValueError(f"pairs of each rank {list(sizes)}: every rank needs one")
    return GlobalBatch(sizes, rank, group, max(widths))
