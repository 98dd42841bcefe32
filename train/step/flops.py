"""Arithmetic of a pair, and the share of a GPU's that a training uses."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from altalign.train.model.blocks import as_a_gpu
from altalign.train.model.drawn import token_drop
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.model.text_tower import Packed
from altalign.train.settings.training import TrainConfig
from altalign.train.step.learner import model_of

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
    """Operations (convolutions, products of matrices) of a pair's forward and backward, with the longest captions.

    What a second pass or checkpointing computes again is not among them: so it is with model FLOPs utilisation.
    """
    with without_memory(config, vocabulary=vocabulary) as model, counter() as counted:
        trained = [part for part in encoded(config, model, _PAIRS) if part.requires_grad]
        if trained:
            torch.autograd.backward(trained, [torch.ones_like(part) for part in trained])
    return counted.get_total_flops() / _PAIRS


@contextmanager
def without_memory(config: TrainConfig, *, vocabulary: int) -> Iterator[DualEncoder]:
    """The model of the settings, in training; inside no tensor has memory, and all is computed as on a GPU."""
    with torch.device("meta"):
        model = model_of(config, vocabulary=vocabulary).train()
    with FakeTensorMode(allow_non_fake_inputs=True), as_a_gpu():
        yield model.to_empty(device="cpu")


def encoded(config: TrainConfig, model: DualEncoder, pairs: int) -> tuple[Tensor, ...]:
    """What a model makes of so many pairs of zeros, with captions as long as they may be."""
    side, length = config.data.crop_px, config.tokenizer.tokens_at_most
    images = torch.empty(pairs, side, side, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    drawn: dict[str, Any] = {}
    if (drop := token_drop(config.image_tower, seed=0, step=1)) is not None:
        drawn["kept"] = torch.zeros(pairs, drop.number(side, side)[1], dtype=torch.int64)
    if model.packs_captions:
        drawn["packed"] = Packed(*(torch.zeros(size, dtype=torch.int64) for size in (pairs * length, pairs)))
    if model.has_decoders:
        drawn |= {"prompted": longest_captions(pairs, config.captioner.tokens_at_most), "has_losses": True}
    return model(images, *longest_captions(pairs, length), **drawn)


def longest_captions(pairs: int, length: int) -> tuple[Tensor, Tensor]:
    """The first word of every vocabulary, as often as a caption may have it, int64 (pairs, length), and its mask."""
    return torch.ones(pairs, length, dtype=torch.int64), torch.ones(pairs, length, dtype=torch.bool)


def counter() -> FlopCounterMode:
    """Torch's counter, which would take the gradient of a depthwise convolution's weights for that of a dense one's."""
    mapping = {torch.ops.aten.convolution_backward: _of_convolution_backward}
    return FlopCounterMode(display=False, custom_mapping=mapping)


def _of_convolution_backward(
    gradient: Sequence[int], _images: Sequence[int], weights: Sequence[int], *rest: Sequence[bool], **_: object
) -> int:
    """As many for the input's gradient as for the weights', and as for the forward; only those that are asked for."""
    forward = 2 * gradient[0] * math.prod(gradient[2:]) * math.prod(weights)
    return forward * sum(rest[-1][:2])
