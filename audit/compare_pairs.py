"""Joins the verdicts of two runs by key, from side-cars and dropped rows, one range of keys at a time.

The (key, verdict) rows of each run go to temporary files by the first bits of the key, 22 bytes a row. Both files of a
range are then sorted and merged, so memory is bounded by one range, however large the runs are. `dropped/extract` is
only a sample, and `pair_repeated` repeats a pair, so neither is read.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.reasons import KEPT, DropReason, Stage

ROWS_AT_ONCE = 1 << 21  # in a range of keys, on average: 300 MB while it is merged
RANGES_AT_MOST = 512  # files open at the same time
ABSENT, ABSENT_NAME = 0, "absent"  # the verdict of a pair that a run does not have

_STAGES = tuple(stage.value for stage in Stage if stage is not Stage.EXTRACT)
Records = npt.NDArray[np.void]  # of _RECORD
_RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("verdict", "<u2"), ("file", "<u4")])
_NONE = np.uint16(2**16 - 1)
_DIGITS = np.full(256, 255, np.uint8)
_DIGITS[[*b"0123456789abcdef"]] = np.arange(16)


class Example(NamedTuple):
    """A pair that changed its verdict; `image` is where a run that kept it stored its image, None if none did."""

    before: str
    after: str
    key: str
    caption: str
    image_url: str | None
    image: "TarMember | None"


class TarMember(NamedTuple):
    """Where the bytes of an image are: a tar, and offset and length in it."""

    tar: str
    offset: int
    length: int


@dataclass
class Joined:
    """Number of pairs by both verdicts (`kept`, `STAGE: REASON` or `ABSENT_NAME`), and examples of changes."""

    pairs: dict[tuple[str, str], int] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)


def join(runs: Sequence[RunFolder], rows: int, examples: int) -> Joined:
    """Joins two runs.

    Args:
        runs: both runs, finished.
        rows: roughly how many rows the larger one has.
        examples: how many pairs of each change are named, those with the smallest keys.

    Raises:
        UnreadableError: a file of a run is damaged.
    """
    bits = (min(RANGES_AT_MOST, max(1, -(-rows // ROWS_AT_ONCE))) - 1).bit_length()
    verdicts = {ABSENT_NAME: ABSENT, KEPT: 1}
    with tempfile.TemporaryDirectory(prefix="altalign-compare-") as folder:
        files = [_spill(run, Path(folder), number, bits, verdicts) for number, run in enumerate(runs)]
        names, tally, found = list(verdicts), np.zeros(len(verdicts) ** 2, np.int64), dict[int, list[_Found]]()
        for place in range(1 << bits):
            interrupts.check()
            both = [np.fromfile(Path(folder, f"{number}-{place:03d}"), _RECORD) for number in range(2)]
            _merge(both, tally, found, len(names), examples)
        pairs: dict[tuple[str, str], int] = {}
        for cell in np.flatnonzero(tally).tolist():
            before, after = divmod(cell, len(names))
            pairs[names[before], names[after]] = int(tally[cell])
        return Joined(pairs, _examples(files, found, names))


# Verdicts of a run, by ranges of keys ---------------------------------------------------------------------------------


def _spill(run: RunFolder, folder: Path, number: int, bits: int, verdicts: dict[str, int]) -> list[str]:
    """Writes the verdicts of a run by range; returns the files that they come from. Numbers new verdicts."""
    files: list[str] = []
    with ExitStack() as stack:
        into = [stack.enter_context((folder / f"{number}-{place:03d}").open("wb")) for place in range(1 << bits)]
        for path, records in _records(run, verdicts):
            interrupts.check()
            if not files or files[-1] != path:
                files.append(path)
            records["file"] = len(files) - 1
            of = np.zeros(len(records), np.int64)
            if bits:
                of = (records["high"] >> np.uint64(64 - bits)).astype(np.int64)
            records = records[np.argsort(of, kind="stable")]
            ends = np.cumsum(np.bincount(of, minlength=1 << bits)).tolist()
            for place, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
                if end > begin:
                    into[place].write(records[begin:end].tobytes())
    return files


def _records(run: RunFolder, verdicts: dict[str, int]) -> Iterator[tuple[str, Records]]:
    """The keys and verdicts of each file with its path, a row group at a time."""
    for name in storage.names(run.path("shards"), ".parquet"):
        path = run.path("shards", name)
        for rows in run_parquet.row_groups(path, ["key"]):
            records = np.zeros(len(rows), _RECORD)
            records["high"], records["low"] = _halves(rows["key"], path)
            records["verdict"] = verdicts[KEPT]
            yield path, records
    for stage in _STAGES:
        for name in storage.names(run.path("dropped", stage), ".parquet"):
            path = run.path("dropped", stage, name)
            for rows in run_parquet.row_groups(path, ["key", "reason"]):
                yield path, _dropped(rows, stage, path, verdicts)


def _dropped(rows: pa.Table, stage: str, path: str, verdicts: dict[str, int]) -> Records:
    is_other: Any = pc.not_equal(rows["reason"], pa.scalar(DropReason.PAIR_REPEATED.value))
    rows = rows.filter(pc.fill_null(is_other, pa.scalar(value=True)))
    reasons: Any = pa.chunked_array(rows["reason"].chunks, pa.string()).combine_chunks()
    encoded = reasons.fill_null("").dictionary_encode()
    names = [f"{stage}: {reason}" for reason in encoded.dictionary.to_pylist()]
    numbers = np.array([verdicts.setdefault(name, len(verdicts)) for name in names], np.uint16)
    records = np.zeros(len(rows), _RECORD)
    records["high"], records["low"] = _halves(rows["key"], path)
    records["verdict"] = numbers[encoded.indices.to_numpy()] if len(rows) else 0
    return records


def _halves(keys: "pa.ChunkedArray[Any]", path: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Keys (32 hex digits) as two numbers each, uint64[n], which sort as the keys do."""
    column: Any = pa.chunked_array(keys.chunks, pa.string()).combine_chunks()
    if column.null_count or not pc.all(pc.equal(pc.binary_length(column), pa.scalar(32)), min_count=0).as_py():
        raise UnreadableError(f"{path}: keys that are not 32 hex digits")
    _, _, data = column.buffers()
    first = column.offset * 32
    digits = np.frombuffer(data, np.uint8)[first : first + 32 * len(column)] if len(column) else np.empty(0, np.uint8)
    found = _DIGITS[digits].reshape(-1, 32)
    if (found == 255).any():
        raise UnreadableError(f"{path}: keys that are not 32 hex digits")
    halves = np.ascontiguousarray(found[:, ::2] << 4 | found[:, 1::2]).view(">u8").astype(np.uint64)
    return halves[:, 0], halves[:, 1]


# The join -------------------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A pair that changed: its key, and a file that has it (which run, and the file's number there)."""

    key: str
    run: int
    file: int


def _merge(
    both: list[Records], tally: npt.NDArray[np.int64], found: dict[int, list[_Found]], names: int, examples: int
) -> None:
    """Adds the pairs of a range to `tally` by both verdicts, int64[names * names], and the first changes to `found`."""
    records, of = np.concatenate(both), np.repeat(np.arange(2, dtype=np.uint8), [len(each) for each in both])
    if not len(records):
        return
    order = np.argsort(np.ascontiguousarray(records["high"]))
    high, low = records["high"][order], records["low"][order]
    is_new = np.r_[True, high[1:] != high[:-1]]
    if (low[1:] != low[:-1])[~is_new[1:]].any():  # two keys share their first half: very rare
        order = np.lexsort((records["low"], records["high"]))
        high, low = records["high"][order], records["low"][order]
        is_new = np.r_[True, (high[1:] != high[:-1]) | (low[1:] != low[:-1])]
    records, of, firsts = records[order], of[order], np.flatnonzero(is_new)
    verdicts = np.empty((2, len(firsts)), np.int64)
    for run in range(2):  # a pair may be dropped more than once: the smallest verdict counts
        least = np.minimum.reduceat(np.where(of == run, records["verdict"], _NONE), firsts)
        verdicts[run] = np.where(least == _NONE, ABSENT, least)
    cells = verdicts[0] * names + verdicts[1]
    counted = np.bincount(cells, minlength=len(tally))
    tally += counted
    for cell in np.flatnonzero(counted).tolist():
        wanted = examples - len(found.get(cell, []))
        if cell // names != cell % names and wanted > 0:
            for number in np.flatnonzero(cells == cell)[:wanted].tolist():
                end = firsts[number + 1] if number + 1 < len(firsts) else len(records)
                # the smallest verdict is KEPT, if a run kept the pair: then the file has its image, too
                row = int(firsts[number] + np.argmin(records["verdict"][firsts[number] : end]))
                key = f"{int(records['high'][row]):016x}{int(records['low'][row]):016x}"
                found.setdefault(cell, []).append(_Found(key, int(of[row]), int(records["file"][row])))


def _examples(files: list[list[str]], found: dict[int, list[_Found]], names: list[str]) -> list[Example]:
    """Reads the captions and URLs of the pairs that were found, and where their images are."""
    wanted: dict[str, set[str]] = {}
    for each in (each for of_cell in found.values() for each in of_cell):
        wanted.setdefault(files[each.run][each.file], set()).add(each.key)
    told: dict[str, tuple[str, str | None, TarMember | None]] = {}
    for path, keys in wanted.items():
        is_side_car = path.split("/")[-2] == "shards"
        columns = ["key", "caption", "image_url", *(["tar_offset", "tar_bytes"] if is_side_car else [])]
        for rows in run_parquet.row_groups(path, columns):
            is_wanted = pc.is_in(rows["key"], value_set=pa.array(sorted(keys)))
            for row in rows.filter(is_wanted).to_pylist():
                tar = f"{path.removesuffix('.parquet')}.tar"
                image = TarMember(tar, row["tar_offset"], row["tar_bytes"]) if is_side_car else None
                told[row["key"]] = row["caption"] or "", row["image_url"], image
    return [
        Example(names[cell // len(names)], names[cell % len(names)], each.key, *told[each.key])
        for cell, of_cell in sorted(found.items())
        for each in of_cell
        if each.key in told
    ]
