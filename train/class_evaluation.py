"""Evaluates a classifier while it trains, and its checkpoints afterwards: accuracy on images with classes."""

from functools import partial

import torch
from torch import Tensor

from altalign.eval import zero_shot
from altalign.eval.encoded import ENCODED_TOGETHER, Encoder, Features
from altalign.eval.sets import labelled_set
from altalign.train.data import augment
from altalign.train.data.packed import ClassNumbers
from altalign.train.evaluation import Metrics, report
from altalign.train.exchange.encoders import by_ranks, sharing_of, sizes_of, without_weights
from altalign.train.model.classifier import Classifier
from altalign.train.run import checkpoints, training_folder
from altalign.train.run.ranks import Ranks, joined
from altalign.train.settings.training import TrainConfig
from altalign.train.step.arithmetic import autocast
from altalign.train.step.classification import classifier_of


class ClassEvaluation:
    """The images of `[classification] test`, listed once, and what a classifier makes of them."""

    def __init__(self, config: TrainConfig, model: Classifier, numbers: ClassNumbers, ranks: Ranks) -> None:
        chosen, (resize, crop) = config.classification, sizes_of(config)
        keeps = config.evaluation.keep_aspect_ratio
        self._set = labelled_set(
            chosen.test,
            image_column=config.data.image_column,
            label_column=chosen.label_column,
            classes=numbers.classes,
            needs_names=False,
        )

        def logits(pixels: Tensor) -> Tensor:
            def of(part: slice) -> Tensor:
                return model(pixels[part].to(ranks.device))

            return by_ranks(ranks, model, autocast(config.loop.precision, ranks.device), len(pixels), of)

        decode = partial(augment.evaluation_pixels, resize_px=resize, crop_px=crop, keep_aspect_ratio=keeps)
        encoder = Encoder(decode, logits, _no_text, sharing=sharing_of(ranks, crop))
        self._features = Features(encoder, batch=ENCODED_TOGETHER, threads=max(1, config.data.workers))
        self._classes = numbers.vocabulary

    def of_model(self) -> Metrics:
        """Metrics of the model as it is now. A collective: all ranks call it."""
        encoded = self._features.of_images(self._set.images)
        labels = self._set.labels[encoded.rows]
        logits, classes = encoded.embeddings, torch.eye(self._classes, device=encoded.embeddings.device)
        ranks, _ = zero_shot.ranked(logits, classes, torch.from_numpy(labels))
        found = zero_shot.measured({"label": labels, "rank": ranks})
        facts = {"images": len(labels), "classes": self._classes, "undecodable": len(encoded.undecodable)}
        return {"classification/test": {**found, **facts}}


def evaluate(config: TrainConfig, *, step: int | None = None) -> int:
    """`altalign eval` of a classifier: metrics of a checkpoint (default: the newest), to RUN/eval/step-NNNNNNN.

    Raises:
        UsageError: the run has no such checkpoint, or other settings than these.
        DamagedError: the checkpoint is not as it was written.
    """
    training_folder.check_trained(config)
    with joined(config.loop.device) as ranks:
        chosen = checkpoints.chosen(config.run.folder, step, goes_on=False) if ranks.is_first else None
        place = checkpoints.on_all_machines(config.run.folder, chosen, ranks, goes_on=False)
        assert place is not None  # or the first rank has refused
        numbers = ClassNumbers.read(str(place / "tokenizer.json"))
        model = classifier_of(without_weights(config), classes=numbers.vocabulary)
        checkpoints.load_model(place, model)
        metrics = ClassEvaluation(config, model.to(ranks.device), numbers, ranks).of_model()
        if ranks.is_first:
            report(config, checkpoints.state_of(place)["step"], metrics)
    return 0


def _no_text(texts: list[str]) -> Tensor:
    raise NotImplementedError(f"a classifier encodes no text, and {len(texts)} were given")
