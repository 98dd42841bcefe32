"""Archive to verdict, img2dataset's resizer: reading and SHA-256 included, in one thread. Prints one line of JSON.

    python -m benchmarks.peer_images WAY TAR [--repeat 1]

Needs img2dataset in an environment of its own (it wants opencv below 5, webdataset below 0.3, albumentations below 2)
and nothing of ours but `timed`. One thread, for its resizer redirects standard output and error of
the whole process for the time of each image. `no` is its default without resizing, which encodes every image anew;
`skip_reencode` keeps the bytes of JPEGs, as we do.
"""

import hashlib
import io
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import timed

WAYS: dict[str, dict[str, Any]] = {"no": {}, "skip_reencode": {"skip_reencode": True}}


def resizer(way: str) -> Any:
    """Its resizer, with ALIGN's limits of size and shape and ours of pixels."""
    from img2dataset.resizer import Resizer  # pyright: ignore[reportMissingImports] (in its own environment)

    limits = {"min_image_size": 201, "max_aspect_ratio": 3.0, "max_image_area": 178_956_970}
    return Resizer(image_size=256, resize_only_if_bigger=True, resize_mode="no", **limits, **WAYS[way])


def judge(resize: Any, tars: list[Path]) -> timed.Counts:
    """Images, and those that it gives an error."""
    refused, images = Counter[str](), 0
    for tar in tars:
        for place in timed.places(tar):
            with Path(place.path).open("rb") as file:
                file.seek(place.offset)
                data = file.read(place.length)
            hashlib.sha256(data).hexdigest()
            refused[place.group] += resize(io.BytesIO(data))[-1] is not None
            images += 1
    return {"images": images, "refused": refused}


if __name__ == "__main__":
    resize = resizer(sys.argv.pop(1))
    sys.exit(timed.main(__doc__, partial(judge, resize), counted="images"))
