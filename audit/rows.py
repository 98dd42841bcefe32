"""Finds dropped rows and samples of a run that match a condition, in its Parquet files."""

from collections.abc import Iterator
from typing import TypedDict, cast

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.errors import UnreadableError
from altalign.reasons import Stage
from altalign.schema import DroppedRow, SampleRow

DROPPED = tuple(stage.value for stage in Stage)  # folders of dropped/, in the order of stages


_In = TypedDict("_In", {"in": str})  # the file of a row, by its path in the run


class FoundDropped(DroppedRow, _In):
    """A dropped row."""


class FoundSample(SampleRow, _In):
    """A row of a side-car."""


def dropped(run: RunFolder, matches: pc.Expression) -> Iterator[FoundDropped]:
    """The dropped rows that match, in the order of stages."""
    for stage in DROPPED:
        yield from cast(Iterator[FoundDropped], _rows(run, storage.join("dropped", stage), matches))


def samples(run: RunFolder, matches: pc.Expression) -> Iterator[FoundSample]:
    """The rows of side-cars that match."""
    yield from cast(Iterator[FoundSample], _rows(run, "shards", matches))


def _rows(run: RunFolder, folder: str, matches: pc.Expression) -> Iterator[dict[str, object]]:
    for name in storage.names(run.path(folder), ".parquet"):
        path = run.path(folder, name)
        for rows in run_parquet.row_groups(path):
            try:
                yield from ({**row, "in": f"{folder}/{name}"} for row in rows.filter(matches).to_pylist())
            except UnicodeDecodeError as error:
                raise UnreadableError(f"{path}: cannot be read as Parquet ({error})") from error
            except pa.ArrowInvalid as error:  # a column that it does not have
                raise UnreadableError(f"{path}: written by an earlier altalign ({error}); curate again") from error
