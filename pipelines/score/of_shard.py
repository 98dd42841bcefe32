"""Scores of one shard: its images are decoded once for all scorers, a batch at a time; texts are scored all at once."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.data.schema import SAMPLE
from altalign.filters import pixels
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.machine import interrupts
from altalign.machine.threads import in_shared_threads
from altalign.pipelines.derive import copy_shards
from altalign.pipelines.images.measuring import enough_memory
from altalign.pipelines.score.scorer import Batch, Prepare, Scorer
from altalign.storage import parquet

ROWS_PER_BATCH = 64  # at least, of samples whose images are wanted; all captions of an image are in one batch
_ANY_NUMBER = 1 << 62  # of pixels: curation's own limit was kept

Places = npt.NDArray[np.int64]


def score(stem: str, scorers: Sequence[Scorer], *, threads: int) -> dict[str, pa.Table]:
    """The scores of the shard with this path (without an ending): key and the scorer's columns, by its name."""
    rows = parquet.read_table(f"{stem}.parquet", _columns(scorers)).combine_chunks()
    of_texts = [scorer for scorer in scorers if not scorer.prepares]
    of_images = [scorer for scorer in scorers if scorer.prepares]
    whole = Batch(rows, _image_numbers(rows))
    found = {scorer.name: [scorer.measure(whole)] for scorer in of_texts}
    if of_images:
        prepares = {name: prepare for scorer in of_images for name, prepare in scorer.prepares.items()}
        begins = _batches(rows)

        def one(number: int) -> list[Sequence["pa.Array[Any]"]]:
            batch = _decoded(stem, rows.slice(begins[number], begins[number + 1] - begins[number]), prepares)
            return [scorer.measure(batch) for scorer in of_images]

        with STRICT_PILLOW:
            parts = in_shared_threads(one, range(len(begins) - 1), threads)
        found |= {scorer.name: [part[place] for part in parts] for place, scorer in enumerate(of_images)}
    return {scorer.name: _table(rows["key"], scorer, found[scorer.name]) for scorer in scorers}


def _columns(scorers: Sequence[Scorer]) -> list[str]:
    """The columns of the side-car that these look at."""
    reads = [SAMPLE.names if scorer.reads is None else scorer.reads for scorer in scorers]
    wanted = {"key", "image_id"}.union(*reads)
    return [name for name in SAMPLE.names if name in wanted]


def _table(keys: "pa.ChunkedArray[Any]", scorer: Scorer, parts: list[Sequence["pa.Array[Any]"]]) -> pa.Table:
    columns = [pa.chunked_array([part[place] for part in parts], of.type) for place, of in enumerate(scorer.columns)]
    return pa.table(
        [keys, *columns], schema=pa.schema([pa.field("key", pa.string()), *scorer.columns])
    ).combine_chunks()


def _image_numbers(rows: pa.Table) -> Places:
    """The number of each row's image in its batch; rows are sorted by image."""
    ids = rows["image_id"].to_numpy(zero_copy_only=False)
    return np.cumsum(np.r_[False, ids[1:] != ids[:-1]][: len(ids)]).astype(np.int64)


def _firsts(numbers: Places) -> Places:
    """The first row of each image, by the numbers of all rows' images."""
    return np.flatnonzero(np.r_[True, np.diff(numbers) > 0][: len(numbers)])


def _batches(rows: pa.Table) -> list[int]:
    """Where batches begin, and the end of the last one: at an image of its own."""
    starts = _firsts(_image_numbers(rows))
    begins = [0]
    for start in [*starts.tolist(), len(rows)]:
        if start - begins[-1] >= ROWS_PER_BATCH or (start == len(rows) and start > begins[-1]):
            begins.append(start)
    return begins


def _decoded(stem: str, rows: pa.Table, prepares: Mapping[str, Prepare]) -> Batch:
    """A batch with all that scorers want of its images."""
    interrupts.check()
    rows = rows.combine_chunks()
    numbers = _image_numbers(rows)
    chosen = rows.take(_firsts(numbers))
    places = list(zip(*(parquet.values(chosen, name) for name in ("tar_offset", "tar_bytes")), strict=True))
    images = [_prepared(data, prepares) for data in copy_shards.images(f"{stem}.tar", places)]
    return Batch(rows, numbers, images)


def _prepared(data: bytes, prepares: Mapping[str, Prepare]) -> dict[str, object] | None:
    with enough_memory(None, data, colour=True, pixels_at_most=_ANY_NUMBER, short_side_px=pixels.FULL_SIZE_PX):
        decoded = pixels.decode(data, pixels_at_most=_ANY_NUMBER, colour=True, short_side_px=pixels.FULL_SIZE_PX)
        if decoded.pixels is None:
            return None
        return {name: prepare(decoded.pixels) for name, prepare in prepares.items()}
