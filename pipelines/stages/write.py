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
from altalign.data import listing
from altalign.data.audit_tables import FAILED_ROWS
from altalign.data.reasons import CURATED
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.pipelines.card import CardFacts
from altalign.pipelines.figures import image_figures
from altalign.pipelines.images import for_shards
from altalign.pipelines.near import index
from altalign.pipelines.opening import summary
from altalign.pipelines.run import image_tables, marks, outputs, shard_tables, text_tables
from altalign.pipelines.run.image_tables import DECONTAMINATED, image_range, kept_rows
from altalign.pipelines.run.shard_files import write_shard
from altalign.pipelines.run.units import Run
from altalign.storage.ranges import Ranges

READS = (
    image_tables.FETCHED_ROWS,
    image_tables.KEPT_ROWS,
    image_tables.IMAGES,
    text_tables.JUDGE_SAMPLE,
    *(outputs.DROPPED_ROWS[stage] for stage in CURATED),
    *text_tables.TABLE_FACTS.values(),
    image_tables.FOUND_FACTS,
)
WRITES = outputs.written_by("write")

SECONDS_PER_SAMPLE = 1e-3  # docs/concepts/speed.md


def plan(run: Run) -> list[shard_tables.ShardUnit]:
    """One unit a shard: which rows of which fetch units, in order. Shards that were deleted or cut are written anew."""
    for name, facts in run.all_facts(shard_tables.WRITTEN):
        sizes = {run.path(*path.split("/")): file.bytes for path, file in shard_tables.files_of(name, facts)}
        if not all(storage.exists(path) and storage.stamp(path).size == size for path, size in sizes.items()):
            storage.delete(run.mark(shard_tables.WRITTEN.step, name))
    per_shard = run.config.shards.samples_per_shard
    units = [(name, facts.kept) for name, facts in run.all_facts(DECONTAMINATED) if facts.kept]
    ends = np.cumsum([kept for _, kept in units]).tolist()
    total = ends[-1] if ends else 0
    shards: list[shard_tables.ShardUnit] = []
    for begin in range(0, total, per_shard):
        end = min(begin + per_shard, total)
        first = int(np.searchsorted(ends, begin, side="right"))
        parts = list[tuple[str, int, int]]()
        while first < len(units) and ends[first] - units[first][1] < end:
            name, kept = units[first]
            start = ends[first] - kept
            parts.append((name, max(0, begin - start), min(kept, end - start)))
            first += 1
        shards.append(shard_tables.ShardUnit(name=f"{len(shards):05d}", rows=end - begin, parts=parts))
    return shards


def seconds(_run: Run, shards: Sequence[shard_tables.ShardUnit]) -> float:
    """About how long shards take one core."""
    return SECONDS_PER_SAMPLE * sum(shard["rows"] for shard in shards)


def write(run: Run, unit: shard_tables.ShardUnit) -> shard_tables.ShardFacts:
    """Write one shard and its side-car."""
    return write_rows(run, unit["name"], [(name, np.arange(begin, end)) for name, begin, end in unit["parts"]])


def write_rows(run: Run, name: str, parts: Iterable[tuple[str, npt.NDArray[np.int64]]]) -> shard_tables.ShardFacts:
    """Write a shard of these rows of fetch units, by their rising numbers among those that decontamination keeps."""

    def fetched() -> Iterator[for_shards.FetchedSample]:
        for unit, numbers in parts:
            rows = kept_rows(run, unit).take(numbers).to_pylist()
            places = [image_range(run, unit, row.pop("blob_offset"), row.pop("blob_bytes")) for row in rows]
            before = None
            with Ranges(places) as ranges:
                for row, place in zip(cast(list[for_shards.Row], rows), ranges, strict=True):
                    # an image is read once for all its captions
                    yield for_shards.FetchedSample(row, place, None if place == before else ranges.read(place))
                    before = place

    images = for_shards.images(fetched(), run.config.shards, threads=run.config.engine.threads)
    with STRICT_PILLOW, closing(images):
        samples = (({**row, **image.measured}, image.bytes) for row, image in images)
        return write_shard(run.path("shards"), name, samples)


def conclude(run: Run) -> None:
    """Write counts and summary, then the list of all files, the data-set card, and the manifest last."""
    shards = list(run.all_facts(shard_tables.WRITTEN))
    shared = sum(before.last_image == after.first_image for (_, before), (_, after) in pairwise(shards))
    end(run, shards, images=sum(facts.images for _, facts in shards) - shared)


def end(
    run: Run,
    shards: outputs.Shards,
    *,
    images: int,
    listed: Mapping[str, storage.Written] | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write what comes after the shards of a run whose other stages are done, the manifest last.

    Args:
        run: the run.
        shards: name and facts of each, in order.
        images: how many they have.
        listed: files of the run that no mark names.
        more: further entries of the manifest.

    Raises:
        CountsError: the counts of the run do not add up, or the shards do not hold exactly the kept pairs.
    """
    counts, failed_counts = outputs.counts_of(run), outputs.failed_counts_of(run)
    pairs, size = (sum(getattr(facts, name) for _, facts in shards) for name in ("rows", "bytes"))
    counts.reconcile(CURATED, pairs=pairs)
    failed_counts.check(counts)
    facts = {"stages": counts.summary(CURATED), "pairs": pairs, "images": images, "bytes": size}
    with storage.noted() as block:
        outputs.write_audit(run, FAILED_ROWS, failed_counts.to_arrow())
        shard_tables.COUNTS_OF_RUN.write(run, counts.to_arrow())
        if index.is_searched(run):
            facts["near_duplicates"] = outputs.near_facts(run)
        storage.write_json(shard_tables.SUMMARY.path(run), facts)
        image_figures.write_funnel(run, tars=size, samples=(of_shard.source_bytes for _, of_shard in shards))
        image_figures.write_samples(run, [name for name, _ in shards])
    files = {**marks.outputs(run), **outputs.files_of(run, block), **(listed or {})}
    files |= {module.kept_as: listing.digest(run.path(module.kept_as)) for module in run.modules}
    outputs.write_manifest(run, shards, files, CardFacts(run.config, counts, facts, summary.notes(run)), block, more)
