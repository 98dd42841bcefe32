"""The gallery: pairs for people to look at, as thumbnails. Those nearest to the threshold on both sides of it, and a sample of what was dropped.

`audit/near_duplicates/gallery.parquet`. A threshold is right where the pairs just above it are copies, and those just
below it are not.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from altalign.machine import interrupts
from altalign.pipelines.evidence import gallery_rows
from altalign.pipelines.files import parquet
from altalign.pipelines.near import test_side
from altalign.pipelines.read import test_sets
from altalign.pipelines.run.units import Run

PER_KIND = 50  # of pairs above and below the threshold half each

ABOVE, BELOW, DROPPED = "just above", "just below", "dropped"

# Comments behind columns are lines of docs/reference/files.md (`make docs`).
GALLERY = pa.schema(
    [
        (
            "kind",
            pa.string(),
        ),  # `just above`: of all pairs above the threshold those nearest to it; `just below`: not above it, of a sample; `dropped`: a sample.
        ("similarity", pa.float64()),  # The cosine; 1 where the bytes are the same.
        ("shares_bucket", pa.bool_()),  # Whether the two images share a bucket.
        ("image_id", pa.string()),  # The image of the pool.
        ("image_url", pa.string()),  # The same; null where a table has none.
        ("test_set", pa.string()),  # The test set.
        ("test_image", pa.string()),  # The image of the test set.
        ("image", pa.binary()),  # The pool's image as WebP, 192 px at most.
        ("test", pa.binary()),  # The test image, the same.
    ]
)
SIMILARITY = pa.schema(
    [
        ("cosine_permille", pa.int32()),  # Thousandths, rounded down.
        # `above` the threshold; `below`: of a sample of the images, of each unit the 25 nearest to it.
        ("verdict", pa.string()),
        ("pairs", pa.int64()),  # Pairs of an image of the pool and a test image.
    ]
)


class Pair(NamedTuple):
    """A pair, by the unit and number of the image and the number of the test image."""

    cosine: float
    unit: str
    image: int
    test: int
    shares_bucket: bool


def pairs(run: Run, folder: str, ending: str = ".parquet") -> Iterator[Pair]:
    """The pairs that the units of a step have found, in order."""
    for name, facts in run.all_facts(folder):
        if facts["pairs" if ending == ".parquet" else "pairs_below"]:
            for row in parquet.read_table(run.work(folder, f"{name}{ending}")).to_pylist():
                yield Pair(row["cosine"], name, row["image"], row["test"], row["shares_bucket"])


def write(run: Run, found: Iterable[Pair], below: Iterable[Pair], dropped: Iterable[Pair]) -> None:
    """Choose pairs and write their thumbnails; count all by their cosines. Dropped ones are taken from the first: images are in order of a hash."""
    counted: Counter[tuple[str, int]] = Counter()
    chosen = [(ABOVE, pair) for pair in heapq.nsmallest(PER_KIND // 2, _counting(found, "above", counted))]
    chosen += [(BELOW, pair) for pair in heapq.nlargest(PER_KIND // 2, _counting(below, "below", counted))]
    chosen += [(DROPPED, pair) for pair, _ in zip(dropped, range(PER_KIND), strict=False)]
    rows = list(_rows(run, chosen))
    columns = {field.name: pa.array([row[field.name] for row in rows], field.type) for field in GALLERY}
    parquet.write(run.path("audit", "near_duplicates", "gallery.parquet"), pa.table(columns, schema=GALLERY), GALLERY)
    cosines = [
        {"cosine_permille": cosine, "verdict": verdict, "pairs": n} for (verdict, cosine), n in sorted(counted.items())
    ]
    parquet.write(
        run.path("audit", "near_duplicates", "similarity.parquet"),
        pa.Table.from_pylist(cosines, schema=SIMILARITY),
        SIMILARITY,
    )


def _counting(pairs_: Iterable[Pair], verdict: str, counted: "Counter[tuple[str, int]]") -> Iterator[Pair]:
    for pair in pairs_:
        counted[verdict, int(pair.cosine * 1_000)] += 1
        yield pair


def _rows(run: Run, chosen: list[tuple[str, Pair]]) -> Iterator[dict[str, Any]]:
    names = test_side.names(run)
    of_tests = test_thumbnails(run, {pair.test for _, pair in chosen})
    kept: dict[str, list[dict[str, Any]]] = {}
    for kind, pair in chosen:
        if pair.unit not in kept:
            kept = {pair.unit: test_side.kept_images(run, pair.unit).to_pylist()}
        image = kept[pair.unit][pair.image]
        data = test_side.fetched(run, pair.unit, image["blob_offset"], image["blob_bytes"])
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
    """Thumbnails of test images by their number among all. They are read once more, those parts that hold one that is wanted."""
    found: dict[int, bytes] = {}
    parts, first = test_side.parts(run), 0
    for name, facts in run.all_facts(test_side.TESTS):
        interrupts.check()
        numbers = range(first, first + facts["images"])
        if not wanted.isdisjoint(numbers):
            for number, (_, data) in zip(numbers, test_sets.images(parts[int(name)]), strict=True):
                if number in wanted:
                    found[number] = thumbnail(data)
        first += facts["images"]
    return found


def thumbnail(data: bytes) -> bytes:
    """An image as WebP, upright and on white, its long side 192 px at most; a black pixel of one of which nothing can be shown."""
    return gallery_rows.picture(data, pixels_at_most=2**62) or gallery_rows.thumbnail(np.zeros((1, 1, 3), np.uint8))
