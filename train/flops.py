"""Arithmetic of a pair, and the share of a GPU's that a training uses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from altalign.train.footprint import inputs_of, without_memory
from altalign.train.settings import TrainConfig

# dense bfloat16 operations a second, of the makers' data sheets
PEAKS = {"H100": 989e12, "H200": 989e12, "B200": 2250e12, "A100": 312e12}
_PAIRS = 16  # that are counted


@dataclass(frozen=True)
class Work:
    """What a training computes: operations of a pair, devices, and the operations a second that one can do."""

    of_a_pair: float
    devices: int
    peak: float | None

    def at(self, pairs_per_s: float) -> dict[str, float]:
        """Operations a second of a device, in 10^12, and their share of what it can do, where that is known."""
        of_a_device = pairs_per_s * self.of_a_pair / self.devices
        shares = {"mfu": round(of_a_device / self.peak, 4)} if self.peak else {}
        return {"tflops_per_s": float(f"{of_a_device / 1e12:.4g}"), **shares}


def peak_of(name: str) -> float | None:
    """Dense bfloat16 operations a second of a GPU by its name, where the data sheet is known."""
    return next((flops for part, flops in PEAKS.items() if part in name), None)


def of_a_pair(config: TrainConfig, *, vocabulary: int) -> float:
    """Operations of a pair's forward and backward, with captions as long as they may be.

    They are convolutions and products of matrices, counted on tensors without memory. What a second pass or
    checkpointing computes again is not among them: so it is with model FLOPs utilisation.
    """
    with without_memory(config, vocabulary=vocabulary) as model:
        given, drawn = inputs_of(config, model, _PAIRS)
        with counter() as counted:
            trained = [part for part in model(*given, **drawn) if part.requires_grad]
            if trained:
                torch.autograd.backward(trained, [torch.ones_like(part) for part in trained])
    return counted.get_total_flops() / _PAIRS


def counter() -> FlopCounterMode:
    """Torch's counter, which takes the gradient of a depthwise convolution's weights for that of a dense one's."""
    return FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _of_convolution_backward}
    )


def _of_convolution_backward(
    gradient: Sequence[int], _images: Sequence[int], weights: Sequence[int], *rest: Sequence[bool], **_: object
) -> int:
    """As many for the input's gradient as for the weights', and as for the forward; only those that are asked for."""
    forward = 2 * gradient[0] * math.prod(gradient[2:]) * math.prod(weights)
    return forward * sum(rest[-1][:2])
