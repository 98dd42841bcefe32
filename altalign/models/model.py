"""Models that embed images, and perhaps texts, by name: ONNX files, and those of torch, on the CPU. Nothing is fetched.

Each is tried on two pictures and two texts when it is opened, so that one that tells nothing stops the command before
any work. A model runs on one thread; images and batches are spread over the cores.
"""

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from altalign.errors import AltalignError, UsageError, check_package, one_line
from altalign.filters.model_inputs import ModelInput
from altalign.machine import interrupts
from altalign.models import onnx

Floats = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]

# images or texts that a model sees at a time: of 64, both towers of a ViT-B/32 take a fifth longer for each, because
# caches are small; and a shard's captions at once would take gigabytes
_AT_ONCE = 8
_TRAIN = ("torch", "timm", "transformers", "tokenizers", "safetensors")
_PACKAGES = {"timm": ("torch", "timm"), "open_clip": ("torch", "open_clip"), "align": _TRAIN, "run": _TRAIN}
_REFUSALS = (RuntimeError, ValueError, IndexError)


class EmbeddingInput(ModelInput):
    """The TOML beside an ONNX file."""

    output_name: str = ""  # of the embedding, of any shape; empty: the first one


@dataclass(frozen=True, eq=False)
class Model:
    """A model, ready to encode."""

    name: str  # as settings have it; also of what it wants of an image
    digest: str  # of all that embeddings depend on: weights, tokenizer, preprocessing, precision, libraries
    short_side_px: int  # what an image has to be decoded to at least, for nothing to be enlarged
    prepare: Callable[[Pixels], Any]  # of an image's pixels, uint8[height, width, 3]
    images: Callable[[Sequence[Any]], Floats]  # embeddings float32[n, d]; of a model with texts they have length 1
    texts: Callable[[list[str]], Floats] | None  # the same, of length 1; None of an image tower alone
    refusals: tuple[type[Exception], ...] = _REFUSALS  # where these do not take an image or a text
    dimensions: int = 0

    def of_images(self, prepared: Sequence[Any]) -> Floats:
        """Embeddings; NaN of an image that the model refuses."""
        return self._each(self.images, prepared)

    def of_texts(self, texts: Sequence[str]) -> Floats:
        """Embeddings; NaN of a text that the model refuses."""
        assert self.texts is not None, f"{self.name} was opened for images alone"
        return self._each(self.texts, list(texts))

    def _each(self, encode: Callable[[Any], Floats], inputs: Sequence[Any]) -> Floats:
        rows = np.full((len(inputs), self.dimensions), np.nan, np.float32)
        for begin in range(0, len(inputs), _AT_ONCE):
            interrupts.check()
            some = slice(begin, begin + _AT_ONCE)
            try:
                rows[some] = encode(inputs[some])
            except self.refusals:  # each alone
                for number, one in enumerate(inputs[some], start=begin):
                    with suppress(*self.refusals):
                        rows[number] = encode([one])[0]
        return rows


def opened(name: str, where: str, *, with_texts: bool) -> Model:
    """The model of a name, which the setting `where` gives. A process keeps it for as long as its files stay the same.

    The name is `onnx:FOLDER` or `onnx:FILE.onnx`, `open_clip:DIR` or `open_clip:MODEL:CHECKPOINT`,
    `timm:MODEL:CHECKPOINT`, `align:FOLDER` or `run:TRAINING_RUN`. With texts, they are encoded too, and all in the
    precision of the training; images alone are in float32.

    Raises UsageError: there is no such model, a package is missing, or what it gives cannot be compared.
    """
    return _opened(name, f'{where} = "{name}"', with_texts, _stamps(name))


def _stamps(name: str) -> tuple[tuple[str, int, int], ...]:
    """The files that a name may mean, as they are now."""
    files = list[Path]()
    for place in (Path(part).absolute() for part in name.split(":")[1:]):
        files += [place, place.with_suffix(".toml")] if place.is_file() else sorted(place.rglob("*"))
    return tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file())


@lru_cache(maxsize=8)
def _opened(name: str, where: str, with_texts: bool, _files: tuple[tuple[str, int, int], ...]) -> Model:  # noqa: FBT001
    kind, _, rest = name.partition(":")
    if not rest or kind not in ("onnx", *_PACKAGES):
        raise UsageError(
            f'{where}: no model; give "onnx:FOLDER", "open_clip:DIR", "open_clip:MODEL:CHECKPOINT", "align:FOLDER" or '
            '"run:TRAINING_RUN"'
        )
    model = (_onnx if kind == "onnx" else _torch)(name, where, with_texts=with_texts)
    # it has to tell two pictures apart, and two texts
    side = model.short_side_px or 256
    ramp = np.linspace(0, 255, 3 * side**2).astype(np.uint8).reshape(side, side, 3)
    pictures = [ramp, np.random.default_rng(0).permutation(ramp.reshape(-1)).reshape(ramp.shape)]
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            tried = [np.concatenate([model.images([model.prepare(each)]) for each in pictures])]
            if model.texts:
                tried.append(model.texts(["a red ring", "two old houses near a tree"]))
        except (*model.refusals, KeyError, TypeError) as error:
            raise UsageError(f"{where}: does not take what it is given ({one_line(error)})") from None
    for vectors, what in zip(tried, ("pictures", "texts"), strict=False):
        if vectors.ndim != 2 or not np.isfinite(vectors).all() or np.array_equal(vectors[0], vectors[1]):
            why = f"embeddings of two different {what} are equal, empty or not finite"
            raise UsageError(f"{where}: {why}; name another output, or give other weights")
    if tried[0].shape != tried[-1].shape:
        dimensions = f"{tried[0].shape[1]} dimensions and texts {tried[-1].shape[1]}"
        raise UsageError(f"{where}: images have {dimensions}; give two towers that belong together")
    return replace(model, dimensions=tried[0].shape[1])


# Models of torch ------------------------------------------------------------------------------------------------------


def _torch(name: str, where: str, *, with_texts: bool) -> Model:
    kind = name.partition(":")[0]
    for package in _PACKAGES[kind]:
        check_package(package, where, extra="train" if _PACKAGES[kind] is _TRAIN else kind)
    # a compiler for GPUs that torch imports where it is: none is used, and it complains at exit
    cast(dict[str, Any], sys.modules).setdefault("triton", None)
    import torch

    from altalign.models import torch_models

    try:
        # on the CPU, for the same embeddings on every machine
        encoder = torch_models.opened(name, device="cpu", is_exact=not with_texts)
    except AltalignError as error:
        raise UsageError(f"{where}: {str(error).removeprefix(f'{name}: ')}") from None
    if encoder.of_pixels is None or (with_texts and not encoder.has_texts):
        raise UsageError(f"{where}: an image tower alone, which embeds no text; give a model with both towers")
    of_pixels = encoder.of_pixels

    def prepared(pixels: Pixels) -> Any:
        colours = pixels[:, :, None].repeat(3, axis=2) if pixels.ndim == 2 else pixels
        return of_pixels(np.ascontiguousarray(colours))

    def embeddings(make: Callable[[Any], torch.Tensor], inputs: Any) -> Floats:
        # again in each call: a thread that has not set it may take all cores, and add up in another order
        torch.set_num_threads(1)
        with torch.inference_mode():
            return make(inputs).float().cpu().numpy()

    return Model(
        name,
        encoder.digest,
        encoder.short_side_px,
        prepared,
        lambda prepared: embeddings(encoder.encode_image, torch.stack(list(prepared))),
        (lambda texts: embeddings(encoder.encode_text, list(texts))) if with_texts else None,
    )


# ONNX -----------------------------------------------------------------------------------------------------------------


def _onnx(name: str, where: str, *, with_texts: bool) -> Model:
    """A file of an image tower; with texts a folder of two graphs, as `altalign export` writes it."""
    check_package("onnxruntime", where, extra="onnx")
    path = name.partition(":")[2]
    refusals = (*_REFUSALS, *onnx.errors())
    if not with_texts:
        graph = onnx.image_graph(path, where, EmbeddingInput)
        images = _images_of(graph)
        graph.tried(lambda gray: images([graph.prepare(gray)]))
        return Model(name, graph.digest, graph.input.short_side_px, graph.prepare, images, None, refusals)
    check_package("tokenizers", where, extra="train")
    files = [Path(path, each) for each in ("image.onnx", "image.toml", "text.onnx", "tokenizer.json")]
    if missing := next((file for file in files if not file.is_file()), None):
        raise UsageError(
            f"{where}: {missing} is not there; give a folder with image.onnx, image.toml, text.onnx and tokenizer.json"
        )
    facts = _preprocessing(Path(path, "preprocessing.json"))
    graph, text = onnx.image_graph(str(files[0]), where, EmbeddingInput), onnx.load(str(files[2]), where)
    images, tokens = _images_of(graph), _tokens(files[3], facts, text)
    return Model(
        name,
        onnx.digest(files, facts),
        graph.input.short_side_px,
        graph.prepare,
        lambda prepared: normal(images(prepared)),
        lambda texts: normal(text.run(None, tokens(texts))[0]),
        refusals,
    )


def _images_of(graph: onnx.ImageGraph[EmbeddingInput]) -> Callable[[Sequence[Any]], Floats]:
    name, outputs = graph.input.output_name, graph.outputs()
    if name and name not in outputs:
        known = ", ".join(outputs)
        raise UsageError(f'{graph.toml} output_name = "{name}": the model has no such output, it has {known}')

    def images(prepared: Sequence[Any]) -> Floats:
        output = graph.run(np.concatenate(prepared), [name or outputs[0]])[0]
        return np.asarray(output, np.float32).reshape(len(prepared), -1)

    return images


def _preprocessing(path: Path) -> dict[str, int]:
    try:
        facts = json.loads(path.read_bytes()) if path.is_file() else {}
        return {name: int(facts.get(name, other)) for name, other in (("tokens_at_most", 77), ("padding", 0))}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: no preprocessing of texts ({error}); give tokens_at_most and padding") from None


def _tokens(path: Path, facts: dict[str, int], session: Any) -> Callable[[list[str]], dict[str, Any]]:
    """From texts to what the graph takes: numbers of tokens, and a mask where it has a second input."""
    tokenizers: Any = importlib.import_module("tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise UsageError(f"{path}: no tokenizer ({one_line(error)})") from None
    tokenizer.no_padding()
    tokenizer.enable_truncation(facts["tokens_at_most"])
    first, *others = session.get_inputs()
    length = first.shape[1] if len(first.shape) > 1 and isinstance(first.shape[1], int) else 0
    kinds = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}

    def tokens(texts: list[str]) -> dict[str, Any]:
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        width = length or max(1, *map(len, rows))
        table, mask = np.full((len(rows), width), facts["padding"], np.int64), np.zeros((len(rows), width), np.int64)
        for row, ids in enumerate(rows):
            table[row, : len(ids)], mask[row, : len(ids)] = ids[:width], 1
        inputs = {first.name: table.astype(kinds.get(first.type, np.int64))}
        return inputs | {second.name: mask.astype(kinds.get(second.type, np.int64)) for second in others[:1]}

    return tokens


def normal(vectors: Any) -> Floats:
    """Vectors, float32[..., d], at length 1; one without a length is NaN."""
    numbers = np.asarray(vectors, np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        return numbers / np.linalg.norm(numbers, axis=-1, keepdims=True)
