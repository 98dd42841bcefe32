"""Images as training sees them, in one thread: decoded in full, or scaled in the DCT. Prints one line of JSON.

python -m benchmarks.our_pixels FILE.parquet --area 0.6 --scaled

The column `image_bytes` has the images, of which JPEGs are taken. `levels` is how far pixels are from those of a full
decode, in the mean, of 255.
"""

import argparse
import json
import statistics
import sys
import time
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import torch

from altalign.train.data.augment import training_pixels

PASSES = 3
_JPEG = b"\xff\xd8\xff"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos")
    parser.add_argument("--area", type=float, default=0.0)
    parser.add_argument("--scaled", action="store_true")
    parser.add_argument("--images", type=int, default=100, help="at most")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    column: list[Any] = pq.read_table(arguments.photos, columns=["image_bytes"])["image_bytes"].to_pylist()
    photos = [data for data in column if data.startswith(_JPEG)][: arguments.images]
    draw = partial(training_pixels, resize_px=346, crop_px=289, flip=True, seed=0, key="0" * 32)
    of = {"crop_area_at_least": arguments.area}
    whole = [draw(data, epoch=0, **of).int() for data in photos]
    drawn = [draw(data, epoch=0, scaled_decoding=arguments.scaled, **of).int() for data in photos]
    apart = [(one - other).abs().float().mean().item() for one, other in zip(drawn, whole, strict=True)]
    cpu = time.process_time()
    for epoch in range(PASSES):
        for data in photos:
            draw(data, epoch=epoch, scaled_decoding=arguments.scaled, **of)
    cpu = time.process_time() - cpu
    ms = cpu / PASSES / len(photos) * 1e3
    figures = {"images": len(photos), "ms_per_image": ms, "levels": statistics.mean(apart)}
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
