"""The index of a training run: where in the shards each pair is, trained on or held out.

A pair takes 48 bytes.

One pass over the side-cars writes it, a shard in memory at a time. Files of `RUN/index`: for each source `pairs-N.bin`,
in the order of the runs, their shards and rows; `held_out.bin`; and `index.json`, last of all: an index without it is
none.

Held out are the images whose `image_id`, a hash itself, is below `held_out` as a share of all ids; the pairs trained on
are those of the other images with the smallest keys, which are hashes too. So both are known from side-cars alone,
whatever the seed, and fewer pairs are among more. A pair that is in two runs counts twice.
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UnreadableError, UsageError
from altalign.schema import SCHEMA_VERSION
from altalign.stages import damaged

VERSION = 1  # of the files
PAIR = np.dtype(
    [
        ("key", ">u8", (2,)),
        ("image_id", ">u8", (2,)),
        ("shard", "<u4"),  # in the order of the runs
        ("block", "<u4"),  # of 512 bytes, where the image begins in the tar
        ("image_bytes", "<u4"),
        ("caption_bytes", "<u4"),  # of UTF-8
    ]
)
HELD_OUT = "held_out.bin"
BLOCK = 512  # bytes of a tar

_COLUMNS = ["key", "image_id", "caption", "source", "tar_offset", "tar_bytes"]
_CHUNK = 1 << 20  # pairs of an index that are read at a time
_BUCKETS = 20  # bits of a key by which pairs are counted before the n smallest are known
_HEX = np.full(256, 255, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)

Pairs = npt.NDArray[np.void]  # of PAIR


@dataclass(frozen=True)
class Shard:
    """A shard as the manifest of its run has it."""

    folder: str  # the run
    name: str  # NNNNN.tar
    rows: int
    bytes: int
    sidecar_sha256: str

    @property
    def tar(self) -> str:
        """Path of the tar."""
        return storage.join(self.folder, "shards", self.name)

    @property
    def sidecar(self) -> str:
        """Path of the side-car."""
        return f"{self.tar.removesuffix('.tar')}.parquet"


@dataclass(frozen=True)
class Runs:
    """Finished runs of curation, and the SHA-256 of the manifest of each."""

    shards: list[Shard]
    manifests: dict[str, str]

    @classmethod
    def open(cls, folders: Sequence[str]) -> "Runs":
        """Read the manifests.

        Raises:
            UsageError: a folder is not there, is no run, is not finished, or is given twice.
            DamagedError: a manifest is not as it was written.
        """
        shards: list[Shard] = []
        manifests: dict[str, str] = {}
        for folder in folders:
            if folder in manifests:
                raise UsageError(f"[data] runs: {folder} is there twice; name it once")
            manifests[folder], found = _manifest(folder)
            shards += found
        return cls(shards, manifests)


def build(folder: str, runs: Runs, *, held_out: float, pairs: int) -> dict[str, Any]:
    """Make the index in a folder, or leave it where it is of these manifests and choices already.

    Returns what is in its index.json.

    Args:
        folder: local; one process writes there.
        runs: what is trained on.
        held_out: share of the images that is kept from training; 1: all.
        pairs: exactly so many of the others' pairs; 0: all.

    Raises:
        UsageError: there are fewer pairs.
        DamagedError: side-car and manifest disagree.
        FullDiskError: no space is left.
    """
    asked = {"version": VERSION, "manifests": list(runs.manifests.values()), "held_out": held_out, "pairs": pairs}
    mark = storage.join(folder, "index.json")
    known = _known(mark)
    if known.get("asked") == asked and all(_is_whole(folder, file, pairs) for file, pairs in _files(known).items()):
        return known
    storage.delete(folder)
    first = "all" if pairs else "pairs"
    sources = _write(folder, runs, first, held_out)
    last_key = ""
    if pairs:
        last_key = _choose(folder, sources, pairs)
    facts = {
        "asked": asked,
        "sources": {
            name: {"file": f"pairs-{number}.bin", "pairs": _count(folder, f"pairs-{number}.bin")}
            for name, number in sorted(sources.items())
        },
        "held_out_pairs": _count(folder, HELD_OUT),
        "last_key": last_key,
    }
    storage.write_json(mark, facts)
    return facts


def is_held_out(image_ids: npt.NDArray[np.uint64], share: float) -> npt.NDArray[np.bool_]:
    """Whether images are held out: bool[n] of the first 64 bits of their ids."""
    limit = int(Fraction(share) * 2**64)
    return np.full(len(image_ids), fill_value=True) if limit >= 2**64 else image_ids < np.uint64(limit)


def captions(runs: Runs, *, held_out: float, last_key: str) -> Iterator[list[str]]:
    """Captions of the pairs that are not held out, up to `last_key` ("": all), a shard at a time.

    Runs come in their order.
    """
    for _, table in _sidecars(runs, ["key", "image_id", "caption"]):
        keys, images = _hashes(table["key"]), _hashes(table["image_id"])
        takes = ~is_held_out(images[:, 0], held_out)
        if last_key:
            takes &= ~_is_above(keys, bytes.fromhex(last_key))
        yield cast(list[str], table["caption"].filter(pa.array(takes)).to_pylist())


def nth_key(files: Sequence[str], n: int) -> tuple[bytes, int]:
    """The n-th smallest key of the pairs of some files, n from 1 to all of them.

    Returns too how many pairs of this very key are among the n smallest.
    """
    counts = np.zeros(1 << _BUCKETS, np.int64)
    shift = np.uint64(64 - _BUCKETS)
    for chunk in _chunks(files):
        counts += np.bincount((chunk["key"][:, 0].astype(np.uint64) >> shift).astype(np.int64), minlength=len(counts))
    ends = np.cumsum(counts)
    bucket = int(np.searchsorted(ends, n))
    found = [
        chunk["key"][(chunk["key"][:, 0].astype(np.uint64) >> shift) == np.uint64(bucket)] for chunk in _chunks(files)
    ]
    keys = sorted(row.tobytes() for rows in found for row in rows)
    place = n - 1 - int(ends[bucket] - counts[bucket])
    return keys[place], place + 1 - keys.index(keys[place])


def read_pairs(path: str) -> Pairs:
    """A file of an index, mapped into memory."""
    size = storage.stamp(path).size
    if size % PAIR.itemsize:
        raise UnreadableError(
            f"{path}: {size:,} bytes, no whole number of pairs; delete the folder it is in, and it is made again"
        )
    return np.memmap(path, PAIR, "r") if size else np.empty(0, PAIR)


def _manifest(folder: str) -> tuple[str, list[Shard]]:
    storage.check(folder)
    if storage.kind(folder) != "folder":
        raise UsageError(f"{folder}: no such run folder; give the [run] folder of a curation in [data] runs")
    path = storage.join(folder, "manifest.json")
    if not storage.exists(path):
        what = (
            "not finished (it has no manifest.json); let `altalign curate` end"
            if storage.exists(storage.join(folder, "run.json"))
            else "no run of altalign"
        )
        raise UsageError(f"{folder}: {what}, or give another folder in [data] runs")
    data = storage.read_bytes(path)
    try:
        manifest = json.loads(data)
        version = manifest["schema_version"]
        shards = [
            Shard(folder, str(s["name"]), int(s["rows"]), int(s["bytes"]), str(s["parquet_sha256"]))
            for s in manifest["shards"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(folder, path, f"no manifest of shards: {type(error).__name__} {error}") from None
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path}: schema_version {version}, and this altalign reads {SCHEMA_VERSION}; curate again, or use the "
            "altalign that wrote it"
        )
    return sha256(data).hexdigest(), shards


def _sidecars(runs: Runs, columns: list[str]) -> Iterator[tuple[int, pa.Table]]:
    """The side-cars with the numbers of their shards, each checked against its manifest."""
    of = next((folder for folder in runs.manifests if storage.is_remote(folder)), "")
    yield from enumerate(storage.each(lambda shard: _sidecar(shard, columns), runs.shards, of=of))


def _sidecar(shard: Shard, columns: list[str]) -> pa.Table:
    path = shard.sidecar
    try:
        data = storage.read_bytes(path)
    except FileNotFoundError:
        raise damaged(shard.folder, path, "it is not there") from None
    if sha256(data).hexdigest() != shard.sidecar_sha256:
        raise damaged(shard.folder, path, "its SHA-256 is not the one in manifest.json")
    try:
        table = pq.read_table(io.BytesIO(data), columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise damaged(shard.folder, path, f"cannot be read as Parquet ({error})") from None
    if len(table) != shard.rows:
        raise damaged(shard.folder, path, f"{len(table):,} rows, and manifest.json says {shard.rows:,}")
    return table


def _write(folder: str, runs: Runs, stem: str, held_out: float) -> dict[str, int]:
    """All pairs of each source, and those held out; gives the number of the file of each source."""
    numbers: dict[str, int] = {}
    with ExitStack() as stack:
        kept_out = stack.enter_context(storage.write(storage.join(folder, HELD_OUT)))
        files: list[BinaryIO] = []
        for shard, table in _sidecars(runs, _COLUMNS):
            _check_tar(runs.shards[shard])
            pairs = _pairs(runs.shards[shard], shard, table)
            out = is_held_out(pairs["image_id"][:, 0], held_out)
            kept_out.write(pairs[out].tobytes())
            sources = table["source"].combine_chunks().dictionary_encode()
            which = np.asarray(sources.indices)
            for code, name in enumerate(map(str, sources.dictionary.to_pylist())):
                if name not in numbers:
                    numbers[name] = len(files)
                    files.append(stack.enter_context(storage.write(storage.join(folder, f"{stem}-{len(files)}.bin"))))
                files[numbers[name]].write(pairs[(which == code) & ~out].tobytes())
    return numbers


def _check_tar(shard: Shard) -> None:
    try:
        size = storage.stamp(shard.tar).size
    except FileNotFoundError:
        raise damaged(shard.folder, shard.tar, "it is not there") from None
    if size != shard.bytes:
        raise damaged(shard.folder, shard.tar, f"{size:,} bytes, and manifest.json says {shard.bytes:,}")


def _pairs(shard: Shard, number: int, table: pa.Table) -> Pairs:
    pairs = np.empty(len(table), PAIR)
    offsets, sizes = (table[name].to_numpy() for name in ("tar_offset", "tar_bytes"))
    if (offsets % BLOCK).any() or (offsets // BLOCK >= 2**32).any() or (sizes >= 2**32).any():
        raise damaged(shard.folder, shard.sidecar, "an image is not at a whole block of the tar, or has 4 GiB")
    pairs["key"], pairs["image_id"] = _hashes(table["key"]), _hashes(table["image_id"])
    pairs["shard"], pairs["block"], pairs["image_bytes"] = number, offsets // BLOCK, sizes
    pairs["caption_bytes"] = pc.binary_length(table["caption"]).to_numpy()
    return pairs


def _hashes(column: "pa.ChunkedArray[pa.StringScalar]") -> npt.NDArray[np.uint64]:
    """32 hex digits each, as two big-endian numbers: uint64[n, 2]."""
    digits = _HEX[np.frombuffer("".join(map(str, column.to_pylist())).encode(), np.uint8)].reshape(len(column), 32)
    return (digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8").astype(np.uint64)


def _choose(folder: str, sources: Mapping[str, int], n: int) -> str:
    """Write the n pairs of the smallest keys, and delete what had all; gives the largest of these keys."""
    numbers = [sources[name] for name in sorted(sources)]
    there = sum(_count(folder, f"all-{number}.bin") for number in numbers)
    if n > there:
        storage.delete(folder)
        raise UsageError(f"[data] pairs = {n:,}: there are {there:,} that are not held out; give fewer, or 0 for all")
    last, of_last = nth_key([storage.join(folder, f"all-{number}.bin") for number in numbers], n)
    for number in numbers:
        path = storage.join(folder, f"all-{number}.bin")
        with storage.write(storage.join(folder, f"pairs-{number}.bin")) as file:
            for chunk in _chunks([path]):
                above = _is_above(chunk["key"], last)
                equal = np.flatnonzero((chunk["key"] == np.frombuffer(last, ">u8")).all(axis=1))
                above[equal[of_last:]] = True
                of_last -= min(of_last, len(equal))
                file.write(chunk[~above].tobytes())
        storage.delete(path)
    return last.hex()


def _is_above(keys: npt.NDArray[np.uint64], last: bytes) -> npt.NDArray[np.bool_]:
    high, low = (np.uint64(int.from_bytes(half, "big")) for half in (last[:8], last[8:]))
    return (keys[:, 0] > high) | ((keys[:, 0] == high) & (keys[:, 1] > low))


def _chunks(files: Iterable[str]) -> Iterator[Pairs]:
    for path in files:
        pairs = read_pairs(path)
        for first in range(0, len(pairs), _CHUNK):
            yield np.asarray(pairs[first : first + _CHUNK])


def _count(folder: str, file: str) -> int:
    return storage.stamp(storage.join(folder, file)).size // PAIR.itemsize


def _known(mark: str) -> dict[str, Any]:
    try:
        return storage.read_json(mark)
    except UnreadableError:  # it is made again
        return {}


def _is_whole(folder: str, file: str, pairs: int) -> bool:
    path = storage.join(folder, file)
    return storage.exists(path) and storage.stamp(path).size == pairs * PAIR.itemsize


def _files(facts: Mapping[str, Any]) -> dict[str, int]:
    """Pairs of each file."""
    return {
        HELD_OUT: facts["held_out_pairs"],
        **{source["file"]: source["pairs"] for source in facts["sources"].values()},
    }
