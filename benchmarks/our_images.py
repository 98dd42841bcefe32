"""Archive to verdict, ours: what the fetch stage does with each image, in one thread.

Reading and SHA-256 are included. Prints one line of JSON.

    python -m benchmarks.our_images FOLDER_OR_TAR [--passes 1]

`refused` counts what gets a reason, by the folder of the image's name: how much damage is noticed.
"""

import argparse
import json
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

from altalign.curation import CurateConfig, ImageSettings, InputSettings
from altalign.pipelines.files.ranges import Range, Ranges
from altalign.pipelines.images.measuring import hooks_of, measure, verdicts
from altalign.reasons import reasons_of
from benchmarks.image_members import places


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--passes", type=int, default=1, help="times over all images")
    arguments = parser.parse_args()
    judge(arguments.path, images_at_most=1)  # plug-ins and codecs load on first use
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(arguments.passes):
        groups, reasons = judge(arguments.path)
    cpu, wall, images = time.process_time() - cpu, time.perf_counter() - wall, len(groups) * arguments.passes
    refused = Counter(group for group, reason in zip(groups, reasons, strict=True) if reason)
    figures = {
        "images": images,
        "cpu_s": cpu,
        "wall_s": wall,
        "images_per_cpu_s": images / cpu,
        "refused": refused,
        "reasons": Counter(filter(None, reasons)),
    }
    print(json.dumps(figures))
    return 0


def judge(path: Path, images_at_most: int | None = None) -> tuple[list[str], list[str | None]]:
    """Group and reason of each image."""
    config = ImageSettings()
    hooks = hooks_of(CurateConfig(input=[InputSettings(paths=[str(path)])]))
    found = list(islice(places(path), images_at_most))
    with Ranges([Range(place.path, place.offset, place.length) for place in found]) as ranges:
        measured = [measure(ranges.read(wanted), url=None, config=config, hooks=hooks) for wanted in ranges]
    return [place.group for place in found], reasons_of(verdicts(measured, config))[0].to_pylist()


if __name__ == "__main__":
    sys.exit(main())
