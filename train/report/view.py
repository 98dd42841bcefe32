"""Embeddings of images and captions in two dimensions, by source (ZeroVL, figure 3)."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from altalign.train.data.augment import UndecodableError
from altalign.train.data.samples import Samples
from altalign.train.encoders import Encoders

PAIRS = 600  # of all sources together: more dots hide each other
SOURCES_AT_MOST = 8
_BATCH = 64  # images that are encoded at a time
_NEIGHBOURS = 15  # UMAP's own default

Places = npt.NDArray[np.float64]


@dataclass(frozen=True)
class View:
    """Places (n, 2) of images and of their captions, from 0 to 1, and the source of each pair."""

    method: str
    images: Places
    texts: Places
    sources: list[str]


def chosen(sources: Mapping[str, int]) -> dict[str, range]:
    """The first pairs of the largest sources, as many of each: numbers of `Samples`. Their order is that of hashes."""
    first, numbers = 0, {}
    for name, pairs in sources.items():
        numbers[name] = range(first, first + pairs)
        first += pairs
    largest = sorted((name for name in sources if sources[name]), key=lambda name: (-sources[name], name))
    names = sorted(largest[:SOURCES_AT_MOST])
    return {name: numbers[name][: PAIRS // len(names)] for name in names}


def of_sources(samples: Samples, encoders: Encoders) -> View | None:
    """The view of some pairs of each source; None where there are fewer than three. A collective: all ranks call it."""
    images, texts, sources = [], [], []
    for name, numbers in chosen(samples.sources).items():
        for first in range(0, len(numbers), _BATCH):
            part = np.array(numbers[first : first + _BATCH], np.int64)
            pixels, captions = _decoded(samples, encoders, part)
            if captions:
                images.append(_array(encoders.encode_image(torch.stack(pixels))))
                texts.append(_array(encoders.encode_text(captions)))
                sources += [name] * len(captions)
    if len(sources) < 3:
        return None
    method, both = projected(np.concatenate([_around_mean(images), _around_mean(texts)]))
    return View(method, scaled(both[: len(sources)]), scaled(both[len(sources) :]), sources)


def _decoded(
    samples: Samples, encoders: Encoders, numbers: npt.NDArray[np.int64]
) -> tuple[list[torch.Tensor], list[str]]:
    pixels, captions = [], []
    for image, caption in samples.read(samples.pairs(numbers)):
        try:
            pixels.append(encoders.decode(image))
        except UndecodableError:  # training has named it
            continue
        captions.append(caption)
    return pixels, captions


def _around_mean(parts: list[Places]) -> Places:
    """All rows less their mean: where images lie apart from captions says nothing of sources."""
    whole = np.concatenate(parts)
    return whole - whole.mean(axis=0)


def _array(embeddings: torch.Tensor) -> Places:
    return embeddings.detach().double().cpu().numpy()


def projected(embeddings: Places) -> tuple[str, Places]:
    """The name of the method, and embeddings (n, d) as places (n, 2).

    It is UMAP where that is installed, or else the two directions of the largest variance.
    """
    if find_spec("umap") and len(embeddings) > _NEIGHBOURS:
        import umap  # pyright: ignore[reportMissingImports]  # no dependency of ours

        reducer: Any = umap.UMAP(n_neighbors=_NEIGHBOURS, metric="cosine", random_state=0, n_jobs=1)
        return "UMAP", np.asarray(reducer.fit_transform(embeddings), np.float64)
    return "PCA", principal(embeddings)


def principal(embeddings: Places) -> Places:
    """Coordinates (n, 2) along the two directions of the largest variance, whose largest entries are above 0."""
    centred = embeddings - embeddings.mean(axis=0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    is_turned = directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)] < 0
    found = centred @ np.where(is_turned[:, None], -directions, directions).T
    return np.pad(found, ((0, 0), (0, 2 - found.shape[1])))


def scaled(places: Places) -> Places:
    """Places moved and scaled into the unit square, both directions alike."""
    least, span = places.min(axis=0), np.ptp(places, axis=0)
    return (places - least - span / 2) / (span.max() or 1.0) + 0.5
