"""Archive to candidates, or to verdicts on images: ours, in one thread, without Beam. Prints one line of JSON.

    python -m benchmarks.ours pages|images|libjpeg FILE... [--repeat 1]

pages: all that extract does with a web archive: finding out where records are that can be read again, charsets, URLs,
captions, verdicts, places of images, Arrow batches. images: what the fetch stage does with each image of a tar,
reading, SHA-256 and marks of rights holders included; `refused` counts what gets a reason, by folder of the image's
name: how much damage is noticed. libjpeg: nothing but decoding to gray at an eighth of the size, which is entropy
decoding for the most part.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import simplejpeg
from fastwarc.warc import ArchiveIterator, WarcRecordType

from altalign.data.reasons import ask, reasons_of
from altalign.filters import image
from altalign.filters.reservations import of_image
from altalign.pipelines.images.measuring import Hooks, Measured, columns, hooks_of, measure
from altalign.pipelines.read.pages import warc
from altalign.settings.curate import CurateConfig, InputSettings
from altalign.storage.ranges import Range, Ranges
from benchmarks import timed


def read(archives: list[Path]) -> timed.Counts:
    """Image elements, and those that are candidates."""
    images = candidates = 0
    for archive in archives:
        for found in warc.read(str(archive)):
            images += found.rows.num_rows
            candidates += found.rows.column("reason").null_count
    return {"images": images, "candidates": candidates}


def pages_in(archives: list[Path]) -> timed.Counts:
    """How many pages the archives have."""
    pages = 0
    for archive in archives:
        with archive.open("rb") as file:
            pages += sum(
                record.http_content_type == "text/html"
                for record in ArchiveIterator(file, record_types=WarcRecordType.response)
            )
    return {"pages": pages}


def judge(tars: list[Path]) -> timed.Counts:
    """Images, and those that get a reason."""
    config = CurateConfig(input=[InputSettings(paths=[str(tar) for tar in tars])])
    hooks = hooks_of(config)
    images = [place for tar in tars for place in timed.places(tar)]
    with Ranges([Range(place.path, place.offset, place.length) for place in images]) as ranges:
        measured = [_measured(ranges.read(place), config, hooks) for place in ranges]
    verdict: Any = reasons_of(ask(image.RULES, columns(measured), config))[0]
    refused = Counter(place.group for place, reason in zip(images, verdict.to_pylist(), strict=True) if reason)
    return {"images": len(images), "refused": refused}


def _measured(data: bytes, config: CurateConfig, hooks: Hooks) -> Measured:
    of_image(data)
    return measure(data, url=None, config=config.image, hooks=hooks)[0]


def decode(tars: list[Path]) -> timed.Counts:
    """Images: what no program that looks at every one can do without."""
    images = [place for tar in tars for place in timed.places(tar)]
    with Ranges([Range(place.path, place.offset, place.length) for place in images]) as ranges:
        for place in ranges:
            simplejpeg.decode_jpeg(ranges.read(place), "GRAY", min_height=1, min_width=1)
    return {"images": len(images)}


if __name__ == "__main__":
    match sys.argv.pop(1):
        case "pages":
            sys.exit(timed.main(__doc__, read, counted="pages", afterwards=pages_in))
        case way:
            sys.exit(timed.main(__doc__, judge if way == "images" else decode, counted="images"))
