"""What runs that are merged have in common: texts on too many images of all of them, and pairs that several have.

Counted over all candidates of all runs, those in shards and those that were dropped, as `tables` counts a pool: the
rules of one run over all the input. 32 bytes for each candidate whose text and image are in some shard are in memory.
"""

from binascii import unhexlify
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.reasons import DropReason, Stage, Verdict, drop_where
from altalign.dedup.hash_tables import HashTable
from altalign.dedup.merge import merge_pairs
from altalign.filters import text, words
from altalign.machine import interrupts
from altalign.pipelines.derive import choose_rows, units
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.run.shard_tables import (
    COMMON_HASHES,
    REPEATED,
    REPEATED_KEYS,
    ChosenFacts,
    CommonFacts,
    ShardOfParent,
)
from altalign.pipelines.run.units import Run, Unit
from altalign.storage import parquet

ONLY = "00000"
_OF_CANDIDATES = (Stage.JUDGE, Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE, Stage.SELECT)  # whose rows are candidates

KINDS = ("texts", "images")
Pairs = npt.NDArray[np.uint64]  # [n, 2]: hashes of a text and its image, or the other way round
_NO_PAIRS = np.zeros((0, 2), np.uint64)


def plan(_: Run) -> list[Unit]:
    """One unit."""
    return [Unit(name=ONLY)]


def find(parents: tuple[Parent, ...], run: Run, unit: Unit) -> CommonFacts:
    """Find the texts and images over their limits, and the rows that go because another run has their pair."""
    kept = [_hashes(rows) for of in parents for rows in _rows(of, "image_id", "caption")]
    texts, images = map(np.unique, np.concatenate([_NO_PAIRS, *kept]).T)
    of_texts, of_images = list[Pairs](), list[Pairs]()
    for pairs in chain(kept, *map(_dropped_candidates, parents)):
        of_texts.append(pairs[np.isin(pairs[:, 0], texts)])
        of_images.append(pairs[np.isin(pairs[:, 1], images)][:, ::-1])
    limits = run.config.text.images_per_text_at_most, run.config.image.texts_per_image_at_most
    over = [_over(pairs, limit) for pairs, limit in zip((of_texts, of_images), limits, strict=True)]
    for kind, found in zip(KINDS, over, strict=True):
        COMMON_HASHES[kind].save(run, found, unit["name"])
    repeated = _repeated(parents)
    REPEATED_KEYS.write(run, repeated, unit["name"])
    without = sum(_without_image(parent, images) for parent in parents)
    return CommonFacts(len(over[0]), len(over[1]), len(repeated), _images_that_differ(parents), without)


def _rows(parent: Parent, *columns: str) -> Iterator[pa.Table]:
    """These columns of each shard."""
    return (units.sidecar(parent, shard, columns) for shard in parent.shards)


def _dropped_candidates(parent: Parent) -> Iterator[Pairs]:
    for stage in _OF_CANDIDATES:
        yield from map(_hashes, _dropped(parent, stage, ["image_id", "caption"]))


def _dropped(parent: Parent, stage: Stage, columns: list[str]) -> Iterator[pa.Table]:
    """These columns of the rows with an image that a stage dropped."""
    folder = parent.path("dropped", stage.value)
    for name in storage.names(folder, ".parquet") if storage.kind(folder) == "folder" else ():
        for batch in parquet.read_whole(storage.join(folder, name), columns):
            rows = pa.Table.from_batches([batch])
            yield rows.filter(rows["image_id"].is_valid())


def _without_image(parent: Parent, images: npt.NDArray[np.uint64]) -> int:
    """How many pairs a run dropped because it had no image, where some run has one in its shards."""
    found = (_halves(rows, "image_id") for rows in _dropped(parent, Stage.FETCH, ["image_id"]))
    return sum(int(np.isin(of, images).sum()) for of in found)


def _hashes(rows: pa.Table) -> Pairs:
    """The hashes of the text and the image of n rows."""
    interrupts.check()
    captions, texts = parquet.strings(rows, "caption"), np.zeros(len(rows), np.uint64)
    for begin in range(0, len(rows), words.BLOCK):
        found = words.scan(captions.slice(begin, words.BLOCK), words.thread_scratch())
        texts[begin : begin + words.BLOCK] = found.texts
    return np.column_stack([texts, _halves(rows, "image_id")])


def _halves(rows: pa.Table, name: str) -> npt.NDArray[np.uint64]:
    """The first 64 bits of n hashes in hex digits."""
    digits = "".join(value[:16] for value in parquet.values(rows, name))
    return np.frombuffer(unhexlify(digits), ">u8").astype(np.uint64)


def _over(parts: Sequence[Pairs], limit: int) -> Pairs:
    """Hashes that come with more distinct others than a limit, rising, and with how many."""
    hashes, counts, _ = merge_pairs(np.concatenate([_NO_PAIRS, *parts]), limit=limit)
    return np.column_stack([hashes, counts.astype(np.uint64)])


def _repeated(parents: Sequence[Parent]) -> pa.Table:
    """The rows (`REPEATED`) that go: of each pair the one with the first page stays, as within a run."""
    keys = [_keys(rows) for parent in parents for rows in _rows(parent, "key")]
    every, times = np.unique(np.concatenate([np.zeros(0, "S32"), *keys]), return_counts=True)
    twice = every[times > 1]
    rows = list[tuple[str, tuple[bool, str, int]]]()
    for number, parent in enumerate(parents) if len(twice) else ():
        for of in _rows(parent, "key", "page_url"):
            of = of.filter(pa.array(np.isin(_keys(of), twice)))
            for key, page in zip(*(parquet.values(of, name) for name in of.column_names), strict=True):
                rows.append((key, (page is not None, page or "", number)))
    first = dict(sorted(rows, reverse=True))  # of each key the smallest comes last
    gone = [{"key": key, "parent": place[2]} for key, place in sorted(rows) if first[key] != place]
    return pa.Table.from_pylist(gone, REPEATED)


def _keys(rows: pa.Table) -> npt.NDArray[np.bytes_]:
    return np.array(parquet.values(rows, "key"), "S32")


def _images_that_differ(parents: Sequence[Parent]) -> int:
    """How many images have other bytes in one run than in another, as they were found."""
    names = ("image_id", "found_sha256")
    found = [np.column_stack([_halves(rows, name) for name in names]) for of in parents for rows in _rows(of, *names)]
    return len(_over(found, 1))


# Choosing ------------------------------------------------------------------------------------------------------------


def choose(parents: tuple[Parent, ...], run: Run, unit: ShardOfParent) -> ChosenFacts:
    """Which rows of a shard stay: those that one run over all the input would have kept, as far as that is known."""
    rows = units.samples_of(*of_unit(parents, unit["name"]))
    of_text, of_image = (_counts(run, kind, of) for kind, of in zip(KINDS, _hashes(rows).T, strict=True))
    gone = REPEATED_KEYS.read(run, ONLY).filter(pc.field("parent") == unit["parent"])["key"]
    is_repeated: Any = pc.is_in(rows["key"].combine_chunks(), value_set=gone.combine_chunks())
    more: dict[str, Any] = {
        "images_per_text": pa.array(of_text, pa.int64(), mask=of_text == 0),
        "texts_per_image": pa.array(of_image, pa.int64(), mask=of_image == 0),
        "kept_key": pc.if_else(is_repeated, rows["key"], pa.scalar(None, pa.string())),
    }
    for name, column in more.items():
        rows = rows.append_column(name, column)
    verdicts: list[Verdict] = [
        drop_where(pa.array(of_text > 0), text.text_on_too_many_images.name),
        drop_where(pa.array(of_image > 0), text.image_has_too_many_texts.name),
        drop_where(is_repeated, DropReason.PAIR_REPEATED),
    ]
    return choose_rows.chosen(run, unit["name"], rows, verdicts)


def _counts(run: Run, kind: str, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """On or with how many others each of n hashes is; 0 of one that is not over the limit."""
    over = COMMON_HASHES[kind].array(run, ONLY)
    return HashTable(np.ascontiguousarray(over[:, 0]), over[:, 1].astype(np.int64)).lookup(hashes)
