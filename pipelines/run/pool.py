"""The pool as the text passes read it: units of about 500,000 candidates, in input order."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.pipelines import read
from altalign.pipelines.files import parquet
from altalign.pipelines.read.tables import table
from altalign.pipelines.run.artefacts import EXTRACTED, Extracted, PoolUnit
from altalign.pipelines.run.units import ROWS_PER_UNIT, Run


def units(run: Run) -> list[PoolUnit]:
    """Ranges of row groups of the files of the pool; `order` is their place in input order, `row` the first one's in its file."""
    found: list[PoolUnit] = []
    for name, facts in run.all_facts(EXTRACTED):
        first, row = 0, 0
        groups = facts.row_groups
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
                    "direct": facts.direct,
                    "first": first,
                    "last": last,
                    "row": row,
                    "rows": rows,
                }
            )
            first, row = last + 1, row + rows
    return found


def path(run: Run, file: int, *, direct: bool) -> str:
    """The Parquet file of an input file's candidates: itself, or what extract wrote."""
    return run.files[file].path if direct else Extracted(run, run.files[file].name).pool


def write_size(run: Run) -> None:
    """Keep the number of candidates where every unit can ask for it without reading all marks."""
    size = sum(sum(facts.row_groups) for _, facts in run.all_facts(EXTRACTED))
    storage.write_json(_size_path(run), {"rows": size})


def _size_path(run: Run) -> str:
    return run.work(EXTRACTED.step, "pool", "size.json")


def rows(run: Run) -> int:
    """Candidates in the pool."""
    return storage.read_json(_size_path(run))["rows"]


def stamp(run: Run, file: int) -> list[int | str]:
    """What tells that an input file has not changed.

    Raises:
        UnreadableError: it is gone.
    """
    path = run.files[file].path
    try:
        return storage.stamp(path).to_json()
    except FileNotFoundError:
        raise UnreadableError(
            f"{path}: gone since the run began; put it back and run the same command again, it continues"
        ) from None


def check_unchanged(run: Run, file: int) -> None:
    """Refuse an input file that is not the one that was extracted: offsets and rows would name other images and captions.

    Raises:
        UnreadableError: its size or time is another, or it is gone.
    """
    source = run.files[file]
    if stamp(run, file) != run.facts_of(EXTRACTED, source.name).stamp:
        raise UnreadableError(
            f"{source.path}: changed since the run began to read it; put the old file back, or give --rerun"
        )


def candidates(run: Run, unit: PoolUnit) -> Iterator[pa.RecordBatch]:
    """The candidates of a unit as batches of `schema.CANDIDATE`, in order."""
    file, direct = unit["file"], unit["direct"]
    settings = run.config.input[run.files[file].of]
    if direct:
        check_unchanged(run, file)
    for batch in parquet.read_row_groups(
        path(run, file, direct=direct), unit["first"], unit["last"], table.columns(settings) if direct else None
    ):
        interrupts.check()
        yield read.candidates(batch, settings) if direct else batch
    if direct:
        check_unchanged(run, file)


def partitions(run: Run, rows_per_partition: int, *, at_least: int, at_most: int) -> int:
    """A power of two of partitions, so that each gets about this many of the pool's rows; the pool alone decides."""
    wanted = max(1, rows(run) // rows_per_partition)
    return int(np.clip(1 << int(wanted - 1).bit_length(), at_least, at_most))


def sources(run: Run, files: "pa.ChunkedArray[Any]") -> pa.StringArray:
    """The `source` of rows by the numbers of their files."""
    of = files.combine_chunks().dictionary_encode()
    return pa.array([run.source_of(file) for file in of.dictionary.to_numpy().tolist()], pa.string()).take(of.indices)
