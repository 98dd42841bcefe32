"""Archive to verdict, img2dataset's resizer: reading and SHA-256 included, in one thread. Prints one line of JSON.

    python -m benchmarks.peer_images FOLDER_OR_TAR [--way no|skip_reencode|keep_ratio] [--passes 1]

Needs img2dataset in an environment of its own (it wants opencv below 5, webdataset below 0.3, albumentations below 2)
and nothing of ours but `image_members`. One thread, for its resizer redirects standard output and error of the whole
process for the time of each image. `no` is its default without resizing, which encodes every image anew;
`skip_reencode` keeps the bytes of JPEGs, as we do.
"""

import argparse
import hashlib
import io
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.image_members import places

WAYS: dict[str, dict[str, Any]] = {
    "no": {"resize_mode": "no"},
    "skip_reencode": {"resize_mode": "no", "skip_reencode": True},
    "keep_ratio": {"resize_mode": "keep_ratio", "image_size": 346},
}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--way", choices=list(WAYS), default="no")
    parser.add_argument("--passes", type=int, default=1, help="times over all images")
    arguments = parser.parse_args()
    resize = resizer(arguments.way)
    judge(arguments.path, resize, images_at_most=1)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(arguments.passes):
        groups, errors = judge(arguments.path, resize)
    cpu, wall, images = time.process_time() - cpu, time.perf_counter() - wall, len(groups) * arguments.passes
    refused = Counter(group for group, error in zip(groups, errors, strict=True) if error)
    figures = {
        "images": images,
        "cpu_s": cpu,
        "wall_s": wall,
        "images_per_cpu_s": images / cpu,
        "refused": refused,
        "reasons": Counter(filter(None, errors)),
    }
    print(json.dumps(figures))
    return 0


def resizer(way: str) -> Any:
    """Its resizer, with ALIGN's limits of size and shape and ours of pixels."""
    from img2dataset.resizer import Resizer  # pyright: ignore[reportMissingImports] (in its own environment)

    limits = {"min_image_size": 201, "max_aspect_ratio": 3.0, "max_image_area": 178_956_970}
    return Resizer(**{"image_size": 256, "resize_only_if_bigger": True, **limits, **WAYS[way]})


def judge(path: Path, resize: Any, images_at_most: int | None = None) -> tuple[list[str], list[str | None]]:
    """Group and error of each image."""
    groups: list[str] = []
    errors: list[str | None] = []
    hashes: list[str] = []
    for place in places(path):
        with Path(place.path).open("rb") as file:
            file.seek(place.offset)
            data = file.read(place.length)
        hashes.append(hashlib.sha256(data).hexdigest())
        errors.append(resize(io.BytesIO(data))[-1])
        groups.append(place.group)
        if len(groups) == images_at_most:
            break
    return groups, errors


if __name__ == "__main__":
    sys.exit(main())
