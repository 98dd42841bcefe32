"""The pool as the text passes read it: units of about 500,000 candidates, in input order."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.errors import UnreadableError
from pipelines import parquet, read
from pipelines.read import table
from pipelines.units import ROWS_PER_UNIT, Run, Unit


def units(run: Run) -> list[Unit]:
    """Ranges of row groups of the files of the pool; `order` is their place in input order, `row` the first one's in its file."""
    found: list[Unit] = []
    for name, facts in run.all_facts("extract"):
        first, row = 0, 0
        groups: list[int] = facts["row_groups"]
        while first < len(groups):
            last, rows = first, groups[first]
            while last + 1 < len(groups) and rows + groups[last + 1] <= ROWS_PER_UNIT:
                last += 1
                rows += groups[last]
            found.append(
                {
                    "name": f"{name}-{first:05d}",
                    "order": len(found),
                    "file": int(name),
                    "path": facts["pool"],
                    "first": first,
                    "last": last,
                    "row": row,
                    "rows": rows,
                }
            )
            first, row = last + 1, row + rows
    return found


def rows(run: Run) -> int:
    """Candidates in the pool."""
    return sum(sum(facts["row_groups"]) for _, facts in run.all_facts("extract"))


def candidates(run: Run, unit: Unit) -> Iterator[pa.RecordBatch]:
    """The candidates of a unit as batches of `schema.CANDIDATE`, in order."""
    file = run.files[unit["file"]]
    settings = run.config.input[file.of]
    direct = unit["path"] == file.path
    if direct and storage.stamp(file.path).to_json() != run.facts("extract", file.name)["stamp"]:
        raise UnreadableError(f"{file.path}: changed since the run began to read it; put the old file back, or give --rerun")
    for batch in parquet.read_row_groups(unit["path"], unit["first"], unit["last"], table.columns(settings) if direct else None):
        yield read.candidates(batch, settings) if direct else batch


def partitions(run: Run, rows_per_partition: int, *, at_least: int, at_most: int) -> int:
    """A power of two of partitions, so that each gets about this many of the pool's rows; the pool alone decides."""
    wanted = max(1, rows(run) // rows_per_partition)
    return int(np.clip(1 << int(wanted - 1).bit_length(), at_least, at_most))
