"""The index of a training run: where in the shards each pair is, trained on or held out.

A pair takes 48 bytes, and 8 more where it has a weight. One pass over the side-cars writes `RUN/index`, a shard in
memory at a time: for each source `pairs-N.bin`, in the order of the runs, their shards and rows, and perhaps
`weights-N.bin`; `held_out.bin`; and `index.json`, last of all: an index without it is none.

Where one caption of an image is drawn, pairs of one image that follow one another are of the source of the first, and
`images-N.bin` says where they begin, `shares-N.bin` how often each is drawn. Then, and for weights, up to 60 bytes a
pair are in memory while the index is made.

Held out are the images whose `image_id`, a hash itself, is below `held_out` as a share of all ids; the pairs trained on
are those of the other images with the smallest keys, hashes too, by their first 64 bits: fewer pairs are among more. A
pair that is in two runs counts twice. `[data] where` leaves out pairs before any are counted, but none that is held
out: trainings on other conditions are measured on the same.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.stages import damaged
from altalign.errors import UnreadableError, UsageError
from altalign.train.data import soft_cap
from altalign.train.data.random_bits import Numbers, Words
from altalign.train.data.runs import Runs, Shard
from altalign.train.settings.data import DataSettings

PAIR = np.dtype(
    [
        ("key", ">u8", (2,)),
        ("image_id", ">u8", (2,)),
        ("shard", "<u4"),  # in the order of the runs
        ("block", "<u4"),  # of 512 bytes, where the image begins in the tar
        ("image_bytes", "<u4"),
        ("caption_bytes", "<u4"),  # behind the header of KEY.txt, as `shards.pair_range` reads them
    ]
)
HELD_OUT = "held_out.bin"
KEPT = "kept"  # the count of the pairs that a selection leaves
BLOCK = 512  # bytes of a tar

_VERSION = 1  # of the files
_WEIGHT, _PLACE = np.dtype("<f8"), np.dtype("<i8")
_VALUES = np.dtype([("weight", _WEIGHT), ("share", _WEIGHT)])
_VALUED = np.dtype([("pair", PAIR), ("values", _VALUES)])  # while the index is made: one open file a source
_COLUMNS = ["key", "image_id", "caption", "source", "tar_offset", "tar_bytes"]
_CHUNK = 1 << 20  # pairs of an index that are read at a time

Pairs = npt.NDArray[np.void]  # of PAIR
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Weights:
    """The weights of a source's pairs, above 0, as running sums in a file of the index.

    A pair has the part of the sum that its weight is: the pair at any point of the sum is found by halving, and nobody
    holds an order of draws.
    """

    path: str

    @property
    def sums(self) -> Floats:
        """Float64[n], mapped."""
        return np.memmap(self.path, _WEIGHT, "r")

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self.sums[-1])

    def at(self, points: Floats) -> npt.NDArray[np.int64]:
        """The pairs that have these points, each from 0 (included) to 1 of the sum: int64[n]."""
        sums = self.sums
        places = np.searchsorted(sums, points * float(sums[-1]), side="right")
        return np.minimum(places, len(sums) - 1).astype(np.int64)  # rounded up to the sum itself


@dataclass(frozen=True)
class Captions:
    """The captions of a source's images, of which one is drawn: where each image begins, and running sums of shares."""

    images: str
    shares: str

    def at(self, places: Numbers, points: Floats) -> Numbers:
        """The pairs at points, each from 0 (included) to 1 of the shares of an image, of images at places: int64[n]."""
        begins, sums = np.memmap(self.images, _PLACE, "r"), np.memmap(self.shares, _WEIGHT, "r")
        first, after = begins[places], begins[places + 1]
        before = np.where(first > 0, sums[first - 1], 0.0)
        found = np.searchsorted(sums, before + points * (sums[after - 1] - before), side="right")
        return np.clip(found, first, after - 1).astype(np.int64)  # rounded up to the sum itself


def build(folder: str, runs: Runs, *, held_out: float, pairs: int) -> dict[str, Any]:
    """Make the index in a local folder, unless it was made of the same manifests and choices; gives its index.json.

    `held_out` is the share of the images that is kept from training (1: all); `pairs`, how many of the others are
    trained on (0: all). Raises UsageError where there are fewer, DamagedError where side-car and manifest disagree.
    """
    chosen, is_selected = runs.data, bool(runs.columns)
    is_drawn = chosen.captions == "drawn"
    request: dict[str, Any] = {
        "version": _VERSION,
        "manifests": list(runs.manifests.values()),
        "clusters": [digest for _, digest in runs.clusters.values()],
        "held_out": held_out,
        "pairs": pairs,
    }
    if is_selected:
        request |= {name: getattr(runs.data, name) for name in ("where", "weight_by", "nulls")}
        request["scores"] = list(runs.scores.values())
    if chosen.soft_cap:
        request["soft_cap"] = chosen.soft_cap
    if is_drawn:
        request |= {"captions": chosen.captions, "caption_shares": chosen.caption_shares}
    mark = storage.join(folder, "index.json")
    if (known := read_mark(mark)).get("asked") == request and _is_whole(folder, known):
        return known
    storage.delete(folder)
    has_values = bool(chosen.weight_by or is_drawn)
    numbers, reasons = _write(folder, runs, held_out, "all" if pairs or has_values else "pairs")
    numbers = dict(sorted(numbers.items()))
    last_key = _choose(folder, numbers.values(), pairs, has_values=has_values) if pairs or has_values else ""
    images = _weigh(folder, numbers.values(), chosen) if has_values else {}

    def count_of(file: str) -> int:
        return storage.stamp(storage.join(folder, file)).size // PAIR.itemsize

    sources = dict[str, dict[str, Any]]()
    for name, number in numbers.items():
        file = f"pairs-{number}.bin"
        more: dict[str, Any] = {"weights": f"weights-{number}.bin"} if chosen.weight_by else {}
        if is_drawn:
            more |= {"images": f"images-{number}.bin", "shares": f"shares-{number}.bin", "draws": images[number]}
        sources[name] = {"file": file, "pairs": count_of(file), **more}
    count = count_of(HELD_OUT)
    facts = {"asked": request, "sources": sources, "held_out_pairs": count, "last_key": last_key}
    if is_selected:
        facts["chosen"] = {why or KEPT: count for why, count in sorted(reasons.items())}
    storage.write_json(mark, facts)
    return facts


def read_mark(mark: str) -> dict[str, Any]:
    """What a file says of those beside it; empty where it is not there or damaged: all are made again."""
    try:
        return storage.read_json(mark)
    except UnreadableError:
        return {}


def _is_whole(folder: str, known: Mapping[str, Any]) -> bool:
    """Whether the files of an index are as large as its mark says; a power cut may leave less of them."""
    sources = known["sources"].values()
    sizes = {HELD_OUT: known["held_out_pairs"] * PAIR.itemsize}
    sizes |= {one["file"]: one["pairs"] * PAIR.itemsize for one in sources}
    sizes |= {one["weights"]: one.get("draws", one["pairs"]) * 8 for one in sources if "weights" in one}
    sizes |= {one["images"]: (one["draws"] + 1) * 8 for one in sources if "images" in one}
    sizes |= {one["shares"]: one["pairs"] * 8 for one in sources if "shares" in one}
    paths = {storage.join(folder, name): size for name, size in sizes.items()}
    return all(storage.exists(path) and storage.stamp(path).size == size for path, size in paths.items())


def read_pairs(path: str, kind: "np.dtype[np.void]" = PAIR) -> Pairs:
    """A file of an index, mapped into memory."""
    path = storage.mappable(path)
    size = storage.stamp(path).size
    if size % kind.itemsize:
        raise UnreadableError(
            f"{path}: {size:,} bytes, no whole number of pairs; delete the folder it is in, and it is made again"
        )
    return np.memmap(path, kind, "r") if size else np.empty(0, kind)


def is_held_out(image_ids: npt.NDArray[np.uint64], share: float) -> npt.NDArray[np.bool_]:
    """Whether images are held out: bool[n] of the first 64 bits of their ids."""
    limit = int(Fraction(share) * 2**64)
    return np.full(len(image_ids), fill_value=True) if limit >= 2**64 else image_ids < np.uint64(limit)


def hashes(column: "pa.ChunkedArray[pa.StringScalar]") -> npt.NDArray[np.uint64]:
    """32 hex digits each, as two big-endian numbers: uint64[n, 2]."""
    digits = "".join(map(str, column.to_pylist()))
    return np.frombuffer(bytes.fromhex(digits), ">u8").reshape(-1, 2).astype(np.uint64)


def nth_key(parts: Sequence[Pairs], n: int) -> tuple[int, int]:
    """The first 64 bits of the n-th smallest key, n from 1 to all, and how many of the n smallest begin so.

    8 bytes a pair are in memory.
    """
    halves = np.concatenate([part["key"][:, 0] for part in parts], dtype=np.uint64)
    halves.partition(n - 1)
    return int(halves[n - 1]), int(np.count_nonzero(halves[:n] == halves[n - 1]))


def _write(folder: str, runs: Runs, held_out: float, stem: str) -> tuple[dict[str, int], Counter[str]]:
    """Write the pairs of each source, with their weights, and those held out; gives numbers of files, and counts."""
    numbers, counts, files = dict[str, int](), Counter[str](), list[Any]()
    with ExitStack() as stack:
        out_file = stack.enter_context(storage.write(storage.join(folder, HELD_OUT)))
        for shard, table in runs.sidecars(_COLUMNS):
            pairs, (why, weights) = _pairs(runs.shards[shard], shard, table), runs.choice(shard, table)
            out = is_held_out(pairs["image_id"][:, 0], held_out)
            out_file.write(pairs[out].tobytes())
            counts.update(why[~out].tolist())
            rows = pairs
            sources = runs.sources_of(shard, table).dictionary_encode()
            which = np.asarray(sources.indices)
            if runs.data.weight_by or runs.data.captions == "drawn":
                rows = np.empty(len(pairs), _VALUED)
                rows["pair"], values = pairs, rows["values"]
                values["weight"], values["share"] = weights, runs.shares(shard, table)
            if runs.data.captions == "drawn":
                firsts = _firsts(pairs)
                which = np.repeat(which[firsts], np.diff(firsts, append=len(pairs)))
            for code, name in enumerate(map(str, sources.dictionary.to_pylist())):
                if name not in numbers:
                    numbers[name] = len(files)
                    path = storage.join(folder, f"{stem}-{len(files)}.bin")
                    files.append(stack.enter_context(storage.write(path)))
                files[numbers[name]].write(rows[(which == code) & ~out & (why == "")].tobytes())
    return numbers, counts


def _pairs(shard: Shard, number: int, table: pa.Table) -> Pairs:
    """The entries of a shard's pairs, after a look at its tar."""
    tar = shard.path(".tar")
    try:
        size = storage.stamp(tar).size
    except FileNotFoundError:
        raise damaged(shard.folder, tar, "it is not there") from None
    if size != shard.bytes:
        raise damaged(shard.folder, tar, f"{size:,} bytes, and manifest.json says {shard.bytes:,}")
    pairs = np.empty(len(table), PAIR)
    offsets, sizes = (table[name].to_numpy() for name in ("tar_offset", "tar_bytes"))
    if (offsets % BLOCK).any() or (offsets // BLOCK >= 2**32).any() or (sizes >= 2**32).any():
        raise damaged(shard.folder, shard.path(".parquet"), "an image is not at a whole block of the tar, or has 4 GiB")
    pairs["key"], pairs["image_id"] = hashes(table["key"]), hashes(table["image_id"])
    pairs["shard"], pairs["block"], pairs["image_bytes"] = number, offsets // BLOCK, sizes
    pairs["caption_bytes"] = _caption_bytes(table, shard.bytes)
    return pairs


def _caption_bytes(table: pa.Table, tar_bytes: int) -> Numbers:
    """How many bytes behind the header of KEY.txt have the caption of each row of a side-car: int64[n].

    Those of a caption that is not the first of its sample are all up to the end of the sample, for KEY.json has it.
    """
    own = pc.binary_length(table["caption"]).to_numpy()
    offsets, sizes = (table[name].to_numpy() for name in ("tar_offset", "tar_bytes"))
    is_first = np.r_[True, offsets[1:] != offsets[:-1]][: len(table)]
    ends = np.append(offsets[is_first][1:] - BLOCK, tar_bytes - 2 * BLOCK)[np.cumsum(is_first) - 1]
    return np.where(is_first, own, ends - (offsets + sizes + -sizes % BLOCK + BLOCK))


def _firsts(pairs: Pairs) -> Numbers:
    """The numbers of pairs that have another image than the one before: int64[images]."""
    ids = pairs["image_id"]
    return np.flatnonzero(np.r_[True, (ids[1:] != ids[:-1]).any(axis=1)][: len(pairs)])


def _choose(folder: str, numbers: Collection[int], n: int, *, has_values: bool) -> str:
    """Write the n pairs of the smallest keys (0: all) and their values, and delete what had all."""
    paths = [storage.join(folder, f"all-{number}.bin") for number in numbers]
    wholes = [read_pairs(path, _VALUED if has_values else PAIR) for path in paths]
    parts = [whole["pair"] if has_values else whole for whole in wholes]
    if n > (total := sum(map(len, parts))):
        storage.delete(folder)
        raise UsageError(f"[data] pairs = {n:,}: there are {total:,} that are not held out; give fewer, or 0 for all")
    last, of_last = nth_key(parts, n) if n else (2**64 - 1, total)
    for number, path, whole, pairs in zip(numbers, paths, wholes, parts, strict=True):
        to_values = storage.write(storage.join(folder, f"values-{number}.bin")) if has_values else nullcontext()
        with storage.write(storage.join(folder, f"pairs-{number}.bin")) as file, to_values as values:
            for first in range(0, len(pairs), _CHUNK):
                chunk = pairs[first : first + _CHUNK]
                keys = chunk["key"][:, 0]
                is_last = keys == np.uint64(last)
                takes = (keys < np.uint64(last)) | (is_last & (np.cumsum(is_last) <= of_last))
                of_last -= min(of_last, np.count_nonzero(is_last))
                file.write(chunk[takes].tobytes())
                if values is not None:
                    values.write(whole["values"][first : first + _CHUNK][takes].tobytes())
        storage.delete(path)
    return f"{last:016x}{'f' * 16}" if n else ""


def _weigh(folder: str, numbers: Collection[int], data: DataSettings) -> dict[int, int]:
    """Write what weights and shares of pairs come to, in place of these values; gives the draws of each source.

    The weight of an image of which a caption is drawn is that of its captions, on the average by their shares.
    """
    weights, keys = dict[int, Floats](), dict[int, Words]()

    def write(name: str, number: int, values: "npt.NDArray[Any]", kind: "np.dtype[Any]") -> None:
        with storage.write(storage.join(folder, f"{name}-{number}.bin")) as file:
            file.write(values.astype(kind).tobytes())

    for number in numbers:
        pairs = read_pairs(storage.join(folder, f"pairs-{number}.bin"))
        values = read_pairs(path := storage.join(folder, f"values-{number}.bin"), _VALUES)
        firsts, of_pairs = np.arange(len(pairs)), values["weight"]
        if data.captions == "drawn":
            firsts = _firsts(pairs)
            image = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(pairs)))
            shares = values["share"]
            shares = np.where(np.bincount(image, shares, len(firsts))[image] > 0, shares, 1.0)  # none: all alike
            of_pairs = np.bincount(image, of_pairs * shares, len(firsts)) / np.bincount(image, shares, len(firsts))
            write("images", number, np.r_[firsts, len(pairs)], _PLACE)
            write("shares", number, np.cumsum(shares), _WEIGHT)
        weights[number] = np.array(of_pairs, np.float64)
        keys[number] = pairs["key"][firsts].astype(np.uint64) if data.soft_cap else np.empty((0, 2), np.uint64)
        storage.delete(path)
    draws = {number: len(of_source) for number, of_source in weights.items()}
    if data.soft_cap and weights:
        every = np.concatenate(list(weights.values())), np.concatenate(list(keys.values()))
        of_all = soft_cap.counts(*every, penalty=data.soft_cap)
        weights = dict(zip(weights, np.split(of_all, np.cumsum(list(draws.values()))[:-1]), strict=True))
    for number, of_source in weights.items() if data.weight_by else ():
        write("weights", number, np.cumsum(of_source), _WEIGHT)
    return draws
