"""Writes the files of a shard, its tar and its side-car, and those of scores of its samples."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data import scores
from altalign.data.shards import ShardWriter, table_of, write_sidecar
from altalign.pipelines.run import marks
from altalign.pipelines.run.shard_tables import ScoreFacts, ShardFacts
from altalign.pipelines.run.units import Marks, Run
from altalign.storage import Written, parquet

_HEADER_BYTES, _END_BYTES = 512, 1024  # before an image, and after the last sample


class Slice(NamedTuple):
    """Rows `begin` to `end` of what is chosen of a thing of this name."""

    name: str
    begin: int
    end: int


def slices(things: Iterable[tuple[str, int]], sizes: Iterable[int]) -> Iterator[list[Slice]]:
    """Cuts things (names and rows), one after the other, into pieces of these sizes."""
    left, name, begin, rows = iter(things), "", 0, 0
    for size in sizes:
        piece = list[Slice]()
        while size:
            if begin == rows:
                name, rows = next(left)
                begin = 0
                continue
            many = min(size, rows - begin)
            piece.append(Slice(name, begin, begin + many))
            begin, size = begin + many, size - many
        yield piece


def filled(chosen: Sequence[tuple[str, int]], per_shard: int) -> list[list[Slice]]:
    """Cuts what is chosen (names and rows) into shards of exactly `per_shard` rows; the last may have fewer."""
    left = sum(rows for _, rows in chosen)
    return list(slices(chosen, (min(per_shard, left - begin) for begin in range(0, left, per_shard))))


def distinct_images(shards: Iterable[ShardFacts]) -> int:
    """The images of shards in one order, where one may be the last of a shard and the first of the next."""
    ordered = list(shards)
    shared = sum(before.last_image == after.first_image for before, after in pairwise(ordered))
    return sum(facts.images for facts in ordered) - shared


def write_shard(folder: str, name: str, samples: Iterable[tuple[Mapping[str, object], bytes]]) -> ShardFacts:
    """Write `NAME.tar` and `NAME.parquet` in the folder of shards, from rows of `SAMPLE` and their images, in order.

    The tar says where each image begins, whatever `tar_offset` a row brings.

    Raises:
        ValueError: there are no samples, or as `ShardWriter.write`.
    """
    return write_files(folder, name, lambda shard: table_of(shard.write(image, row) for row, image in samples))


def write_files(folder: str, name: str, fill: Callable[[ShardWriter], pa.Table]) -> ShardFacts:
    """The same, where `fill` writes at least one sample, and gives the side-car."""
    tar_path, parquet_path = (storage.join(folder, f"{name}.{ending}") for ending in ("tar", "parquet"))
    of_tar: Callable[[], Written] = lambda: Written(shard.bytes, shard.sha256)  # noqa: E731
    with storage.write(tar_path, written=of_tar) as file:
        shard = ShardWriter(file)
        rows = fill(shard)
        shard.end()
    with storage.write(parquet_path, written=lambda: sidecar.written) as file:
        sidecar = storage.Hashed(file)
        write_sidecar(rows, cast(BinaryIO, sidecar), f"{name}.tar")
    images = parquet.strings(rows, "image_id")
    return ShardFacts(
        rows=len(rows),
        bytes=shard.bytes,
        source_bytes=dict(sorted(source_bytes(rows, shard.bytes).items())),
        sha256=shard.sha256,
        parquet_bytes=sidecar.written.bytes,
        parquet_sha256=sidecar.written.digest,
        images=len(images.unique()),
        first_image=images[0].as_py(),
        last_image=images[-1].as_py(),
    )


def source_bytes(rows: pa.Table, tar_bytes: int) -> Counter[str]:
    """The bytes that the samples of each source have in a tar: from the header of an image to that of the next."""
    sizes = Counter[str]()
    of_samples = np.diff(starts(rows, tar_bytes)).tolist()
    for source, size in zip(parquet.values(rows, "source"), of_samples, strict=True):
        sizes[source] += size
    return sizes


def starts(rows: pa.Table, tar_bytes: int) -> npt.NDArray[np.int64]:
    """Where each of n samples begins in a tar of so many bytes, and where the last one ends: int64[n + 1]."""
    return np.append(rows["tar_offset"].to_numpy() - _HEADER_BYTES, tar_bytes - _END_BYTES)


Entry = dict[str, Any]  # what the manifest of a score says of a file


def score_path(score: str, shard: str) -> str:
    """The path of a score's file in its run."""
    return f"{scores.FOLDER}/{score}/{shard}.parquet"


def write_score(path: str, table: pa.Table) -> dict[str, int]:
    """Write key and values of a shard's samples; returns how many of each column are null."""
    parquet.write(path, table, table.schema)
    return {column: table[column].null_count for column in table.column_names[1:]}


def score_entry(facts: ScoreFacts, score: str, written: Written) -> Entry:
    """What a manifest says of a score's file, but the name of its shard."""
    nulls = dict(facts.nulls[score])
    return {"of": facts.of, "rows": facts.rows, "nulls": nulls, "bytes": written.bytes, "sha256": written.digest}


def scores_made(run: Run, step: Marks[ScoreFacts], score: str, shard_of: Callable[[str], str]) -> dict[str, Entry]:
    """The entries of the files that the units of a step have written, by shard; `shard_of` knows it of a unit."""
    entries = dict[str, Entry]()
    for unit, facts in run.all_facts(step):
        of_mark = marks.named(run.marks(step.step).read(unit))
        if written := of_mark.get(score_path(score, shard_of(unit))):
            entries[shard_of(unit)] = score_entry(facts, score, written)
    return entries


def conclude_score(folder: str, grounds: Mapping[str, Any], shards: Sequence[Entry], *, durable: bool) -> None:
    """Write the manifest of a score whose files are in this folder, and delete files of shards that are not in it.

    `grounds` are what its values rest on, `shards` entries with names, in the order of the run.
    """
    storage.write_sealed(storage.join(folder, "manifest.json"), scores.manifest(grounds, shards), durable=durable)
    kept = {f"{shard['name']}.parquet" for shard in shards}
    for name in {*storage.names(folder, ".parquet")} - kept:
        storage.delete(storage.join(folder, name))
