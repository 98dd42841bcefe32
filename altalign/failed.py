"""Counts of a run by every rule that holds, not the first alone: which rules overlap, and what one drops that no other does."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from altalign.counts import Counts
from altalign.errors import CountsError
from altalign.reasons import KEPT, REASONS, Stage
from altalign.schema import FAILED

_BETWEEN = " "  # reasons have none


class FailedCounts:
    """Rows by stage, source and the reasons that hold, in the order of `REASONS`; none of what stays. Exact and additive."""

    def __init__(self) -> None:
        self._rows: Counter[tuple[str, str, tuple[str, ...]]] = Counter()

    def add_rows(self, stage: Stage, source: str, failed: Iterable[str], rows: int) -> None:
        """Count rows of which all these reasons hold."""
        if rows:
            self._rows[stage.value, source, tuple(map(str, failed))] += rows

    def add(
        self,
        stage: Stage,
        sources: "pa.Array[Any] | pa.ChunkedArray[Any]",
        failed: "pa.Array[Any] | pa.ChunkedArray[Any]",
    ) -> None:
        """Count n rows, of each the reasons that hold (lists of strings)."""
        joined: Any = pc.binary_join(failed, _BETWEEN)
        tally = (
            pa.table({"source": sources, "failed": joined})
            .group_by(["source", "failed"], use_threads=False)
            .aggregate([([], "count_all")])
        )
        for row in tally.to_pylist():
            self.add_rows(stage, row["source"], row["failed"].split(), row["count_all"])

    def counts(self) -> Counts:
        """The rows by the first reason alone.

        Raises:
            CountsError: a stage has no such reason.
        """
        counts = Counts()
        for (stage, source, failed), rows in self._rows.items():
            counts.add_rows(Stage(stage), source, next(iter(failed), KEPT), rows)
        return counts

    def check(self, counts: Counts) -> None:
        """Hold them against the counts of the same rows.

        Raises:
            CountsError: they differ.
        """
        if self.counts() != counts:
            raise CountsError(
                "counts do not add up: rows by every rule that holds are not the rows by reason; this is a defect, please report it"
            )

    def facts(self) -> dict[str, Any]:
        """For the mark of a unit: they, and the counts that they are."""
        return {"counts": self.counts().to_json(), "failed": self.to_json()}

    def to_json(self) -> list[list[Any]]:
        """Rows as lists, in a fixed order."""
        return [
            [stage, source, list(failed), rows]
            for (stage, source, failed), rows in sorted(self._rows.items(), key=_order)
        ]

    @classmethod
    def from_json(cls, entries: Iterable[Sequence[Any]]) -> "FailedCounts":
        """The inverse of `to_json`; of the entries of many, their sum."""
        counts = cls()
        for stage, source, failed, rows in entries:
            counts.add_rows(Stage(stage), source, failed, rows)
        return counts

    def to_arrow(self) -> pa.Table:
        """Table of `schema.FAILED`; only what occurred, in the order of stages, sources and reasons."""
        columns = zip(*self.to_json(), strict=True) if self._rows else ([], [], [], [])
        return pa.table(
            [pa.array(list(column), field.type) for column, field in zip(columns, FAILED, strict=True)], schema=FAILED
        )


def combinations(failed: "pa.DictionaryArray[Any, Any]") -> Iterator[tuple[list[str], int]]:
    """Each list of reasons that `reasons_of` has found, and of how many rows it is."""
    lists: list[Any] = failed.dictionary.to_pylist()
    tally: Any = pc.value_counts(failed.indices)
    yield from ((lists[entry["values"]], entry["counts"]) for entry in tally.to_pylist())


def _order(entry: tuple[tuple[str, str, tuple[str, ...]], int]) -> tuple[int, str, list[int]]:
    (stage, source, failed), _ = entry
    reasons = [reason.value for reason in REASONS[Stage(stage)]]
    return list(Stage).index(Stage(stage)), source, [reasons.index(reason) for reason in failed]
