"""The gallery of pairs with thumbnails, `audit/near_duplicates/gallery.parquet`.

It shows the pairs nearest to the threshold on both sides of it, and a sample of the dropped ones. A threshold is right
where the pairs just above it are copies, and those just below it are not.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from altalign.data.audit_tables import GALLERY, SIMILARITY
from altalign.filters import thumbnails
from altalign.machine import interrupts
from altalign.pipelines.figures import image_figures
from altalign.pipelines.near import index, test_images
from altalign.pipelines.read import test_sets
from altalign.pipelines.run import outputs
from altalign.pipelines.run.image_tables import FOUND, LESS_SIMILAR, SIMILAR, TESTS, image_bytes, kept_images
from altalign.pipelines.run.units import Run

PER_KIND = 50  # half of them above the threshold and half below it

ABOVE, BELOW, DROPPED = "just above", "just below", "dropped"


class Pair(NamedTuple):
    """A pair: the unit and number of the image, and the number of the test image."""

    cosine: float
    unit: str
    image: int
    test: int
    shares_bucket: bool


def pairs_above(run: Run) -> Iterator[Pair]:
    """Yields the pairs above the threshold, in order."""
    for name, facts in run.all_facts(FOUND):
        if facts.pairs:
            yield from _pairs(name, SIMILAR.read(run, name))


def pairs_below(run: Run) -> Iterator[Pair]:
    """Yields the pairs below the threshold that were looked for, in order."""
    for name, facts in run.all_facts(FOUND):
        if facts.pairs_below:
            yield from _pairs(name, LESS_SIMILAR.read(run, name))


def _pairs(name: str, pairs: pa.Table) -> Iterator[Pair]:
    for row in pairs.to_pylist():
        yield Pair(row["cosine"], name, row["image"], row["test"], row["shares_bucket"])


def write(run: Run, found: Iterable[Pair], below: Iterable[Pair], dropped: Iterable[Pair]) -> None:
    """Choose pairs and write their thumbnails, and count all pairs by their cosines.

    Of the dropped pairs the first are chosen: images are in the order of a hash.
    """
    counted: Counter[tuple[str, int]] = Counter()
    chosen = [(ABOVE, pair) for pair in heapq.nsmallest(PER_KIND // 2, _counting(found, "above", counted))]
    chosen += [(BELOW, pair) for pair in heapq.nlargest(PER_KIND // 2, _counting(below, "below", counted))]
    chosen += [(DROPPED, pair) for pair, _ in zip(dropped, range(PER_KIND), strict=False)]
    outputs.write_audit(run, GALLERY, list(_rows(run, chosen)))
    by_cosine = sorted(counted.items())
    cosines = [{"cosine_permille": cosine, "verdict": verdict, "pairs": n} for (verdict, cosine), n in by_cosine]
    outputs.write_audit(run, SIMILARITY, cosines)


def _counting(pairs: Iterable[Pair], verdict: str, counted: Counter[tuple[str, int]]) -> Iterator[Pair]:
    for pair in pairs:
        counted[verdict, int(pair.cosine * 1_000)] += 1
        yield pair


def _rows(run: Run, chosen: list[tuple[str, Pair]]) -> Iterator[dict[str, object]]:
    names = index.names(run)
    of_tests = test_thumbnails(run, {pair.test for _, pair in chosen})
    kept: dict[str, list[dict[str, Any]]] = {}
    for kind, pair in chosen:
        if pair.unit not in kept:
            kept = {pair.unit: kept_images(run, pair.unit).to_pylist()}
        image = kept[pair.unit][pair.image]
        data = image_bytes(run, pair.unit, image["blob_offset"], image["blob_bytes"])
        yield {
            "kind": kind,
            "similarity": pair.cosine,
            "shares_bucket": pair.shares_bucket,
            "image_id": image["image_id"],
            "image_url": image["image_url"],
            "test_set": names["test_set"][pair.test].as_py(),
            "test_image": names["test_image"][pair.test].as_py(),
            "image": thumbnail(data),
            "test": of_tests[pair.test],
        }


def test_thumbnails(run: Run, wanted: set[int]) -> dict[int, bytes]:
    """Thumbnails of test images by their number; the parts of test sets that hold a wanted image are read again."""
    found: dict[int, bytes] = {}
    parts, first = test_images.parts(run), 0
    for name, facts in run.all_facts(TESTS):
        interrupts.check()
        numbers = range(first, first + facts.images)
        if not wanted.isdisjoint(numbers):
            for number, (_, data) in zip(numbers, test_sets.images(parts[int(name)]), strict=True):
                if number in wanted:
                    found[number] = thumbnail(data)
        first += facts.images
    return found


def thumbnail(data: bytes) -> bytes:
    """An image as WebP, upright and on white, its long side at most 192 px; a black pixel where it cannot be shown."""
    return image_figures.picture(data, pixels_at_most=2**62) or thumbnails.webp(np.zeros((1, 1, 3), np.uint8))
