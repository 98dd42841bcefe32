"""Writes the files of a shard, its tar and its side-car, and those of scores of its samples."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data import scores
from altalign.data.schema import SampleRow
from altalign.data.shards import ShardWriter, table_of, write_sidecar
from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.pipelines.run import marks
from altalign.pipelines.run.shard_tables import ScoreFacts, ShardFacts
from altalign.pipelines.run.units import Marks, Run
from altalign.settings.curate import ShardsSettings
from altalign.storage import Written, parquet

_HEADER_BYTES, _END_BYTES = 512, 1024  # before an image, and after the last sample

AS_PAIRS = ShardsSettings()
Places = npt.NDArray[np.bytes_]  # S64[n]: image_id and key; of whole images image_id will do
Pair = tuple[Mapping[str, object], bytes]  # a row of `SAMPLE`, and its image


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


def merged(
    where: str,
    sequences: Sequence[Sequence[tuple[str, int]]],
    read: Callable[[str], Places],
    per_shard: int,
    *,
    whole: bool = False,
) -> list[list[Slice]]:
    """Cuts several sequences of things (names and rows) into full shards, as `filled` one: all rows come in one order.

    `read` gives the places of a thing, which rise in a sequence; those of one thing of each are in memory. `where` is
    what an error names. Of `whole` images these are counted, and not cut.
    """
    waiting = [_rising(where, map(read, (name for name, _ in things))) for things in sequences]
    heads = {number: block for number, blocks in enumerate(waiting) if (block := next(blocks, None)) is not None}
    owners, sizes = np.zeros(0, np.int64), list[list[int]]()  # sizes: rows of each sequence in each shard
    begins, before = np.zeros(0, bool), b""  # whether rows are the first of a sample
    while heads:
        interrupts.check()
        last = min(block[-1] for block in heads.values())  # all up to here are in memory
        taken = {number: int(np.searchsorted(block, last, side="right")) for number, block in heads.items()}
        places = np.concatenate([heads[number][:many] for number, many in taken.items()])
        order = np.argsort(places, kind="stable")
        owners = np.concatenate([owners, np.repeat(list(taken), list(taken.values()))[order]])
        samples = places[order].astype("S32" if whole else "S64")
        begins = np.concatenate([begins, samples != np.r_[np.array([before], samples.dtype), samples[:-1]]])
        before = samples[-1]
        for number, many in taken.items():
            rest = heads.pop(number)[many:]
            block = rest if len(rest) else next(waiting[number], None)
            if block is not None:
                heads[number] = block
        firsts = np.flatnonzero(begins)
        ends = firsts[per_shard::per_shard].tolist()  # of full shards, after which another sample begins
        for begin, end in pairwise([0, *ends, *([] if heads else [len(owners)])]):
            sizes.append(np.bincount(owners[begin:end], minlength=len(sequences)).tolist())
        cut = ends[-1] if ends else 0
        owners, begins = owners[cut:], begins[cut:]
    of_sequences = [slices(things, [of_shard[number] for of_shard in sizes]) for number, things in enumerate(sequences)]
    return [list(chain(*of_shard)) for of_shard in zip(*of_sequences, strict=True)]


def _rising(where: str, blocks: Iterable[Places]) -> Iterator[Places]:
    """Yields the blocks that have places."""
    before = b""
    for block in blocks:
        if not len(block):
            continue
        if block[0] < before or (block[1:] < block[:-1]).any():
            raise UnreadableError(f"{where}: samples are not in the order of image_id and key")
        yield block
        before = block[-1]


def distinct_images(shards: Iterable[ShardFacts]) -> int:
    """The images of shards in one order, where one may be the last of a shard and the first of the next."""
    ordered = list(shards)
    shared = sum(before.last_image == after.first_image for before, after in pairwise(ordered))
    return sum(facts.images for facts in ordered) - shared


def write_shard(folder: str, name: str, pairs: Iterable[Pair], settings: ShardsSettings = AS_PAIRS) -> ShardFacts:
    """Write `NAME.tar` and `NAME.parquet` in the folder of shards, from rows of `SAMPLE` and their images, in order.

    The tar says where each image begins, whatever `tar_offset` a row brings.

    Raises:
        ValueError: there are no pairs, or as `ShardWriter.write`.
    """
    return write_files(folder, name, lambda shard: table_of(written(shard, pairs, settings)))


def written(shard: ShardWriter, pairs: Iterable[Pair], settings: ShardsSettings) -> Iterator[SampleRow]:
    """Appends pairs to a shard, or their images with all captions that follow one another, and yields their rows."""
    if settings.captions == "one":
        yield from (shard.write(image, row) for row, image in pairs)
        return
    for _, of_image in groupby(pairs, lambda pair: (pair[0]["image_id"], pair[0]["sha256"])):
        rows, images = zip(*of_image, strict=True)
        yield from shard.write_all(images[0], rows, settings.shares([str(row["source"]) for row in rows]))


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
    """The bytes that the samples of each source have in a tar: from the header of an image to that of the next.

    Those of an image with all its captions count for the last one's.
    """
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
