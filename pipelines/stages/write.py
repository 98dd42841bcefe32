"""Write: kept pairs in the order of (image_id, key) go into shards of exactly `samples_per_shard`, with side-cars.

The manifest is written last.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np

from altalign import storage
from altalign.audit_tables import FAILED_ROWS
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.pipelines.card import readme
from altalign.pipelines.card.facts import Facts as CardFacts
from altalign.pipelines.engine.options import threads
from altalign.pipelines.evidence import funnel, gallery_rows
from altalign.pipelines.files import parquet
from altalign.pipelines.files.ranges import Range, Ranges
from altalign.pipelines.images import for_shards
from altalign.pipelines.near import learned
from altalign.pipelines.opening import summary
from altalign.pipelines.run import outputs
from altalign.pipelines.run.artefacts import DECONTAMINATED, WRITTEN, Fetched, ShardFacts, ShardUnit, kept_rows
from altalign.pipelines.run.units import Run
from altalign.schema import RULES_VERSION, SCHEMA_VERSION
from altalign.shards import ShardWriter, write_sidecar

SECONDS_PER_SAMPLE = 1e-3  # docs/concepts/where-the-time-goes.md


def plan(run: Run) -> list[ShardUnit]:
    """One unit a shard: which rows of which fetch units, in order. Shards that were deleted or cut are written anew."""
    for name, facts in run.all_facts(WRITTEN):
        if not _is_whole(run, name, facts):
            storage.delete(run.mark(WRITTEN.step, name))
    per_shard = run.config.shards.samples_per_shard
    units = [(name, facts.kept) for name, facts in run.all_facts(DECONTAMINATED) if facts.kept]
    ends = np.cumsum([kept for _, kept in units]).tolist()
    total = ends[-1] if ends else 0
    shards: list[ShardUnit] = []
    for begin in range(0, total, per_shard):
        end = min(begin + per_shard, total)
        first = int(np.searchsorted(ends, begin, side="right"))
        parts = list[list[Any]]()
        while first < len(units) and ends[first] - units[first][1] < end:
            name, kept = units[first]
            start = ends[first] - kept
            parts.append([name, max(0, begin - start), min(kept, end - start)])
            first += 1
        shards.append(ShardUnit(name=f"{len(shards):05d}", rows=end - begin, parts=parts))
    return shards


def seconds(_run: Run, shards: Sequence[ShardUnit]) -> float:
    """About how long shards take one core."""
    return SECONDS_PER_SAMPLE * sum(shard["rows"] for shard in shards)


def _is_whole(run: Run, name: str, facts: ShardFacts) -> bool:
    """Whether both files of a finished shard are there, with the sizes that they were written with."""
    sizes = {f"{name}.tar": facts.bytes, f"{name}.parquet": facts.parquet_bytes}
    paths = {run.path("shards", file): size for file, size in sizes.items()}
    return all(storage.exists(path) and storage.stamp(path).size == size for path, size in paths.items())


def write(run: Run, unit: ShardUnit) -> ShardFacts:
    """Write one shard and its side-car."""
    name = unit["name"]
    rows: list[dict[str, Any]] = []
    source_bytes = Counter[str]()
    with (
        STRICT_PILLOW,
        storage.write(run.path("shards", f"{name}.tar")) as file,
        closing(for_shards.images(_found(run, unit), run.config.shards, threads=threads(run.config.engine))) as images,
    ):
        shard = ShardWriter(file)
        for row, image in images:
            before = shard.bytes
            rows.append(shard.write(image.bytes, {**row, **image.measured}))
            source_bytes[row["source"]] += shard.bytes - before
        shard.end()
    with storage.write(run.path("shards", f"{name}.parquet")) as file:
        hashed = _Hashed(file)
        write_sidecar(rows, hashed)  # type: ignore[arg-type]
    return ShardFacts(
        rows=len(rows),
        bytes=shard.bytes,
        source_bytes=dict(sorted(source_bytes.items())),
        sha256=shard.sha256,
        parquet_bytes=storage.stamp(run.path("shards", f"{name}.parquet")).size,
        parquet_sha256=hashed.sha256,
        images=_distinct(rows),
        first_image=rows[0]["image_id"],
        last_image=rows[-1]["image_id"],
    )


def _found(run: Run, unit: ShardUnit) -> Iterator[for_shards.Found]:
    """Yields the rows of a shard; an image is read once for all its captions."""
    for name, begin, end in unit["parts"]:
        rows = kept_rows(run, name).slice(begin, end - begin).drop_columns("rarest_log2").to_pylist()
        blob = Fetched(run, name).images
        places = [Range(blob, row.pop("blob_offset"), row.pop("blob_bytes")) for row in rows]
        before = None
        with Ranges(places) as ranges:
            for row, place in zip(rows, ranges, strict=True):
                yield for_shards.Found(row, place, None if place == before else ranges.read(place))
                before = place


def _distinct(rows: list[dict[str, Any]]) -> int:
    return len({row["image_id"] for row in rows})


class _Hashed:
    """A file that remembers the SHA-256 of what is written to it."""

    def __init__(self, file: Any):
        self._file, self._digest = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    @property
    def sha256(self) -> str:
        """SHA-256 of what was written, in hex."""
        return self._digest.hexdigest()


def conclude(run: Run) -> None:
    """Write counts, summary and the data-set card, and the manifest last.

    Raises:
        CountsError: the counts of the run do not add up, or the shards do not hold exactly the kept pairs.
    """
    counts, failed_counts = outputs.counts_of(run), outputs.failed_counts_of(run)
    shards = list(run.all_facts(WRITTEN))
    pairs = sum(facts.rows for _, facts in shards)
    counts.reconcile(outputs.COUNTED_STAGES, pairs=pairs)
    failed_counts.check(counts)
    outputs.write_audit(run, FAILED_ROWS, failed_counts.to_arrow())
    parquet.write(run.path("counts.parquet"), counts.to_arrow(), counts.to_arrow().schema)
    shared = sum(before.last_image == after.first_image for (_, before), (_, after) in pairwise(shards))
    images = sum(facts.images for _, facts in shards) - shared
    size = sum(facts.bytes for _, facts in shards)
    facts = {"stages": counts.summary(outputs.COUNTED_STAGES), "pairs": pairs, "images": images, "bytes": size}
    if learned.is_wanted(run):
        facts["near_duplicates"] = outputs.found(run)
    storage.write_json(run.path("summary.json"), facts)
    funnel.write(run, tars=size, samples=(facts.source_bytes for _, facts in shards))
    gallery_rows.write(run)
    of_card = readme.write(run.folder, CardFacts(run.config, counts, facts, summary.notes(run)))
    keys = ("rows", "bytes", "sha256", "parquet_sha256")
    manifest = {
        "shards": [{"name": f"{name}.tar", **{key: getattr(of, key) for key in keys}} for name, of in shards],
        **{"pairs": pairs, "schema_version": SCHEMA_VERSION, "rules_version": RULES_VERSION},
        "settings_sha256": hashlib.sha256(storage.read_bytes(run.path("config.toml"))).hexdigest(),
        "card": of_card,
    }
    storage.write_json(run.path("manifest.json"), manifest)
