"""Compares the dropped rows with the counts and with the kept pairs."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.audit import removed, run_parquet
from altalign.audit.checks.findings import Findings
from altalign.audit.run_folder import RunFolder
from altalign.data.counts import Counts
from altalign.data.lineage import is_merged
from altalign.data.reasons import KEPT, DropReason, Stage
from altalign.errors import UnreadableError
from altalign.machine import interrupts

_COLUMNS = ("key", "stage", "source", "reason")
_OF_RUN = 8  # hex digits that a file of another run's rows begins with, which may all be decimal


def check(
    run: RunFolder,
    counts: Counts | None,
    kept: npt.NDArray[np.bytes_],
    findings: Findings,
    *,
    files_at_most: int | None,
    near: Sequence[tuple[int, int]] = (),
) -> bool:
    """Reads dropped/ once: checks that its rows add up to the counts, and that no kept key is among them.

    A kept key may be dropped for one reason only, `pair_repeated`: those rows are the same pair once more. Of runs that
    were merged, one may have dropped what another has kept.

    Args:
        run: a run that keeps its dropped rows.
        counts: the counts; None if they could not be read.
        kept: keys of samples to search for, S32[n].
        findings: receives what is found.
        files_at_most: how many files of each stage to read; None: all.
        near: ranges of the first 16 bits of image_ids. Files that cover them are read first (all stages but judge have
            a file for each range of image_ids).

    Returns:
        Whether all files were read; only then are counts compared.
    """
    keys, is_whole = pa.array(kept.tolist(), pa.binary()), True
    seen, _ = removed.pairs(run)
    of_several = is_merged(run.folder)
    for stage in Stage:
        names = storage.names(run.path("dropped", stage.value), ".parquet")
        is_whole &= files_at_most is None or len(names) <= files_at_most
        for name in nearest(names, near)[:files_at_most]:
            interrupts.check()
            path = f"dropped/{stage.value}/{name}"
            try:
                for rows in _rows(run, path):
                    _count(rows, seen)
                    if stage is not Stage.EXTRACT and not (of_several and _is_of_an_ancestor(stage, name)):
                        _look_for(rows, keys, path, findings)
            except (UnreadableError, OSError) as error:
                is_ours = isinstance(error, UnreadableError)
                said = str(error).replace(run.path(path), path) if is_ours else f"{path}: {error.strerror}"
                findings.fails("dropped_rows", said)
    if counts is not None and is_whole:
        _compare(counts, seen, findings)
    return is_whole


def _is_of_an_ancestor(stage: Stage, name: str) -> bool:
    """Whether another run than this has dropped the rows of a file."""
    return stage is not Stage.SELECT or bool(re.match(rf"[0-9a-f]{{{_OF_RUN}}}-", name))


def nearest(names: Sequence[str], near: Sequence[tuple[int, int]]) -> list[str]:
    """Sorts files so that those whose partition overlaps one of these ranges come first.

    The number of partitions is a power of two: the smallest that is above every number in the names. Names that begin
    with the eight digits of another run have none.
    """
    begins = {name: name.partition("-")[0] for name in names}
    numbers = {name: int(begin) for name, begin in begins.items() if begin.isdecimal() and len(begin) < _OF_RUN}
    bits = max(numbers.values(), default=0).bit_length()
    ranges = [(first << bits >> 16, last << bits >> 16) for first, last in near]

    def is_far(name: str) -> bool:
        return not any(first <= numbers.get(name, -1) <= last for first, last in ranges)

    return sorted(names, key=is_far)


def _rows(run: RunFolder, path: str) -> Iterator[pa.Table]:
    for rows in run_parquet.row_groups(run.path(*path.split("/")), _COLUMNS):
        try:
            rows.validate(full=True)
        except pa.ArrowException as error:
            raise UnreadableError(f"{path}: {error}") from error
        yield rows


def _count(rows: pa.Table, seen: Counter[tuple[str, str, str]]) -> None:
    counted = rows.group_by(["stage", "source", "reason"], use_threads=False).aggregate([([], "count_all")])
    for entry in counted.to_pylist():
        seen[str(entry["stage"]), str(entry["source"]), str(entry["reason"])] += entry["count_all"]


def _look_for(rows: pa.Table, kept: "pa.Array[Any]", path: str, findings: Findings) -> None:
    others = rows.filter(pc.not_equal(rows["reason"], pa.scalar(DropReason.PAIR_REPEATED.value)))["key"].drop_null()
    is_kept: Any = pc.is_in(others.cast(pa.binary()), value_set=kept)
    said = "is dropped, and is in a shard"
    findings.rows("kept_or_dropped", is_kept.to_numpy(), lambda row: f"{path}: {others[row].as_py()} {said}")


def _compare(counts: Counts, seen: Counter[tuple[str, str, str]], findings: Findings) -> None:
    """Compares rows with counts. Of what extract drops, only broken records are all kept; of the rest, a sample is."""
    counted = {(stage, source, reason): rows for stage, source, reason, rows in counts.to_json() if reason != KEPT}
    for name in sorted(counted.keys() | seen.keys()):
        there, said = seen[name], counted.get(name, 0)
        findings.saw("dropped_rows", there)
        is_sample = name[0] == Stage.EXTRACT.value and name[2] != DropReason.RECORD_BROKEN.value
        if there > said or (there < said and not is_sample):
            stage, source, reason = name
            findings.fails(
                "dropped_rows",
                f"dropped/{stage}: {there:,} rows of {source!r} as {reason}, but counts.parquet says {said:,}",
            )
