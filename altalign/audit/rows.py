"""Finds dropped rows and samples of a run that match a condition, in its Parquet files."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypedDict, cast

import pyarrow.compute as pc

from altalign import storage
from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import Stage
from altalign.data.schema import DroppedRow, SampleRow
from altalign.errors import UnreadableError

DROPPED = tuple(stage.value for stage in Stage)  # folders of dropped/, in the order of stages


_In = TypedDict("_In", {"in": str})  # the file of a row, by its path in the run


class FoundDropped(DroppedRow, _In):
    """A dropped row."""


class FoundSample(SampleRow, _In):
    """A row of a side-car."""


class Condition(NamedTuple):
    """What rows must match, and the columns that say whether they do: of other row groups no more is read."""

    matches: pc.Expression
    columns: Sequence[str]


def dropped(run: RunFolder, of: Condition) -> Iterator[FoundDropped]:
    """The dropped rows that match, in the order of stages."""
    for stage in DROPPED:
        yield from cast(Iterator[FoundDropped], _rows(run, storage.join("dropped", stage), of))


def samples(run: RunFolder, of: Condition) -> Iterator[FoundSample]:
    """The rows of side-cars that match."""
    yield from cast(Iterator[FoundSample], _rows(run, "shards", of))


def _rows(run: RunFolder, folder: str, of: Condition) -> Iterator[dict[str, object]]:
    matches, columns = of
    for name in storage.names(run.path(folder), ".parquet"):
        path = run.path(folder, name)
        few = enumerate(run_parquet.row_groups(path, columns))
        numbers = [number for number, rows in few if len(rows.filter(matches))]
        for rows in run_parquet.row_groups(path, of=numbers) if numbers else ():
            try:
                yield from ({**row, "in": f"{folder}/{name}"} for row in rows.filter(matches).to_pylist())
            except UnicodeDecodeError as error:
                raise UnreadableError(f"{path}: cannot be read as Parquet ({error})") from error
