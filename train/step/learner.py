"""A model with its optimiser, and one step of both: what the loop, tests and benchmarks drive."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from altalign.errors import AltalignError
from altalign.train.data.batches import Batch
from altalign.train.model.dual_encoder import DualEncoder, Temperature
from altalign.train.ranks import Ranks
from altalign.train.settings import LossSettings, TrainConfig
from altalign.train.step import accumulation, mixup, negatives, optimizers, schedules, token_drop
from altalign.train.step.loss import contrastive_loss


class NotFiniteError(AltalignError):
    """The loss, or the norm of its gradient, is no number any more."""


class Learner:
    """The two towers, the temperature and the optimiser of one rank."""

    def __init__(self, config: TrainConfig, *, vocabulary: int, ranks: Ranks) -> None:
        self._config = config
        self.model = model_of(config, vocabulary=vocabulary).to(ranks.device).to(memory_format=torch.channels_last)
        if config.loop.activation_checkpointing:
            self.model.checkpoint_activations()
        self.optimizer = optimizers.make_optimizer(self.model, config.optimizer)
        if config.loop.compile:
            self.model.compile()
        self._towers = accumulation.towers_of(self.model)
        self._autocast = autocast(config, ranks.device)
        self._loss = partial(
            contrastive_loss,
            label_smoothing=config.loss.label_smoothing,
            directions=config.loss.directions,
            negatives=config.loss.negatives,
            block=config.loss.block,
        )

    def step(self, number: int, batch: Batch, *, sources: Sequence[str] = ()) -> dict[str, float]:
        """Step `number` (from 1) on this rank's share of the global batch; returns measurements, equal on all ranks.

        Where `sources` names all there are, how hard the negatives of each are is among them.

        Raises:
            NotFiniteError: loss or gradient is not finite; the weights are those before the step.
        """
        config = self._config
        rate = schedules.rate(number, config.schedule) * config.rate_scale
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self.model.train()
        result = accumulation.gradients(
            self._towers,
            self.model,
            batch,
            chunk=config.loop.chunk,
            loss=self._loss,
            seed=config.run.seed,
            step=number,
            mixup=mixup.drawn(config.loss, seed=config.run.seed, step=number),
            token_drop=token_drop.drawn(config.image_tower, seed=config.run.seed, step=number),
            autocast=self._autocast,
        )
        if not result.is_finite:
            raise NotFiniteError(
                f"step {number}: the loss is {result.loss}, at temperature {result.temperature:.4g} and rate {rate:.3g}"
            )
        found = negatives.by_source(result, batch.sources, sources, block=config.loss.block) if sources else {}
        norm = float(optimizers.clip(self.model, config.optimizer.clip_norm))
        if not math.isfinite(norm):
            raise NotFiniteError(
                f"step {number}: the gradient's norm is {norm}, the loss {result.loss}, at temperature "
                f"{result.temperature:.4g}"
            )
        self.optimizer.step()
        self.model.temperature.clamp()
        return {
            "loss": result.loss,
            "temperature": result.temperature,
            "rate": rate,
            "gradient_norm": norm,
            "drift": result.drift,
            **{f"negatives_log_p/{source}": value for source, value in found.items()},
        }


def model_of(config: TrainConfig, *, vocabulary: int) -> DualEncoder:
    """The model that the settings describe, with its first weights."""
    return DualEncoder(
        config.image_tower,
        config.text_tower,
        vocabulary=vocabulary,
        tokens_at_most=config.tokenizer.tokens_at_most,
        temperature=_temperature(config.loss),
        seed=config.run.seed,
    )


def _temperature(loss: LossSettings) -> Temperature:
    return Temperature(
        loss.temperature,
        learned=loss.temperature_learned,
        at_least=loss.temperature_at_least,
        at_most=loss.temperature_at_most,
    )


def autocast(config: TrainConfig, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """The arithmetic of the towers."""
    return partial(torch.autocast, device.type, dtype=torch.bfloat16, enabled=config.loop.precision == "bfloat16")
