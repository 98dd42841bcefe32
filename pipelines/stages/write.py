"""Write: kept pairs in the order of (image_id, key) go into shards of exactly `samples_per_shard`, with side-cars.

The manifest is written last.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from altalign import storage
from altalign.data import audit_tables, listing
from altalign.data.audit_tables import FAILED_ROWS
from altalign.data.counts import Counts
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.pipelines.card import CardFacts
from altalign.pipelines.figures import gallery_rows, images_and_bytes
from altalign.pipelines.images import for_shards
from altalign.pipelines.near import learned
from altalign.pipelines.opening import summary
from altalign.pipelines.run import manifest, marks, outputs
from altalign.pipelines.run.shard_files import write_shard
from altalign.pipelines.run.tables import counted, decontaminated, fetched, judged, written
from altalign.pipelines.run.tables.decontaminated import DECONTAMINATED, kept_rows
from altalign.pipelines.run.tables.fetched import image_range
from altalign.pipelines.run.tables.table import Table
from altalign.pipelines.run.units import Run
from altalign.storage.ranges import Ranges

READS = (
    fetched.FETCHED_ROWS,
    decontaminated.KEPT_ROWS,
    fetched.IMAGES,
    judged.JUDGE_SAMPLE,
    *(outputs.DROPPED_ROWS[stage] for stage in outputs.COUNTED_STAGES),
    *counted.TABLE_FACTS.values(),
    decontaminated.FOUND_FACTS,
)
WRITES = (
    written.SHARDS,
    written.SIDE_CARS,
    written.COUNTS_OF_RUN,
    written.SUMMARY,
    written.LIST_OF_FILES,
    written.CARD,
    written.CROISSANT,
    written.MANIFEST,
    *map(Table.of_audit, (audit_tables.FUNNEL, audit_tables.DROPPED_IMAGES, audit_tables.SAMPLES, FAILED_ROWS)),
)

SECONDS_PER_SAMPLE = 1e-3  # docs/concepts/speed.md


def plan(run: Run) -> list[written.ShardUnit]:
    """One unit a shard: which rows of which fetch units, in order. Shards that were deleted or cut are written anew."""
    for name, facts in run.all_facts(written.WRITTEN):
        if not _is_whole(run, name, facts):
            storage.delete(run.mark(written.WRITTEN.step, name))
    per_shard = run.config.shards.samples_per_shard
    units = [(name, facts.kept) for name, facts in run.all_facts(DECONTAMINATED) if facts.kept]
    ends = np.cumsum([kept for _, kept in units]).tolist()
    total = ends[-1] if ends else 0
    shards: list[written.ShardUnit] = []
    for begin in range(0, total, per_shard):
        end = min(begin + per_shard, total)
        first = int(np.searchsorted(ends, begin, side="right"))
        parts = list[tuple[str, int, int]]()
        while first < len(units) and ends[first] - units[first][1] < end:
            name, kept = units[first]
            start = ends[first] - kept
            parts.append((name, max(0, begin - start), min(kept, end - start)))
            first += 1
        shards.append(written.ShardUnit(name=f"{len(shards):05d}", rows=end - begin, parts=parts))
    return shards


def seconds(_run: Run, shards: Sequence[written.ShardUnit]) -> float:
    """About how long shards take one core."""
    return SECONDS_PER_SAMPLE * sum(shard["rows"] for shard in shards)


def _is_whole(run: Run, name: str, facts: written.ShardFacts) -> bool:
    """Whether both files of a finished shard are there, with the sizes that they were written with."""
    sizes = {f"{name}.tar": facts.bytes, f"{name}.parquet": facts.parquet_bytes}
    paths = {run.path("shards", file): size for file, size in sizes.items()}
    return all(storage.exists(path) and storage.stamp(path).size == size for path, size in paths.items())


def write(run: Run, unit: written.ShardUnit) -> written.ShardFacts:
    """Write one shard and its side-car."""
    return write_rows(run, unit["name"], [(name, np.arange(begin, end)) for name, begin, end in unit["parts"]])


def write_rows(run: Run, name: str, parts: Iterable[tuple[str, npt.NDArray[np.int64]]]) -> written.ShardFacts:
    """Write a shard of these rows of fetch units, by their rising numbers among those that decontamination keeps."""
    images = for_shards.images(_found(run, parts), run.config.shards, threads=run.config.engine.threads)
    with STRICT_PILLOW, closing(images):
        samples = (({**row, **image.measured}, image.bytes) for row, image in images)
        return write_shard(run.path("shards"), name, samples)


def _found(run: Run, parts: Iterable[tuple[str, npt.NDArray[np.int64]]]) -> Iterator[for_shards.FetchedSample]:
    """Yields the rows of a shard; an image is read once for all its captions."""
    for name, numbers in parts:
        rows = kept_rows(run, name).take(numbers).to_pylist()
        places = [image_range(run, name, row.pop("blob_offset"), row.pop("blob_bytes")) for row in rows]
        before = None
        with Ranges(places) as ranges:
            for row, place in zip(cast(list[for_shards.Row], rows), ranges, strict=True):
                yield for_shards.FetchedSample(row, place, None if place == before else ranges.read(place))
                before = place


def conclude(run: Run) -> None:
    """Write counts and summary, then the list of all files, the data-set card, and the manifest last."""
    shards = list(run.all_facts(written.WRITTEN))
    shared = sum(before.last_image == after.first_image for (_, before), (_, after) in pairwise(shards))
    end(run, shards, images=sum(facts.images for _, facts in shards) - shared)


def end(
    run: Run,
    shards: manifest.Shards,
    *,
    images: int,
    listed: Mapping[str, storage.Written] | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write what comes after the shards, the manifest last.

    Args:
        run: whose other stages are done.
        shards: name and facts of each, in order.
        images: how many they have.
        listed: files of the run that no mark names.
        more: further entries of the manifest.

    Raises:
        CountsError: the counts of the run do not add up, or the shards do not hold exactly the kept pairs.
    """
    counts = outputs.counts_of(run)
    with storage.noted() as block:
        facts = _write_totals(run, counts, shards, images)
    files = {**marks.outputs(run), **manifest.written(run, block), **(listed or {})}
    for name in (module.kept_as for module in run.modules):
        files[name] = listing.digest(run.path(name))
    manifest.write(run, shards, files, CardFacts(run.config, counts, facts, summary.notes(run)), block, more)


def _write_totals(run: Run, counts: Counts, shards: manifest.Shards, images: int) -> dict[str, object]:
    """Write counts, `summary.json`, and what the audit has of the whole run; returns the summary."""
    failed_counts = outputs.failed_counts_of(run)
    pairs = sum(facts.rows for _, facts in shards)
    counts.reconcile(outputs.COUNTED_STAGES, pairs=pairs)
    failed_counts.check(counts)
    outputs.write_audit(run, FAILED_ROWS, failed_counts.to_arrow())
    written.COUNTS_OF_RUN.write(run, counts.to_arrow())
    size = sum(facts.bytes for _, facts in shards)
    facts = {"stages": counts.summary(outputs.COUNTED_STAGES), "pairs": pairs, "images": images, "bytes": size}
    if learned.is_wanted(run):
        facts["near_duplicates"] = outputs.found(run)
    storage.write_json(written.SUMMARY.path(run), facts)
    images_and_bytes.write(run, tars=size, samples=(facts.source_bytes for _, facts in shards))
    gallery_rows.write(run, [name for name, _ in shards])
    return facts
