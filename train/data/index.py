"""The index of a training run: where in the shards each pair is, trained on or held out.

A pair takes 48 bytes, and 8 more where it has a weight. One pass over the side-cars writes it, a shard in memory at a
time. Files of `RUN/index`: for each source `pairs-N.bin`, in the order of the runs, their shards and rows, and perhaps
`weights-N.bin`; `held_out.bin`; and `index.json`, last of all: an index without it is none.

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
KEPT = "kept"  # the count of the pairs that a selection leaves
BLOCK = 512  # bytes of a tar

_VERSION = 1  # of the files
_WEIGHED = np.dtype([*PAIR.descr, ("weight", "<f8")])  # while the index is made
_SUM = np.dtype("<f8")
_COLUMNS = ["key", "image_id", "caption", "source", "tar_offset", "tar_bytes"]
_CHUNK = 1 << 20  # pairs of an index that are read at a time
_HEX = np.full(256, 255, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)

Pairs = npt.NDArray[np.void]  # of PAIR
Floats = npt.NDArray[np.float64]


class Weights:
    """The weights of a source's pairs, above 0, as running sums, float64[n], mapped from a file of the index.

    A pair has the part of the sum that its weight is: the pair at any point of the sum is found by halving, and nobody
    holds an order of draws. Each of several processes maps the file anew.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._mapped: Floats | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._sums[-1])

    def at(self, points: Floats) -> npt.NDArray[np.int64]:
        """The pairs that have these points, each from 0 (included) to 1 of the sum: int64[n]."""
        places = np.searchsorted(self._sums, points * self.total, side="right")
        return np.minimum(places, len(self._sums) - 1).astype(np.int64)  # rounded up to the sum itself

    @property
    def _sums(self) -> Floats:
        if self._mapped is None:
            self._mapped = np.memmap(storage.mappable(self._path), _SUM, "r")
        return self._mapped


def build(folder: str, runs: Runs, *, held_out: float, pairs: int) -> dict[str, Any]:
    """Make the index in a local folder, unless it was made of the same manifests and choices; gives its index.json.

    `held_out` is the share of the images that is kept from training (1: all); `pairs`, how many of the others are
    trained on (0: all). Raises UsageError where there are fewer, DamagedError where side-car and manifest disagree.
    """
    selection = runs.selection
    request: dict[str, Any] = {
        "version": _VERSION,
        "manifests": list(runs.manifests.values()),
        "clusters": [digest for _, digest in runs.clusters.values()],
        "held_out": held_out,
        "pairs": pairs,
    }
    if selection.columns:
        request |= {"where": selection.where, "weight_by": selection.weight_by, "nulls": selection.nulls}
        request["scores"] = list(runs.scores.values())
    mark = storage.join(folder, "index.json")
    known = read_mark(mark)
    if known.get("asked") == request and _is_whole(folder, known):
        return known
    storage.delete(folder)
    has_weights = bool(selection.weight_by)
    is_chosen = bool(pairs) or has_weights
    numbers, counts = _write(folder, runs, "all" if is_chosen else "pairs", held_out)
    last_key = _choose(folder, numbers, pairs, _WEIGHED if has_weights else PAIR) if is_chosen else ""
    facts = {
        "asked": request,
        "sources": {
            name: {"file": f"pairs-{number}.bin", "pairs": _count(folder, f"pairs-{number}.bin")}
            | ({"weights": f"weights-{number}.bin"} if has_weights else {})
            for name, number in sorted(numbers.items())
        },
        "held_out_pairs": _count(folder, HELD_OUT),
        "last_key": last_key,
        **({"chosen": {why or KEPT: count for why, count in sorted(counts.items())}} if selection.columns else {}),
    }
    storage.write_json(mark, facts)
    return facts


def is_held_out(image_ids: npt.NDArray[np.uint64], share: float) -> npt.NDArray[np.bool_]:
    """Whether images are held out: bool[n] of the first 64 bits of their ids."""
    limit = int(Fraction(share) * 2**64)
    return np.full(len(image_ids), fill_value=True) if limit >= 2**64 else image_ids < np.uint64(limit)


def captions(runs: Runs, *, held_out: float, last_key: str) -> Iterator[list[str]]:
    """Captions of the pairs that are not held out, up to `last_key` ("": all), a shard at a time, as the runs come."""
    for shard, table in runs.sidecars(["key", "image_id", "caption"]):
        takes = ~is_held_out(_hashes(table["image_id"])[:, 0], held_out) & runs.choice(shard, table).stays
        if last_key:
            takes &= ~_is_above(_hashes(table["key"]), bytes.fromhex(last_key))
        yield cast(list[str], table["caption"].filter(pa.array(takes)).to_pylist())


def weights_of(folder: str, facts: Mapping[str, Any]) -> dict[str, Weights]:
    """The weights of the pairs of each source, of an index and its index.json; empty: there are none."""
    sources = {name: source for name, source in facts["sources"].items() if "weights" in source and source["pairs"]}
    return {name: Weights(storage.join(folder, source["weights"])) for name, source in sources.items()}


def nth_key(files: Sequence[str], n: int, kind: "np.dtype[np.void]" = PAIR) -> tuple[bytes, int]:
    """The n-th smallest key of the pairs of some files, n from 1 to all of them; 8 bytes a pair are in memory.

    Returns too how many pairs of this very key are among the n smallest.
    """
    halves, end = np.empty(sum(storage.stamp(file).size for file in files) // kind.itemsize, np.uint64), 0
    for chunk in _chunks(files, kind):
        halves[end : (end := end + len(chunk))] = chunk["key"][:, 0]
    halves.partition(n - 1)
    half, before = halves[n - 1], int(np.count_nonzero(halves[:n] < halves[n - 1]))
    equal = [chunk["key"][chunk["key"][:, 0] == half] for chunk in _chunks(files, kind)]
    keys = sorted(row.tobytes() for rows in equal for row in rows)
    key = keys[n - 1 - before]
    return key, n - before - keys.index(key)


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
    """Write the pairs of each source, and those held out."""
    numbers, counts = dict[str, int](), Counter[str]()
    kind = _WEIGHED if runs.selection.weight_by else PAIR
    with ExitStack() as stack:
        kept_out = stack.enter_context(storage.write(storage.join(folder, HELD_OUT)))
        files: list[BinaryIO] = []
        for number, table in runs.sidecars(_COLUMNS):
            pairs, choice = _pairs(runs.shards[number], number, table, kind), runs.choice(number, table)
            out = is_held_out(pairs["image_id"][:, 0], held_out)
            kept_out.write(_plain(pairs[out]).tobytes())
            counts.update(choice.why[~out].tolist())
            if kind is _WEIGHED:
                pairs["weight"] = choice.weights
            sources = runs.sources_of(number, table).dictionary_encode()
            which = np.asarray(sources.indices)
            for code, name in enumerate(map(str, sources.dictionary.to_pylist())):
                if name not in numbers:
                    numbers[name] = len(files)
                    files.append(stack.enter_context(storage.write(storage.join(folder, f"{stem}-{len(files)}.bin"))))
                files[numbers[name]].write(pairs[(which == code) & ~out & choice.stays].tobytes())
    return numbers, counts


def _pairs(shard: Shard, number: int, table: pa.Table, kind: "np.dtype[np.void]") -> Pairs:
    """The entries of a shard's pairs, without weights, after a look at its tar."""
    try:
        size = storage.stamp(shard.tar).size
    except FileNotFoundError:
        raise damaged(shard.folder, shard.tar, "it is not there") from None
    if size != shard.bytes:
        raise damaged(shard.folder, shard.tar, f"{size:,} bytes, and manifest.json says {shard.bytes:,}")
    pairs = np.empty(len(table), kind)
    offsets, sizes = (table[name].to_numpy() for name in ("tar_offset", "tar_bytes"))
    if (offsets % BLOCK).any() or (offsets // BLOCK >= 2**32).any() or (sizes >= 2**32).any():
        raise damaged(shard.folder, shard.sidecar, "an image is not at a whole block of the tar, or has 4 GiB")
    pairs["key"], pairs["image_id"] = _hashes(table["key"]), _hashes(table["image_id"])
    pairs["shard"], pairs["block"], pairs["image_bytes"] = number, offsets // BLOCK, sizes
    pairs["caption_bytes"] = pc.binary_length(table["caption"]).to_numpy()
    return pairs


def _plain(pairs: Pairs) -> Pairs:
    return pairs[list(PAIR.names or ())].astype(PAIR)


def _hashes(column: "pa.ChunkedArray[pa.StringScalar]") -> npt.NDArray[np.uint64]:
    """32 hex digits each, as two big-endian numbers: uint64[n, 2]."""
    digits = _HEX[np.frombuffer("".join(map(str, column.to_pylist())).encode(), np.uint8)].reshape(len(column), 32)
    return (digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8").astype(np.uint64)


def _choose(folder: str, numbers: Mapping[str, int], n: int, kind: "np.dtype[np.void]") -> str:
    """Write the n pairs of the smallest keys (0: all), with their weights, and delete what had all."""
    files = [numbers[name] for name in sorted(numbers)]
    paths = [storage.join(folder, f"all-{number}.bin") for number in files]
    total = sum(storage.stamp(path).size // kind.itemsize for path in paths)
    if n > total:
        storage.delete(folder)
        raise UsageError(f"[data] pairs = {n:,}: there are {total:,} that are not held out; give fewer, or 0 for all")
    last, of_last = nth_key(paths, n, kind) if n else (b"", 0)
    for number, path in zip(files, paths, strict=True):
        with ExitStack() as stack:
            file = stack.enter_context(storage.write(storage.join(folder, f"pairs-{number}.bin")))
            sums, weight = None, 0.0
            if kind is _WEIGHED:
                sums = stack.enter_context(storage.write(storage.join(folder, f"weights-{number}.bin")))
            for chunk in _chunks([path], kind):
                takes = np.full(len(chunk), fill_value=True)
                if n:
                    takes = ~_is_above(chunk["key"], last)
                    equal = np.flatnonzero((chunk["key"] == np.frombuffer(last, ">u8")).all(axis=1))
                    takes[equal[of_last:]] = False
                    of_last -= min(of_last, len(equal))
                file.write(_plain(chunk[takes]).tobytes())
                if sums is not None:
                    running = np.cumsum(np.r_[weight, chunk["weight"][takes]])
                    weight = float(running[-1])
                    sums.write(running[1:].astype(_SUM).tobytes())
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


def read_mark(mark: str) -> dict[str, Any]:
    """What a file says of those beside it; empty where it is not there or damaged: all are made again."""
    try:
        return storage.read_json(mark)
    except UnreadableError:
        return {}


def _is_whole(folder: str, facts: Mapping[str, Any]) -> bool:
    """Whether all files have the bytes that index.json says."""
    sizes = {HELD_OUT: facts["held_out_pairs"] * PAIR.itemsize}
    for source in facts["sources"].values():
        sizes[source["file"]] = source["pairs"] * PAIR.itemsize
        if "weights" in source:
            sizes[source["weights"]] = source["pairs"] * _SUM.itemsize
    paths = {storage.join(folder, file): size for file, size in sizes.items()}
    return all(storage.exists(path) and storage.stamp(path).size == size for path, size in paths.items())
