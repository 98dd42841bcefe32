"""What the run before an addition has measured of images: of the same bytes it is not measured again.

Measuring is a function of an image's bytes, of settings, and of the files that these name. `fetch` notes what it has
measured of images of the input's own files that go; of those that stay their rows and features say it, but for the
scores of a classifier.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.filters import identity
from altalign.pipelines.files import arrays, parquet
from altalign.pipelines.images.measuring import Measured
from altalign.pipelines.run.artefacts.fetched import FETCHED, Fetched, first_of_each_image
from altalign.pipelines.run.artefacts.judged import GROUPED
from altalign.pipelines.run.sampled import Grown
from altalign.pipelines.run.units import Run

_COLUMNS = ["format", "width", "height", "found_sha256"]
_ENDS_AT_MOST, _UNITS_AT_MOST = 1 << 16, 16  # whose first and last image, and whose measures, stay in memory


def measured_before(run: Run, rows: pa.Table) -> Mapping[str, Measured]:
    """What is known of images (rows of `PLACED_SURVIVOR`, sorted by image_id), by the SHA-256 of their bytes."""
    if not isinstance(run, Grown) or not len(rows) or _reads(run.folder) != _reads(run.before):
        return {}
    if run.config.image.nsfw.model:  # rows of images that stay do not have its scores
        return {}
    first, last = identity.hexed(arrays.ids_of(rows["image_id"].take([0, len(rows) - 1]))).to_pylist()
    found = dict[str, Measured]()
    for stem in _units(Run(run.before, run.config, ()), str(first), str(last)):
        if storage.exists(f"{stem}.measures"):
            found |= _dropped(stem, storage.stamp(f"{stem}.measures"))
        begin, end = _ends(stem, storage.stamp(f"{stem}.parquet"))
        if begin <= str(last) and str(first) <= end:
            found |= _measures(stem, storage.stamp(f"{stem}.parquet"))
    return found


def _reads(folder: str) -> object:
    """What fetching rests on in a run, and the layout of its `work/`; None where it does not say."""
    stages = storage.read_json(storage.join(folder, "run.json")).get("stages", {})
    extract, fetch = (stages.get(stage, {}).get("reads", {}) for stage in ("extract", "fetch"))
    return fetch, extract.get("work_version")


def _units(before: Run, first: str, last: str) -> Iterator[str]:
    """Yields the paths, without endings, of the fetch units in whose partitions there may be images of a range."""
    partitions = len(before.finished(GROUPED.step))
    lowest, highest = (int(image_id[:4], 16) * partitions >> 16 for image_id in (first, last))
    for name in before.finished(FETCHED.step):
        stem = Fetched(before, name).stem
        if lowest <= int(name.partition("-")[0]) <= highest and storage.exists(f"{stem}.parquet"):
            yield stem


@lru_cache(maxsize=_ENDS_AT_MOST)
def _ends(stem: str, _: storage.Stamp) -> tuple[str, str]:
    """The first and the last image that a unit has kept; two that no image is between where it has none."""
    ids = parquet.read_table(f"{stem}.parquet", ["image_id"])["image_id"]
    return (str(ids[0]), str(ids[-1])) if len(ids) else ("g", "")


@lru_cache(maxsize=_UNITS_AT_MOST)
def _measures(stem: str, _: storage.Stamp) -> Mapping[str, Measured]:
    """What a unit has measured of the images that it keeps."""
    rows = parquet.read_table(f"{stem}.parquet", ["image_id", *_COLUMNS])
    rows = rows.take(first_of_each_image(rows)).select(_COLUMNS).to_pylist()
    features = arrays.read(f"{stem}.features")
    is_flat = (features == 0).all(axis=1).tolist()
    return {
        row["found_sha256"]: Measured(
            **row, is_blocked=False, features=None if flat else np.ascontiguousarray(of_image).tobytes()
        )
        for row, of_image, flat in zip(rows, features, is_flat, strict=True)
    }


@lru_cache(maxsize=_UNITS_AT_MOST)
def _dropped(stem: str, _: storage.Stamp) -> Mapping[str, Measured]:
    """What a unit has measured of the images that it drops."""
    rows = parquet.read_table(f"{stem}.measures").to_pylist()
    return {row["found_sha256"]: Measured(**row) for row in rows}
