"""The gallery of pairs with thumbnails, `audit/near_duplicates/gallery.parquet`.

It shows the pairs nearest to the threshold on both sides of it, and a sample of the dropped ones. A threshold is right
where the pairs just above it are copies, and those just below it are not.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from altalign.data.audit_tables import GALLERY, SIMILARITY
from altalign.filters import thumbnails
from altalign.machine import interrupts
from altalign.pipelines.images.judging import picture
from altalign.pipelines.near import index
from altalign.pipelines.read import test_sets
from altalign.pipelines.run import image_bytes, outputs
from altalign.pipelines.run import image_tables as tables
from altalign.pipelines.run.units import Run
from altalign.settings.curate import CurateConfig

PER_KIND = 50  # half of them above the threshold and half below it


class Pair(NamedTuple):
    """A pair: the unit and number of the image, and the number of the test image."""

    cosine: float
    unit: str
    image: int
    test: int
    shares_bucket: bool


def write(run: Run, dropped: Iterable[Pair]) -> None:
    """Choose pairs and write their thumbnails, and count all pairs by their cosines.

    Those below the threshold are the ones that were looked for. Of the dropped pairs the first are chosen: images are
    in the order of a hash.
    """
    counts: Counter[tuple[str, int]] = Counter()

    def pairs(verdict: str) -> Iterator[Pair]:
        for name, facts in run.all_facts(tables.FOUND):
            if facts.pairs if verdict == "above" else facts.pairs_below:
                for row in (tables.SIMILAR if verdict == "above" else tables.LESS_SIMILAR).read(run, name).to_pylist():
                    counts[verdict, int(row["cosine"] * 1_000)] += 1
                    yield Pair(row["cosine"], name, row["image"], row["test"], row["shares_bucket"])

    chosen = [("just above", pair) for pair in heapq.nsmallest(PER_KIND // 2, pairs("above"))]
    chosen += [("just below", pair) for pair in heapq.nlargest(PER_KIND // 2, pairs("below"))]
    chosen += [("dropped", pair) for pair in islice(dropped, PER_KIND)]
    names, sizes = tables.TEST_NAMES.read(run), [facts.images for _, facts in run.all_facts(tables.TESTS)]
    of_tests = test_thumbnails(run.config, sizes, {pair.test for _, pair in chosen})
    rows = list[dict[str, object]]()
    for kind, pair in chosen:
        image = tables.kept_images(run, pair.unit).slice(pair.image, 1)
        (place,) = image_bytes.places_as_found(run, pair.unit, tables.stored_images(run, pair.unit, image))
        (of_image,) = image.to_pylist()
        row = {
            "kind": kind,
            "similarity": pair.cosine,
            "shares_bucket": pair.shares_bucket,
            "image_id": of_image["image_id"],
            "image_url": of_image["image_url"],
            "test_set": names["test_set"][pair.test].as_py(),
            "test_image": names["test_image"][pair.test].as_py(),
            "image": thumbnail(image_bytes.read_one(place)),
            "test": of_tests[pair.test],
        }
        rows.append(row)
    outputs.write_audit(run, GALLERY, rows)
    by_cosine = sorted(counts.items())
    cosines = [{"cosine_permille": cosine, "verdict": verdict, "pairs": n} for (verdict, cosine), n in by_cosine]
    outputs.write_audit(run, SIMILARITY, cosines)


def test_thumbnails(config: CurateConfig, sizes: Sequence[int], numbers: set[int]) -> dict[int, bytes]:
    """Thumbnails of test images by their number; the parts of test sets that hold one of them are read again.

    `sizes` has the number of images of each part.
    """
    made, first = dict[int, bytes](), 0
    for part, size in zip(index.parts_of_tests(config), sizes, strict=True):
        interrupts.check()
        of_part = range(first, first + size)
        if not numbers.isdisjoint(of_part):
            images = zip(of_part, test_sets.images(part), strict=True)
            made |= {number: thumbnail(data) for number, (_, data) in images if number in numbers}
        first += size
    return made


def thumbnail(data: bytes) -> bytes:
    """An image as WebP, upright and on white, its long side at most 192 px; a black pixel where it cannot be shown."""
    return picture(data, pixels_at_most=2**62) or thumbnails.webp(np.zeros((1, 1, 3), np.uint8))
