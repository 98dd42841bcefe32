"""The hashes phash and dhash of the package imagehash, of the images that `our_descriptors` described.

Prints one line of JSON.

    python -m benchmarks.peer_descriptors FOLDER NAME=FILE=COPIED …

For each NAME, FOLDER/NAME-imagehash.npz gets `phash`, `dhash` (n, 64) and `phash_copies`, `dhash_copies` (COPIED, 28,
64), +1 and -1, by the places in FOLDER/NAME.npz. Needs imagehash in an environment of its own, and of ours what makes
the copies, which needs NumPy and Pillow alone.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import imagehash  # pyright: ignore[reportMissingImports] (in its own environment)
import numpy as np
import numpy.typing as npt
from PIL import Image

from altalign.dedup.copies import TRANSFORMS, copies_of
from benchmarks.descriptor_images import gray, read

HASHES: dict[str, Callable[[Image.Image], Any]] = {"phash": imagehash.phash, "dhash": imagehash.dhash}


def main() -> int:
    """Hash and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    seconds, hashed = dict.fromkeys(HASHES, 0.0), 0
    for file in arguments.files:
        name, path, copied = file.split("=")
        images = read(Path(path))
        places = np.load(arguments.folder / f"{name}.npz")["place"]
        originals = bits((images.pixels(place) for place in places), seconds)
        copies = bits((copy for place in places[: int(copied)] for _, copy in copies_of(images.pixels(place))), seconds)
        hashed += len(places) + int(copied) * len(TRANSFORMS)
        arrays = {
            f"{hash_name}_copies": rows.reshape(int(copied), len(TRANSFORMS), -1) for hash_name, rows in copies.items()
        }
        np.savez(arguments.folder / f"{name}-imagehash.npz", **originals, **arrays)
    print(json.dumps({f"{name}_us": total / hashed * 1e6 for name, total in seconds.items()}))
    return 0


def bits(pixels: Iterable[npt.NDArray[np.uint8]], seconds: dict[str, float]) -> dict[str, npt.NDArray[np.int16]]:
    """The bits of each hash as +1 and -1, one row an image; adds the CPU time of each to `seconds`."""
    rows: dict[str, list[npt.NDArray[np.bool_]]] = {name: [] for name in HASHES}
    for image in (Image.fromarray(gray(one)) for one in pixels):
        for name, function in HASHES.items():
            begin = time.process_time()
            rows[name].append(function(image).hash.ravel())
            seconds[name] += time.process_time() - begin
    return {name: np.where(np.stack(found), 1, -1).astype(np.int16) for name, found in rows.items()}


if __name__ == "__main__":
    sys.exit(main())
