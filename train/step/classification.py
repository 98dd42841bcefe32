"""A classifier with its optimiser, and one step of both: what the loop drives where classes are learned."""

import math
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from altalign.train.data.batches import Batch
from altalign.train.model import batch_norm
from altalign.train.model.classifier import Classifier
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import TrainConfig
from altalign.train.step import arithmetic, optimizers
from altalign.train.step.accumulation import OWN_BUFFERS, check_sync, chunk_seed
from altalign.train.step.global_batch import global_batch
from altalign.train.step.learner import NotFiniteError, set_rates, set_up_passes


class ClassLearner:
    """The image tower, the linear layer and the optimiser of one rank."""

    def __init__(self, config: TrainConfig, *, classes: int, ranks: Ranks) -> None:
        self._config, self._ranks = config, ranks
        self.model = classifier_of(config, classes=classes).to(ranks.device).to(memory_format=torch.channels_last)
        set_up_passes(self.model, config.loop)
        self.optimizer = optimizers.make_optimizer(self.model, config.optimizer)
        self._wrapped = DistributedDataParallel(self.model, **OWN_BUFFERS) if ranks.ranks > 1 else self.model
        self._autocast = arithmetic.autocast(config.loop.precision, ranks.device)

    def step(self, number: int, batch: Batch, *, sources: Sequence[str] = ()) -> dict[str, float]:  # noqa: ARG002
        """Step `number` (from 1) on this rank's share of the global batch; returns measurements, equal on all ranks.

        A batch's tokens are the numbers of classes, one an image.

        Raises:
            NotFiniteError: loss or gradient is not finite; the weights are those before the step.
        """
        rate = set_rates(self.optimizer, self._config, number)
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        loss, right = self._gradients(number, batch)
        norm = float(optimizers.gradient_norm(self.model))
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise NotFiniteError(f"step {number}: the loss is {loss}, its gradient's norm {norm}, at rate {rate:.3g}")
        self.optimizer.step()
        return {"loss": loss, "train_top1": 100 * right, "rate": rate, "gradient_norm": norm}

    def _gradients(self, number: int, batch: Batch) -> tuple[float, float]:
        """Leave the gradient of the global batch's mean loss in `.grad`; gives the loss, and the share that is right.

        Batch norm's running statistics move once.
        """
        config, ranks = self._config, self._ranks
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
        loss, right = total[:2].tolist()
        return loss, right


def classifier_of(config: TrainConfig, *, classes: int) -> Classifier:
    """The classifier that the settings describe, with its first weights."""
    return Classifier(config.image_tower, classes=classes, seed=config.run.seed)
