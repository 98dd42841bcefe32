"""Write: kept pairs in the order of (image_id, key) go into shards of exactly `samples_per_shard`, with side-cars.

The manifest is written last.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from altalign import storage
from altalign.data import listing
from altalign.data.reasons import CURATED
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.pipelines.card import CardFacts
from altalign.pipelines.figures import image_figures, personal_figures
from altalign.pipelines.images import for_shards
from altalign.pipelines.near import index
from altalign.pipelines.opening import summary
from altalign.pipelines.run import image_tables, marks, outputs, shard_files, shard_tables, text_tables
from altalign.pipelines.run.image_tables import DECONTAMINATED, image_range, kept_rows
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

SECONDS_PER_SAMPLE = 1e-3  # docs/concepts/speed.md


def plan(run: Run) -> list[shard_tables.ShardUnit]:
    """One unit a shard: which rows of which fetch units, in order."""
    units = [(name, facts.kept) for name, facts in run.all_facts(DECONTAMINATED) if facts.kept]
    return [
        shard_tables.ShardUnit(name=f"{number:05d}", rows=sum(end - begin for _, begin, end in parts), parts=[*parts])
        for number, parts in enumerate(shard_files.filled(units, run.config.shards.samples_per_shard))
    ]


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
        return shard_files.write_shard(run.path("shards"), name, samples)


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
