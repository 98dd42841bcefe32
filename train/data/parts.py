"""A table by key that takes long to make: written in parts, so that a command that was stopped goes on.

PLACE.parquet   the table, when all of it is there
PLACE.json      what it is of; written last
parts/          rows that are made already, and asked.json, what they are of
"""

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage, terminal
from altalign.train.run.ranks import Ranks

PARTS = "parts"
_ENDING = ".parquet"


def mark_of(place: str) -> str:
    """What says what a table is of."""
    return f"{place.removesuffix(_ENDING)}.json"


def known(place: str) -> dict[str, Any]:
    """What a table is of, or its parts so far; empty where there is neither."""
    return storage.read_json(mark_of(place)) or storage.read_json(_of_parts(place, "asked.json"))


def write(
    place: str,
    schema: pa.Schema,
    rows_of: Callable[[int, int], pa.Table],
    rows: int,
    *,
    asked: Mapping[str, Any],
    size: int,
    ranks: Ranks,
    what: str,
) -> bool:
    """Write a table of so many rows, unless it is there; gives whether it was not. A collective: ranks take parts.

    Args:
        place: where, with the ending .parquet.
        schema: its columns.
        rows_of: makes the rows from a number to the one before another.
        rows: how many.
        asked: what the table is of, as JSON holds it; a table or parts of anything else are made anew.
        size: rows that are made before a part is written: what a stop costs.
        ranks: this process among others.
        what: the rows, in a word, for people.
    """
    if ranks.told(ranks.is_first and storage.read_json(mark_of(place)) == asked and storage.exists(place)):
        if ranks.is_first:
            storage.delete(_of_parts(place))  # which a stop may have left
        return False
    if ranks.is_first:
        storage.delete(mark_of(place))
        if storage.read_json(_of_parts(place, "asked.json")) != asked:
            storage.delete(_of_parts(place))
        storage.write_json(_of_parts(place, "asked.json"), asked)
    ranks.wait()
    for part in range(ranks.rank, -(-rows // size), ranks.ranks):
        path, after = _of_parts(place, f"{part:07}{_ENDING}"), min(rows, (part + 1) * size)
        if not storage.exists(path):
            with storage.write(path) as file:
                pq.write_table(rows_of(part * size, after), file)
            terminal.stderr().print(f"{what} of {after:,} of {rows:,} pairs", soft_wrap=True)
    ranks.wait()
    if ranks.is_first:
        names = sorted(name for name in storage.entries(_of_parts(place)) if name.endswith(_ENDING))
        with storage.write(place) as file, pq.ParquetWriter(file, schema) as writer:
            for name in names:
                writer.write_table(pq.read_table(pa.BufferReader(storage.read_bytes(_of_parts(place, name)))))
        storage.write_json(mark_of(place), asked)
        storage.delete(_of_parts(place))
    ranks.wait()
    return True


def _of_parts(place: str, *name: str) -> str:
    return storage.join(storage.folder_of(place), PARTS, *name)
