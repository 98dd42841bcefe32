"""Write: kept pairs in the order of (image_id, key) go into shards of exactly `samples_per_shard`, with side-cars.

With `captions = "all"` the kept pairs of an image are one sample.

The manifest is written last.
"""

import hashlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data import listing
from altalign.data.reasons import CURATED
from altalign.errors import UnreadableError
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.pipelines.card import CardFacts
from altalign.pipelines.figures import image_figures, personal_figures
from altalign.pipelines.images.judging import stored_anew
from altalign.pipelines.near import index
from altalign.pipelines.opening import summary
from altalign.pipelines.run import (
    image_bytes,
    image_tables,
    marks,
    outputs,
    pool,
    shard_files,
    shard_tables,
    text_tables,
)
from altalign.pipelines.run.image_tables import DECONTAMINATED, FETCHED, IMAGES, kept_rows
from altalign.pipelines.run.units import Run
from altalign.storage import parquet

READS = (
    image_tables.FETCHED_ROWS,
    image_tables.KEPT_ROWS,
    image_tables.STORED_IMAGES,
    image_tables.IMAGES,
    image_tables.GATHERED_IMAGES,
    image_tables.GATHERED_INDEX,
    image_tables.PICTURES,
    text_tables.COPIED_IMAGES,
    text_tables.FOLDER_FILES,
    text_tables.JUDGE_SAMPLE,
    *(outputs.DROPPED_ROWS[stage] for stage in CURATED),
    *text_tables.TABLE_FACTS.values(),
    image_tables.FOUND_FACTS,
)

SECONDS_PER_SAMPLE = 0.1e-3  # docs/concepts/speed.md


def plan(run: Run) -> list[shard_tables.ShardUnit]:
    """One unit a shard: which rows of which fetch units, in order."""
    units = {name: np.arange(facts.kept) for name, facts in run.all_facts(DECONTAMINATED) if facts.kept}
    return [
        shard_tables.ShardUnit(name=f"{number:05d}", rows=sum(end - begin for _, begin, end in parts), parts=[*parts])
        for number, parts in enumerate(cut(run, units))
    ]


def cut(run: Run, units: Mapping[str, npt.NDArray[np.int64]]) -> list[list[shard_files.Slice]]:
    """Cuts rows of fetch units, by their numbers among those that decontamination keeps, into full shards."""
    things = [(name, len(numbers)) for name, numbers in units.items()]
    if run.config.shards.captions == "one":
        return shard_files.filled(things, run.config.shards.samples_per_shard)

    def images(name: str) -> shard_files.Places:
        rows = kept_rows(run, name, ["image_id"]).take(units[name])
        return np.array(parquet.values(rows, "image_id"), "S32")

    return shard_files.merged(run.folder, [things], images, run.config.shards.samples_per_shard, whole=True)


def seconds(_run: Run, shards: Sequence[shard_tables.ShardUnit]) -> float:
    """About how long shards take one core."""
    return SECONDS_PER_SAMPLE * sum(shard["rows"] for shard in shards)


def write(run: Run, unit: shard_tables.ShardUnit) -> shard_tables.ShardFacts:
    """Write one shard and its side-car."""
    return write_rows(run, unit["name"], [(name, np.arange(begin, end)) for name, begin, end in unit["parts"]])


def write_rows(run: Run, name: str, parts: Iterable[tuple[str, npt.NDArray[np.int64]]]) -> shard_tables.ShardFacts:
    """Write a shard of these rows of fetch units, by their rising numbers among those that decontamination keeps."""

    def samples() -> Generator[tuple[dict[str, Any], bytes]]:
        for unit, numbers in parts:
            rows = kept_rows(run, unit).take(numbers)
            images = image_tables.stored_images(run, unit, rows)
            of_rows = groupby(rows.to_pylist(), itemgetter("image_id"))  # an image is read once for all its captions
            with pool.reading(run, image_bytes.whole_files(run, images)):
                for (stored, data), (_, of_image) in zip(_stored(run, unit, images), of_rows, strict=True):
                    yield from (({**row, **stored}, data) for row in of_image)

    with STRICT_PILLOW, closing(samples()) as every:
        return shard_files.write_shard(run.path("shards"), name, every, run.config.shards)


def _stored(run: Run, unit: str, images: pa.Table) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yields what a shard says of each image of a fetch unit, and its bytes.

    Where the unit's blob was let go, an image that was in it is made once more of what its input file has.
    """
    has_blob = storage.exists(image_tables.IMAGES.path(run, unit))
    places = (image_bytes.places_as_stored if has_blob else image_bytes.places_as_found)(run, unit, images)
    of_images = images.select([*image_tables.STORED_COLUMNS, "stored_at"]).to_pylist()
    for place, data, stored in zip(places, image_bytes.read_each(places), of_images, strict=True):
        is_in_blob = stored.pop("stored_at") is not None
        why = "changed since it was judged"
        if data is not None and is_in_blob and not has_blob:
            data = stored_anew(run, data, place.path)
            why += ", or is encoded otherwise by now"
        if data is None or hashlib.sha256(data).hexdigest() != stored["sha256"]:
            what = f"the image at byte {place.offset:,} {why}; put the old file back, or give --rerun fetch"
            raise UnreadableError(f"{place.path}: {what}")
        yield stored, data


def _let_go(run: Run) -> None:
    """Delete what the shards have, too: images of the input that were encoded anew, which can be once more.

    Those of the web stay: `retry` and `add` begin with them, and nobody can be sure to get them again.
    """
    for name in run.finished(FETCHED.step) if run.config.fetch.source == "archive" else ():
        storage.delete(IMAGES.path(run, name))


def conclude(run: Run) -> None:
    """Write counts and summary, then the list of all files, the data-set card, and the manifest last."""
    shards = dict(run.all_facts(shard_tables.WRITTEN))
    end(run, shards, images=shard_files.distinct_images(shards.values()))


def end(
    run: Run,
    shards: Mapping[str, shard_tables.ShardFacts],
    *,
    images: int,
    listed: Mapping[str, storage.Written] | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write what comes after the shards, of so many `images`, of a run whose other stages are done; the manifest last.

    `listed` are files of the run that no mark names, `more` further entries of the manifest.
    """
    _let_go(run)
    counts, failed = outputs.counts_of(run), outputs.failed_counts_of(run)
    with storage.noted() as block:
        of_run = {"near_duplicates": outputs.near_facts(run)} if index.is_searched(run) else {}
        of_run |= personal_figures.measured(run, list(shards))
        facts = outputs.write_totals(run, shards, counts, failed, images=images, more=of_run)
        of_samples = (of_shard.source_bytes for of_shard in shards.values())
        image_figures.write_funnel(run, tars=facts["bytes"], samples=of_samples)
        image_figures.write_samples(run, list(shards))
    files = {**marks.outputs(run), **outputs.files_of(run, block), **(listed or {})}
    files |= {module.kept_as: listing.digest(run.path(module.kept_as)) for module in run.modules}
    card = CardFacts(run.config, counts, facts, summary.notes(run))
    outputs.write_manifest(run, shards, files, card, block, more)
