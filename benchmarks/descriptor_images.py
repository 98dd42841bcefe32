"""Images that descriptors are compared on, those to learn from, and those that are copied.

Ours and the peer read the same Parquet file.

NumPy, pyarrow and Pillow alone: the peer runs in an environment of its own.
"""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from PIL import Image


@dataclass(frozen=True)
class Images:
    """Files of images, no bytes twice, in the order of their SHA-256.

    So the first few of them are a sample by content.
    """

    files: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.files)

    def pixels(self, place: int) -> npt.NDArray[np.uint8]:
        """Decoded, RGB, uint8[height, width, 3]."""
        return np.asarray(Image.open(io.BytesIO(self.files[place])).convert("RGB"))


def read(path: Path) -> Images:
    """The distinct images of a file with the column `image_bytes`."""
    by_digest = {
        hashlib.sha256(data).digest(): data
        for data in pq.read_table(path, columns=["image_bytes"])["image_bytes"].to_pylist()
    }
    return Images([by_digest[digest] for digest in sorted(by_digest)])


def gray(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Luma of RGB pixels."""
    return np.asarray(Image.fromarray(pixels).convert("L"))
