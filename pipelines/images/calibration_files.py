"""What decides which images are near: map, centroids and threshold, as a folder of files.

A run that learns them writes them to `audit/near_duplicates/`, `altalign calibrate` to a folder of its own. All is in
whole numbers: given the files, every machine finds the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from altalign import storage
from altalign.dedup import embed
from altalign.dedup.dot_products import squared_norms
from altalign.errors import UnreadableError, UsageError
from altalign.storage import arrays

if TYPE_CHECKING:
    from altalign.pipelines.images.embedders import Embedder

VERSION = 1
FILE, MEAN, MATRIX, CENTROIDS = "calibration.json", "map_mean.npy", "map_matrix.npy", "centroids.npy"


@dataclass(frozen=True, eq=False)
class Calibration:
    """What makes vectors of features, where their clusters are, and which cosine is a near-duplicate's."""

    embedder: str  # as the setting names it
    similarity_above: float  # a cosine
    map: embed.Map | None  # for `dct`; None: features are vectors
    centroids: np.ndarray  # int16[clusters, d]

    def vectors(self, features: np.ndarray) -> np.ndarray:
        """int16[n, d] of features of images that are not flat."""
        return self.map.embed(features) if self.map else features

    def vectors_or_zeros(self, features: np.ndarray) -> np.ndarray:
        """int16[n, d] of features of any images; zeros where these are, as a flat image has them."""
        has_features = features.any(axis=1)
        vectors = np.zeros((len(features), self.dimensions), np.int16)
        vectors[has_features] = self.vectors(features[has_features])
        return vectors

    @property
    def dimensions(self) -> int:
        """The number of dimensions of a vector."""
        return self.centroids.shape[1]


def save(folder: str, calibration: Calibration, facts: Mapping[str, object]) -> None:
    """Write a calibration; `facts` are for people and reports. The JSON comes last."""
    if calibration.map:
        arrays.save(storage.join(folder, MEAN), calibration.map.mean)
        arrays.save(storage.join(folder, MATRIX), calibration.map.matrix)
    arrays.save(storage.join(folder, CENTROIDS), calibration.centroids)
    head = {
        "version": VERSION,
        "embedder": calibration.embedder,
        "similarity_above": calibration.similarity_above,
        "is_mapped": calibration.map is not None,
        **facts,
    }
    storage.write_json(storage.join(folder, FILE), head)


def load(folder: str) -> Calibration:
    """Read a calibration."""
    path = storage.join(folder, FILE)
    head = storage.read_json(path)
    if head.get("version") != VERSION or not {"embedder", "similarity_above", "is_mapped"} <= head.keys():
        raise UnreadableError(f"{path}: no calibration of this version of altalign")
    above = head["similarity_above"]
    if not isinstance(above, (int, float)) or not 0 <= above <= 1:
        raise UnreadableError(f"{path}: similarity_above = {above!r}, which is no cosine from 0 to 1")
    mean, matrix, clusters = (storage.join(folder, name) for name in (MEAN, MATRIX, CENTROIDS))
    try:
        mapped, centroids = None, arrays.read(clusters)
        if head["is_mapped"]:
            mapped = embed.Map(arrays.read(mean), arrays.read(matrix))
        dimensions = mapped.dimensions if mapped else centroids.shape[-1]
        if centroids.dtype != np.int16 or centroids.shape[1:] != (dimensions,) or not len(centroids):
            raise ValueError(f"no centroids: {centroids.dtype} of shape {centroids.shape}")
        squared_norms(centroids)
    except ValueError as error:
        raise UnreadableError(f"{folder}: its map or its centroids are none: {error}") from error
    return Calibration(head["embedder"], float(above), mapped, centroids)


def named(folder: str, embedder: "Embedder") -> Calibration:
    """The calibration that `[decontaminate] calibration` names, for the embedder of the settings."""
    where = f"[decontaminate] calibration = {folder!r}"
    if not storage.exists(storage.join(folder, FILE)):
        repair = "give a folder that `altalign calibrate` wrote, relative to the working directory"
        raise UsageError(f"{where}: no {FILE} is there; {repair}")
    try:
        calibration = load(folder)
    except (UnreadableError, OSError) as error:
        raise UsageError(f"{where}: cannot be used: {error}") from error
    if calibration.embedder != embedder.name:
        what = f'made with embedder = "{calibration.embedder}", here it is "{embedder.name}"'
        raise UsageError(f"{where}: {what}; calibrate anew, or set that one")
    has_dimensions = embedder.is_mapped or calibration.dimensions == embedder.dimensions
    if (calibration.map is not None) != embedder.is_mapped or not has_dimensions:
        raise UsageError(f'{where}: cannot be used: its files do not fit embedder = "{embedder.name}"; calibrate anew')
    return calibration


def files_of(folder: str) -> list[str]:
    """The files that a calibration may have."""
    return [storage.join(folder, name) for name in (FILE, MEAN, MATRIX, CENTROIDS)] if folder else []
