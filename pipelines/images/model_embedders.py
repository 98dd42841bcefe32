"""Embedders with weights: an ONNX file, a checkpoint of open_clip or timm, or a training run of ours.

Nothing is fetched, and no code of a checkpoint is run. A model sees one image at a time on one thread: its features do
not depend on what else the machine does. Each is tried on two pictures when it is loaded, so that one which tells
nothing of images stops the command before any work.
"""

import difflib
import importlib
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from altalign.dedup import embed
from altalign.errors import AltalignError, UsageError, bring
from altalign.filters.model_inputs import ModelInput, prepare
from altalign.pipelines.images import onnx

Pixels = npt.NDArray[np.uint8]
Vector = npt.NDArray[np.int16]
Floats = npt.NDArray[np.floating]

_SAID_AT_MOST = 200  # characters of what a library says
_ARRAYS_OF_NUMPY = (".npy", ".npz")


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model.

    Attributes:
        dimensions: of its vectors.
        of_image: from pixels as `embedders.Embedder` has them to a vector, int16[dimensions].
        short_side_px: what an image has to be decoded to at least, for nothing to be enlarged.
    """

    dimensions: int
    of_image: Callable[[Pixels], Vector]
    short_side_px: int


class EmbeddingInput(ModelInput):
    """The TOML beside an ONNX file.

    Attributes:
        output_name: the output that is the embedding, of any shape; empty: the first one.
    """

    output_name: str = ""


def load(name: str) -> Model:
    """The model of an embedder's name.

    Raises:
        UsageError: a file or a package is missing, they do not fit, or what the model gives cannot be compared.
    """
    return _KINDS[name.split(":")[0]](name)


# ONNX -----------------------------------------------------------------------------------------------------------------


def _onnx(name: str) -> Model:
    where, path = _where(name), name.partition(":")[2]
    _require("onnxruntime", where, extra="onnx")
    if Path(path).suffix != ".onnx" or not Path(path).is_file():
        raise UsageError(f"{where}: no such file of the name *.onnx; give a path relative to the working directory")
    wanted = EmbeddingInput.load(Path(path).with_suffix(".toml"))
    session = onnx.load(path, where)
    input_name, outputs = session.get_inputs()[0].name, [output.name for output in session.get_outputs()]
    if wanted.output_name and wanted.output_name not in outputs:
        raise UsageError(
            f'{Path(path).with_suffix(".toml")} output_name = "{wanted.output_name}": the model has no such output, it '
            f"has {', '.join(outputs)}"
        )

    def features(pixels: Pixels) -> Floats:
        return np.asarray(
            session.run([wanted.output_name or outputs[0]], {input_name: prepare(pixels, wanted)})[0], np.float64
        )

    try:
        return _tried(features, where, wanted.short_side_px)
    except onnx.errors() as error:
        raise UsageError(
            f"{path}: does not take the input that {Path(path).with_suffix('.toml')} describes: {_said(error)}"
        ) from None


# Models of torch ------------------------------------------------------------------------------------------------------


def _open_clip(name: str) -> Model:
    where, (model, path) = _where(name), name.split(":", maxsplit=2)[1:]
    _require("open_clip", where, extra="open_clip")
    with _loading(where):
        open_clip: Any = importlib.import_module("open_clip")
        _check_known(model.replace("/", "-"), open_clip.list_models(), where)
        _check_weights(path, where)
        made: Any = open_clip.create_model(
            model, load_weights=False, pretrained_text=False, force_preprocess_cfg=_preprocessing(open_clip, model)
        )
        open_clip.load_checkpoint(made, path, weights_only=True)
        wanted = open_clip.transform.PreprocessCfg(**made.visual.preprocess_cfg)
        transform = open_clip.transform.image_transform_v2(wanted, is_train=False)
        return _tried(_features(made.eval().encode_image, transform), where, _short_side_px(transform))


def _preprocessing(open_clip: Any, model: str) -> dict[str, Any]:
    """How images are prepared for all published weights of a model.

    Empty where they differ, or where there are none: the library's default is used then.
    """
    published = [open_clip.get_pretrained_cfg(model, tag) for tag in open_clip.list_pretrained_tags_by_model(model)]
    wanted = [
        {name: each[name] for name in ("mean", "std", "interpolation", "resize_mode") if name in each}
        for each in published
    ]
    return wanted[0] if wanted and all(each == wanted[0] for each in wanted) else {}


def _timm(name: str) -> Model:
    where, (model, path) = _where(name), name.split(":", maxsplit=2)[1:]
    _require("timm", where, extra="timm")
    with _loading(where):
        timm: Any = importlib.import_module("timm")
        _check_known(model.partition(".")[0], timm.list_models(), where)
        _check_weights(path, where)
        # without its classifier: the features before it
        made: Any = timm.create_model(model, pretrained=False, num_classes=0)
        weights = timm.models.load_state_dict(path, weights_only=True)
        missing, unexpected = made.load_state_dict(weights, strict=False)
        heads = made.pretrained_cfg.get("classifier") or ()
        tops = {head.partition(".")[0] for head in ([heads] if isinstance(heads, str) else heads)}
        if wrong := [*missing, *(key for key in unexpected if key.partition(".")[0] not in tops)]:
            raise UsageError(
                f"{where}: {path} holds the weights of another model ({len(wrong):,} do not fit, such as {wrong[0]})"
            )
        data: Any = importlib.import_module("timm.data")
        transform: Any = data.create_transform(**data.resolve_model_data_config(made), is_training=False)
        return _tried(_features(made.eval(), transform), where, _short_side_px(transform))


def _run(name: str) -> Model:
    where, run = _where(name), name.partition(":")[2]
    for package in ("torch", "timm", "transformers", "tokenizers", "safetensors"):
        _require(package, where, extra="train")
    with _loading(where):
        encoders: Any = importlib.import_module("altalign.train.exchange.encoders")
        augment: Any = importlib.import_module("altalign.train.data.augment")
        try:
            of: Any = encoders.trained(run)
        except AltalignError as error:
            raise UsageError(f"{where}: {error}") from None
        (resize, crop), keeps = of.evaluation_sizes, of.config.evaluation.keep_aspect_ratio
        model: Callable[[Any], Any] = of.model.encode_image

        def middle(image: Image.Image) -> Any:
            return augment.central(np.array(image), resize_px=resize, crop_px=crop, keep_aspect_ratio=keeps)

        return _tried(_features(model, middle), where, resize)


def _features(model: Callable[[Any], Any], transform: Callable[[Image.Image], Any]) -> Callable[[Pixels], Floats]:
    torch = importlib.import_module("torch")

    def features(pixels: Pixels) -> Floats:
        # said anew: a thread that has not heard it may take all cores, and add up in another order
        torch.set_num_threads(1)
        with torch.inference_mode():
            return model(transform(Image.fromarray(pixels).convert("RGB"))[None])[0].double().numpy()

    return features


def _short_side_px(transform: Any) -> int:
    """The largest side that a transform scales or cuts to, in pixels."""
    sizes = [step.size for step in transform.transforms if hasattr(step, "size")]
    return max(max(size) if isinstance(size, (tuple, list)) else size for size in sizes)


def _check_known(model: str, known: list[str], where: str) -> None:
    if model not in known:
        near = difflib.get_close_matches(model, known, 3) or known[:3]
        raise UsageError(f"{where}: no model of that name; there are {len(known):,}, such as {', '.join(near)}")


def _check_weights(path: str, where: str) -> None:
    """Read a checkpoint once as nothing but numbers: libraries have ways back to reading code when that fails."""
    if not Path(path).is_file():
        raise UsageError(f"{where}: no file is at {path!r}; give a path relative to the working directory")
    if path.endswith(_ARRAYS_OF_NUMPY):
        raise UsageError(f"{where}: {path} is an array of NumPy, where safetensors or weights of torch are meant")
    try:
        if path.endswith(".safetensors"):
            with importlib.import_module("safetensors").safe_open(path, "numpy"):
                return
        importlib.import_module("torch").load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        repair = (
            "give safetensors, or weights that torch.save wrote of a state_dict; a file that holds code is not read"
        )
        raise UsageError(f"{where}: {path} cannot be read as weights ({_said(error)}); {repair}") from None


# Of all ---------------------------------------------------------------------------------------------------------------


@contextmanager
def _loading(where: str) -> Iterator[None]:
    """Around the loading of a model: libraries are quiet, and what they raise becomes one line.

    Raises:
        UsageError: the model cannot be loaded.
    """
    # a compiler for GPUs that torch imports where it is: none is used, and it complains at exit
    cast(dict[str, Any], sys.modules).setdefault("triton", None)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # some towers for texts would fetch their settings
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # of random weights, which are overwritten
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        raise UsageError(f"{where}: cannot be loaded ({_said(error)}); give weights of this model") from error
    finally:
        logging.disable(before)


def _tried(features: Callable[[Pixels], Floats], where: str, short_side_px: int) -> Model:
    """The model of a function that gives an image's features.

    Raises:
        UsageError: its features of two pictures are none, too many or the same.
    """

    def of_image(pixels: Pixels) -> Vector:
        try:
            return embed.quantized(features(pixels).reshape(1, -1))[0]
        except ValueError as error:
            raise AltalignError(f"{where}: what the model makes of an image cannot be compared: {error}") from None

    ramp = np.linspace(0, 255, 3 * short_side_px**2).astype(np.uint8).reshape(short_side_px, short_side_px, 3)
    try:
        first, second = of_image(ramp), of_image(np.random.default_rng(0).permutation(ramp))
    except AltalignError as error:
        raise UsageError(str(error)) from None
    if not (first.any() and second.any()) or np.array_equal(first, second):
        raise UsageError(
            f"{where}: it gives the same for two different pictures, or nothing; name the output, or the weights, that "
            "tell images apart"
        )
    return Model(len(first), of_image, short_side_px)


def _where(name: str) -> str:
    return f'[decontaminate] embedder = "{name}"'


def _require(package: str, where: str, *, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{where}: the package {package} is missing; {bring(extra)}")


def _said(error: BaseException) -> str:
    """What a library says, on one line and not longer than a line should be."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= _SAID_AT_MOST else f"{words[:_SAID_AT_MOST]}…"


_KINDS: dict[str, Callable[[str], Model]] = {"onnx": _onnx, "open_clip": _open_clip, "timm": _timm, "run": _run}
