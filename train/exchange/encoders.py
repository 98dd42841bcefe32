"""A trained model as two functions, `encode_image` and `encode_text`, which evaluators know and programs load."""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from altalign import storage
from altalign.errors import UsageError
from altalign.eval.encoded import Encoder, Sharing
from altalign.train.data import augment, tokenizer
from altalign.train.data.batches import padded
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.run import checkpoints
from altalign.train.run.ranks import Ranks, device_of, share
from altalign.train.settings.training import TrainConfig
from altalign.train.settings.types import Device
from altalign.train.step.learner import autocast, model_of


def sizes_of(config: TrainConfig) -> tuple[int, int]:
    """Sides of the square (or the short side) that an image is resized to, and of its central crop, in evaluation."""
    chosen, data = config.evaluation, config.data
    return chosen.resize_px or data.resize_px, chosen.crop_px or data.crop_px


def decoder_of(config: TrainConfig) -> Callable[[bytes], Tensor]:
    """From an image file's bytes to the pixels that a model sees in evaluation: uint8 (3, h, w)."""
    resize, crop = sizes_of(config)
    keeps = config.evaluation.keep_aspect_ratio
    return partial(augment.evaluation_pixels, resize_px=resize, crop_px=crop, keep_aspect_ratio=keeps)


class Encoders:
    """encode_image and encode_text of a model in evaluation mode; ranks share the work, and all get the result."""

    def __init__(
        self, config: TrainConfig, model: DualEncoder, tokenizer: CaptionTokenizer, ranks: Ranks, *, digest: str = ""
    ) -> None:
        """Encoders of a model; `digest` is of its weights, and empty while it is trained."""
        self.config, self.model, self.tokenizer, self._ranks = config, model, tokenizer, ranks
        self.device, self.decode = ranks.device, decoder_of(config)
        (resize, crop), keeps = sizes_of(config), config.evaluation.keep_aspect_ratio
        about = [digest, tokenizer.digest, resize, crop, keeps, config.loop.precision, ranks.device.type]
        self.encoder = Encoder(
            self.decode,
            self.encode_image,
            self.encode_text,
            sha256(json.dumps(about).encode()).hexdigest(),
            self.encode_word,
            partial(augment.central, resize_px=resize, crop_px=crop, keep_aspect_ratio=keeps),
            short_side_px=resize,
            device=str(ranks.device),
            sharing=sharing_of(ranks, crop),
            image_features=self.image_features,
        )

    def encode_image(self, images: Tensor) -> Tensor:
        """Embeddings (n, d) of pixels (n, 3, h, w)."""
        return self._by_ranks(len(images), lambda part: self.model.encode_image(images[part].to(self.device)))

    def image_features(self, images: Tensor) -> Tensor:
        """What the image tower makes of pixels (n, 3, h, w), before any projection: (n, width)."""
        return self._by_ranks(len(images), lambda part: self.model.image_tower(images[part].to(self.device)))

    def encode_text(self, captions: list[str]) -> Tensor:
        """Embeddings (n, d) of n captions."""
        return self._of_texts(captions, self.model.encode_text)

    def encode_word(self, words: list[str]) -> Tensor:
        """What the text tower makes of n words, [CLS] before the projection (ALIGN, appendix B): (n, width)."""
        return self._of_texts(words, self.model.text_tower)

    def pixels(self, images: Sequence[bytes]) -> Tensor:
        """What the tower sees of image files, all of them sound: uint8 (n, 3, h, w)."""
        return torch.stack([self.decode(image) for image in images])

    def _of_texts(self, texts: list[str], tower: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        def encoded(part: slice) -> Tensor:
            tokens, mask = padded(self.tokenizer.encode(texts[part]), self.tokenizer.tokens_at_most)
            return tower(tokens.to(self.device), mask.to(self.device))

        return self._by_ranks(len(texts), encoded)

    def _by_ranks(self, number: int, encoded: Callable[[slice], Tensor]) -> Tensor:
        return by_ranks(self._ranks, self.model, autocast(self.config.loop.precision, self.device), number, encoded)


def sharing_of(ranks: Ranks, side_px: int) -> Sharing | None:
    """How ranks share the decoding of square images of this side; None where there is one."""
    if ranks.ranks == 1:
        return None

    def exchanged(own: Sequence[Tensor | None], number: int) -> list[Tensor | None]:
        most = -(-number // ranks.ranks)
        held = torch.zeros(most, 1 + 3 * side_px**2, dtype=torch.uint8)
        for row, pixels in zip(held, own, strict=False):
            if pixels is not None:
                row[0], row[1:] = 1, pixels.permute(1, 2, 0).flatten()
        parts = [part.cpu() for part in ranks.gathered(held.to(ranks.device))]
        rows = [row for rank, part in enumerate(parts) for row in part[: len(share(number, rank, ranks.ranks))]]
        return [row[1:].view(side_px, side_px, 3).permute(2, 0, 1) if row[0] else None for row in rows]

    return Sharing(lambda number: share(number, ranks.rank, ranks.ranks), exchanged)


def by_ranks(
    ranks: Ranks,
    model: nn.Module,
    autocast: Callable[[], AbstractContextManager[object]],
    number: int,
    encoded: Callable[[slice], Tensor],
) -> Tensor:
    """What a model in evaluation mode makes of all inputs. Ranks compute equally many; the last ranks overlap."""
    each = -(-number // ranks.ranks)
    first = min(ranks.rank * each, number - each)
    was_training = model.training
    model.eval()
    # not compiled: each size of a last batch would have to be, and the next evaluation has others
    with autocast(), torch.compiler.set_stance("force_eager"):
        own = encoded(slice(first, first + each))
    model.train(was_training)
    if ranks.ranks == 1:
        return own
    whole = own.new_empty(number, own.shape[1])
    for rank, part in enumerate(ranks.gathered(own)):
        start = min(rank * each, number - each)
        whole[start : start + each] = part
    return whole


@dataclass(frozen=True)
class Trained:
    """A checkpoint of a training run, its settings and its model, in evaluation mode and without gradients."""

    place: Path
    step: int
    config: TrainConfig
    tokenizer: CaptionTokenizer
    model: DualEncoder

    @property
    def digest(self) -> str:
        """Of the weights."""
        name = checkpoints.weights_of(self.place, averaged=self.config.evaluation.averaged).name
        return storage.read_json(str(self.place / "manifest.json"))[name]

    @property
    def bert(self) -> Any:
        """The text tower as transformers' BertModel, not to be called: its layers are ours. None where it is BART's."""
        return getattr(self.model.text_tower, "bert", None)

    @property
    def evaluation_sizes(self) -> tuple[int, int]:
        """`sizes_of` the settings."""
        return sizes_of(self.config)


def trained(run: str, *, step: int | None = None, evaluation: Mapping[str, object] | None = None) -> Trained:
    """The checkpoint of a run after `step` steps (None: the newest) on the CPU, with other settings of [evaluation]."""
    if storage.kind(run) != "folder":
        raise UsageError(f"{run}: no such training run; give the [run] folder of a training")
    place = checkpoints.chosen(run, step, goes_on=False)
    values = tomllib.loads((place / "config.toml").read_text(encoding="utf-8"))
    values["run"]["folder"] = run
    values["evaluation"].update(evaluation or {})
    config = TrainConfig.from_values(values, where=str(place))
    if config.classification.train:
        raise UsageError(f"{run}: a classifier, which has no captions; give the run of a dual encoder")
    return trained_at(place, config)


def trained_at(place: Path, config: TrainConfig) -> Trained:
    """The same of a checkpoint that was chosen and checked, with these settings."""
    words = tokenizer.read(str(place / "tokenizer.json"), tokens_at_most=config.tokenizer.tokens_at_most)
    model = model_of(without_weights(config), vocabulary=words.vocabulary)
    checkpoints.load_model(place, model, averaged=config.evaluation.averaged)
    model.requires_grad_(requires_grad=False).eval()
    return Trained(place, checkpoints.state_of(place)["step"], config, words, model)


def without_weights(config: TrainConfig) -> TrainConfig:
    """The settings of a model whose weights come from a checkpoint: what it started from need not be there any more."""
    parts = {name: getattr(config, name) for name in ("image_tower", "text_tower", "captioner")}
    return config.model_copy(update={name: part.model_copy(update={"weights": ""}) for name, part in parts.items()})


def opened(run: str, *, step: int | None = None, device: Device = "auto") -> Encoders:
    """The model of a run, ready to encode. Raises as `trained`, and where `device` is not there."""
    return of_trained(trained(run, step=step), device)


def of_trained(trained: Trained, device: Device) -> Encoders:
    """The same of a checkpoint that is open."""
    on = device_of(device)
    return Encoders(trained.config, trained.model.to(on), trained.tokenizer, Ranks(0, 1, on), digest=trained.digest)
