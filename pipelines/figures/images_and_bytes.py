"""Images and bytes at each step of a run, for each source and for all sources together; and images by drop reason.

An image that two sources have counts for each of them, and once in all: totals are counted by themselves, and are no
sums of the sources. All rows of an image are in one fetch unit, so the numbers of units add up.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.audit_tables import DROPPED_IMAGES, FUNNEL
from altalign.data.reasons import CURATED, Stage
from altalign.pipelines.run import outputs
from altalign.pipelines.run.image_tables import DECONTAMINATED, FETCHED, FunnelRow, ImagesRow, first_of_each_image
from altalign.pipelines.run.text_tables import EXTRACTED
from altalign.pipelines.run.units import Run
from altalign.storage import parquet

POOL, SHARDS = "pool", "shards"
STEPS = (POOL, *(stage.value for stage in CURATED), SHARDS)

Amounts = dict[tuple[str, str | None], list[int | None]]  # images and bytes by step and source; None: not known


def of_images(step: str, rows: pa.Table, *, sizes: str | None) -> list[FunnelRow]:
    """The entries of a step for these rows, which have the columns `image_id` and `source`.

    `sizes` names the column of an image's bytes, the same in all its rows; None: they are not known.
    """
    of_images = rows[sizes] if sizes else pa.nulls(len(rows), pa.int64())
    columns = {"image": rows["image_id"], "source": rows["source"], "bytes": of_images}
    of_sources = _once(pa.table(columns), ["image", "source"])
    of_all = _once(of_sources, ["image"])
    tally = of_sources.group_by("source", use_threads=False).aggregate([([], "count_all"), ("bytes", "sum")])
    by_source = sorted((row["source"], row["count_all"], row["bytes_sum"]) for row in tally.to_pylist())
    found = [(None, len(of_all), pc.sum(of_all["bytes"]).as_py()), *by_source]
    return [(step, source, images, (size or 0) if sizes else None) for source, images, size in found]


def _once(rows: pa.Table, by: list[str]) -> pa.Table:
    """One row for each combination of values in these columns."""
    found = rows.group_by(by, use_threads=False).aggregate([("bytes", "min")])
    return found.rename_columns([name.removesuffix("_min") for name in found.column_names])


def renamed(entries: Iterable[FunnelRow], *, step: str, to: str) -> list[FunnelRow]:
    """The entries of a step, as entries of another step that keeps all its images."""
    return [(to, source, images, size) for of, source, images, size in entries if of == step]


def dropped_images(stage: Stage, rows: pa.Table) -> list[ImagesRow]:
    """Stage, reason and number of distinct images of the rows that a stage drops.

    The rows are sorted by image_id, and those of an image have the same reason.
    """
    reasons = rows.take(first_of_each_image(rows))["reason"]
    return [(stage.value, reason, images) for reason, images in sorted(parquet.tally(reasons))]


def write(run: Run, *, tars: int, samples: Iterable[Mapping[str, int]]) -> None:
    """Write `audit/funnel.parquet`, every step for all sources and for each, and `audit/dropped_images.parquet`.

    Args:
        run: whose units are finished, those of shards too.
        tars: the bytes of all shards.
        samples: for each shard, the bytes that the samples of each source have in its tar.
    """
    sources = (None, *sorted({each.source for each in run.config.input}))
    amounts: Amounts = {(step, source): _none_yet(step) for step in STEPS for source in sources}
    for entry in _entries(run, tars, samples):
        _add(amounts, *entry)
    gone, is_known = Counter[tuple[str, str]](), True
    for marks in (FETCHED, DECONTAMINATED):
        for _, facts in run.all_facts(marks):
            for entry in facts.funnel:
                _add(amounts, *entry)
            is_known = is_known and facts.dropped_images is not None
            for stage, reason, images in facts.dropped_images or ():
                gone[stage, reason] += images
    for source in sources:  # all of these images are in the shards
        amounts[SHARDS, source][0] = amounts[Stage.DECONTAMINATE.value, source][0]
    rows = [dict(zip(FUNNEL.schema.names, (*of, *amount), strict=True)) for of, amount in amounts.items()]
    outputs.write_audit(run, FUNNEL, rows)
    if is_known:
        told = [{"stage": stage, "reason": reason, "images": gone[stage, reason]} for stage, reason in sorted(gone)]
        outputs.write_audit(run, DROPPED_IMAGES, told)


def _none_yet(step: str) -> list[int | None]:
    """Images and bytes of a step before any are added."""
    return [None if step == POOL else 0, None if step in (Stage.EXTRACT, Stage.JUDGE) else 0]


def _add(amounts: Amounts, step: str, source: str | None, *more: int | None) -> None:
    of = amounts[step, source]
    of[:] = [before if one is None else (before or 0) + one for before, one in zip(of, more, strict=True)]


def _entries(run: Run, tars: int, samples: Iterable[Mapping[str, int]]) -> Iterable[FunnelRow]:
    sizes = {file.path: int(run.facts_of(EXTRACTED, file.name).stamp[0]) for file in run.files}
    yield POOL, None, None, sum(sizes.values())
    for source, path in dict.fromkeys((run.source_of(file.number), file.path) for file in run.files):
        yield POOL, source, None, sizes[path]
    found = storage.read_json(run.path("tables", "over_captioned_images.json"))
    for source, images in ((None, found["distinct"]), *found["distinct_by_source"].items()):
        yield Stage.EXTRACT.value, source, images, None
    yield SHARDS, None, None, tars
    for of_shard in samples:
        for source, size in of_shard.items():
            yield SHARDS, source, None, size
