"""A model with its optimiser, and one step of both: what the loop, tests and benchmarks drive."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from altalign.errors import AltalignError
from altalign.train.data.batches import Batch
from altalign.train.data.by_key import ByKey
from altalign.train.model import cuda_graphs, mixup
from altalign.train.model.classifier import Classifier
from altalign.train.model.compiled import compile_blocks
from altalign.train.model.dual_encoder import DualEncoder, Temperature
from altalign.train.model.image_tower import ImageTower
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import LoopSettings, LossSettings, TrainConfig
from altalign.train.step import accumulation, arithmetic, negatives, optimizers, schedules, sharding, token_drop
from altalign.train.step.loss import Noise, contrastive_loss

_BLOCK, _BLOCK_OF_A_GPU = 2048, 8192  # rows and columns of the logits that are in memory at a time
_LARGE_STAGES = 2  # of EfficientNet's seven: their maps are the largest
OWN_LOSSES = ("loss_reconstruction", "loss_caption")  # in the metrics


class NotFiniteError(AltalignError):
    """The loss, or the norm of its gradient, is not finite; `ranks` are those whose embeddings are not."""

    def __init__(self, words: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(words)
        self.ranks = ranks


class Learner:
    """The two towers, the temperature and the optimiser of one rank."""

    def __init__(self, config: TrainConfig, *, vocabulary: int, ranks: Ranks, estimates: ByKey | None = None) -> None:
        self._config, self._estimates = config, estimates
        self.model = model_of(config, vocabulary=vocabulary).to(ranks.device).to(memory_format=torch.channels_last)
        set_up_passes(self.model, config.loop)
        if config.loop.sharded and ranks.ranks > 1:
            sharding.shard(self.model)
        self.optimizer = optimizers.make_optimizer(self.model, config.optimizer)
        self._towers = accumulation.towers_of(self.model)
        self._autocast, self._device = arithmetic.autocast(config.loop.precision, ranks.device), ranks.device
        self._own_weights = (config.reconstruction.weight, config.captioner.weight) if self.model.has_decoders else ()
        self._block = _BLOCK_OF_A_GPU if ranks.device.type == "cuda" else _BLOCK
        self._loss = partial(
            _weighted,
            config.loss.weight,
            label_smoothing=config.loss.label_smoothing,
            directions=config.loss.directions,
            negatives=config.loss.negatives,
            block=self._block,
        )

    def step(self, number: int, batch: Batch, *, sources: Sequence[str] = ()) -> dict[str, float]:
        """Step `number` (from 1) on this rank's share of the global batch; returns measurements, equal on all ranks.

        Where `sources` names all there are, how hard the negatives of each are is among them.

        Raises:
            NotFiniteError: loss or gradient is not finite; the weights are those before the step.
        """
        config = self._config
        rate = set_rates(self.optimizer, config, number)
        self.model.train()
        result = accumulation.gradients(
            self._towers,
            self.model,
            batch,
            chunk=config.loop.chunk,
            loss=partial(self._loss, noise=self._noise(batch)),
            seed=config.run.seed,
            step=number,
            mixup=mixup.drawn(config.loss, seed=config.run.seed, step=number),
            token_drop=token_drop.drawn(config.image_tower, seed=config.run.seed, step=number),
            own_weights=self._own_weights,
            autocast=self._autocast,
        )
        if not result.is_finite:
            of = f"; embeddings of rank {', '.join(map(str, result.broken))} are no numbers" if result.broken else ""
            raise NotFiniteError(
                f"step {number}: the loss is {result.loss}, at temperature {result.temperature:.4g} and rate "
                f"{rate:.3g}{of}",
                result.broken,
            )
        found = negatives.by_source(result, batch.sources, sources, block=self._block) if sources else {}
        norm = float(optimizers.gradient_norm(self.model))
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
            **dict(zip(OWN_LOSSES[: len(result.own)], result.own, strict=True)),
            **{negatives.NEGATIVES + source: value for source, value in found.items()},
        }

    def _noise(self, batch: Batch) -> Noise | None:
        """How noisy each pair of a batch is held for, where the settings want it."""
        chosen = self._config.noise
        if not chosen.smoothing or self._estimates is None:
            return None
        eps = torch.from_numpy(self._estimates.floats("eps", batch.keys)).to(self._device)
        return Noise(chosen.smoothing * eps, chosen.form)


def _weighted(weight: float, *embeddings: torch.Tensor, **settings: Any) -> torch.Tensor:
    """The contrastive loss times its weight."""
    loss = contrastive_loss(*embeddings, **settings)
    return loss if weight == 1 else weight * loss


def set_rates(optimizer: torch.optim.Optimizer, config: TrainConfig, step: int) -> float:
    """Give each part its rate of a step; returns that of parts without a factor."""
    rate = schedules.rate(step, config.schedule) * config.rate_scale
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]
    return rate


def set_up_passes(model: DualEncoder | Classifier, loop: LoopSettings) -> None:
    """Have a model's passes taken as the settings say: computed again, compiled, recorded."""
    checkpoint_activations(model, loop)
    if loop.speed == "compiled":
        compile_blocks(model)
    elif loop.speed == "recorded":
        cuda_graphs.record(model.image_tower)


def checkpoint_activations(model: DualEncoder | Classifier, loop: LoopSettings) -> None:
    """Have those activations computed again that the settings say."""
    if loop.recompute == "all":
        model.checkpoint_activations()
    elif loop.recompute == "large":
        assert isinstance(model.image_tower, ImageTower)  # the settings refuse a ViT
        model.image_tower.checkpoint_stages(_LARGE_STAGES)


def model_of(config: TrainConfig, *, vocabulary: int) -> DualEncoder:
    """The model that the settings describe, with its first weights."""
    return DualEncoder(
        config.image_tower,
        config.text_tower,
        vocabulary=vocabulary,
        tokens_at_most=config.tokenizer.tokens_at_most,
        temperature=_temperature(config.loss),
        reconstruction=config.reconstruction,
        captioner=config.captioner,
        seed=config.run.seed,
    )


def _temperature(loss: LossSettings) -> Temperature:
    return Temperature(
        loss.temperature,
        learned=loss.temperature_learned,
        at_least=loss.temperature_range[0],
        at_most=loss.temperature_range[1],
    )
