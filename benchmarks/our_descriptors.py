"""The descriptors dct and phash of the images of Parquet files and of copies of some of them. Prints one line of JSON.

    python -m benchmarks.our_descriptors FOLDER NAME=FILE=LEARNED=COPIED …

Of each file's images that are not flat the first LEARNED are what the map is learned from, of all files together, and
the next COPIED are copied. For each NAME, FOLDER/NAME.npz gets `place` (of each image that is not for learning),
`thumbnail`, and a pair of arrays a descriptor: `dct`, `phash` (n, d) of these images and `dct_copies`, `phash_copies`
(COPIED, 28, d) of copies of the first COPIED of them; zeros where there is no embedding.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from altalign.dedup.copies import TRANSFORMS, copies_of
from altalign.dedup.embed import Map, dct_coefficients, learn_map
from altalign.dedup.phash import lanczos_thumbnail, phash
from altalign.filters.thumbnails import thumbnail
from benchmarks.descriptor_images import Images, gray, read


class Part(NamedTuple):
    """A file's images, and the place of each that is not flat, learned from or not."""

    name: str
    images: Images
    thumbnails: np.ndarray
    places: np.ndarray
    learned: int
    copied: int


def main() -> int:
    """Learn, describe, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    parts = [part(*file.split("=")) for file in arguments.files]
    begin = time.process_time()
    learned = training(parts)
    figures = {"learn_s": time.process_time() - begin}
    for each in parts:
        describe(each, learned, arguments.folder)
    print(json.dumps(figures | microseconds(parts[0], learned)))
    return 0


def part(name: str, path: str, learned: str, copied: str) -> Part:
    """The images of a file."""
    images = read(Path(path))
    thumbnails = np.stack([thumbnail(gray(images.pixels(place))) for place in range(len(images))])
    return Part(name, images, thumbnails, np.flatnonzero(~dct_coefficients(thumbnails)[1]), int(learned), int(copied))


def training(parts: list[Part]) -> Map:
    """The map that is learned from the first images of all parts."""
    originals = np.concatenate([each.thumbnails[each.places[: each.learned]] for each in parts])
    copies = [
        thumbnail(gray(copy))
        for each in parts
        for place in each.places[: each.learned]
        for _, copy in copies_of(each.images.pixels(place))
    ]
    coefficients, is_flat = dct_coefficients(np.stack(copies))
    copy_of = np.repeat(np.arange(len(originals)), len(TRANSFORMS))
    return learn_map(dct_coefficients(originals)[0], coefficients[~is_flat], copy_of[~is_flat])


def describe(each: Part, learned: Map, folder: Path) -> None:
    """Write a part's arrays."""
    places = each.places[each.learned :]
    copies = (gray(copy) for place in places[: each.copied] for _, copy in copies_of(each.images.pixels(place)))
    box, lanczos = (
        np.stack(made) for made in zip(*((thumbnail(copy), lanczos_thumbnail(copy)) for copy in copies), strict=True)
    )
    shape = (each.copied, len(TRANSFORMS), -1)
    np.savez(
        folder / f"{each.name}.npz",
        place=places,
        thumbnail=each.thumbnails[places],
        dct=embedded(each.thumbnails[places], learned),
        dct_copies=embedded(box, learned).reshape(shape),
        phash=phash(np.stack([lanczos_thumbnail(gray(each.images.pixels(place))) for place in places])),
        phash_copies=phash(lanczos).reshape(shape),
    )


def embedded(thumbnails: np.ndarray, learned: Map) -> np.ndarray:
    """Vectors, zeros for what is flat."""
    coefficients, is_flat = dct_coefficients(thumbnails)
    return np.where(is_flat[:, np.newaxis], 0, learned.embed(coefficients))


def microseconds(each: Part, learned: Map) -> dict[str, float]:
    """CPU time of a descriptor an image, from gray pixels on."""
    pixels = [gray(each.images.pixels(place)) for place in each.places[:500]]
    figures = {}
    for name, run in {
        "dct_us": lambda: embedded(np.stack([thumbnail(one) for one in pixels]), learned),
        "phash_us": lambda: phash(np.stack([lanczos_thumbnail(one) for one in pixels])),
    }.items():
        begin = time.process_time()
        run()
        figures[name] = (time.process_time() - begin) / len(pixels) * 1e6
    return figures


if __name__ == "__main__":
    sys.exit(main())
