"""Images and bytes at each step of a run, of each source and of all sources: what counts of rows do not say.

An image that two sources have counts in each of them, and once in all, so the totals are counted beside the sources and
are no sums of them. All rows of an image are in one fetch unit, so units add up.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.audit_tables import FUNNEL
from altalign.pipelines.run import outputs
from altalign.pipelines.run.artefacts import DECONTAMINATED, EXTRACTED, FETCHED
from altalign.pipelines.run.units import Run
from altalign.reasons import Stage

POOL, SHARDS = "pool", "shards"
STEPS = (POOL, *(stage.value for stage in Stage), SHARDS)


Entry = list[Any]  # step, source (None: all), images, bytes; of JSON


def of_images(step: str, rows: pa.Table, *, sizes: str | None) -> list[Entry]:
    """The images of rows (columns `image_id` and `source`), and their bytes (column `sizes`, the same for all rows of an image; None: not known)."""
    columns = {
        "image": rows["image_id"],
        "source": rows["source"],
        "bytes": rows[sizes] if sizes else pa.nulls(len(rows), pa.int64()),
    }
    of_sources = _once(pa.table(columns), ["image", "source"])
    tally = (
        of_sources.group_by("source", use_threads=False).aggregate([([], "count_all"), ("bytes", "sum")]).to_pylist()
    )
    of_all = _once(of_sources, ["image"])
    found = [
        (None, len(of_all), pc.sum(of_all["bytes"]).as_py()),
        *sorted((row["source"], row["count_all"], row["bytes_sum"]) for row in tally),
    ]
    return [[step, source, images, (size or 0) if sizes else None] for source, images, size in found]


def _once(rows: pa.Table, by: list[str]) -> pa.Table:
    """One row of those that are the same in these columns."""
    found = rows.group_by(by, use_threads=False).aggregate([("bytes", "min")])
    return found.rename_columns([name.removesuffix("_min") for name in found.column_names])


def renamed(entries: Iterable[Entry], *, step: str, to: str) -> list[Entry]:
    """Those of a step, as those of another one that keeps them all."""
    return [[to, *entry[1:]] for entry in entries if entry[0] == step]


def write(run: Run, *, tars: int, samples: Iterable[Mapping[str, int]]) -> None:
    """`audit/funnel.parquet`: every step, and of each all sources together and one by one.

    Args:
        run: whose units are done, those of shards too.
        tars: bytes of all.
        samples: of each shard, the bytes of the samples of each source in its tar.
    """
    sources = sorted({each.source for each in run.config.input})
    amounts: dict[tuple[str, str | None], list[int | None]] = {
        (step, source): _none_yet(step) for step in STEPS for source in (None, *sources)
    }
    for entry in _entries(run, tars, samples):
        _add(amounts, *entry)
    for step, source in [of for of in amounts if of[0] == SHARDS]:
        amounts[step, source][0] = amounts[Stage.DECONTAMINATE.value, source][0]  # all of which are in the shards
    rows, schema = [(*of, *amount) for of, amount in amounts.items()], FUNNEL.schema
    table = pa.table(
        [pa.array(list(column), field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)],
        schema=schema,
    )
    outputs.write_audit(run, FUNNEL, table)


def _none_yet(step: str) -> list[int | None]:
    """Images and bytes of a step where there are none; None: not known of this step."""
    return [None if step == POOL else 0, None if step in (Stage.EXTRACT, Stage.JUDGE) else 0]


def _add(
    amounts: dict[tuple[str, str | None], list[int | None]], step: str, source: str | None, *more: int | None
) -> None:
    of = amounts[step, source]
    of[:] = [before if one is None else (before or 0) + one for before, one in zip(of, more, strict=True)]


def _entries(run: Run, tars: int, samples: Iterable[Mapping[str, int]]) -> Iterable[Entry]:
    sizes = {file.path: run.facts_of(EXTRACTED, file.name).stamp[0] for file in run.files}
    yield [POOL, None, None, sum(sizes.values())]
    for source, path in dict.fromkeys((run.source_of(file.number), file.path) for file in run.files):
        yield [POOL, source, None, sizes[path]]
    found = storage.read_json(run.path("tables", "over_captioned_images.json"))
    for source, images in ((None, found["distinct"]), *found["distinct_by_source"].items()):
        yield [Stage.EXTRACT.value, source, images, None]
    for marks in (FETCHED, DECONTAMINATED):
        for _, facts in run.all_facts(marks):
            yield from facts.funnel
    yield [SHARDS, None, None, tars]
    for of_shard in samples:
        for source, size in of_shard.items():
            yield [SHARDS, source, None, size]
