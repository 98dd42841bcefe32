"""Joins the verdicts of two runs by key, from side-cars and dropped rows.

DuckDB joins them, in bounded memory however large the runs are. `dropped/extract` is only a sample, and `pair_repeated`
repeats a pair, so neither is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.audit import database, run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import KEPT, DropReason, Stage
from altalign.errors import UnreadableError
from altalign.machine import interrupts

ABSENT_NAME = "absent"  # the verdict of a pair that a run does not have
_STAGES = tuple(stage.value for stage in Stage if stage is not Stage.EXTRACT)

# A pair may be dropped more than once: the smallest verdict counts. KEPT is the smallest of those that a run gives.
_CHANGES = """
    with pairs as (
        select key,
            coalesce(min(verdict) filter (run = 0), 0) as before,
            coalesce(min(verdict) filter (run = 1), 0) as after
        from verdicts group by key
    )
    select before, after, count(*), min(key, ?) from pairs group by before, after order by before, after
"""

# The file of the smallest verdict: where a run kept the pair, it has its image, too.
_FILES = """
    select arg_min(file, (verdict, run, file)), key from verdicts where key in (select unnest(?)) group by key
"""


class Example(NamedTuple):
    """A pair that changed its verdict; `image` is where a run that kept it stored its image, None if none did."""

    before: str
    after: str
    key: str
    caption: str
    image_url: str | None
    image: "TarMember | None"


class TarMember(NamedTuple):
    """Where the bytes of an image are: a tar, and offset and length in it."""

    tar: str
    offset: int
    length: int


@dataclass
class Joined:
    """Number of pairs by both verdicts (`kept`, `STAGE: REASON` or `ABSENT_NAME`), and examples of changes."""

    pairs: dict[tuple[str, str], int]
    examples: list[Example]


def join(runs: Sequence[RunFolder], examples: int) -> Joined:
    """Joins two finished runs; of each change it names so many pairs, those with the smallest keys.

    Raises UnreadableError: a file of a run is damaged.
    """
    numbers, files = {ABSENT_NAME: 0, KEPT: 1}, list[str]()
    with database.opened() as connection:
        connection.execute("create table verdicts (run utinyint, key uuid, verdict usmallint, file uinteger)")
        for run_number, run in enumerate(runs):
            for path, rows in _verdicts(run, numbers):
                interrupts.check()
                if files[-1:] != [path]:
                    files.append(path)
                insert = "insert into verdicts select ?, key::uuid, verdict, ? from arrow_rows"
                database.execute_on(connection, rows, insert, [run_number, len(files) - 1])
        cells = database.rows_of_query(connection, _CHANGES, [examples])
        changed = {key: (before, after) for before, after, _, keys in cells if before != after for key in keys}
        places = database.rows_of_query(connection, _FILES, [list(changed)])
    names = list(numbers)
    rows_of_keys = _rows_of_keys((files[file], key.hex) for file, key in places)
    return Joined(
        {(names[before], names[after]): pairs for before, after, pairs, _ in cells},
        [
            Example(names[before], names[after], key.hex, *rows_of_keys[key.hex])
            for key, (before, after) in changed.items()
            if key.hex in rows_of_keys
        ],
    )


def _verdicts(run: RunFolder, numbers: dict[str, int]) -> Iterator[tuple[str, pa.Table]]:
    """Key and number of the verdict of each row, a row group at a time, with its file. Numbers new verdicts."""
    for name in storage.names(run.path("shards"), ".parquet"):
        path = run.path("shards", name)
        for rows in run_parquet.row_groups(path, ["key"]):
            verdicts = pa.repeat(pa.scalar(numbers[KEPT], pa.uint16()), len(rows))
            yield path, _checked(rows.append_column("verdict", verdicts), path)
    for stage in _STAGES:
        for name in storage.names(run.path("dropped", stage), ".parquet"):
            path = run.path("dropped", stage, name)
            for rows in run_parquet.row_groups(path, ["key", "reason"]):
                yield path, _checked(_dropped(rows, stage, numbers), path)


def _dropped(rows: pa.Table, stage: str, numbers: dict[str, int]) -> pa.Table:
    is_other: Any = pc.not_equal(rows["reason"], pa.scalar(DropReason.PAIR_REPEATED.value))
    rows = rows.filter(pc.fill_null(is_other, pa.scalar(value=True)))
    reasons: Any = rows["reason"].cast(pa.string()).combine_chunks().fill_null("").dictionary_encode()
    names = [f"{stage}: {reason}" for reason in reasons.dictionary.to_pylist()]
    known = pa.array([numbers.setdefault(name, len(numbers)) for name in names], pa.uint16())
    return pa.table({"key": rows["key"], "verdict": known.take(reasons.indices)})


def _checked(rows: pa.Table, path: str) -> pa.Table:
    is_key: Any = pc.match_substring_regex(rows["key"], "^[0-9a-f]{32}$")
    if rows["key"].null_count or not pc.all(is_key, min_count=0).as_py():
        raise UnreadableError(f"{path}: keys that are not 32 hex digits")
    return rows


def _rows_of_keys(places: Iterator[tuple[str, str]]) -> dict[str, tuple[str, str | None, TarMember | None]]:
    """Caption, URL and stored image of each key, read from the file beside it."""
    keys_of_files, rows_of_keys = dict[str, list[str]](), dict[str, tuple[str, str | None, TarMember | None]]()
    for path, key in places:
        keys_of_files.setdefault(path, []).append(key)
    for path, keys in keys_of_files.items():
        is_side_car = path.split("/")[-2] == "shards"
        columns = ["key", "caption", "image_url", *(["tar_offset", "tar_bytes"] if is_side_car else [])]
        for rows in run_parquet.row_groups(path, columns):
            for row in rows.filter(pc.is_in(rows["key"], value_set=pa.array(keys))).to_pylist():
                tar = f"{path.removesuffix('.parquet')}.tar"
                image = TarMember(tar, row["tar_offset"], row["tar_bytes"]) if is_side_car else None
                rows_of_keys[row["key"]] = row["caption"] or "", row["image_url"], image
    return rows_of_keys
