"""Images a second as `[data] decode_on` has them: JPEGs decoded, resized and cropped by a GPU, and by one worker.

    python3 -m benchmarks.gpu_decoding [--short-sides 346 1024] [--images 512] [--rounds 5] [--device cuda]

Images are generated photographs, 4:3, of the short sides that are asked for: 346 px is what shards are advised to have.
Prints a line for each; `--device cpu` tries it out. Needs torch and torchcodec, and neither uv nor a network.
"""

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from altalign.train.data import as_trained
from altalign.train.data.on_device import Decoder
from altalign.train.settings import DataSettings

KEY = "0" * 32
ALONE = 64  # images that a worker decodes in a round
QUALITY = 90


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short-sides", type=int, nargs="+", default=[346, 1024], help="in pixels")
    parser.add_argument("--images", type=int, default=512, help="decoded by one call")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write(f"torch {torch.__version__} sees no GPU here; `--device cpu` tries this out\n")
        return 1
    torch.set_num_threads(1)
    by_device, by_worker = DataSettings(decode_on="device"), DataSettings()
    decoder = Decoder(torch.device(arguments.device), by_device.crop_px)
    for side in arguments.short_sides:
        images = [photograph(number, side) for number in range(min(arguments.images, 32))]
        images = (images * -(-arguments.images // len(images)))[: arguments.images]
        found = {
            "device": rate(decoder.pixels, made(by_device, images), arguments.rounds),
            "a worker beside it": rate(partial(made, by_device), images, arguments.rounds),
            "a worker alone": rate(partial(made, by_worker), images[:ALONE], arguments.rounds),
        }
        shown = ", ".join(f"{name} {value:,.0f} images/s" for name, value in found.items())
        print(f"{side} px, {statistics.mean(map(len, images)) / 1e3:.0f} kB: {shown}", flush=True)
    return 0


def made(settings: DataSettings, images: list[bytes]) -> list[Any]:
    """What a worker makes of images."""
    return [as_trained.image(data, settings, seed=0, epoch=0, key=KEY) for data in images]


def photograph(number: int, short_side_px: int) -> bytes:
    """A JPEG, 4:3, smooth with some noise, as a photograph is."""
    rng = np.random.default_rng(number)
    size = short_side_px * 4 // 3, short_side_px
    smooth = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    noisy = np.asarray(smooth, np.int16) + rng.integers(-8, 9, (size[1], size[0], 3), dtype=np.int16)
    data = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(data, "JPEG", quality=QUALITY)
    return data.getvalue()


def rate(work: Callable[[list[Any]], object], of: list[Any], rounds: int) -> float:
    """Things a second, the median of some rounds after one that warms up."""
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        work(of)
        seconds.append(time.perf_counter() - began)
    return len(of) / statistics.median(seconds[1:])


if __name__ == "__main__":
    sys.exit(main())
