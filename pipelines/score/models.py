"""Scorers with a model: embeddings, cosines of image and caption, linear heads, and the language of captions.

A model encodes everything once.
"""

import hashlib
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.dedup import embed
from altalign.errors import UsageError, check_package, one_line
from altalign.filters import pixels
from altalign.filters.text_scores import rounded
from altalign.filters.thumbnails import thumbnail
from altalign.models import languages, onnx
from altalign.models.model import Floats, Model, normal, opened
from altalign.pipelines.score.scorers import Batch, Pixels, Scorer, read, without_nan
from altalign.settings.score import ScoreSettings

Doubles = npt.NDArray[np.float64]
_PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz")


def encoder(name: str, where: str) -> Model:
    """The model of a name, with texts but of an image tower alone; of no name, `frequencies`. Raises as `opened`."""
    if not name:
        return Model("frequencies", "1", 2 * embed.SIDE_PX, frequencies, np.stack, None, dimensions=embed.COEFFICIENTS)
    return opened(name, where, with_texts=not name.startswith("timm:") and not name.endswith(".onnx"))


def frequencies(image: Pixels) -> Floats:
    """The lowest frequencies of an image's thumbnail, float32[192]; NaN of a flat one.

    Each is weighted by its frequency: in natural images amplitudes fall as 1/f (Field 1987, section 4), and all weigh
    the same then.
    """
    coefficients, is_flat = embed.dct_coefficients(thumbnail(pixels.gray(image))[np.newaxis])
    weighted = coefficients[0] * np.hypot(embed.FREQUENCIES[:, 0], embed.FREQUENCIES[:, 1])
    return np.where(is_flat[0], np.nan, weighted).astype(np.float32)


def embedding(settings: ScoreSettings, where: str) -> Scorer:
    """Embeddings of images, of length 1.

    Values are rounded to float16, which halves the file, and stored as float32, which DuckDB and others read.
    """
    model = encoder(settings.model, f"{where} model")
    kind: Any = pa.list_(pa.float32(), model.dimensions)

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        vectors = normal(_of_images(model, batch)).astype(np.float16).astype(np.float32)[batch.image_of]
        is_none: Any = ~np.isfinite(vectors).all(axis=1)
        values = pa.array(vectors.reshape(-1))
        numbers: Any = pa.FixedSizeListArray.from_arrays(values, type=kind, mask=pa.array(is_none))
        return [numbers]

    columns, rests_on = pa.schema([(settings.name, kind)]), {"model": model.digest, "texts": model.texts is not None}
    return Scorer(settings.name, columns, rests_on, measure, {model.name: model.prepare}, is_of_dropped=True)


def similarity(settings: ScoreSettings, where: str) -> Scorer:
    """The cosine of image and caption, in steps of 1/4096."""
    model = opened(settings.model, f"{where} model", with_texts=True)

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        images, texts = _of_images(model, batch)[batch.image_of], _of_texts(model, batch)
        return [without_nan(rounded((images.astype(np.float64) * texts).sum(axis=1)))]

    columns = pa.schema([(settings.name, pa.float32())])
    return Scorer(settings.name, columns, {"model": model.digest}, measure, {model.name: model.prepare})


def linear(settings: ScoreSettings, where: str) -> Scorer:
    """A linear head on embeddings of images or captions, in steps of 1/4096."""
    model = opened(settings.model, f"{where} model", with_texts=True)
    head, digest = _head(settings.weights, f"{where} weights")

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        embeddings = _of_images(model, batch)[batch.image_of] if settings.side == "image" else _of_texts(model, batch)
        numbers = head(embeddings)
        return [without_nan(rounded(numbers))]

    try:
        tried = head(np.zeros((2, model.dimensions), np.float32))
    except (ValueError, *onnx.errors()) as error:
        why = f"does not take {model.dimensions} dimensions, which {settings.model} gives ({one_line(error)})"
        raise UsageError(f"{where} weights: {settings.weights}: {why}") from None
    if tried.shape != (2,):
        raise UsageError(f"{where} weights: {settings.weights}: gives {tried.shape[1:]} numbers, where one is meant")
    columns = pa.schema([(settings.name, pa.float32())])
    rests_on = {"model": model.digest, "weights": digest, "side": settings.side}
    prepares = {model.name: model.prepare} if settings.side == "image" else {}
    return Scorer(settings.name, columns, rests_on, measure, prepares)


def _of_images(model: Model, batch: Batch) -> Floats:
    """Embeddings of the images of a batch, float32[images, d]; NaN of one that was not decoded, or is refused."""
    key = model.name, "images"
    if key not in batch.made:
        embeddings = np.full((len(batch.images), model.dimensions), np.nan, np.float32)
        prepared = {number: image[model.name] for number, image in enumerate(batch.images) if image is not None}
        if prepared:
            embeddings[[*prepared]] = model.of_images([*prepared.values()])
        batch.made[key] = embeddings
    return batch.made[key]


def _of_texts(model: Model, batch: Batch) -> Floats:
    """Embeddings of the captions of a batch, float32[rows, d]; equal ones are encoded once."""
    key = model.name, "texts"
    if key not in batch.made:
        encoded: Any = batch.captions.dictionary_encode()
        batch.made[key] = model.of_texts(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
    return batch.made[key]


def _head(path: str, where: str) -> tuple[Callable[[Floats], Doubles], str]:
    """A function from embeddings, float32[n, d], to numbers, float64[n], and the digest of its file."""
    if path.endswith(_PICKLES):
        raise UsageError(
            f"{where}: {path} may be a pickle, which can run code, and is not read; give safetensors or ONNX"
        )
    data = read(path, where)
    digest = hashlib.sha256(data).hexdigest()
    if path.endswith(".onnx"):
        check_package("onnxruntime", where, extra="onnx")
        session = onnx.load(path, where)
        name = session.get_inputs()[0].name

        def head(embeddings: Floats) -> Doubles:
            (first, *_) = session.run(None, {name: embeddings})
            return np.asarray(first, np.float64).reshape(len(embeddings), -1).squeeze(1)

        return head, digest
    check_package("safetensors", where, extra="train")
    load: Any = importlib.import_module("safetensors.numpy").load
    try:
        tensors = load(data)
    except Exception as error:
        raise UsageError(
            f"{where}: {path}: no safetensors ({one_line(error)}); give a head in safetensors or ONNX"
        ) from None
    if "weight" not in tensors or not tensors.keys() <= {"weight", "bias"}:
        raise UsageError(f"{where}: {path} has {', '.join(sorted(tensors))}; give weight and, perhaps, bias")
    weight = tensors["weight"].astype(np.float64).reshape(-1)
    bias = float(tensors["bias"].reshape(-1)[0]) if "bias" in tensors else 0.0
    return lambda embeddings: embeddings.astype(np.float64) @ weight + bias, digest


def language(settings: ScoreSettings, where: str) -> Scorer:
    """Label, probability and margin of captions."""
    path = settings.model or languages.shipped_model()
    digest = hashlib.sha256(read(path, f"{where} model")).hexdigest()
    model = languages.opened(path, digest)

    def measure(batch: Batch) -> list["pa.Array[Any]"]:
        labelled = languages.label(batch.captions, model, margin_at_least=settings.margin_at_least)
        return [labelled.labels, without_nan(labelled.probability), without_nan(labelled.margin)]

    columns = pa.schema(
        [
            (settings.name, pa.string()),
            (f"{settings.name}_probability", pa.float32()),
            (f"{settings.name}_margin", pa.float32()),
        ]
    )
    rests_on = {"model": digest, "margin_at_least": settings.margin_at_least}
    return Scorer(settings.name, columns, rests_on, measure, reads=("caption",))
