"""Scores from embeddings: the cosine of image and caption, and linear heads. A model encodes everything once."""

import hashlib
import importlib
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.errors import UsageError, check_package, one_line
from altalign.filters.text_scores import rounded
from altalign.models import onnx
from altalign.models.model import Floats, Model, opened
from altalign.pipelines.score.scorer import Batch, Scorer, without_nan
from altalign.settings.score import ScoreSettings

_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz")


def similarity(of: ScoreSettings, where: str) -> Scorer:
    """The cosine of image and caption, in steps of 1/4096."""
    model = opened(of.model, f"{where} model", with_texts=True)

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        images, texts = _of_images(model, batch)[batch.image_of], _of_texts(model, batch)
        return [without_nan(rounded((images.astype(np.float64) * texts).sum(axis=1)))]

    columns = pa.schema([(of.name, pa.float32())])
    return Scorer(of.name, columns, {"model": model.digest}, measure, {model.name: model.prepare})


def linear(of: ScoreSettings, where: str) -> Scorer:
    """A linear head on embeddings of images or captions, in steps of 1/4096."""
    model = opened(of.model, f"{where} model", with_texts=True)
    head, digest = _head(of.weights, f"{where} weights")

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        embeddings = _of_images(model, batch)[batch.image_of] if of.side == "image" else _of_texts(model, batch)
        numbers = head(embeddings)
        return [without_nan(rounded(numbers))]

    try:
        tried = head(np.zeros((2, model.dimensions), np.float32))
    except (ValueError, *onnx.errors()) as error:
        said = f"does not take {model.dimensions} dimensions, which {of.model} gives ({one_line(error)})"
        raise UsageError(f"{where} weights: {of.weights}: {said}") from None
    if tried.shape != (2,):
        raise UsageError(f"{where} weights: {of.weights}: gives {tried.shape[1:]} numbers, where one is meant")
    columns = pa.schema([(of.name, pa.float32())])
    rests_on = {"model": model.digest, "weights": digest, "side": of.side}
    prepares = {model.name: model.prepare} if of.side == "image" else {}
    return Scorer(of.name, columns, rests_on, measure, prepares)


def _of_images(model: Model, batch: Batch) -> Floats:
    """Embeddings of the images of a batch, float32[images, d]; NaN of one that was not decoded, or is refused."""
    key = model.name, "images"
    if key not in batch.made:
        found = np.full((len(batch.images), model.dimensions), np.nan, np.float32)
        there = [number for number, image in enumerate(batch.images) if image is not None]
        if there:
            found[there] = model.of_images([(batch.images[number] or {})[model.name] for number in there])
        batch.made[key] = found
    return batch.made[key]


def _of_texts(model: Model, batch: Batch) -> Floats:
    """Embeddings of the captions of a batch, float32[rows, d]; equal ones are encoded once."""
    key = model.name, "texts"
    if key not in batch.made:
        encoded: Any = batch.captions.dictionary_encode()
        batch.made[key] = model.of_texts(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
    return batch.made[key]


# Heads ----------------------------------------------------------------------------------------------------------------


def _head(path: str, where: str) -> tuple[Any, str]:
    """A function from embeddings, float32[n, d], to numbers, float64[n], and the digest of its file.

    Raises:
        UsageError: the file is missing, or is neither safetensors nor ONNX.
    """
    if path.endswith(_PICKLES):
        raise UsageError(
            f"{where}: {path} may be a pickle, which can run code, and is not read; give safetensors or ONNX"
        )
    try:
        digest = hashlib.sha256(storage.read_bytes(path)).hexdigest()
    except OSError as error:
        raise UsageError(
            f"{where}: {path}: cannot be read ({error.strerror}); give a file of safetensors or ONNX"
        ) from None
    if path.endswith(".onnx"):
        return _onnx_head(path, where), digest
    return _safetensors_head(path, where, digest), digest


def _onnx_head(path: str, where: str) -> Any:
    check_package("onnxruntime", where, extra="onnx")
    session = onnx.load(path, where)
    name = session.get_inputs()[0].name

    def head(embeddings: Floats) -> "np.ndarray":
        return np.asarray(session.run(None, {name: embeddings})[0], np.float64).reshape(len(embeddings), -1).squeeze(1)

    return head


@lru_cache(maxsize=8)
def _safetensors_head(path: str, where: str, _digest: str) -> Any:
    check_package("safetensors", where, extra="train")
    load: Any = importlib.import_module("safetensors.numpy").load_file
    try:
        tensors = load(path)
    except Exception as error:
        raise UsageError(
            f"{where}: {path}: no safetensors ({one_line(error)}); give a head in safetensors or ONNX"
        ) from None
    if "weight" not in tensors or not tensors.keys() <= {"weight", "bias"}:
        raise UsageError(f"{where}: {path} has {', '.join(sorted(tensors))}; give weight and, perhaps, bias")
    weight = tensors["weight"].astype(np.float64).reshape(-1)
    bias = float(tensors["bias"].reshape(-1)[0]) if "bias" in tensors else 0.0
    return lambda embeddings: embeddings.astype(np.float64) @ weight + bias
