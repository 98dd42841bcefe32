"""Test sets that are published as arrays, as one Parquet file of PNGs, which `[decontaminate] test_sets` takes.

    python convert_test_sets.py FORMAT FILE OUT.parquet

Formats: cifar, svhn (takes scipy), mnist, small-norb (the first image of each pair), dsprites, patch-camelyon (takes
h5py). CIFAR's file is a pickle, which runs code: take it from its authors alone.
"""

import gzip
import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ROWS_PER_GROUP = 1000


def _svhn(path: str) -> np.ndarray:
    import scipy.io

    return scipy.io.loadmat(path)["X"].transpose(3, 0, 1, 2)


def _patch_camelyon(path: str) -> np.ndarray:
    import h5py

    return h5py.File(path)["x"]


def _idx(path: str, offset: int, *shape: int) -> np.ndarray:
    return np.frombuffer(gzip.open(path).read(), np.uint8, offset=offset).reshape(-1, *shape)


def _cifar(path: str) -> np.ndarray:
    images = pickle.loads(Path(path).read_bytes(), encoding="bytes")[b"data"]
    return images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


FORMATS: dict[str, Callable[[str], np.ndarray]] = {
    "cifar": _cifar,
    "svhn": _svhn,
    "mnist": lambda path: _idx(path, 16, 28, 28),
    "small-norb": lambda path: _idx(path, 24, 2, 96, 96)[:, 0],
    "dsprites": lambda path: np.load(path)["imgs"] * np.uint8(255),  # pixels are 0 and 1
    "patch-camelyon": _patch_camelyon,
}


def _png(array: np.ndarray) -> bytes:
    """An image, uint8 of shape (height, width) or (height, width, 3)."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(file, "PNG")
    return file.getvalue()


def main(words: list[str]) -> None:
    """Convert, or say how."""
    if len(words) != 3 or words[0] not in FORMATS:
        sys.exit(__doc__)
    kind, source, out = words
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    rows = pa.table({"image": [_png(array) for array in FORMATS[kind](source)]})
    pq.write_table(rows, out, row_group_size=ROWS_PER_GROUP)


if __name__ == "__main__":
    main(sys.argv[1:])
