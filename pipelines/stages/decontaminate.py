"""Decontaminate: drops images near to test images, and near-duplicates within the pool, with all their captions.

Map-only: a unit of fetched images is searched against the index of test images (`near.index`), which every worker maps
into its memory. The search finds every pair above the threshold; only for these pairs it is then asked whether the two
images share a bucket. The images that `within_pool` finds are dropped in the same pass.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data.audit_tables import NEAR_TEST_IMAGES
from altalign.data.counts import FailedCounts
from altalign.data.reasons import DropReason, Stage
from altalign.dedup.clusters import IN_A_BUCKET, NEAREST, nearest_clusters, share_bucket
from altalign.dedup.near_duplicates import find_pairs
from altalign.filters import identity
from altalign.pipelines.figures import image_figures
from altalign.pipelines.near import gallery, index, within_pool
from altalign.pipelines.near.index import Index, index_of
from altalign.pipelines.run import image_tables, outputs, text_tables
from altalign.pipelines.run.units import Run
from altalign.storage import parquet

READS = (
    image_tables.TEST_IMAGES,
    image_tables.FETCHED_ROWS,
    image_tables.FEATURES,
    image_tables.STORED_IMAGES,
    image_tables.IMAGES,
    image_tables.GATHERED_IMAGES,
    image_tables.GATHERED_INDEX,
    text_tables.COPIED_IMAGES,
    text_tables.FOLDER_FILES,
    text_tables.GROUPED_SURVIVORS,
)

# facts of image_tables.FOUND that are added up
TOTALS = ("images", "flat_images", "pairs", "pairs_without_a_bucket", "images_above", "images_without_a_bucket")

# The gallery also shows pairs below the threshold: of the units with the first so many images of the pool, down to so
# much below it, and so many of each unit.
BELOW_AMONG, BELOW_WITHIN, BELOW_OF_UNIT = 65_536, 0.1, 25

# Images searched for at a time, as all their pairs are in memory at once, at a few hundred bytes each. Far fewer pairs
# are above the threshold than below it.
_AT_A_TIME, _BELOW_AT_A_TIME = 1_024, 256

Numbers = npt.NDArray[np.int64]  # int64[n]
Features = npt.NDArray[np.int16]  # int16[n, d]


class Near(NamedTuple):
    """n pairs of an image of a unit and a test image, sorted by image."""

    images: Numbers
    tests: Numbers
    cosines: npt.NDArray[np.float64]
    shares_bucket: npt.NDArray[np.bool_]

    def where(self, chosen: npt.NDArray[np.bool_] | Numbers) -> "Near":
        """The pairs that a mask or their numbers choose."""
        images, tests, cosines, shares_bucket = self
        return Near(images[chosen], tests[chosen], cosines[chosen], shares_bucket[chosen])

    def nearest(self) -> "Near":
        """For each image the pair with the largest cosine; where cosines are equal, that of the first test image."""
        order = np.lexsort((self.tests, -self.cosines, self.images))
        return self.where(order[np.flatnonzero(np.diff(self.images[order], prepend=-1))])


# Finding --------------------------------------------------------------------------------------------------------------


def plan_found(run: Run) -> list[image_tables.FindUnit]:
    """One unit a fetch unit, where there are test sets."""
    units, before = list[image_tables.FindUnit](), 0
    for name, facts in run.all_facts(image_tables.FETCHED) if run.config.decontaminate.test_sets else ():
        units.append(image_tables.FindUnit(name=name, looks_below=before < BELOW_AMONG))
        before += facts.kept
    return units


def find(run: Run, unit: image_tables.FindUnit) -> image_tables.FoundFacts:
    """Find the test images that are near to the kept images of a fetch unit."""
    name, index = unit["name"], index_of(run)
    features = image_tables.FEATURES.array(run, name)
    above, tests = index.calibration.similarity_above, len(index.digests)
    same = _same_bytes(index, parquet.values(image_tables.kept_images(run, name), "found_sha256"))
    near = _once(_joined(same, *_search(index, features, above=above, at_a_time=_AT_A_TIME)))
    below = near.where(near.images < 0)  # none
    if unit["looks_below"]:
        known = near.images * tests + near.tests
        wider = _search(index, features, above=max(0.0, above - BELOW_WITHIN), at_a_time=_BELOW_AT_A_TIME)
        for block in wider:  # of which the nearest stay
            below = _joined(below, block.where(~np.isin(block.images * tests + block.tests, known)))
            below = below.where(np.argsort(-below.cosines, kind="stable")[:BELOW_OF_UNIT])
    for table, pairs in ((image_tables.SIMILAR, near), (image_tables.LESS_SIMILAR, below)):
        columns = [pa.array(column, field.type) for column, field in zip(pairs, image_tables.NEAR, strict=True)]
        table.write(run, pa.table(columns, schema=image_tables.NEAR), name)
    images, with_bucket = np.unique(near.images), near.images[near.shares_bucket]
    return image_tables.FoundFacts(
        images=len(features),
        flat_images=int((~features.any(axis=1)).sum()),
        pairs=len(near.images),
        pairs_below=len(below.images),
        pairs_without_a_bucket=int((~near.shares_bucket).sum()),
        images_above=len(images),
        images_without_a_bucket=len(np.setdiff1d(images, with_bucket)),
    )


def _search(index: Index, features: Features, *, above: float, at_a_time: int) -> Iterator[Near]:
    """All pairs of an image that is not flat and a test image whose cosine is larger, each once, by block of images."""
    for first in range(0, len(features), at_a_time):
        block = features[first : first + at_a_time]
        numbers = np.flatnonzero(block.any(axis=1))
        vectors = index.calibration.vectors(block[numbers])
        pairs = find_pairs(vectors, index.side, above=above)
        rows, places = np.unique(pairs.rows, return_inverse=True)
        of_pool = nearest_clusters(vectors[rows], index.calibration.centroids, NEAREST)
        shares = share_bucket(of_pool[places], index.clusters[pairs.tests], at_least=IN_A_BUCKET)
        tests = index.test_of[pairs.tests].astype(np.int64)
        yield _once(Near(first + numbers[pairs.rows], tests, pairs.cosines, shares))


def _same_bytes(index: Index, sha256: Sequence[str]) -> Near:
    """The pairs of an image and a test image with the same bytes, flat ones too."""
    mine, tests = np.array(sha256, "S64"), index.digests
    begin = np.searchsorted(tests["sha256"], mine, side="left")
    copies = np.searchsorted(tests["sha256"], mine, side="right") - begin
    images = np.repeat(np.arange(len(mine)), copies)
    rows = np.arange(len(images)) + np.repeat(begin - (np.cumsum(copies) - copies), copies)
    return Near(images, tests["test"][rows].astype(np.int64), np.ones(len(images)), np.ones(len(images), np.bool_))


def _joined(*parts: Near) -> Near:
    return Near(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _once(near: Near) -> Near:
    """Each pair of an image and a test image once, whichever of its views were found."""
    order = np.lexsort((-near.cosines, ~near.shares_bucket, near.tests, near.images))
    near = near.where(order)
    return near.where((np.diff(near.images, prepend=-1) != 0) | (np.diff(near.tests, prepend=-1) != 0))


# Dropping -------------------------------------------------------------------------------------------------------------


def plan(run: Run) -> list[image_tables.DropUnit]:
    """One unit a fetch unit; `place` is its place in their order."""
    names = run.finished(image_tables.FETCHED.step)
    return [image_tables.DropUnit(name=name, place=place) for place, name in enumerate(names)]


def drop(run: Run, unit: image_tables.DropUnit) -> image_tables.DropFacts:
    """Count the rows of a fetch unit; where any go, write these, and the numbers of those that stay."""
    name, failed_counts, gone = unit["name"], FailedCounts(), list[image_tables.ImagesRow]()
    rows = left = image_tables.FETCHED_ROWS.read(run, name)
    dropped = _dropped(run, unit, rows) if index.is_searched(run) else rows.slice(0, 0)
    if len(dropped):
        stays = np.ones(len(rows), np.bool_)
        stays[dropped["row"].to_numpy()] = False
        left = rows.filter(pa.array(stays))
        failed_counts.add(Stage.DECONTAMINATE, dropped["source"], dropped["failed"])
        if run.config.audit.keep_dropped:
            outputs.write_dropped(outputs.dropped(run, Stage.DECONTAMINATE, name), Stage.DECONTAMINATE, dropped)
        image_tables.KEPT_ROWS.save(run, np.flatnonzero(stays), name)
        gone = image_figures.dropped_images(Stage.DECONTAMINATE, dropped)
    else:  # what an earlier try has left
        for path in (image_tables.KEPT_ROWS.path(run, name), outputs.dropped(run, Stage.DECONTAMINATE, name)):
            if storage.exists(path):
                storage.delete(path)
    for source, count in parquet.tally(left["source"]):
        failed_counts.add_rows(Stage.DECONTAMINATE, source, [], count)
    of_images = image_figures.of_images_at(Stage.DECONTAMINATE.value, left, sizes="found_bytes")
    return image_tables.DropFacts(len(left), **failed_counts.facts(), funnel=of_images, dropped_images=gone)


def _near_duplicates(run: Run, name: str) -> Near:
    """The images of a fetch unit that go because of a test image, each with all that it is near to."""
    near = Near(*(column.to_numpy() for column in image_tables.SIMILAR.read(run, name).columns))
    return near.where(near.shares_bucket) if run.config.decontaminate.require_bucket else near


def gone(run: Run, name: str) -> Numbers:
    """The numbers of the images of a fetch unit that go because of a test image."""
    has_sets = bool(run.config.decontaminate.test_sets)
    return _near_duplicates(run, name).nearest().images if has_sets else np.zeros(0, np.int64)


def _dropped(run: Run, unit: image_tables.DropUnit, rows: pa.Table) -> pa.Table:
    """The rows (`FETCHED_ROW`) that go, with their numbers, the reason, and what they are near to."""
    parts = list[pa.Table]()
    _, image_of = image_tables.images_of(rows)

    def add(reason: DropReason, images: Numbers, cosines: npt.NDArray[np.float64], more: pa.Table) -> None:
        """Add the rows of images (rising numbers); their similarity is null where the cosine is NaN."""
        place = np.searchsorted(images, image_of)
        goes = np.flatnonzero(np.r_[images, -1][place] == image_of)
        which = place[goes]
        columns = {
            "row": pa.array(goes, pa.int64()),
            "similarity": pa.array(cosines[which].astype(np.float32), from_pandas=True),
            "reason": pa.array([reason.value] * len(goes), pa.string()),
            "failed": pa.array([[reason.value]] * len(goes), pa.list_(pa.string())),
        }
        taken, table = more.take(which), rows.take(goes)
        for name, values in {**columns, **{name: taken[name] for name in taken.column_names}}.items():
            table = table.append_column(name, values)
        parts.append(table)

    if run.config.decontaminate.test_sets:
        near = _near_duplicates(run, unit["name"]).nearest()
        names = image_tables.TEST_NAMES.read(run).take(near.tests)
        add(DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE, near.images, near.cosines, names)
    numbers, stays = within_pool.replaced_in(run, unit["place"])
    kept_keys = pa.table({"kept_key": identity.hexed(stays["key"])})
    add(DropReason.NEAR_DUPLICATE_IN_POOL, numbers, stays["cosine"], kept_keys)
    return pa.concat_tables(parts, promote_options="default").sort_by("row")


def _goes(run: Run) -> Iterator[gallery.Pair]:
    """Yields every image that goes because of a test image, with the nearest test image."""
    for name, facts in run.all_facts(image_tables.FOUND):
        if facts.pairs:
            near = _near_duplicates(run, name).nearest()
            for image, test, cosine, shares in zip(*(column.tolist() for column in near), strict=True):
                yield gallery.Pair(cosine, name, image, test, shares)


def _near_test_images(run: Run) -> dict[str, int]:
    """Write every test image with a near-duplicate in the pool; returns the totals of what was found."""
    names = image_tables.TEST_NAMES.read(run)
    totals: dict[str, int] = dict.fromkeys(TOTALS, 0)
    images, cosines = np.zeros(len(names), np.int64), np.zeros(len(names))
    for name, facts in run.all_facts(image_tables.FOUND):
        totals = {total: amount + getattr(facts, total) for total, amount in totals.items()}
        if facts.pairs:
            near = _near_duplicates(run, name)
            images += np.bincount(near.tests, minlength=len(names))
            np.maximum.at(cosines, near.tests, near.cosines)
    numbers = np.flatnonzero(images)
    near_names = names.take(numbers)
    columns = [near_names["test_set"], near_names["test_image"], pa.array(images[numbers]), pa.array(cosines[numbers])]
    outputs.write_audit(run, NEAR_TEST_IMAGES, pa.table(columns, schema=NEAR_TEST_IMAGES.schema))
    return totals


def conclude(run: Run) -> None:
    """Write what was found: `audit/near_duplicates/`, `found.json` at the end."""
    if not index.is_searched(run):
        return
    test_sets = Counter[str]()
    for _, of_part in run.all_facts(image_tables.TESTS):
        test_sets[of_part.test_set] += of_part.images
    facts: dict[str, object] = {"test_sets": test_sets}
    if run.config.decontaminate.test_sets:
        gallery.write(run, _goes(run))
        set_of = image_tables.TEST_NAMES.read(run)["test_set"].to_pylist()
        images_near = Counter(str(set_of[pair.test]) for pair in _goes(run))  # by the nearest test image
        facts["images_near"] = {name: images_near[name] for name in test_sets}
    facts |= run.facts_of(image_tables.LEARNED, image_tables.ONLY)._asdict()
    if of_index := run.facts(image_tables.INDEX, image_tables.ONLY):
        facts |= of_index._asdict()
    facts["similarity_above"] = index.calibration_of(run).similarity_above
    facts["require_bucket"] = run.config.decontaminate.require_bucket
    if run.config.decontaminate.test_sets:
        facts |= _near_test_images(run)
    if within_pool.is_searched(run):
        facts["within_pool"] = within_pool.facts_of(run)
    storage.write_json(image_tables.FOUND_FACTS.path(run), facts)
