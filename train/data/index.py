"""The index of a training run: where in the shards each pair is, trained on or held out.

A pair takes 48 bytes, and 8 more where it has a weight.

One pass over the side-cars writes it, a shard in memory at a time. Files of `RUN/index`: for each source `pairs-N.bin`,
in the order of the runs, their shards and rows, and perhaps `weights-N.bin`; `held_out.bin`; and `index.json`, last of
all: an index without it is none.

Held out are the images whose `image_id`, a hash itself, is below `held_out` as a share of all ids; the pairs trained on
are those of the other images with the smallest keys, which are hashes too. So both are known from side-cars alone,
whatever the seed, and fewer pairs are among more. A pair that is in two runs counts twice. A condition (`[data] where`)
leaves out pairs before any are counted; those that are held out stay, so that trainings on other conditions are
measured on the same.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.stages import damaged
from altalign.errors import UnreadableError, UsageError
from altalign.train.data.runs import Runs, Shard
from altalign.train.data.weights import SUM, Weights

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
_WEIGHED = np.dtype([*PAIR.descr, ("weight", "<f8")])  # while the index is made
HELD_OUT = "held_out.bin"
KEPT = "kept"  # of pairs of which something is asked: those that stay
BLOCK = 512  # bytes of a tar

_COLUMNS = ["key", "image_id", "caption", "source", "tar_offset", "tar_bytes"]
_CHUNK = 1 << 20  # pairs of an index that are read at a time
_BUCKETS = 20  # bits of a key by which pairs are counted before the n smallest are known
_HEX = np.full(256, 255, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)

Pairs = npt.NDArray[np.void]  # of PAIR


def build(folder: str, runs: Runs, *, held_out: float, pairs: int) -> dict[str, Any]:
    """Make the index in a folder, unless it was made of the same manifests and choices.

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
    asked = {
        "version": VERSION,
        "manifests": list(runs.manifests.values()),
        "clusters": [digest for _, digest in runs.clusters.values()],
        "held_out": held_out,
        "pairs": pairs,
    }
    if of_chosen := runs.chosen.asked.to_json():
        asked |= {**of_chosen, "scores": list(runs.chosen.digests.values())}
    mark = storage.join(folder, "index.json")
    known = _known(mark)
    if known.get("asked") == asked and all(_is_whole(folder, file, size) for file, size in _files(known).items()):
        return known
    storage.delete(folder)
    has_weights = bool(runs.chosen.asked.weight_by)
    sources, of_why = _write(folder, runs, "all" if pairs or has_weights else "pairs", held_out)
    last_key = ""
    if pairs or has_weights:
        last_key = _choose(folder, sources, pairs, _WEIGHED if has_weights else PAIR)
    facts = {
        "asked": asked,
        "sources": {
            name: {"file": f"pairs-{number}.bin", "pairs": _count(folder, f"pairs-{number}.bin")}
            | ({"weights": f"weights-{number}.bin"} if has_weights else {})
            for name, number in sorted(sources.items())
        },
        "held_out_pairs": _count(folder, HELD_OUT),
        "last_key": last_key,
        **({"chosen": {why or KEPT: number for why, number in sorted(of_why.items())}} if of_chosen else {}),
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
    for shard, table in runs.sidecars(["key", "image_id", "caption"]):
        keys, images = _hashes(table["key"]), _hashes(table["image_id"])
        takes = ~is_held_out(images[:, 0], held_out) & runs.choice(shard, table).stays
        if last_key:
            takes &= ~_is_above(keys, bytes.fromhex(last_key))
        yield cast(list[str], table["caption"].filter(pa.array(takes)).to_pylist())


def weights_of(folder: str, facts: Mapping[str, Any]) -> dict[str, Weights]:
    """The weights of the pairs of each source, of an index and what is in its index.json; empty: there are none."""
    files = {name: of["weights"] for name, of in facts["sources"].items() if "weights" in of and of["pairs"]}
    return {name: Weights(storage.join(folder, file)) for name, file in files.items()}


def nth_key(files: Sequence[str], n: int, kind: "np.dtype[np.void]" = PAIR) -> tuple[bytes, int]:
    """The n-th smallest key of the pairs of some files, n from 1 to all of them.

    Returns too how many pairs of this very key are among the n smallest.
    """
    counts = np.zeros(1 << _BUCKETS, np.int64)
    shift = np.uint64(64 - _BUCKETS)
    for chunk in _chunks(files, kind):
        counts += np.bincount((chunk["key"][:, 0].astype(np.uint64) >> shift).astype(np.int64), minlength=len(counts))
    ends = np.cumsum(counts)
    bucket = int(np.searchsorted(ends, n))
    found = [
        chunk["key"][(chunk["key"][:, 0].astype(np.uint64) >> shift) == np.uint64(bucket)]
        for chunk in _chunks(files, kind)
    ]
    keys = sorted(row.tobytes() for rows in found for row in rows)
    place = n - 1 - int(ends[bucket] - counts[bucket])
    return keys[place], place + 1 - keys.index(keys[place])


def read_pairs(path: str, kind: "np.dtype[np.void]" = PAIR) -> Pairs:
    """A file of an index, mapped into memory."""
    path = storage.mappable(path)
    size = storage.stamp(path).size
    if size % kind.itemsize:
        raise UnreadableError(
            f"{path}: {size:,} bytes, no whole number of pairs; delete the folder it is in, and it is made again"
        )
    return np.memmap(path, kind, "r") if size else np.empty(0, kind)


def _write(folder: str, runs: Runs, stem: str, held_out: float) -> tuple[dict[str, int], Counter[str]]:
    """Pairs of each source, and those held out.

    Gives the number of the file of each source, and how many pairs are left out, by why they are (empty: they stay).
    """
    numbers, of_why = dict[str, int](), Counter[str]()
    kind = _WEIGHED if runs.chosen.asked.weight_by else PAIR
    with ExitStack() as stack:
        kept_out = stack.enter_context(storage.write(storage.join(folder, HELD_OUT)))
        files: list[BinaryIO] = []
        for shard, table in runs.sidecars(_COLUMNS):
            _check_tar(runs.shards[shard])
            pairs = _pairs(runs.shards[shard], shard, table)
            out, choice = is_held_out(pairs["image_id"][:, 0], held_out), runs.choice(shard, table)
            kept_out.write(pairs[out].tobytes())
            of_why.update(choice.why[~out].tolist())
            if kind is _WEIGHED:
                pairs = _with_weights(pairs, choice.weights)
            of_shard = runs.sources_of(shard, table).dictionary_encode()
            which = np.asarray(of_shard.indices)
            for code, name in enumerate(map(str, of_shard.dictionary.to_pylist())):
                if name not in numbers:
                    numbers[name] = len(files)
                    files.append(stack.enter_context(storage.write(storage.join(folder, f"{stem}-{len(files)}.bin"))))
                files[numbers[name]].write(pairs[(which == code) & ~out & choice.stays].tobytes())
    return numbers, of_why


def _with_weights(pairs: Pairs, weights: npt.NDArray[np.float64]) -> Pairs:
    found = np.empty(len(pairs), _WEIGHED)
    for name in PAIR.names or ():
        found[name] = pairs[name]
    found["weight"] = weights
    return found


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


def _choose(folder: str, sources: Mapping[str, int], n: int, kind: "np.dtype[np.void]") -> str:
    """Write the n pairs of the smallest keys (0: all), with their weights, and delete what had all.

    Gives the largest of these keys; of all "".
    """
    numbers = [sources[name] for name in sorted(sources)]
    paths = [storage.join(folder, f"all-{number}.bin") for number in numbers]
    there = sum(storage.stamp(path).size // kind.itemsize for path in paths)
    if n > there:
        storage.delete(folder)
        raise UsageError(f"[data] pairs = {n:,}: there are {there:,} that are not held out; give fewer, or 0 for all")
    last, of_last = nth_key(paths, n, kind) if n else (b"", 0)
    for number, path in zip(numbers, paths, strict=True):
        with ExitStack() as stack:
            file = stack.enter_context(storage.write(storage.join(folder, f"pairs-{number}.bin")))
            sums = None
            if kind is _WEIGHED:
                sums = stack.enter_context(storage.write(storage.join(folder, f"weights-{number}.bin")))
            total = 0.0
            for chunk in _chunks([path], kind):
                takes = np.full(len(chunk), fill_value=True)
                if n:
                    takes = ~_is_above(chunk["key"], last)
                    equal = np.flatnonzero((chunk["key"] == np.frombuffer(last, ">u8")).all(axis=1))
                    takes[equal[of_last:]] = False
                    of_last -= min(of_last, len(equal))
                file.write(chunk[takes][list(PAIR.names or ())].astype(PAIR).tobytes())
                if sums is not None:
                    found = np.cumsum(np.r_[total, chunk["weight"][takes]])[1:]
                    total = float(found[-1]) if len(found) else total
                    sums.write(found.astype(SUM).tobytes())
        storage.delete(path)
    return last.hex()


def _is_above(keys: npt.NDArray[np.uint64], last: bytes) -> npt.NDArray[np.bool_]:
    high, low = (np.uint64(int.from_bytes(half, "big")) for half in (last[:8], last[8:]))
    return (keys[:, 0] > high) | ((keys[:, 0] == high) & (keys[:, 1] > low))


def _chunks(files: Iterable[str], kind: "np.dtype[np.void]") -> Iterator[Pairs]:
    for path in files:
        pairs = read_pairs(path, kind)
        for first in range(0, len(pairs), _CHUNK):
            yield np.asarray(pairs[first : first + _CHUNK])


def _count(folder: str, file: str) -> int:
    return storage.stamp(storage.join(folder, file)).size // PAIR.itemsize


def _known(mark: str) -> dict[str, object]:
    try:
        return storage.read_json(mark)
    except UnreadableError:  # it is made again
        return {}


def _is_whole(folder: str, file: str, size: int) -> bool:
    path = storage.join(folder, file)
    return storage.exists(path) and storage.stamp(path).size == size


def _files(facts: Mapping[str, Any]) -> dict[str, int]:
    """How many bytes each file has."""
    sources = facts["sources"].values()
    return {
        HELD_OUT: facts["held_out_pairs"] * PAIR.itemsize,
        **{source["file"]: source["pairs"] * PAIR.itemsize for source in sources},
        **{source["weights"]: source["pairs"] * SUM.itemsize for source in sources if "weights" in source},
    }
