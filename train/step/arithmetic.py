"""How a device computes: the towers' precision, and how a GPU takes products and convolutions."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from altalign.train.settings.training import Precision


def prepare(precision: Precision, device: torch.device) -> None:
    """Set a GPU up for training; a CPU stays as it is.

    Ways to compute a convolution are tried out once for each shape, and the fastest is kept: B3's kernels take 2 % less
    time, and each start up to a minute more.
    Products and convolutions of float32 are exact, those of the loss among them; where `precision` is "tf32", their
    factors have 10 bits after the first.
    """
    if device.type != "cuda":
        return
    is_rounded = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = is_rounded
    torch.set_float32_matmul_precision("high" if is_rounded else "highest")


def autocast(precision: Precision, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """The arithmetic of the towers."""
    return partial(torch.autocast, device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
