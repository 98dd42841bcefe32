"""Archive to verdict, ours: what the fetch stage does with each image, in one thread.

Reading and SHA-256 are included. Prints one line of JSON.

    python -m benchmarks.our_images TAR [--repeat 1]

`refused` counts what gets a reason, by the folder of the image's name: how much damage is noticed.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from altalign.data.reasons import ask, reasons_of
from altalign.filters import image
from altalign.pipelines.images.measuring import columns, hooks_of, measure
from altalign.settings.curate import CurateConfig, InputSettings
from altalign.storage.ranges import Range, Ranges
from benchmarks import timed
from benchmarks.image_members import places


def judge(tars: list[Path]) -> timed.Counts:
    """Images, and those that get a reason."""
    config = CurateConfig(input=[InputSettings(paths=[str(tar) for tar in tars])])
    hooks = hooks_of(config)
    images = [place for tar in tars for place in places(tar)]
    with Ranges([Range(place.path, place.offset, place.length) for place in images]) as ranges:
        measured = [measure(ranges.read(place), url=None, config=config.image, hooks=hooks) for place in ranges]
    verdict: Any = reasons_of(ask(image.RULES, columns(measured), config))[0]
    refused = Counter(place.group for place, reason in zip(images, verdict.to_pylist(), strict=True) if reason)
    return {"images": len(images), "refused": refused}


if __name__ == "__main__":
    sys.exit(timed.main(__doc__, judge, counted="images"))
