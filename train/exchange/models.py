"""Models to evaluate, by name: a training run of ours, a folder of open_clip, a folder of AlignModel.

Each is two functions, `encode_image` and `encode_text`, and how it wants its images. Weights are safetensors: a pickle
is refused, and nothing is fetched.
"""

import importlib
import json
from collections.abc import Iterable, Mapping
from hashlib import file_digest, sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional

from altalign.errors import UsageError, bring
from altalign.eval.encoded import Encoder
from altalign.train.data import augment
from altalign.train.exchange.encoders import opened as opened_run
from altalign.train.exchange.libraries import quiet
from altalign.train.run.ranks import device_of
from altalign.train.run.weights import few
from altalign.train.settings.types import Device

_OPEN_CLIP, _ALIGN = "open_clip_model.safetensors", "model.safetensors"


def opened(
    name: str,
    *,
    step: int | None = None,
    device: Device = "auto",
    evaluation: Mapping[str, object] | None = None,
) -> Encoder:
    """The model of a name: `open_clip:DIR`, `open_clip:MODEL:CHECKPOINT`, a folder of AlignModel, or a training run.

    Args:
        name: see above.
        step: of a training run, the checkpoint (None: the newest).
        device: what it computes on; `auto`: a GPU where there is one.
        evaluation: of a training run, settings in place of its own [evaluation].

    Raises:
        UsageError: there is no such model, a package is missing, or tensors are missing, surplus or of other shapes;
            or there is no such device.
    """
    kind, _, rest = name.partition(":")
    if kind == "open_clip" and rest:
        return _open_clip(name, rest, device_of(device))
    settings = _settings(name)
    if settings.get("model_type") == "align":
        return _align(name, device_of(device))
    if "model_type" in settings:
        raise UsageError(
            f"{name}: a model of type {settings['model_type']!r}; give a folder of AlignModel, open_clip:DIR, or a "
            "training run"
        )
    return opened_run(name, step=step, device=device, evaluation=evaluation).encoder


def _settings(folder: str) -> dict[str, object]:
    place = Path(folder, "config.json")
    try:
        return json.loads(place.read_bytes()) if place.is_file() else {}
    except ValueError as error:
        raise UsageError(f"{place}: no JSON ({error}); give a folder as `save_pretrained` writes it") from None


def _align(folder: str, on: torch.device) -> Encoder:
    from transformers import AlignConfig, AlignModel, AutoProcessor

    _check_file(folder, Path(folder, _ALIGN))
    with quiet(folder):
        model: Any = AlignModel(AlignConfig.from_pretrained(folder))
        _check_tensors(folder, model.state_dict(), Path(folder, _ALIGN))
        model = AlignModel.from_pretrained(folder, use_safetensors=True, local_files_only=True).eval()
        processor: Any = AutoProcessor.from_pretrained(folder, local_files_only=True)
    torch.nn.Module.to(model, on)
    most = model.config.text_config.max_position_embeddings

    def of_pixels(pixels: Any) -> Tensor:
        return processor.image_processor(images=Image.fromarray(pixels), return_tensors="pt")["pixel_values"][0]

    def encode_text(captions: list[str]) -> Tensor:
        length = min(most, processor.tokenizer.model_max_length)
        given = processor.tokenizer(captions, padding=True, truncation=True, max_length=length, return_tensors="pt")
        return functional.normalize(model.get_text_features(**given.to(on)).pooler_output, dim=-1)

    return Encoder(
        lambda data: of_pixels(augment.decode(data)),
        lambda pixels: functional.normalize(model.get_image_features(pixels.to(on)).pooler_output, dim=-1),
        encode_text,
        _digest([path for path in sorted(Path(folder).iterdir()) if path.is_file()], version("transformers"), on.type),
        of_pixels=of_pixels,
        device=str(on),
    )


def _open_clip(name: str, rest: str, on: torch.device) -> Encoder:
    if find_spec("open_clip") is None:
        raise UsageError(f"{name}: the package open_clip is missing; {bring('open_clip')}")
    model_name, _, checkpoint = rest.partition(":")
    of = model_name if checkpoint else f"local-dir:{rest}"
    place = Path(checkpoint) if checkpoint else Path(rest, _OPEN_CLIP)
    _check_file(name, place)
    with quiet(name):
        open_clip = importlib.import_module("open_clip")
        if checkpoint and model_name not in open_clip.list_models():
            raise UsageError(f"{name}: open_clip has no model {model_name!r}; give one of open_clip.list_models()")
        model, _, transform = open_clip.create_model_and_transforms(of, load_weights=False, pretrained_text=False)
        _check_tensors(name, model.state_dict(), place)
        open_clip.load_checkpoint(model, str(place))
        words = open_clip.get_tokenizer(of)
    model.to(on).eval()
    files = [place] if checkpoint else [path for path in sorted(Path(rest).iterdir()) if path.is_file()]
    return Encoder(
        lambda data: transform(Image.fromarray(augment.decode(data))),
        lambda pixels: functional.normalize(model.encode_image(pixels.to(on)), dim=-1),
        lambda captions: functional.normalize(model.encode_text(words(captions).to(on)), dim=-1),
        _digest(files, of, repr(transform), version("open_clip_torch"), on.type),
        of_pixels=lambda pixels: transform(Image.fromarray(pixels)),
        device=str(on),
    )


def _digest(files: Iterable[Path], *more: str) -> str:
    """Of files, and of what else embeddings depend on."""
    parts = list(more)
    for path in files:
        with path.open("rb") as file:
            parts += [path.name, file_digest(file, "sha256").hexdigest()]
    return sha256(json.dumps(parts).encode()).hexdigest()


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
        f"{word} {few(keys)}"
        for word, keys in (
            ("missing:", sorted(key for key in shapes.keys() - there.keys() if not key.endswith("position_ids"))),
            ("unexpected:", sorted(key for key in there.keys() - shapes.keys() if not key.endswith("position_ids"))),
            ("of another shape:", sorted(key for key in shapes.keys() & there.keys() if shapes[key] != there[key])),
        )
        if keys
    ]
    if faults:
        raise UsageError(f"{name}: {place}: weights of another model ({'; '.join(faults)}); give those of this one")
