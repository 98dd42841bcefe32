"""Models to evaluate, by name: a training run of ours, a folder of open_clip, a folder of AlignModel.

Each is two functions, `encode_image` and `encode_text`, and how it wants its images. Weights are safetensors: a pickle
is refused, and nothing is fetched.
"""

import importlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional

from altalign.errors import UsageError, bring
from altalign.train.data import augment
from altalign.train.encoders import opened as opened_run
from altalign.train.exchange.libraries import quiet
from altalign.train.model.weights import NAMES_SHOWN

_OPEN_CLIP, _ALIGN = "open_clip_model.safetensors", "model.safetensors"


@dataclass(frozen=True)
class Model:
    """A model in evaluation mode.

    Attributes:
        decode: from an image file's bytes to what `encode_image` takes a batch of; raises ValueError or OSError.
        encode_image: embeddings (n, width), of length 1.
        encode_text: embeddings (n, width) of n captions, of length 1.
    """

    decode: Callable[[bytes], Tensor]
    encode_image: Callable[[Tensor], Tensor]
    encode_text: Callable[[list[str]], Tensor]


def opened(name: str) -> Model:
    """The model of a name: `open_clip:DIR`, `open_clip:MODEL:CHECKPOINT`, a folder of AlignModel, or a training run.

    Raises:
        UsageError: there is no such model, a package is missing, or tensors are missing, surplus or of other shapes.
    """
    kind, _, rest = name.partition(":")
    if kind == "open_clip" and rest:
        return _open_clip(name, rest)
    settings = _settings(name)
    if settings.get("model_type") == "align":
        return _align(name)
    if "model_type" in settings:
        raise UsageError(
            f"{name}: a model of type {settings['model_type']!r}; give a folder of AlignModel, open_clip:DIR, or a "
            "training run"
        )
    run = opened_run(name)
    return Model(run.decode, run.encode_image, run.encode_text)


def _settings(folder: str) -> dict[str, Any]:
    place = Path(folder, "config.json")
    try:
        return json.loads(place.read_bytes()) if place.is_file() else {}
    except ValueError as error:
        raise UsageError(f"{place}: no JSON ({error}); give a folder as `save_pretrained` writes it") from None


def _align(folder: str) -> Model:
    from transformers import AlignConfig, AlignModel, AutoProcessor

    _check_file(folder, Path(folder, _ALIGN))
    with quiet(folder):
        model: Any = AlignModel(AlignConfig.from_pretrained(folder))
        _check_tensors(folder, model.state_dict(), Path(folder, _ALIGN))
        model = AlignModel.from_pretrained(folder, use_safetensors=True, local_files_only=True).eval()
        processor: Any = AutoProcessor.from_pretrained(folder, local_files_only=True)
    most = model.config.text_config.max_position_embeddings

    def decode(data: bytes) -> Tensor:
        photo = Image.fromarray(augment.decode(data))
        return processor.image_processor(images=photo, return_tensors="pt")["pixel_values"][0]

    def encode_text(captions: list[str]) -> Tensor:
        length = min(most, processor.tokenizer.model_max_length)
        given = processor.tokenizer(captions, padding=True, truncation=True, max_length=length, return_tensors="pt")
        return functional.normalize(model.get_text_features(**given).pooler_output, dim=-1)

    return Model(
        decode, lambda pixels: functional.normalize(model.get_image_features(pixels).pooler_output, dim=-1), encode_text
    )


def _open_clip(name: str, rest: str) -> Model:
    if find_spec("open_clip") is None:
        raise UsageError(f"{name}: the package open_clip is missing; {bring('open_clip')}")
    model_name, _, checkpoint = rest.partition(":")
    of = model_name if checkpoint else f"local-dir:{rest}"
    place = Path(checkpoint) if checkpoint else Path(rest, _OPEN_CLIP)
    _check_file(name, place)
    with quiet(name):
        open_clip: Any = importlib.import_module("open_clip")
        if checkpoint and model_name not in open_clip.list_models():
            raise UsageError(f"{name}: open_clip has no model {model_name!r}; give one of open_clip.list_models()")
        model, _, transform = open_clip.create_model_and_transforms(of, load_weights=False, pretrained_text=False)
        _check_tensors(name, model.state_dict(), place)
        open_clip.load_checkpoint(model, str(place))
        words = open_clip.get_tokenizer(of)
    model.eval()
    return Model(
        lambda data: transform(Image.fromarray(augment.decode(data))),
        lambda pixels: functional.normalize(model.encode_image(pixels), dim=-1),
        lambda captions: functional.normalize(model.encode_text(words(captions)), dim=-1),
    )


def _check_file(name: str, place: Path) -> None:
    if place.suffix != ".safetensors" or not place.is_file():
        others = [path.name for path in place.parent.glob("*.bin")] if place.parent.is_dir() else []
        why = f"no weights in safetensors at {place}"
        pickle = f" ({others[0]} is a pickle, which may run code and is not read)" if others else ""
        raise UsageError(f"{name}: {why}{pickle}; give a folder, or a file, with weights in safetensors")


def _check_tensors(name: str, wanted: dict[str, Tensor], place: Path) -> None:
    """Refuse weights of another architecture, in one line."""
    with safe_open(place, "pt") as file:
        there = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 - no dict
    shapes = {key: tuple(tensor.shape) for key, tensor in wanted.items()}
    faults = [
        f"{word} {_named(keys)}"
        for word, keys in (
            ("missing:", sorted(key for key in shapes.keys() - there.keys() if not key.endswith("position_ids"))),
            ("unexpected:", sorted(key for key in there.keys() - shapes.keys() if not key.endswith("position_ids"))),
            ("of another shape:", sorted(key for key in shapes.keys() & there.keys() if shapes[key] != there[key])),
        )
        if keys
    ]
    if faults:
        raise UsageError(f"{name}: {place}: weights of another model ({'; '.join(faults)}); give those of this one")


def _named(names: Iterable[str]) -> str:
    first = list(names)
    more = len(first) - NAMES_SHOWN
    return ", ".join(first[:NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
