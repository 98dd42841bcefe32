"""A model with its optimiser, and one step of both: what the loop, tests and benchmarks drive.

`Learner` learns from captions, `ClassLearner` from classes.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from altalign.errors import AltalignError
from altalign.train.data.batches import Batch
from altalign.train.model import batch_norm, drawn, passes
from altalign.train.model.dual_encoder import Classifier, DualEncoder, Temperature
from altalign.train.model.image_tower import ImageTower
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import LoopSettings, Precision, ScheduleSettings, TrainConfig
from altalign.train.step import accumulation, optimizers
from altalign.train.step.accumulation import OWN_BUFFERS, StepResult, check_sync, chunk_seed
from altalign.train.step.average import average_of
from altalign.train.step.global_batch import global_batch
from altalign.train.step.loss import Noise, contrastive_loss, negatives_log_p, sigmoid_loss

if TYPE_CHECKING:
    from altalign.train.data.by_key import ByKey

_BLOCK, _BLOCK_OF_A_GPU = 2048, 8192  # rows and columns of the logits that are in memory at a time
_LARGE_STAGES = 2  # of EfficientNet's seven: their maps are the largest
_STEP_FACTOR = 0.2  # of `decay = "step"` (ALIGN, 5.3)
OWN_LOSSES = ("loss_reconstruction", "loss_caption")  # in the metrics
NEGATIVES = "negatives_log_p/"  # before the source, in the metrics


class NotFiniteError(AltalignError):
    """The loss, or the norm of its gradient, is not finite."""


class Learner:
    """The two towers, the temperature and the optimiser of one rank."""

    def __init__(self, config: TrainConfig, *, vocabulary: int, ranks: Ranks, estimates: "ByKey | None" = None) -> None:
        self._config, self._estimates = config, estimates
        self.model = model_of(config, vocabulary=vocabulary).to(ranks.device).to(memory_format=torch.channels_last)
        set_up_passes(self.model, config.loop)
        if config.loop.sharded and ranks.ranks > 1:
            passes.shard(self.model)
        self.optimizer = optimizers.make_optimizer(self.model, config.optimizer)
        self.average = average_of(self.model, config.optimizer.average)
        self._towers = accumulation.towers_of(self.model)
        self._autocast, self._device = autocast(config.loop.precision, ranks.device), ranks.device
        self._own_weights = (config.reconstruction.weight, config.captioner.weight) if self.model.has_decoders else ()
        self._block = _BLOCK_OF_A_GPU if ranks.device.type == "cuda" else _BLOCK

    def step(self, number: int, batch: Batch, *, sources: Sequence[str] = ()) -> dict[str, float]:
        """Step `number` (from 1) on this rank's share of the global batch; returns measurements, equal on all ranks.

        Where `sources` names all there are, how hard the negatives of each are is among them.
        """
        config, seed = self._config, self._config.run.seed
        rate = set_rates(self.optimizer, config, number)
        self.model.train()
        result = accumulation.gradients(
            self._towers,
            self.model,
            batch,
            chunk=config.loop.chunk,
            loss=partial(self._loss, batch=batch),
            seed=seed,
            step=number,
            mixup=drawn.mixup(config.loss, seed=seed, step=number),
            token_drop=drawn.token_drop(config.image_tower, seed=seed, step=number),
            own_weights=self._own_weights,
            autocast=self._autocast,
        )
        state = f"the loss is {result.loss}, at temperature {result.temperature:.4g} and rate {rate:.3g}"
        if not math.isfinite(result.loss):
            cause = f"; embeddings of rank {', '.join(map(str, result.broken))} are no numbers" if result.broken else ""
            raise NotFiniteError(f"step {number}: {state}{cause}")
        hardness = negatives_by_source(result, batch.sources, sources, block=self._block) if sources else {}
        norm = float(optimizers.gradient_norm(self.model))
        if not math.isfinite(norm):
            raise NotFiniteError(f"step {number}: the gradient's norm is {norm}; {state}")
        self.optimizer.step()
        self.model.temperature.clamp()
        if self.average:
            self.average.update()
        return {
            "loss": result.loss,
            "temperature": result.temperature,
            **({"bias": result.bias} if result.bias is not None else {}),
            "rate": rate,
            "gradient_norm": norm,
            "drift": result.drift,
            **dict(zip(OWN_LOSSES[: len(result.own)], result.own, strict=True)),
            **{NEGATIVES + source: value for source, value in hardness.items()},
        }

    def _loss(self, *embeddings: torch.Tensor, batch: Batch, **settings: Any) -> torch.Tensor:
        """This process's part of the loss, by how noisy each pair of the batch is held for, where settings want it."""
        chosen, noise = self._config.loss, None
        if chosen.name == "sigmoid":
            return chosen.weight * sigmoid_loss(*embeddings, block=self._block, group=settings["group"])
        if self._config.noise.smoothing and self._estimates is not None:
            eps = torch.from_numpy(self._estimates.floats(batch.keys)).to(self._device)
            noise = Noise(self._config.noise.smoothing * eps, self._config.noise.form)
        loss = contrastive_loss(
            *embeddings,
            label_smoothing=chosen.label_smoothing,
            directions=chosen.directions,
            negatives=chosen.negatives,
            block=self._block,
            noise=noise,
            **settings,
        )
        return loss if chosen.weight == 1 else chosen.weight * loss


def negatives_by_source(
    result: StepResult, own: Sequence[str], sources: Sequence[str], *, block: int
) -> dict[str, float]:
    """The mean `negatives_log_p` of the pairs of each source in a step's global batch (ZeroVL, figure 4). Collective.

    `own` are the sources of this process's pairs; `sources` names all that there are, in one order on all ranks. A
    source without a pair in the batch is left out.
    """
    images, texts = result.embeddings
    values = negatives_log_p(images, texts, images.new_tensor(result.temperature), block=block)
    places = torch.tensor([sources.index(source) for source in own], device=images.device)
    sums = torch.zeros(2, len(sources), dtype=torch.float64, device=images.device)
    sums.index_add_(1, places, torch.stack([values, torch.ones_like(values)]).double())
    totals, counts = global_batch(len(images), images.device).summed(sums).tolist()
    return {source: total / count for source, total, count in zip(sources, totals, counts, strict=True) if count}


class ClassLearner:
    """The image tower, the linear layer and the optimiser of one rank."""

    def __init__(self, config: TrainConfig, *, classes: int, ranks: Ranks) -> None:
        self._config, self._ranks = config, ranks
        model = Classifier(config.image_tower, classes=classes, seed=config.run.seed)
        self.model = model.to(ranks.device).to(memory_format=torch.channels_last)
        set_up_passes(self.model, config.loop)
        self.optimizer = optimizers.make_optimizer(self.model, config.optimizer)
        self.average = average_of(self.model, config.optimizer.average)
        self._wrapped = DistributedDataParallel(self.model, **OWN_BUFFERS) if ranks.ranks > 1 else self.model
        self._autocast = autocast(config.loop.precision, ranks.device)

    def step(self, number: int, batch: Batch, *, sources: Sequence[str] = ()) -> dict[str, float]:  # noqa: ARG002
        """As `Learner.step`; a batch's tokens are the numbers of classes, one an image."""
        config, ranks = self._config, self._ranks
        rate = set_rates(self.optimizer, config, number)
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        whole, chunk = global_batch(len(batch), ranks.device), config.loop.chunk
        check_sync(self.model, whole.sizes, chunk)
        sums = torch.zeros(2, device=ranks.device, dtype=torch.float64)
        for start in range(0, len(batch), chunk):
            held = batch.chunk(start, min(start + chunk, len(batch))).to(ranks.device)
            labels, is_last = held.tokens[:, 0], start + chunk >= len(batch)
            torch.manual_seed(chunk_seed(config.run.seed, number, whole.first + start))
            waits = isinstance(self._wrapped, DistributedDataParallel) and not is_last
            with self._wrapped.no_sync() if waits else nullcontext():  # type: ignore[operator]
                with self._autocast(), batch_norm.collecting(self.model):
                    logits = self._wrapped(held.images)
                smoothing = config.classification.label_smoothing
                loss = functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing) / whole.size
                (loss * ranks.ranks).backward()  # DistributedDataParallel divides the sum of gradients by them
            sums += torch.stack([loss.detach(), (logits.argmax(1) == labels).sum() / whole.size])
        statistics = batch_norm.collected(self.model)
        total = whole.summed(torch.cat([sums, statistics.double()]))
        batch_norm.apply_collected(self.model, total[2:].to(statistics.dtype))
        mean, right = total[:2].tolist()
        norm = float(optimizers.gradient_norm(self.model))
        if not math.isfinite(mean) or not math.isfinite(norm):
            raise NotFiniteError(f"step {number}: the loss is {mean}, its gradient's norm {norm}, at rate {rate:.3g}")
        self.optimizer.step()
        if self.average:
            self.average.update()
        return {"loss": mean, "train_top1": 100 * right, "rate": rate, "gradient_norm": norm}


# What the settings say ------------------------------------------------------------------------------------------------


def model_of(config: TrainConfig, *, vocabulary: int) -> DualEncoder:
    """The model that the settings describe, with its first weights."""
    loss, (at_least, at_most) = config.loss, config.loss.temperature_range
    bias = loss.bias if loss.name == "sigmoid" else None
    begins = {"learned": loss.temperature_learned, "at_least": at_least, "at_most": at_most, "bias": bias}
    return DualEncoder(
        config.image_tower,
        config.text_tower,
        vocabulary=vocabulary,
        tokens_at_most=config.tokenizer.tokens_at_most,
        temperature=Temperature(loss.temperature, **begins),
        reconstruction=config.reconstruction,
        captioner=config.captioner,
        seed=config.run.seed,
    )


def set_up_passes(model: DualEncoder | Classifier, loop: LoopSettings) -> None:
    """Have a model's passes taken as the settings say: computed again, compiled, recorded."""
    if loop.recompute == "all":
        model.checkpoint_activations()
    elif loop.recompute == "large":
        assert isinstance(model.image_tower, ImageTower)  # the settings refuse a ViT
        model.image_tower.checkpoint_stages(_LARGE_STAGES)
    if loop.speed == "compiled":
        passes.compile_blocks(model)
    elif loop.speed == "recorded":
        passes.record(model.image_tower)


def prepare(precision: Precision, device: torch.device) -> None:
    """Set a GPU up for training; a CPU stays as it is.

    Ways to compute a convolution are tried out once for each shape, and the fastest is kept: B3's kernels take 2 % less
    time, and each start up to a minute more. Products and convolutions of float32 are exact, those of the loss among
    them; where `precision` is "tf32", their factors have 10 bits after the first.
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


def set_rates(optimizer: torch.optim.Optimizer, config: TrainConfig, step: int) -> float:
    """Give each part its rate of a step; returns that of parts without a factor."""
    rate = rate_of(step, config.schedule) * config.rate_scale
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]
    return rate


def rate_of(step: int, settings: ScheduleSettings) -> float:
    """The learning rate of a step: a line from 0 to the peak, then a fall to the floor (ALIGN section 5).

    Steps count from 1, so that the first one of a warm-up already learns, and the warm-up's last has the peak. The last
    step of all has the floor; so has any after it. Of step 0, the state before training, the rate is where the line
    begins.
    """
    if step < settings.warmup_steps:
        return settings.peak * step / settings.warmup_steps
    if settings.decay == "constant":
        return settings.peak
    if settings.decay == "step":
        return settings.peak * _STEP_FACTOR ** (max(step - 1 - settings.warmup_steps, 0) // settings.every)
    falling = settings.steps - settings.warmup_steps
    left = max(settings.steps - step, 0) / falling if falling else 1.0  # 1 at the warm-up's end, 0 at the last step
    if settings.decay == "linear":
        return settings.floor + (settings.peak - settings.floor) * left
    if settings.decay == "cosine":
        return settings.floor + (settings.peak - settings.floor) * (1 - math.cos(math.pi * left)) / 2
    assert_never(settings.decay)
