"""The counts of a run, as they go on in one that is made of it."""

from collections.abc import Iterable, Iterator
from typing import Any

from altalign.data.audit_tables import FAILED_ROWS
from altalign.data.reasons import KEPT, Stage
from altalign.pipelines.derive.parents import Parent
from altalign.storage import parquet

Row = list[Any]


def rows(parent: Parent) -> list[Row]:
    """Its counts: stage, source, reason, rows."""
    return _rows(parent.path("counts.parquet"), "reason")


def received(counted: Iterable[Row]) -> Iterator[Row]:
    """Yields the counts but those of what a selection kept: a further one receives that."""
    return (row for row in counted if (row[0], row[2]) != (Stage.SELECT.value, KEPT))


def failed(parent: Parent) -> list[Row]:
    """The same by every rule that holds: stage, source, failed, rows."""
    return [row for row in _rows(parent.path(FAILED_ROWS.path), "failed") if row[0] != Stage.SELECT.value or row[2]]


def _rows(path: str, by: str) -> list[Row]:
    return [[row[name] for name in ("stage", "source", by, "rows")] for row in parquet.read_table(path).to_pylist()]
