"""Models of two towers by name: ONNX graphs, open_clip, AlignModel, or a training run. Nothing is fetched.

Each is tried on two pictures and two texts when it is opened, so that one that tells nothing stops the command before
any work. A model runs on one thread; shards and batches are spread over the cores.
"""

import hashlib
import importlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from altalign.errors import AltalignError, UsageError, bring
from altalign.filters.model_inputs import prepare
from altalign.machine import interrupts
from altalign.pipelines.images import onnx
from altalign.pipelines.images.model_embedders import EmbeddingInput

Floats = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]

# images or texts that a model sees at a time: of 64, both towers of a ViT-B/32 take a fifth longer for each, because
# caches are small; and a shard's captions at once would take gigabytes
_AT_ONCE = 8
_TORCH = ("torch", "timm", "transformers", "tokenizers", "safetensors")


@dataclass(frozen=True, eq=False)
class DualModel:
    """A model, ready to encode.

    Attributes:
        name: as settings have it; also of what it wants of an image.
        digest: of all that embeddings depend on: weights, tokenizer, preprocessing, precision, libraries.
        dimensions: of both embeddings.
        prepare: what an image's pixels become, uint8[height, width, 3].
        images: embeddings of prepared images, float32[n, d], of length 1.
        texts: embeddings of texts, likewise.
    """

    name: str
    digest: str
    dimensions: int
    prepare: Callable[[Pixels], Any]
    images: Callable[[Sequence[Any]], Floats]
    texts: Callable[[list[str]], Floats]

    def of_images(self, prepared: Sequence[Any]) -> Floats:
        """Embeddings; NaN of an image that the model refuses."""
        return _each(self.images, prepared, self.dimensions)

    def of_texts(self, texts: Sequence[str]) -> Floats:
        """Embeddings; NaN of a text that the model refuses."""
        return _each(self.texts, list(texts), self.dimensions)


def _each(encode: Callable[[Any], Floats], things: Sequence[Any], dimensions: int) -> Floats:
    parts = [np.zeros((0, dimensions), np.float32)]
    for begin in range(0, len(things), _AT_ONCE):
        interrupts.check()
        parts.append(_some(encode, things[begin : begin + _AT_ONCE], dimensions))
    return np.concatenate(parts)


def _some(encode: Callable[[Any], Floats], things: Sequence[Any], dimensions: int) -> Floats:
    """All at once; where the model refuses them, each alone."""
    with suppress(RuntimeError, ValueError, IndexError, *onnx.errors()):
        return encode(things)
    found = np.full((len(things), dimensions), np.nan, np.float32)
    for number, thing in enumerate(things):
        with suppress(RuntimeError, ValueError, IndexError, *onnx.errors()):
            found[number] = encode([thing])[0]
    return found


def opened(name: str, where: str) -> DualModel:
    """The model of a name: `onnx:FOLDER`, `open_clip:…`, `align:FOLDER` or `run:TRAINING_RUN`.

    Raises:
        UsageError: there is no such model, a package is missing, or what it gives cannot be compared.
    """
    return _opened(name, where, _stamps(name))


def _stamps(name: str) -> tuple[tuple[str, int, int], ...]:
    """The files that a name may mean, as they are now: a process keeps a model no longer than they stay the same."""
    places = [Path(part).absolute() for part in name.split(":")[1:]]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*")))]
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    return tuple((path, of.st_mtime_ns, of.st_size) for path, of in stats)


@lru_cache(maxsize=8)
def _opened(name: str, where: str, _files: tuple[tuple[str, int, int], ...]) -> DualModel:
    kind, _, rest = name.partition(":")
    if not rest or kind not in ("onnx", "open_clip", "align", "run"):
        raise UsageError(
            f'{where} = "{name}": no model; give "onnx:FOLDER", "open_clip:DIR", "open_clip:MODEL:CHECKPOINT", '
            '"align:FOLDER" or "run:TRAINING_RUN"'
        )
    return _tried(_onnx(name, where) if kind == "onnx" else _torch(name, where), where)


def _tried(model: DualModel, where: str) -> DualModel:
    """The model, once it has told two pictures and two texts apart."""
    ramp = np.linspace(0, 255, 3 * 256 * 256).astype(np.uint8).reshape(256, 256, 3)
    pictures = [ramp, np.random.default_rng(0).permutation(ramp.reshape(-1)).reshape(ramp.shape)]
    try:
        images = model.images([model.prepare(picture) for picture in pictures])
        texts = model.texts(["a red ring", "two old houses near a tree"])
    except (RuntimeError, ValueError, IndexError, KeyError, TypeError, *onnx.errors()) as error:
        said = " ".join(str(error).split())
        raise UsageError(f'{where} = "{model.name}": does not take what it is given ({said:.160})') from None
    for what, found in (("pictures", images), ("texts", texts)):
        if found.ndim != 2 or not np.isfinite(found).all() or np.array_equal(found[0], found[1]):
            raise UsageError(f'{where} = "{model.name}": gives the same for two {what}, or nothing that is a number')
    if images.shape != texts.shape:
        raise UsageError(
            f'{where} = "{model.name}": images have {images.shape[1]} dimensions and texts {texts.shape[1]}; give two '
            "towers that belong together"
        )
    return replace(model, dimensions=images.shape[1])


# Models of torch ------------------------------------------------------------------------------------------------------


def _torch(name: str, where: str) -> DualModel:
    for package in _TORCH:
        if importlib.util.find_spec(package) is None:
            raise UsageError(f'{where} = "{name}": the package {package} is missing; {bring("train")}')
    torch: Any = importlib.import_module("torch")
    models: Any = importlib.import_module("altalign.train.exchange.models")
    try:
        # on the CPU, for the same scores on every machine
        encoder = models.opened(name.removeprefix("align:").removeprefix("run:"), device="cpu")
    except AltalignError as error:
        raise UsageError(f"{where}: {error}") from None

    def encode(make: Callable[[], Any]) -> Floats:
        # said anew: a thread that has not heard it may take all cores, and add up in another order
        torch.set_num_threads(1)
        with torch.inference_mode():
            return make().float().cpu().numpy()

    return DualModel(
        name,
        encoder.digest,
        0,
        encoder.of_pixels,
        lambda prepared: encode(lambda: encoder.encode_image(torch.stack(list(prepared)))),
        lambda texts: encode(lambda: encoder.encode_text(list(texts))),
    )


# ONNX -----------------------------------------------------------------------------------------------------------------


def _onnx(name: str, where: str) -> DualModel:
    """Two graphs, `image.toml`, a tokenizer and, perhaps, `preprocessing.json`: as `altalign export` writes them."""
    for package, extra in (("onnxruntime", "onnx"), ("tokenizers", "train")):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f'{where} = "{name}": the package {package} is missing; {bring(extra)}')
    folder = Path(name.partition(":")[2])
    files = [folder / each for each in ("image.onnx", "image.toml", "text.onnx", "tokenizer.json")]
    if missing := next((path for path in files if not path.is_file()), None):
        said = "give a folder with image.onnx, image.toml, text.onnx and tokenizer.json"
        raise UsageError(f'{where} = "{name}": {missing} is not there; {said}')
    facts = _facts(folder / "preprocessing.json")
    wanted = EmbeddingInput.load(files[1])
    image, text = (onnx.load(str(path), f'{where} = "{name}"') for path in (files[0], files[2]))
    of_image = image.get_inputs()[0].name
    tokens = _tokens(files[3], facts, text)
    parts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    digest = hashlib.sha256(json.dumps([*parts, facts, onnx.version()]).encode()).hexdigest()

    def images(prepared: Sequence[Any]) -> Floats:
        outputs = [wanted.output_name] if wanted.output_name else None
        return _normal(image.run(outputs, {of_image: np.concatenate(prepared)})[0])

    return DualModel(
        name,
        digest,
        0,
        lambda pixels: prepare(pixels, wanted),
        images,
        lambda texts: _normal(text.run(None, tokens(texts))[0]),
    )


def _facts(path: Path) -> dict[str, int]:
    try:
        said = json.loads(path.read_bytes()) if path.is_file() else {}
        return {name: int(said.get(name, other)) for name, other in (("tokens_at_most", 77), ("padding", 0))}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: no preprocessing of texts ({error}); give tokens_at_most and padding") from None


def _tokens(path: Path, facts: dict[str, int], session: Any) -> Callable[[list[str]], dict[str, Any]]:
    """From texts to what the graph takes: numbers of tokens, and a mask where it has a second input."""
    tokenizers: Any = importlib.import_module("tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise UsageError(f"{path}: no tokenizer ({error!s:.120})") from None
    tokenizer.no_padding()
    tokenizer.enable_truncation(facts["tokens_at_most"])
    first, *others = session.get_inputs()
    length = first.shape[1] if len(first.shape) > 1 and isinstance(first.shape[1], int) else 0
    kinds = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}

    def tokens(texts: list[str]) -> dict[str, Any]:
        found = [of.ids for of in tokenizer.encode_batch(texts)]
        width = length or max(1, *map(len, found))
        table, mask = np.full((len(found), width), facts["padding"], np.int64), np.zeros((len(found), width), np.int64)
        for row, ids in enumerate(found):
            table[row, : len(ids)], mask[row, : len(ids)] = ids[:width], 1
        given = {first.name: table.astype(kinds.get(first.type, np.int64))}
        return given | {of.name: mask.astype(kinds.get(of.type, np.int64)) for of in others[:1]}

    return tokens


def _normal(found: Any) -> Floats:
    numbers = np.asarray(found, np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        return numbers / np.linalg.norm(numbers, axis=-1, keepdims=True)
