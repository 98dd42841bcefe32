"""What a unit of a run's samples reads: a shard, or, of a run of several generations, stretches of shards of each.

Such stretches lie together in the order of (image_id, key): a unit has the samples that a shard has after
`altalign merge`, in their order there.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.data import generations
from altalign.errors import UnreadableError
from altalign.pipelines.derive.copy_shards import Numbers, Part
from altalign.pipelines.derive.parents import Parent, Piece, Shard
from altalign.storage import parquet

Places = npt.NDArray[np.bytes_]  # S64[n]: image_id and key


def sidecar(parent: Parent, shard: Shard, columns: Sequence[str] | None = None) -> pa.Table:
    """The side-car of a shard, or some of its columns."""
    return parquet.read_table(parent.path("shards", f"{shard.name}.parquet"), columns)


def places_of(rows: pa.Table) -> Places:
    """The places of n samples in the order of shards."""
    both = zip(*(parquet.values(rows, name) for name in ("image_id", "key")), strict=True)
    return np.array([image_id + key for image_id, key in both], "S64")


def samples_of(parent: Parent, pieces: Sequence[Piece], columns: Sequence[str] | None = None) -> pa.Table:
    """The samples of a unit in order, or some of their columns."""
    return rows_of(parent, pieces, lambda shard: sidecar(parent, shard, columns))


def rows_of(parent: Parent, pieces: Sequence[Piece], read: Callable[[Shard], pa.Table]) -> pa.Table:
    """The rows of a unit in order; `read` gives those of a whole shard."""
    parts = [_cut(read(parent.shards[of.shard]), parent, of) for of in pieces]
    if len(parts) == 1:
        return parts[0]
    return pa.concat_tables(parts).take(_order(parent, pieces)).combine_chunks()


def shards_of(parent: Parent, pieces: Sequence[Piece]) -> pa.Table:
    """Key, and the name of its shard (`shard`), of each row of a unit in order."""

    def read(shard: Shard) -> pa.Table:
        keys = sidecar(parent, shard, ["key"])
        return keys.append_column("shard", pa.repeat(pa.scalar(shard.name), len(keys)))

    return rows_of(parent, pieces, read)


def parts_of(parent: Parent, pieces: Sequence[Piece], rows: Numbers) -> list[list[Part]]:
    """Where these rows of a unit, by their rising numbers, are: for each generation in order."""
    ends = np.cumsum([of.end - of.begin for of in pieces])
    if len(pieces) > 1 and len(rows) < ends[-1]:
        rows = np.sort(_order(parent, pieces)[rows])
    places, found = np.searchsorted(ends, rows, side="right"), list[tuple[int, Part]]()
    for number in np.unique(places).tolist():
        of, shard = pieces[number], parent.shards[pieces[number].shard]
        numbers = rows[places == number] - (ends[number] - of.end)
        found.append((generations.of(shard.name), Part(parent.path("shards"), shard.name, numbers)))
    return [[part for _, part in group] for _, group in groupby(found, lambda each: each[0])]


def _cut(rows: pa.Table, parent: Parent, of: Piece) -> pa.Table:
    shard = parent.shards[of.shard]
    if len(rows) != shard.rows:
        path = parent.path("shards", f"{shard.name}.parquet")
        raise UnreadableError(f"{path}: has {len(rows):,} rows, where the manifest says {shard.rows:,}")
    return rows.slice(of.begin, of.end - of.begin)


def _order(parent: Parent, pieces: Sequence[Piece]) -> Numbers:
    """In which order the rows of the pieces, one after the other, are a unit's."""
    parts = [_cut(sidecar(parent, parent.shards[of.shard], ["image_id", "key"]), parent, of) for of in pieces]
    return np.argsort(places_of(pa.concat_tables(parts)), kind="stable")
