"""A trained model as two functions, `encode_image` and `encode_text`, which evaluators know and programs load."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from altalign import storage
from altalign.errors import UsageError
from altalign.train import checkpoints
from altalign.train.data import augment, tokenizer
from altalign.train.data.batches import padded
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.ranks import Ranks, joined
from altalign.train.settings import TrainConfig
from altalign.train.step.learner import autocast, model_of


def sizes_of(config: TrainConfig) -> tuple[int, int]:
    """Sides of the square (or the short side) that an image is resized to, and of its central crop, in evaluation."""
    chosen, data = config.evaluation, config.data
    return chosen.resize_px or data.resize_px, chosen.crop_px or data.crop_px


class Encoders:
    """encode_image and encode_text of a model in evaluation mode; ranks share the work, and all get the result."""

    def __init__(self, config: TrainConfig, model: DualEncoder, tokenizer: CaptionTokenizer, ranks: Ranks) -> None:
        self._model, self._tokenizer, self._ranks = model, tokenizer, ranks
        self._autocast = autocast(config, ranks.device)
        resize, crop = sizes_of(config)
        keeps = config.evaluation.keep_aspect_ratio
        self.decode: Callable[[bytes], Tensor] = partial(
            augment.evaluation_pixels, resize_px=resize, crop_px=crop, keep_aspect_ratio=keeps
        )

    def encode_image(self, images: Tensor) -> Tensor:
        """Embeddings (n, d) of pixels (n, 3, h, w)."""
        return self._shared(len(images), lambda part: self._model.encode_image(images[part].to(self._ranks.device)))

    def encode_text(self, captions: list[str]) -> Tensor:
        """Embeddings (n, d) of n captions."""

        def encoded(part: slice) -> Tensor:
            tokens, mask = padded(self._tokenizer.encode(captions[part]), self._tokenizer.tokens_at_most)
            return self._model.encode_text(tokens.to(self._ranks.device), mask.to(self._ranks.device))

        return self._shared(len(captions), encoded)

    def _shared(self, number: int, encoded: Callable[[slice], Tensor]) -> Tensor:
        """The embeddings of all inputs. Ranks compute equally many; the last ranks overlap."""
        each = -(-number // self._ranks.ranks)
        first = min(self._ranks.rank * each, number - each)
        was_training = self._model.training
        self._model.eval()
        with self._autocast():
            own = encoded(slice(first, first + each))
        self._model.train(was_training)
        if self._ranks.ranks == 1:
            return own
        parts = self._ranks.gathered(own)
        starts = [min(rank * each, number - each) for rank in range(self._ranks.ranks)]
        whole = own.new_empty(number, own.shape[1])
        for start, part in zip(starts, parts, strict=True):
            whole[start : start + each] = part
        return whole

    def pixels(self, images: Sequence[bytes]) -> Tensor:
        """What the tower sees of image files: uint8 (n, 3, h, w).

        Raises:
            UndecodableError: one is no sound image.
        """
        return torch.stack([self.decode(image) for image in images])


@dataclass(frozen=True)
class Trained:
    """A checkpoint of a training run, its settings and its model, in evaluation mode and without gradients."""

    place: Path
    step: int
    config: TrainConfig
    tokenizer: CaptionTokenizer
    model: DualEncoder

    @property
    def evaluation_sizes(self) -> tuple[int, int]:
        """Sides of the square that an image is resized to, and of the crop that the model sees."""
        return sizes_of(self.config)


def trained(run: str, *, step: int | None = None, evaluation: Mapping[str, Any] | None = None) -> Trained:
    """The checkpoint of a run after `step` steps (None: the newest), on the CPU.

    `evaluation` overrides settings of this section.

    Raises:
        UsageError: there is no such run, or no such checkpoint.
        DamagedError: the checkpoint is not as it was written.
    """
    if storage.kind(run) != "folder":
        raise UsageError(f"{run}: no such training run; give the [run] folder of a training")
    place = checkpoints.chosen(run, step)
    values = tomllib.loads((place / "config.toml").read_text(encoding="utf-8"))
    values["run"]["folder"] = run
    values["evaluation"].update(evaluation or {})
    config = TrainConfig.from_values(values, where=str(place))
    words = tokenizer.read(str(place / "tokenizer.json"), tokens_at_most=config.tokenizer.tokens_at_most)
    model = model_of(without_weights(config), vocabulary=words.vocabulary)
    checkpoints.load_model(place, model)
    model.requires_grad_(requires_grad=False).eval()
    return Trained(place, checkpoints.state_of(place)["step"], config, words, model)


def without_weights(config: TrainConfig) -> TrainConfig:
    """The settings of a model whose weights come from a checkpoint: what it started from need not be there any more."""
    towers = {name: getattr(config, name) for name in ("image_tower", "text_tower")}
    return config.model_copy(update={name: of.model_copy(update={"weights": ""}) for name, of in towers.items()})


def opened(run: str, *, step: int | None = None, device: Literal["auto", "cpu", "cuda"] = "auto") -> Encoders:
    """The model of a run, ready to encode. Raises as `trained`, and where `device` is not there."""
    of = trained(run, step=step)
    with joined(device) as ranks:
        return Encoders(of.config, of.model.to(ranks.device), of.tokenizer, Ranks(0, 1, ranks.device))
