"""Archive to verdict, ours: what the fetch stage does with each image, in one thread.

Reading and SHA-256 are included. Prints one line of JSON.

    python -m benchmarks.our_images TAR [--repeat 1]

`refused` counts what gets a reason, by the folder of the image's name: how much damage is noticed.
"""

import sys
from collections import Counter
from pathlib import Path

from altalign.data.reasons import reasons_of
from altalign.pipelines.images.measuring import hooks_of, measure, verdicts
from altalign.settings.curate import CurateConfig, ImageSettings, InputSettings
from altalign.storage.ranges import Range, Ranges
from benchmarks import timed
from benchmarks.image_members import places


def judge(tars: list[Path]) -> timed.Counts:
    """Images, and those that get a reason."""
    config = ImageSettings()
    hooks = hooks_of(CurateConfig(input=[InputSettings(paths=[str(tar) for tar in tars])]))
    images = [place for tar in tars for place in places(tar)]
    with Ranges([Range(place.path, place.offset, place.length) for place in images]) as ranges:
        measured = [measure(ranges.read(image), url=None, config=config, hooks=hooks) for image in ranges]
    reasons = reasons_of(verdicts(measured, config))[0].to_pylist()
    refused = Counter(image.group for image, reason in zip(images, reasons, strict=True) if reason)
    return {"images": len(images), "refused": refused}


if __name__ == "__main__":
    sys.exit(timed.main(__doc__, judge, counted="images"))
