"""Counts of a run: rows by stage, source and reason. Exact, additive, and the only place where rows are counted.

`Counts` has each row under its one reason. `FailedCounts` has it under every reason that holds, which tells which rules
overlap and what a rule drops that no other does.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from altalign.data.reasons import KEPT, Stage, order_of, stages_of
from altalign.data.schema import COUNTS, FAILED
from altalign.errors import CountsError

Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
# Entries as JSON, where they are lists: stage, source, reason, rows; and stage, source, the reasons that hold, rows.
CountRow: TypeAlias = tuple[str, str, str, int]
FailedRow: TypeAlias = tuple[str, str, list[str], int]

_BETWEEN = " "  # separates reasons; none has a space in it


class _Cells:
    """Rows by stage, source, and what is said of them; `_schema` is that of their table."""

    _schema: pa.Schema

    def __init__(self) -> None:
        self._rows: Counter[tuple[str, str, Any]] = Counter()

    def add_rows(self, stage: Stage, source: str, said: Any, rows: int) -> None:
        """Count rows."""
        raise NotImplementedError

    def to_json(self) -> list[Any]:
        """Rows in a fixed order: stages, then sources, then rules, each in their order; "kept" comes first."""
        return [
            (stage, source, said if isinstance(said, str) else [*said], self._rows[stage, source, said])
            for stage, source, said in sorted(self._rows, key=lambda cell: _order(*cell))
        ]

    @classmethod
    def from_json(cls, entries: Iterable[Sequence[Any]]) -> Self:
        """The inverse of `to_json`; entries of several parts are added up."""
        counts = cls()
        for stage, source, said, rows in entries:
            counts.add_rows(Stage(stage), source, said, rows)
        return counts

    def to_arrow(self) -> pa.Table:
        """What occurred as a table, in the order of stages, sources and reasons."""
        return pa.Table.from_pylist(
            [dict(zip(self._schema.names, entry, strict=True)) for entry in self.to_json()], self._schema
        )


class Counts(_Cells):
    """Rows by (stage, source, reason), "kept" of a row that stays; CountsError for a reason of another stage."""

    _schema = COUNTS

    def __init__(self, rows: Mapping[tuple[str, str, str], int] | None = None):
        super().__init__()
        for (stage, source, reason), n in (rows or {}).items():
            self.add_rows(Stage(stage), source, reason, n)

    def add_rows(self, stage: Stage, source: str, said: str, rows: int) -> None:
        """Count rows of one reason."""
        try:
            _order(stage.value, source, said)
        except ValueError:
            why = f"{stage.value} has no drop reason {str(said)!r} ({rows} pairs of {source!r})"
            raise _defect(f"counts: {why}") from None
        if rows:
            self._rows[stage.value, source, str(said)] += rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counts) and self._rows == other._rows

    __hash__ = None  # type: ignore[assignment]

    def dropped(self, stage: Stage) -> dict[str, int]:
        """Rows by drop reason of one stage: what occurred, in the order of the rules."""
        rows: Counter[str] = Counter()
        for (name, _, reason), n in self._rows.items():
            if name == stage.value and reason != KEPT:
                rows[reason] += n
        return {reason: rows[reason] for reason in sorted(rows, key=partial(order_of, stage))}

    def kept(self, stage: Stage) -> int:
        """Rows that a stage kept."""
        return sum(n for (name, _, reason), n in self._rows.items() if name == stage.value and reason == KEPT)

    def received(self, stage: Stage) -> int:
        """Rows that a stage received: those it kept and those it dropped."""
        return sum(n for (name, _, _), n in self._rows.items() if name == stage.value)

    def stages_of_run(self) -> tuple[Stage, ...]:
        """The stages that a run has, whether or not they received anything: `select` only where it was counted."""
        return stages_of(stage for stage, _, _ in self._rows)

    def summary(self, stages: Iterable[Stage]) -> list[dict[str, Any]]:
        """`summary.json`'s "stages"."""
        names = ("stage", "received", "kept", "dropped")
        facts = ((each.value, self.received(each), self.kept(each), self.dropped(each)) for each in stages)
        return [dict(zip(names, of_stage, strict=True)) for of_stage in facts]

    def reconcile(self, stages: Sequence[Stage], *, pairs: int | None = None) -> None:
        """Check that each stage received what the one before it kept, by source, and that the last one kept `pairs`."""
        sources = sorted({source for _, source, _ in self._rows})
        for (before, after), source in product(pairwise(stages), sources):
            kept = self._rows[before.value, source, KEPT]
            received = sum(n for (name, who, _), n in self._rows.items() if name == after.value and who == source)
            if kept != received:
                what = f"{before.value} kept {kept} pairs of {source!r}, {after.value} received {received}"
                raise _defect(f"counts do not add up: {what}")
        if pairs is not None and pairs != (kept := self.kept(stages[-1])):
            raise _defect(f"counts do not add up: {stages[-1].value} kept {kept} pairs, the shards hold {pairs}")


class FailedCounts(_Cells):
    """Rows by stage, source and the reasons that hold, in the order of `REASONS`; a row that stays has no reason."""

    _schema = FAILED

    def add_rows(self, stage: Stage, source: str, said: Iterable[str], rows: int) -> None:
        """Count rows for which all these reasons hold."""
        if rows:
            self._rows[stage.value, source, tuple(map(str, said))] += rows

    def add(self, stage: Stage, sources: Column, failed: Column) -> None:
        """Count n rows by source (string[n]) and the reasons that hold (list<string>[n], or a dictionary of them)."""
        numbered: Any = failed
        if not isinstance(failed, pa.DictionaryArray):
            joined: Any = pc.binary_join(failed, _BETWEEN)
            numbered = (joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined).dictionary_encode()
        named = numbered.dictionary.to_pylist()
        table = pa.table({"source": sources, "failed": numbered.indices})
        tally = table.group_by(["source", "failed"], use_threads=False).aggregate([([], "count_all")])
        for row in tally.to_pylist():
            of_row = named[row["failed"]]
            self.add_rows(stage, row["source"], of_row.split() if isinstance(of_row, str) else of_row, row["count_all"])

    def counts(self) -> Counts:
        """Rows by their first reason."""
        counts = Counts()
        for (stage, source, failed), rows in self._rows.items():
            counts.add_rows(Stage(stage), source, next(iter(failed), KEPT), rows)
        return counts

    def check(self, counts: Counts) -> None:
        """Compare with the counts of the same rows; CountsError where they differ."""
        if self.counts() != counts:
            raise _defect("counts do not add up: rows by every rule that holds are not the rows by reason")

    def facts(self) -> dict[str, Any]:
        """For the mark of a unit."""
        return {"counts": self.counts().to_json(), "failed": self.to_json()}


def combinations(failed: "pa.DictionaryArray[Any, Any]") -> Iterator[tuple[list[str], int]]:
    """Each list of reasons that `reasons_of` found, and the number of its rows."""
    lists: list[Any] = failed.dictionary.to_pylist()
    tally: Any = pc.value_counts(failed.indices)
    yield from ((lists[entry["values"]], entry["counts"]) for entry in tally.to_pylist())


def _defect(what: str) -> CountsError:
    return CountsError(f"{what}; this is a defect, please report it")


def _order(stage: str, source: str, reasons: str | Sequence[str]) -> tuple[int, str, list[tuple[int, str]]]:
    dropped = [] if reasons == KEPT else [reasons] if isinstance(reasons, str) else reasons
    return list(Stage).index(Stage(stage)), source, [order_of(Stage(stage), reason) for reason in dropped]
