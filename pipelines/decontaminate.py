"""Decontaminate: images of the pool that are near-duplicates of test images go, with every caption of theirs.

Map-only: a unit of fetched images is searched against the index of the test side (`test_side`), which every worker maps into its memory. All pairs
above the threshold are found first, without fail; whether two images share a bucket is then asked of these pairs alone.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.counts import Counts
from altalign.reasons import KEPT, DropReason, Stage
from dedup.buckets import nearest_clusters, share_bucket
from dedup.near_duplicates import find_pairs
from pipelines import arrays, parquet, test_side
from pipelines.fetch import FETCHED, first_of_each_image, write_dropped
from pipelines.test_side import Index
from pipelines.units import Facts, Run, Unit

FOUND, UNITS = "decontaminate/found", "decontaminate/units"
SUMMARY = "found.json"  # in audit/near_duplicates

# Of a unit, the test images near to each image: at most one row a pair. Cosine: 1 where the bytes are the same.
NEAR = pa.schema([("image", pa.int32()), ("test", pa.int32()), ("cosine", pa.float64()), ("shares_bucket", pa.bool_())])


class Near(NamedTuple):
    """Pairs of an image of a unit and a test image, by image."""

    images: np.ndarray  # int64[n]
    tests: np.ndarray  # int64[n]
    cosines: np.ndarray  # float64[n]
    shares_bucket: np.ndarray  # bool[n]

    def where(self, mask: np.ndarray) -> "Near":
        """Those of them."""
        return Near(*(column[mask] for column in self))

    def nearest(self) -> "Near":
        """Of each image the pair of the largest cosine; of equal ones that of the first test image."""
        order = np.lexsort((self.tests, -self.cosines, self.images))
        return self.where(order[np.flatnonzero(np.diff(self.images[order], prepend=-1))])


# Finding -----------------------------------------------------------------------------------------------------------------


def plan_found(run: Run) -> list[Unit]:
    """One unit a fetch unit, where there is anything to look for."""
    return [{"name": name} for name in run.finished("fetch/units")] if run.config.decontaminate.test_sets else []


def find(run: Run, unit: Unit) -> Facts:
    """Find the test images near to the kept images of a fetch unit."""
    near, name = _near(run, unit["name"]), unit["name"]
    columns = [pa.array(column, field.type) for column, field in zip(near, NEAR, strict=True)]
    parquet.write(run.work(FOUND, f"{name}.parquet"), pa.table(columns, schema=NEAR), NEAR)
    lost, spared = np.unique(near.images), np.setdiff1d(near.images, near.images[near.shares_bucket])
    features = test_side.features_of(run, name)
    return {
        "images": len(features),
        "flat_images": int((~features.any(axis=1)).sum()),
        "pairs": len(near.images),
        "pairs_without_a_bucket": int((~near.shares_bucket).sum()),
        "images_above": len(lost),
        "images_without_a_bucket": len(spared),
    }


def _near(run: Run, name: str) -> Near:
    index, settings = Index.of(run), run.config.decontaminate
    features = test_side.features_of(run, name)
    numbers = np.flatnonzero(features.any(axis=1))
    vectors = index.calibration.vectors(features[numbers])
    found = find_pairs(vectors, index.side, above=index.calibration.similarity_above)
    rows, places = np.unique(found.rows, return_inverse=True)
    of_pool = nearest_clusters(vectors[rows], index.calibration.centroids, settings.nearest_clusters)
    shares = share_bucket(of_pool[places], index.clusters[found.tests], at_least=settings.bucket_clusters)
    near = Near(numbers[found.rows], index.test_of[found.tests].astype(np.int64), found.cosines, shares)
    same = _same_bytes(index, test_side.kept_images(run, name)["found_sha256"].to_pylist())
    return _once(Near(*(np.concatenate(parts) for parts in zip(near, same, strict=True))))


def _same_bytes(index: Index, sha256: list[Any]) -> Near:
    """Images that are test images to the byte, flat ones too."""
    mine, tests = np.array(sha256, "S64"), index.digests
    begin, end = np.searchsorted(tests["sha256"], mine, side="left"), np.searchsorted(tests["sha256"], mine, side="right")
    images = np.repeat(np.arange(len(mine)), end - begin)
    rows = np.concatenate([np.zeros(0, np.int64), *(np.arange(*ends) for ends in zip(begin[begin < end], end[begin < end], strict=True))])
    return Near(images, tests["test"][rows].astype(np.int64), np.ones(len(images)), np.ones(len(images), np.bool_))


def _once(near: Near) -> Near:
    """Each pair once, by image and test image, however many views of it were found: in a bucket before others, then of the largest cosine."""
    order = np.lexsort((-near.cosines, ~near.shares_bucket, near.tests, near.images))
    near = near.where(order)
    return near.where((np.diff(near.images, prepend=-1) != 0) | (np.diff(near.tests, prepend=-1) != 0))


# Dropping ----------------------------------------------------------------------------------------------------------------


def plan(run: Run) -> list[Unit]:
    """One unit a fetch unit."""
    return [{"name": name, "counts": facts["counts"], "kept": facts["kept"]} for name, facts in run.all_facts("fetch/units")]


def drop(run: Run, unit: Unit) -> Facts:
    """Count the rows of a fetch unit, and write those that go and which stay, if any goes."""
    name = unit["name"]
    dropped = _dropped(run, name) if run.config.decontaminate.test_sets else None
    if dropped is None or not len(dropped):
        _forget(run, name)
        kept = [(source, rows) for stage, source, reason, rows in unit["counts"] if stage == Stage.IMAGE and reason == KEPT]
        return {"kept": unit["kept"], "counts": Counts({(Stage.DECONTAMINATE.value, source, KEPT): rows for source, rows in kept}).to_json()}
    stays = np.ones(unit["kept"], np.bool_)
    stays[dropped["row"].to_numpy()] = False
    rows = _fetched(run, name)
    counts = Counts()
    for reason, part in ((KEPT, rows.filter(pa.array(stays))), (DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE, dropped)):
        for entry in part.group_by("source", use_threads=False).aggregate([([], "count_all")]).to_pylist():
            counts.add_rows(Stage.DECONTAMINATE, entry["source"], reason, entry["count_all"])
    if run.config.audit.keep_dropped:
        write_dropped(run.path("dropped", "decontaminate", f"{name}.parquet"), Stage.DECONTAMINATE, dropped)
    arrays.save(run.work(UNITS, f"{name}.rows"), np.flatnonzero(stays))
    return {"kept": int(stays.sum()), "counts": counts.to_json()}


def _dropped(run: Run, name: str) -> pa.Table:
    """The rows that go, of `FETCHED`, with their numbers, the reason, and what they are near to."""
    near = Near(*(column.to_numpy() for column in parquet.read_table(run.work(FOUND, f"{name}.parquet")).columns))
    near = (near.where(near.shares_bucket) if run.config.decontaminate.require_bucket else near).nearest()
    rows = _fetched(run, name)
    first_rows = first_of_each_image(rows) if len(rows) else np.zeros(0, np.int64)
    image_of = np.repeat(np.arange(len(first_rows)), np.diff(np.r_[first_rows, len(rows)]))
    place = np.searchsorted(near.images, image_of)
    goes = np.flatnonzero(np.r_[near.images, -1][place] == image_of)
    of_test = parquet.read_table(run.work(test_side.INDEX, "names.parquet")).take(near.tests[place[goes]])
    reason = DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE.value
    columns = {"row": goes, "similarity": near.cosines[place[goes]].astype(np.float32), "reason": [reason] * len(goes), "failed": [[reason]] * len(goes)}
    table = rows.take(goes)
    for column, values in columns.items():
        table = table.append_column(column, pa.array(values))
    for column in test_side.NAMES.names:
        table = table.append_column(column, of_test[column])
    return table


def _forget(run: Run, name: str) -> None:
    for path in (run.work(UNITS, f"{name}.rows"), run.path("dropped", "decontaminate", f"{name}.parquet")):
        if storage.exists(path):
            storage.delete(path)


def _fetched(run: Run, name: str) -> pa.Table:
    return parquet.read_table(run.work("fetch/units", f"{name}.parquet")).select(FETCHED.names)


def kept(run: Run, name: str) -> pa.Table:
    """The rows of a fetch unit that go on, of `FETCHED`."""
    rows, path = _fetched(run, name), run.work(UNITS, f"{name}.rows")
    return rows.take(arrays.read(path)) if storage.exists(path) else rows


def conclude(run: Run) -> None:
    """What was looked for and found, for the summary: `audit/near_duplicates/found.json`."""
    if not run.config.decontaminate.test_sets:
        return
    found = [facts for _, facts in run.all_facts(FOUND)]
    totals = {name: sum(facts[name] for facts in found) for name in found[0] if name != "unit"} if found else {}
    test_sets: dict[str, int] = {}
    for _, facts in run.all_facts(test_side.TESTS):
        test_sets[facts["test_set"]] = test_sets.get(facts["test_set"], 0) + facts["images"]
    learned = {**run.facts(test_side.LEARNED, "00000"), **run.facts(test_side.INDEX, "00000")}
    learned.pop("unit", None)
    settings = {
        "similarity_above": test_side.calibration_of(run).similarity_above,
        "require_bucket": run.config.decontaminate.require_bucket,
    }
    storage.write_json(run.path("audit", "near_duplicates", SUMMARY), {"test_sets": test_sets, **learned, **settings, **totals})
