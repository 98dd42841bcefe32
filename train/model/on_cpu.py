"""Where a CPU computes the same in a way of its own, and how a GPU's way is taken there to count operations."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_AS_A_GPU: list[bool] = []


@contextmanager
def as_a_gpu() -> Iterator[None]:
    """Compute on a CPU as on a GPU."""
    _AS_A_GPU.append(True)
    try:
        yield
    finally:
        _AS_A_GPU.pop()


def is_on_cpu(tensor: torch.Tensor) -> bool:
    """Whether what is computed with a tensor goes the CPU's way."""
    return tensor.device.type == "cpu" and not _AS_A_GPU
