"""What runs that are merged have in common: texts on too many images of all of them, and pairs that several have.

Counted over all candidates of all runs, those in shards and those that were dropped, as `tables` counts a pool: the
rules of one run over all the input. 16 bytes for each candidate whose text or image is in some shard are in memory.
"""

from binascii import unhexlify
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data.reasons import DropReason, Stage, Verdict, drop_where
from altalign.filters import text, words
from altalign.machine import interrupts
from altalign.pipelines.derive import choose_rows, units
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.run.tables.derived import (
    COMMON_HASHES,
    REPEATED,
    REPEATED_KEYS,
    ChosenFacts,
    CommonFacts,
    ShardOfParent,
)
from altalign.pipelines.run.units import Run, Unit
from altalign.storage import arrays, parquet

ONLY = "00000"
_OF_CANDIDATES = (Stage.JUDGE, Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE, Stage.SELECT)  # whose rows are candidates

Hashes = npt.NDArray[np.uint64]


def plan(_: Run) -> list[Unit]:
    """One unit."""
    return [Unit(name=ONLY)]


def find(parents: tuple[Parent, ...], run: Run, unit: Unit) -> CommonFacts:
    """Find the texts and images over their limits, and the rows that go because another run has their pair."""
    kept = [np.concatenate(part) for part in zip(*(hashes for of in parents for hashes in _kept(of)), strict=True)]
    texts, images = (np.unique(part) for part in kept) if kept else (np.zeros(0, np.uint64),) * 2
    of_texts, of_images = list[Hashes](), list[Hashes]()
    for parent in parents:
        for of_text, of_image in _candidates(parent):
            of_texts.append(_distinct(of_text, of_image, among=texts))
            of_images.append(_distinct(of_image, of_text, among=images))
    limits = run.config.text.images_per_text_at_most, run.config.image.texts_per_image_at_most
    over = [_over(pairs, limit) for pairs, limit in zip((of_texts, of_images), limits, strict=True)]
    for kind, found in zip(("texts", "images"), over, strict=True):
        COMMON_HASHES[kind].save(run, found, unit["name"])
    repeated = _repeated(parents)
    REPEATED_KEYS.write(run, repeated, unit["name"])
    without = sum(_without_image(parent, images) for parent in parents)
    return CommonFacts(len(over[0]), len(over[1]), len(repeated), _images_that_differ(parents), without)


def _kept(parent: Parent) -> Iterator[tuple[Hashes, Hashes]]:
    for shard in parent.shards:
        yield _hashes(parquet.read_table(parent.path("shards", f"{shard.name}.parquet"), ["image_id", "caption"]))


def _candidates(parent: Parent) -> Iterator[tuple[Hashes, Hashes]]:
    """The hashes of texts and images of all candidates with an image: those of shards, and those that were dropped."""
    yield from _kept(parent)
    for stage in _OF_CANDIDATES:
        yield from map(_hashes, _dropped(parent, stage, ["image_id", "caption"]))


def _dropped(parent: Parent, stage: Stage, columns: list[str]) -> Iterator[pa.Table]:
    """These columns of the rows with an image that a stage dropped."""
    folder = parent.path("dropped", stage.value)
    for name in storage.names(folder, ".parquet") if storage.kind(folder) == "folder" else ():
        for batch in parquet.read_whole(storage.join(folder, name), columns):
            rows = pa.Table.from_batches([batch])
            yield rows.filter(rows["image_id"].is_valid())


def _without_image(parent: Parent, images: Hashes) -> int:
    """How many pairs a run dropped because it had no image, where some run has one in its shards."""
    found = (_first_half(rows, "image_id") for rows in _dropped(parent, Stage.FETCH, ["image_id"]))
    return sum(int(np.isin(of, images).sum()) for of in found)


def _hashes(rows: pa.Table) -> tuple[Hashes, Hashes]:
    """The hashes of the texts and images of n rows: uint64[n] each."""
    interrupts.check()
    captions, texts = parquet.strings(rows, "caption"), np.zeros(len(rows), np.uint64)
    for begin in range(0, len(rows), words.BLOCK):
        found = words.scan(captions.slice(begin, words.BLOCK), words.thread_scratch())
        texts[begin : begin + words.BLOCK] = found.texts
    return texts, _first_half(rows, "image_id")


def _distinct(of: Hashes, other: Hashes, *, among: Hashes) -> npt.NDArray[np.uint64]:
    """The distinct pairs of hashes whose first is among these, which are sorted: uint64[n, 2]."""
    is_in = np.isin(of, among)
    return np.unique(np.stack([of[is_in], other[is_in]], axis=1), axis=0)


def _over(parts: Sequence[npt.NDArray[np.uint64]], limit: int) -> npt.NDArray[np.uint64]:
    """Hashes with more distinct partners than a limit, and how many: uint64[n, 2]."""
    pairs = np.unique(np.concatenate([np.zeros((0, 2), np.uint64), *parts]), axis=0)
    found, counts = np.unique(pairs[:, 0], return_counts=True)
    return np.stack([found, counts.astype(np.uint64)], axis=1)[counts > limit]


def _repeated(parents: Sequence[Parent]) -> pa.Table:
    """The rows (`REPEATED`) that go: of each pair the one with the first page stays, as within a run."""
    seen, twice = np.zeros(0, "S32"), np.zeros(0, "S32")
    for parent in parents:
        keys = np.concatenate([np.zeros(0, "S32"), *(_keys(parent, shard.name) for shard in parent.shards)])
        twice = np.union1d(twice, np.intersect1d(seen, keys))
        seen = np.union1d(seen, keys)
    rows = list[tuple[str, tuple[bool, str, int]]]()
    for number, parent in enumerate(parents):
        for shard in parent.shards if len(twice) else ():
            of = parquet.read_table(parent.path("shards", f"{shard.name}.parquet"), ["key", "page_url"])
            of = of.filter(pa.array(np.isin(np.array(parquet.values(of, "key"), "S32"), twice)))
            for key, page in zip(*(parquet.values(of, name) for name in of.column_names), strict=True):
                rows.append((key, (page is not None, page or "", number)))
    first = dict(sorted(rows, reverse=True))  # of each key the smallest comes last
    gone = [{"key": key, "parent": place[2]} for key, place in sorted(rows) if first[key] != place]
    return pa.Table.from_pylist(gone, REPEATED)


def _keys(parent: Parent, shard: str) -> npt.NDArray[np.bytes_]:
    return np.array(
        parquet.values(parquet.read_table(parent.path("shards", f"{shard}.parquet"), ["key"]), "key"), "S32"
    )


def _images_that_differ(parents: Sequence[Parent]) -> int:
    """How many images have other bytes in one run than in another, as they were found."""
    found = np.zeros((0, 2), np.uint64)
    for parent in parents:
        for shard in parent.shards:
            rows = parquet.read_table(parent.path("shards", f"{shard.name}.parquet"), ["image_id", "found_sha256"])
            halves = [_first_half(rows, name) for name in rows.column_names]
            found = np.unique(np.concatenate([found, np.stack(halves, axis=1)]), axis=0)
    return int((np.unique(found[:, 0], return_counts=True)[1] > 1).sum())


def _first_half(rows: pa.Table, name: str) -> Hashes:
    """The first 64 bits of n hashes in hex digits: uint64[n]."""
    digits = "".join(value[:16] for value in parquet.values(rows, name))
    return np.frombuffer(unhexlify(digits), ">u8").astype(np.uint64)


# Choosing ------------------------------------------------------------------------------------------------------------


def choose(parents: tuple[Parent, ...], run: Run, unit: ShardOfParent) -> ChosenFacts:
    """Which rows of a shard stay: those that one run over all the input would have kept, as far as that is known."""
    rows = units.samples_of(*of_unit(parents, unit["name"]))
    texts, images = _hashes(rows)
    gone = REPEATED_KEYS.read(run, ONLY)
    mine = {
        key
        for key, of in zip(*(parquet.values(gone, name) for name in gone.column_names), strict=True)
        if of == unit["parent"]
    }
    keys = parquet.values(rows, "key")
    is_repeated = np.array([key in mine for key in keys], bool)
    of_text, of_image = (
        _counts(COMMON_HASHES[kind].path(run, ONLY), of) for kind, of in (("texts", texts), ("images", images))
    )
    more: dict[str, Any] = {
        "images_per_text": pa.array(of_text, pa.int64(), mask=of_text == 0),
        "texts_per_image": pa.array(of_image, pa.int64(), mask=of_image == 0),
        "kept_key": pa.array(keys, pa.string(), mask=~is_repeated),
    }
    for name, column in more.items():
        rows = rows.append_column(name, column)
    verdicts: list[Verdict] = [
        drop_where(pa.array(of_text > 0), text.text_on_too_many_images.name),
        drop_where(pa.array(of_image > 0), text.image_has_too_many_texts.name),
        drop_where(pa.array(is_repeated), DropReason.PAIR_REPEATED),
    ]
    return choose_rows.chosen(run, unit["name"], rows, verdicts)


def _counts(path: str, hashes: Hashes) -> npt.NDArray[np.int64]:
    """The count of each hash in a file of these; 0 where it is not in it."""
    over = arrays.read(path)
    if not len(over):
        return np.zeros(len(hashes), np.int64)
    place = np.minimum(np.searchsorted(over[:, 0], hashes), len(over) - 1)
    return np.where(over[place, 0] == hashes, over[place, 1], 0).astype(np.int64)
