"""The memory of a training, measured: a GPU takes one step of pairs that are as large as they may be."""

import gc
import math

import torch

from altalign.errors import UsageError
from altalign.train.data.batches import Batch
from altalign.train.report import metrics
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import TrainConfig
from altalign.train.step.flops import longest_captions
from altalign.train.step.learner import Learner

OF_A_GPU = 0.9  # of its memory, that `chunk = "auto"` may take: images on their way, and gaps, have the rest


def most_of_a_step(config: TrainConfig, device: torch.device, *, vocabulary: int) -> int:
    """The most bytes that torch takes of a device in a step of two chunks, or of the global batch if that is less.

    Raises:
        torch.cuda.OutOfMemoryError: it does not fit.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    learner = Learner(config, vocabulary=vocabulary, ranks=Ranks(0, 1, device))
    pairs = min(2 * config.loop.chunk, config.loop.global_batch)
    learner.step(1, _batch(config, pairs, has_decoders=learner.model.has_decoders).to(device))
    return metrics.most_memory(device)


def with_chunk(config: TrainConfig, ranks: Ranks, *, vocabulary: int) -> TrainConfig:
    """The same settings, with a number in the place of `chunk = "auto"`.

    It is the first of the global batch, its half, its quarter and so on, with which a step fits into the GPU.

    Raises:
        UsageError: there is no GPU, there are several processes, or no chunk fits.
    """
    if config.loop.chunk:
        return config
    if ranks.device.type != "cuda" or ranks.ranks > 1:
        raise UsageError(
            '[loop] chunk = "auto" is measured by one process on a GPU; give a number of pairs, such as the one that '
            "`altalign train --dry-run` finds there"
        )
    unit = unit_of(config)
    units = math.ceil(config.loop.global_batch / unit)
    while units:
        chosen = config.model_copy(update={"loop": config.loop.model_copy(update={"chunk": units * unit})})
        if _fits(chosen, ranks.device, vocabulary):
            return chosen
        units //= 2
    raise UsageError(
        f'[loop] chunk = "auto": a step with {unit} pairs at a time does not fit into this GPU; give '
        'recompute = "all", smaller towers, or a larger GPU'
    )


def unit_of(config: TrainConfig) -> int:
    """Chunks are multiples of this: of the groups of batch norm and of mixup."""
    norm = config.image_tower.ghost_group if config.image_tower.has_groups else 1
    return math.lcm(norm, config.loss.mixup_group if config.loss.mixup else 1)


def _fits(config: TrainConfig, device: torch.device, vocabulary: int) -> bool:
    torch.cuda.set_per_process_memory_fraction(OF_A_GPU, device)
    try:
        most_of_a_step(config, device, vocabulary=vocabulary)
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    return True


def _batch(config: TrainConfig, pairs: int, *, has_decoders: bool) -> Batch:
    """Pairs of random pixels, with captions as long as they may be."""
    side = config.data.crop_px
    images = torch.randint(256, (pairs, side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    tokens, mask = longest_captions(pairs, config.tokenizer.tokens_at_most)
    prompted = longest_captions(pairs, config.captioner.tokens_at_most) if has_decoders else None
    keys = [f"{number:032x}" for number in range(pairs)]
    return Batch(keys, ["measured"] * pairs, [0] * pairs, images, tokens, mask, prompted)
