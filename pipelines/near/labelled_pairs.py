"""Pairs of images that people labelled, and what a calibration makes of them.

Two Parquet files: one of pairs (`image_a`, `image_b`, `relation`, and perhaps `how`), one of images (`image`,
`image_bytes`). A relation of `exact` or `near` means a near-duplicate; any other means that they are two images.
"""

from typing import NamedTuple

import numpy as np

from altalign import storage
from altalign.dedup.thresholds import Buckets, Share, of_best_view, recall_and_precision, recall_by_transform
from altalign.errors import UsageError
from altalign.machine import interrupts
from altalign.pipelines.images import measuring
from altalign.pipelines.images.calibration_files import Calibration
from altalign.settings.curate import CurateConfig
from altalign.storage import parquet

NEAR = ("exact", "near")
PAIR_COLUMNS, IMAGE_COLUMNS, HOW = ("image_a", "image_b", "relation"), ("image", "image_bytes"), "how"


class Labelled(NamedTuple):
    """What was measured on labelled pairs."""

    recall: Share
    precision: Share
    by_how: dict[str, Share]  # of near-duplicates, by what was done to them
    left_out: int  # pairs with an image that cannot be decoded


def check(pairs: str, of_images: str) -> None:
    """Refuse files that hold no labelled pairs.

    Raises:
        UsageError: a file is not there, or has not the columns.
        UnreadableError: a file is no Parquet.
    """
    for option, path, columns in (("--pairs", pairs, PAIR_COLUMNS), ("--images", of_images, IMAGE_COLUMNS)):
        if not storage.exists(path):
            raise UsageError(
                f"{option} {path}: no such file; give a Parquet file with the columns {', '.join(columns)}"
            )
        with parquet.reading(path) as file:
            names = file.schema_arrow.names
        for name in columns:
            if name not in names:
                raise UsageError(
                    f'{option} {path}: no column "{name}" (there are {", ".join(names[:10])}); it needs '
                    f"{', '.join(columns)}"
                )


def measure(pairs: str, of_images: str, config: CurateConfig, calibration: Calibration, buckets: Buckets) -> Labelled:
    """Recall and precision on labelled pairs, with the mirrored view where the settings ask for it.

    Raises:
        UsageError: a pair names an image that is not there.
        UnreadableError: a file is broken.
    """
    rows = [row for batch in parquet.read_whole(pairs, _columns(pairs)) for row in batch.to_pylist()]
    vectors = _vectors(of_images, config, calibration)
    for row in rows:
        for name in (row["image_a"], row["image_b"]):
            if name not in vectors:
                raise UsageError(f'--pairs {pairs}: image "{name}" is not in {of_images}; give the file that has it')
    known = [
        (row, a, b)
        for row in rows
        if (a := vectors[row["image_a"]]) is not None and (b := vectors[row["image_b"]]) is not None
    ]
    if not known:
        return Labelled(Share(0, 0), Share(0, 0), {}, len(rows))
    views = range(1 + config.decontaminate.mirrored)
    cosines, _ = of_best_view(
        np.stack([a[0] for _, a, _ in known]), [np.stack([b[view] for _, _, b in known]) for view in views], buckets
    )
    is_near = np.array([row["relation"] in NEAR for row, _, _ in known])
    recall, precision = recall_and_precision(cosines, is_near, similarity_above=calibration.similarity_above)
    how = [str(row.get(HOW) or row["relation"]) for row, _, _ in known]
    near = np.flatnonzero(is_near)
    by_how = recall_by_transform([how[i] for i in near], cosines[near], similarity_above=calibration.similarity_above)
    return Labelled(recall, precision, by_how, len(rows) - len(known))


def _columns(pairs: str) -> list[str]:
    with parquet.reading(pairs) as file:
        return [*PAIR_COLUMNS, *({HOW} & set(file.schema_arrow.names))]


def _vectors(path: str, config: CurateConfig, calibration: Calibration) -> dict[object, np.ndarray | None]:
    """Vectors of each image and its mirror image by name, int16[2, d].

    They are zeros where the image is flat, and None where it cannot be decoded.
    """
    hooks = measuring.hooks_of(config)
    vectors: dict[object, np.ndarray | None] = {}
    for batch in parquet.read_whole(path, IMAGE_COLUMNS):
        for row in batch.to_pylist():
            interrupts.check()
            decoded = measuring.decoded(
                row["image_bytes"] or b"", name=str(row["image"]), config=config.image, hooks=hooks
            ).pixels
            if decoded is None:
                vectors[row["image"]] = None
                continue
            views = [hooks.embedder.features(view) for view in (decoded, decoded[:, ::-1])]
            nothing = np.zeros((1, calibration.dimensions), np.int16)
            vectors[row["image"]] = np.concatenate(
                [nothing if view is None else calibration.vectors(view[np.newaxis]) for view in views]
            )
    return vectors
