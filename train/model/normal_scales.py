"""What images are normalised with, for `normalise` and its kernels on a GPU."""

from typing import NamedTuple

import torch

EIGHT = 8  # of channels, 16 bytes of bfloat16, are read at once on a GPU


class Scales(NamedTuple):
    """What images are normalised with."""

    weight: torch.Tensor  # (channels)
    bias: torch.Tensor
    mean: torch.Tensor  # (groups, channels)
    inverse: torch.Tensor  # of the standard deviation

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return self.mean.shape[0]
