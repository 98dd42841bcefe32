"""Models of torch as evaluators know them, by name: our training runs, and models of AlignModel, open_clip and timm.

No code of a checkpoint is run, and nothing is fetched.
"""

import importlib
import json
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from functools import cache
from hashlib import file_digest, sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from altalign.errors import UsageError, check_package, one_line
from altalign.eval.encoded import Encoder
from altalign.train.data import augment
from altalign.train.exchange.libraries import quiet
from altalign.train.run.ranks import device_of
from altalign.train.settings.types import Device

_OPEN_CLIP, _ALIGN = "open_clip_model.safetensors", "model.safetensors"


def opened(name: str, *, device: Device = "auto", is_exact: bool = False) -> Encoder:
    """The model of a name, on a device (`auto`: a GPU where there is one).

    The name is `open_clip:DIR`, `open_clip:MODEL:CHECKPOINT`, `timm:MODEL:CHECKPOINT`, a folder of AlignModel
    (`align:DIR`) or a training run (`run:DIR`), which with `is_exact` computes in float32, whatever it was trained in.

    Raises UsageError: there is no such model or device, a package is missing, or weights are missing, of another model,
    or of a kind that may run code.
    """
    kind, _, rest = name.partition(":")
    if kind in ("open_clip", "timm") and rest:
        return (_timm if kind == "timm" else _open_clip)(name, rest, device_of(device))
    folder = rest if kind in ("align", "run") and rest else name
    model_type = "" if kind == "run" else _settings(folder).get("model_type", "")
    if model_type == "align" or kind == "align":
        return _align(folder, device_of(device))
    if model_type:
        raise UsageError(
            f"{name}: a model of type {model_type!r}; give a folder of AlignModel, open_clip:DIR, or a training run"
        )
    from altalign.train.exchange import encoders  # with it packages that models of others do without

    trained = encoders.trained(folder)
    if is_exact:
        loop = trained.config.loop.model_copy(update={"precision": "float32"})
        trained = replace(trained, config=trained.config.model_copy(update={"loop": loop}))
    return encoders.of_trained(trained, device).encoder


def _settings(folder: str) -> dict[str, object]:
    place = Path(folder, "config.json")
    try:
        return json.loads(place.read_bytes()) if place.is_file() else {}
    except ValueError as error:
        raise UsageError(f"{place}: no JSON ({error}); give a folder as `save_pretrained` writes it") from None


def _align(folder: str, device: torch.device) -> Encoder:
    weights = Path(folder, _ALIGN)
    _check_weights(folder, weights)
    with quiet(folder):
        from transformers import AlignConfig, AlignModel, AutoProcessor

        model: Any = AlignModel(AlignConfig.from_pretrained(folder)).eval()
        tensors = load_file(weights)
        # older ones hold the numbers of positions too
        model.load_state_dict({key: tensors[key] for key in tensors if not key.endswith("position_ids")})
        processor: Any = AutoProcessor.from_pretrained(folder, local_files_only=True)
    torch.nn.Module.to(model, device)
    most = model.config.text_config.max_position_embeddings

    def transform(image: Image.Image) -> Tensor:
        return processor.image_processor(images=image, return_tensors="pt")["pixel_values"][0]

    def features_of_texts(captions: list[str]) -> Tensor:
        length = min(most, processor.tokenizer.model_max_length)
        tokens = processor.tokenizer(captions, padding=True, truncation=True, max_length=length, return_tensors="pt")
        return model.get_text_features(**tokens.to(device)).pooler_output

    return _encoder(
        transform,
        lambda pixels: model.get_image_features(pixels).pooler_output,
        features_of_texts,
        _digest(_files_in(folder), version("transformers"), device.type),
        device,
        tower=lambda pixels: model.get_image_features(pixels).pooler_output,
    )


def _open_clip(name: str, rest: str, device: torch.device) -> Encoder:
    check_package("open_clip", name, extra="open_clip")
    model_name, _, checkpoint = rest.partition(":")
    source = model_name if checkpoint else f"local-dir:{rest}"
    weights = Path(checkpoint) if checkpoint else Path(rest, _OPEN_CLIP)
    with quiet(name):
        open_clip: Any = importlib.import_module("open_clip")
        if checkpoint:
            _check_known(name, model_name.replace("/", "-"), open_clip.list_models())
        _check_weights(name, weights)
        published = _preprocessing(open_clip, model_name) if checkpoint else {}
        model: Any = open_clip.create_model(
            source, load_weights=False, pretrained_text=False, force_preprocess_cfg=published
        )
        open_clip.load_checkpoint(model, str(weights), weights_only=True)
        transform = open_clip.transform.image_transform_v2(
            open_clip.transform.PreprocessCfg(**model.visual.preprocess_cfg), is_train=False
        )
    model.to(device).eval()

    @cache
    def tokenizer() -> Any:  # some are not in the package, which images need not suffer from
        with quiet(name):
            return open_clip.get_tokenizer(source)

    files = [weights] if checkpoint else _files_in(rest)
    return _encoder(
        transform,
        model.encode_image,
        lambda captions: model.encode_text(tokenizer()(captions).to(device)),
        _digest(files, source, repr(transform), version("open_clip_torch"), device.type),
        device,
        tower=_before_projection(model.visual),
    )


def _before_projection(visual: Any) -> Callable[[Tensor], Tensor] | None:
    """The image tower of a model of open_clip up to its projection; None where that is no step of its own."""
    if hasattr(visual, "trunk") and not hasattr(visual.head, "pool"):
        return visual.trunk
    if isinstance(getattr(visual, "proj", None), torch.nn.Parameter):
        bare = copy(visual)
        bare._parameters = {**visual._parameters, "proj": None}  # the same tensors but this one
        return bare
    return None


def _preprocessing(open_clip: Any, model: str) -> dict[str, Any]:
    """How images are prepared for all published weights of a model; empty where they differ: the default is used."""
    ways, names = list[dict[str, Any]](), ("mean", "std", "interpolation", "resize_mode")
    for tag in open_clip.list_pretrained_tags_by_model(model):
        published = open_clip.get_pretrained_cfg(model, tag)
        ways.append({name: published[name] for name in names if name in published})
    return ways[0] if ways and all(each == ways[0] for each in ways) else {}


def _timm(name: str, rest: str, device: torch.device) -> Encoder:
    """An image tower without its classifier: the features before it."""
    model_name, _, checkpoint = rest.partition(":")
    with quiet(name):
        timm: Any = importlib.import_module("timm")
        _check_known(name, model_name.partition(".")[0], timm.list_models())
        _check_weights(name, Path(checkpoint))
        model: Any = timm.create_model(model_name, pretrained=False, num_classes=0)
        weights = timm.models.load_state_dict(checkpoint, weights_only=True)
        missing, unexpected = model.load_state_dict(weights, strict=False)
        heads = model.pretrained_cfg.get("classifier") or ()
        tops = {head.partition(".")[0] for head in ([heads] if isinstance(heads, str) else heads)}
        if wrong := [*missing, *(key for key in unexpected if key.partition(".")[0] not in tops)]:
            raise UsageError(
                f"{name}: {checkpoint}: weights of another model ({len(wrong):,} do not fit, such as {wrong[0]}); give "
                "those of this one"
            )
        data: Any = importlib.import_module("timm.data")
        transform: Any = data.create_transform(**data.resolve_model_data_config(model), is_training=False)
    model.to(device).eval()

    def no_text(_captions: list[str]) -> Tensor:
        raise UsageError(f"{name}: an image tower alone, which embeds no text; give a model with both towers")

    digest = _digest([Path(checkpoint)], model_name, repr(transform), version("timm"), device.type)
    return _encoder(transform, model, no_text, digest, device, has_texts=False, tower=model)


def _encoder(
    transform: Callable[[Image.Image], Tensor],
    images: Callable[[Tensor], Tensor],
    texts: Callable[[list[str]], Tensor],
    digest: str,
    device: torch.device,
    *,
    has_texts: bool = True,
    tower: Callable[[Tensor], Tensor] | None = None,
) -> Encoder:
    """Embeddings of length 1 of the features of images and of texts; `tower` gives those before a projection."""

    def of_pixels(pixels: Any) -> Tensor:
        return transform(Image.fromarray(pixels))

    # the largest side that it scales or cuts to
    sides = [int(np.max(step.size)) for step in getattr(transform, "transforms", ()) if hasattr(step, "size")]
    return Encoder(
        lambda data: of_pixels(augment.decode(data)),
        lambda pixels: functional.normalize(images(pixels.to(device)), dim=-1),
        lambda captions: functional.normalize(texts(captions), dim=-1),
        digest,
        of_pixels=of_pixels,
        short_side_px=max(sides, default=0),
        has_texts=has_texts,
        device=str(device),
        image_features=tower and (lambda pixels: tower(pixels.to(device))),
    )


def _files_in(folder: str) -> list[Path]:
    return [path for path in sorted(Path(folder).iterdir()) if path.is_file()]


def _digest(files: Iterable[Path], *more: str) -> str:
    """Of files, and of what else embeddings depend on."""
    parts = list(more)
    for path in files:
        with path.open("rb") as file:
            parts += [path.name, file_digest(file, "sha256").hexdigest()]
    return sha256(json.dumps(parts).encode()).hexdigest()


# Checks before weights are loaded -------------------------------------------------------------------------------------


def _check_known(name: str, model: str, known: list[str]) -> None:
    if model not in known:
        raise UsageError(f"{name}: no model of that name; the library has {len(known):,}, such as {known[0]}")


def _check_weights(name: str, place: Path) -> None:
    """Refuse what is not there, and what is not numbers alone: libraries have ways back to reading code."""
    if not place.is_file():
        repair = "give weights in safetensors, by a path relative to the working directory"
        raise UsageError(f"{name}: no weights at {place}; {repair}")
    if place.suffix == ".safetensors":
        return
    try:
        torch.load(place, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        repair = "give safetensors, or a state_dict that torch.save wrote; a file that holds code is not read"
        raise UsageError(f"{name}: {place} cannot be read as weights ({one_line(error)}); {repair}") from None
