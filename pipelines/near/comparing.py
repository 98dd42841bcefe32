"""What a calibration compares: images of the pool with test images, below any threshold; and labelled pairs.

Labelled pairs are two Parquet files: one of pairs (`image_a`, `image_b`, `relation`, and perhaps `how`), one of images
(`image`, `image_bytes`). A relation of `exact` or `near` means a near-duplicate; any other means that they are two
images.
"""

from collections.abc import Iterator

import numpy as np

from altalign import storage
from altalign.dedup.near_duplicates import Pairs, TestSide, find_pairs
from altalign.dedup.thresholds import (
    SEARCHED_ABOVE,
    Comparisons,
    Share,
    nearest_to,
    of_best_view,
    recall_by_transform,
)
from altalign.errors import UsageError
from altalign.machine import interrupts
from altalign.machine.threads import in_threads
from altalign.pipelines.images import measuring
from altalign.pipelines.images.calibration_files import Calibration
from altalign.settings.curate import CurateConfig
from altalign.storage import parquet

NEAR = ("exact", "near")
PAIR_COLUMNS, IMAGE_COLUMNS, HOW = ("image_a", "image_b", "relation"), ("image", "image_bytes"), "how"

# so that what is found above a low cosine fits in memory
_COMPARISONS_AT_A_TIME, _ROWS_AT_LEAST, _ROWS_AT_MOST = 4_000_000, 64, 1_000


class Search:
    """The pool against test images; pairs of the same bytes are left out of all that comes."""

    def __init__(
        self, vectors: np.ndarray, sha256: np.ndarray, tests: np.ndarray, of_tests: np.ndarray, threads: int
    ) -> None:
        """Vectors (int16[n, d]) and SHA-256 of bytes (S64[n]) of the pool and of test images; how many threads work."""
        self._vectors, self._sha256, self._of_tests, self._threads = vectors, sha256, of_tests, threads
        self._side = TestSide.build(tests, above=SEARCHED_ABOVE)
        rows = min(_ROWS_AT_MOST, max(_ROWS_AT_LEAST, _COMPARISONS_AT_A_TIME // max(1, len(of_tests))))
        self._blocks = [slice(begin, begin + rows) for begin in range(0, len(vectors), rows)]

    def counted(self) -> Comparisons:
        """All pairs, counted by cosine."""

        def count(block: slice) -> Comparisons:
            pairs = self._pairs(block, above=SEARCHED_ABOVE)
            return Comparisons.from_cosines(pairs.cosines, len(self._vectors[block]) * len(self._of_tests))

        counts = in_threads(count, self._blocks, self._threads, bar=("comparing", "blocks"))
        return sum(counts, Comparisons.from_cosines(np.zeros(0), 0))

    def around(self, threshold: float, *, above: float, pairs: int) -> Pairs:
        """The `pairs` pairs nearest to a threshold among those above another, by rising cosine."""

        def nearest(every: Pairs) -> Pairs:
            return _where(every, nearest_to(threshold, every.cosines, pairs=pairs))

        parts = in_threads(lambda block: nearest(self._pairs(block, above=above)), self._blocks, self._threads)
        return nearest(Pairs(*map(np.concatenate, zip(*parts, strict=True))))

    def _pairs(self, block: slice, *, above: float) -> Pairs:
        pairs = find_pairs(self._vectors[block], self._side, above=above)
        pairs = pairs._replace(rows=pairs.rows + block.start)
        return _where(pairs, np.flatnonzero(self._sha256[pairs.rows] != self._of_tests[pairs.tests]))


def _where(pairs: Pairs, rows: np.ndarray) -> Pairs:
    return Pairs(pairs.rows[rows], pairs.tests[rows], pairs.cosines[rows])


def check_labelled(pairs: str, of_images: str) -> None:
    """Refuse files that are not there, or have not the columns, with a UsageError."""
    for option, path, columns in (("--pairs", pairs, PAIR_COLUMNS), ("--images", of_images, IMAGE_COLUMNS)):
        needs = ", ".join(columns)
        if not storage.exists(path):
            raise UsageError(f"{option} {path}: no such file; give a Parquet file with the columns {needs}")
        with parquet.reading(path) as file:
            names = file.schema_arrow.names
        if missing := [name for name in columns if name not in names]:
            known = ", ".join(names[:10])
            raise UsageError(f'{option} {path}: no column "{missing[0]}" (there are {known}); it needs {needs}')


def measure_labelled(
    pairs: str, of_images: str, config: CurateConfig, calibration: Calibration, bucket: int
) -> dict[str, object]:
    """Recall and precision on labelled pairs, for `calibration.json`; with the mirrored view where settings ask for it.

    `bucket` is how many of their nearest clusters two images must have in common.
    """
    with parquet.reading(pairs) as file:
        columns = [*PAIR_COLUMNS, *({HOW} & set(file.schema_arrow.names))]
    vectors, rows = dict(_vectors(of_images, config, calibration)), parquet.read_table(pairs, columns).to_pylist()
    for name in (row[side] for row in rows for side in ("image_a", "image_b")):
        if name not in vectors:
            raise UsageError(f'--pairs {pairs}: image "{name}" is not in {of_images}; give the file that has it')
    known = [row for row in rows if vectors[row["image_a"]] is not None and vectors[row["image_b"]] is not None]
    shape = len(known), 2, calibration.dimensions
    a, b = (np.array([vectors[row[side]] for row in known], np.int16).reshape(shape) for side in ("image_a", "image_b"))
    views = [b[:, view] for view in range(1 + config.decontaminate.mirrored)]
    cosines = of_best_view(a[:, 0], views, calibration.centroids, at_least=bucket)
    is_near = np.array([row["relation"] in NEAR for row in known], np.bool_)
    is_found, near = cosines > calibration.similarity_above, np.flatnonzero(is_near)
    how = [str(known[i].get(HOW) or known[i]["relation"]) for i in near]
    by_how = recall_by_transform(how, cosines[near], similarity_above=calibration.similarity_above)
    hits = int((is_found & is_near).sum())
    return {
        "recall": Share(hits, len(near)).to_json(),
        "precision": Share(hits, int(is_found.sum())).to_json(),
        "by_how": {name: share.to_json() for name, share in by_how.items()},
        "left_out": len(rows) - len(known),
    }


def _vectors(path: str, config: CurateConfig, calibration: Calibration) -> Iterator[tuple[object, np.ndarray | None]]:
    """Names, and vectors of the image and its mirror image, int16[2, d].

    They are zeros where the image is flat, and None where it cannot be decoded.
    """
    hooks = measuring.hooks_of(config)
    for row in (row for batch in parquet.read_whole(path, IMAGE_COLUMNS) for row in batch.to_pylist()):
        interrupts.check()
        name, data = row["image"], row["image_bytes"] or b""
        decoded = measuring.decoded(data, name=str(name), config=config.image, hooks=hooks).pixels
        if decoded is None:
            yield name, None
            continue
        both = np.zeros((2, calibration.dimensions), np.int16)
        for view, image in enumerate((decoded, decoded[:, ::-1])):
            if (features := hooks.embedder.features(image)) is not None:
                both[view] = calibration.vectors(features[np.newaxis])[0]
        yield name, both
