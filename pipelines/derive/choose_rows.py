"""What becomes of the rows of a parent's shard: which stay, and why each of the others is dropped."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.counts import FailedCounts
from altalign.data.reasons import DropReason, Stage, Verdict, drop_where, reasons_of
from altalign.data.schema import DROPPED
from altalign.pipelines.run import outputs
from altalign.pipelines.run.shard_tables import CHOSEN_ROWS, ChosenFacts
from altalign.pipelines.run.units import Run
from altalign.storage import parquet

Mask = npt.NDArray[np.bool_]

# A row that `select` drops: also the values that it was decided by, as a JSON object.
DROPPED_BY_SELECT = DROPPED.append(pa.field("scores", pa.string()))


def unlisted(keys: "pa.ChunkedArray[Any]", listed: "pa.Array[Any]") -> Verdict:
    """The verdict on n keys: those that a list does not have go."""
    is_listed: Any = pc.is_in(keys.combine_chunks(), value_set=listed)
    return drop_where(pc.invert(is_listed), DropReason.NOT_LISTED)


def counted(
    counts: FailedCounts, rows: pa.Table, verdicts: Sequence[Verdict]
) -> "tuple[Verdict, pa.DictionaryArray[Any, Any], Mask]":
    """Count n rows by these verdicts; returns the first one, all reasons that hold, and which rows stay: bool[n]."""
    first, failed = reasons_of(verdicts)
    counts.add(Stage.SELECT, rows["source"], failed)
    return first, failed, first.is_null().to_numpy(zero_copy_only=False)


def chosen(
    run: Run,
    name: str,
    rows: pa.Table,
    verdicts: Sequence[Verdict],
    scores: "Callable[[Mask], pa.Array[Any]] | None" = None,
    *,
    is_of_keys: bool = False,
) -> ChosenFacts:
    """Write which of n rows stay, and the others with their reasons.

    Args:
        run: the run that is made.
        name: of the unit.
        rows: columns of `SAMPLE`: `source`, and all that a dropped row has where those are kept.
        verdicts: of each rule, in their order; at least one.
        scores: the values that the rows of a mask were decided by, as JSON objects.
        is_of_keys: whether keys alone are wanted, and no dropped rows.
    """
    counts = FailedCounts()
    first, failed, stays = counted(counts, rows, verdicts)
    CHOSEN_ROWS.save(run, np.flatnonzero(stays), name)
    if run.config.audit.keep_dropped and not is_of_keys:
        columns = {column: rows[column] for column in rows.column_names if column in DROPPED.names}
        columns |= {"reason": first.cast(pa.string()), "failed": failed.dictionary_decode()}
        dropped = pa.table(columns).filter(pa.array(~stays))
        columns = {name: dropped[name] for name in dropped.column_names} | {"stage": Stage.SELECT.value}
        dropped = parquet.table({**columns, "scores": scores(~stays) if scores else None}, DROPPED_BY_SELECT)
        path = outputs.dropped(run, Stage.SELECT, name)
        if not len(dropped) and storage.exists(path):
            storage.delete(path)
        parquet.write_any(path, dropped, DROPPED_BY_SELECT)
    return ChosenFacts(kept=int(stays.sum()), **counts.facts())
