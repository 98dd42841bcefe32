"""How evaluators compute scores: in float32, whatever training has set."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

NEVER = torch.iinfo(torch.int64).max  # rank of what is not found at all


@contextmanager
def in_float32(device: str) -> Iterator[None]:
    """Computes products in float32 on a device of this type."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
