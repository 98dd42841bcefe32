"""Counts of a run: rows by stage, source and reason. Exact, additive, and the only place where rows are counted."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from altalign.errors import CountsError
from altalign.reasons import KEPT, REASONS, Stage
from altalign.schema import COUNTS


class Counts:
    """Rows by (stage, source, reason), with "kept" as the reason of what stays.

    Raises:
        CountsError: a stage is given a reason that is none of its own, so that received = kept + dropped could not be
            shown.
    """

    def __init__(self, rows: Mapping[tuple[str, str, str], int] | None = None):
        self._rows: Counter[tuple[str, str, str]] = Counter()
        for (stage, source, reason), n in (rows or {}).items():
            self.add_rows(Stage(stage), source, reason, n)

    def add(self, stage: Stage, source: str, verdict: pa.StringArray) -> None:
        """Count a verdict column: null is kept."""
        tally: Any = pc.value_counts(verdict)
        for entry in tally.to_pylist():
            self.add_rows(stage, source, KEPT if entry["values"] is None else entry["values"], entry["counts"])

    def add_rows(self, stage: Stage, source: str, reason: str, rows: int) -> None:
        """Count rows of one reason."""
        if reason != KEPT and reason not in REASONS[stage]:
            raise CountsError(
                f"counts: {stage.value} has no drop reason {str(reason)!r} ({rows} pairs of {source!r}); this is a defect, please report it"
            )
        if rows:
            self._rows[stage.value, source, str(reason)] += rows

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self._rows + other._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counts) and self._rows == other._rows

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def total(cls, parts: "Iterable[Counts]") -> "Counts":
        """The sum of many."""
        rows: Counter[tuple[str, str, str]] = Counter()
        for part in parts:
            rows.update(part._rows)
        return cls(rows)

    def to_json(self) -> list[list[str | int]]:
        """Rows as lists, in a fixed order."""
        return [[*name, rows] for name, rows in sorted(self._rows.items(), key=_order)]

    @classmethod
    def from_json(cls, entries: Sequence[Sequence[Any]]) -> "Counts":
        """The inverse of `to_json`."""
        return cls({(stage, source, reason): rows for stage, source, reason, rows in entries})

    def to_arrow(self) -> pa.Table:
        """Table of `schema.COUNTS`; only what occurred, in the order of stages, sources and reasons."""
        columns = zip(*self.to_json(), strict=True) if self._rows else ([], [], [], [])
        return pa.table(
            [pa.array(list(column), field.type) for column, field in zip(columns, COUNTS, strict=True)], schema=COUNTS
        )

    def dropped(self, stage: Stage) -> dict[str, int]:
        """Rows of each drop reason of a stage that occurred, in the order of the rules."""
        rows: Counter[str] = Counter()
        for (of, _, reason), n in self._rows.items():
            if of == stage.value and reason != KEPT:
                rows[reason] += n
        return {reason.value: rows[reason.value] for reason in REASONS[stage] if rows[reason.value]}

    def kept(self, stage: Stage) -> int:
        """Rows that a stage kept."""
        return sum(n for (of, _, reason), n in self._rows.items() if of == stage.value and reason == KEPT)

    def received(self, stage: Stage) -> int:
        """Rows that a stage received: kept and dropped."""
        return sum(n for (of, _, _), n in self._rows.items() if of == stage.value)

    def stages(self) -> list[Stage]:
        """Stages that counted anything, in order."""
        seen = {of for of, _, _ in self._rows}
        return [stage for stage in Stage if stage.value in seen]

    def summary(self, stages: Iterable[Stage]) -> list[dict[str, object]]:
        """`summary.json`'s "stages"."""
        return [
            {
                "stage": stage.value,
                "received": self.received(stage),
                "kept": self.kept(stage),
                "dropped": self.dropped(stage),
            }
            for stage in stages
        ]

    def reconcile(self, stages: Sequence[Stage], *, pairs: int | None = None) -> None:
        """Check that each stage, for each source, received what the one before it kept, and that the last one kept `pairs`.

        What the first stage dropped has nothing before it to be held against.

        Raises:
            CountsError: naming stage, source and both numbers.
        """
        sources = sorted({source for _, source, _ in self._rows})
        for before, after in pairwise(stages):
            for source in sources:
                kept = self._rows[before.value, source, KEPT]
                received = sum(n for (of, who, _), n in self._rows.items() if of == after.value and who == source)
                if kept != received:
                    raise CountsError(
                        f"counts do not add up: {before.value} kept {kept} pairs of {source!r}, {after.value} received {received}; "
                        "this is a defect, please report it"
                    )
        if pairs is not None and pairs != self.kept(stages[-1]):
            kept = self.kept(stages[-1])
            raise CountsError(
                f"counts do not add up: {stages[-1].value} kept {kept} pairs, the shards hold {pairs}; this is a defect, please report it"
            )


def _order(entry: tuple[tuple[str, str, str], int]) -> tuple[int, str, int]:
    (stage, source, reason), _ = entry
    of = Stage(stage)
    return list(Stage).index(of), source, -1 if reason == KEPT else [r.value for r in REASONS[of]].index(reason)
