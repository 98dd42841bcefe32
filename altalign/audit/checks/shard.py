"""Reads one shard again: the whole side-car and the whole tar, with every image decoded."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.audit import run_parquet
from altalign.audit.checks import images
from altalign.audit.checks import rules as text_rules
from altalign.audit.checks.findings import Findings
from altalign.audit.checks.rules import Rules
from altalign.audit.run_folder import RunFolder
from altalign.data import shards
from altalign.data.reasons import DropReason
from altalign.data.schema import SAMPLE, SampleRow
from altalign.errors import UnreadableError
from altalign.filters.image_headers import STRICT_PILLOW
from altalign.machine import ahead, interrupts

_ROWS = 1_024  # rows of a side-car that are Python objects at a time
_BLOCK = 512  # bytes of a tar
_END = 2 * _BLOCK  # zeros that end an archive
_READ = 1 << 20


@dataclass
class CheckedShard:
    """What was found in a shard, and what is later compared with its neighbours and the run."""

    findings: Findings
    name: str
    rows: int | None = None  # None: the side-car cannot be read
    first: str = ""  # image_id and key of the first sample
    last: str = ""
    images: int = 0
    by_source: Counter[str] = field(default_factory=Counter)
    # keys of samples to search for among the dropped rows: S32[n]
    keys: npt.NDArray[np.bytes_] = field(default_factory=lambda: np.empty(0, "S32"))
    bytes: int | None = None  # None: the tar is not there
    sha256: str = ""
    parquet_sha256: str = ""


def read(name: str, *, rules: Rules, threads: int, bits: int) -> CheckedShard:
    """Checks a shard.

    Args:
        name: the shard's name, without an ending.
        rules: the rules of its run, which its rows must pass.
        threads: how many threads decode images, over all shards that are read at the same time.
        bits: only keys whose first `bits` bits are zero are kept for later. Keys are hashes: this is a random sample.
    """
    found = CheckedShard(Findings(), name)
    with STRICT_PILLOW:
        rows = _sidecar(rules.run, found)
        if rows is not None:
            text_rules.check(rows, rules, f"shards/{name}.parquet", found.findings)
            found.keys = _sampled(_check_order(rows, found), bits)
        _read_tar(rules.run, rows, rules, found, threads)
    return found


def _sampled(keys: npt.NDArray[np.bytes_], bits: int) -> npt.NDArray[np.bytes_]:
    if not bits:
        return keys
    return keys[np.array([leading(key) >> max(0, 32 - bits) == 0 for key in keys.tolist()], bool)]


def leading(key: bytes) -> int:
    """The first 32 bits of a key or image_id; all ones if it is not hexadecimal, which another check reports."""
    try:
        return int(key[:8], 16)
    except ValueError:
        return (1 << 32) - 1


# The side-car ---------------------------------------------------------------------------------------------------------


def _sidecar(run: RunFolder, found: CheckedShard) -> pa.Table | None:
    """The rows of the side-car; None if it is not a whole side-car."""
    name, path = f"shards/{found.name}.parquet", run.path("shards", f"{found.name}.parquet")
    found.findings.saw("side_cars")
    try:
        data = storage.read_bytes(path)
        found.parquet_sha256 = hashlib.sha256(data).hexdigest()
        rows = pa.concat_tables([SAMPLE.empty_table(), *run_parquet.row_groups_of(pa.BufferReader(data), name)])
        rows.validate(full=True)
    except UnreadableError as error:
        found.findings.fails("side_cars", str(error))
    except pa.ArrowException as error:
        why = str(error).splitlines()[0]
        found.findings.fails("side_cars", f"{name}: not the columns and text of a side-car ({why})")
    except OSError as error:
        found.findings.fails("side_cars", f"{name}: {error.strerror}")
    else:
        nulls = [column for column in SAMPLE.names if column not in shards.NULLABLE and rows[column].null_count]
        if not nulls:
            found.rows, found.by_source = len(rows), Counter(map(str, rows["source"].to_pylist()))
            return rows
        found.findings.fails("side_cars", f"{name}: {rows[nulls[0]].null_count:,} rows have no {nulls[0]}")
    return None


def _check_order(rows: pa.Table, found: CheckedShard) -> npt.NDArray[np.bytes_]:
    """Checks that (image_id, key) rises strictly inside the shard, and keeps both ends; returns the keys, S32[n]."""
    images, keys = (_bytes_of(rows, name) for name in ("image_id", "key"))
    if not len(keys):
        return keys
    both = np.char.add(images, keys)
    check_neighbours(both[:-1], both[1:], f"shards/{found.name}.parquet", found.findings)
    found.first, found.last = both[0].decode(errors="replace"), both[-1].decode(errors="replace")
    found.images = int((images[1:] != images[:-1]).sum()) + 1
    return keys


def _bytes_of(rows: pa.Table, name: str) -> npt.NDArray[np.bytes_]:
    return np.array([str(value).encode() for value in rows[name].to_pylist()], "S32")


def check_neighbours(
    before: npt.NDArray[np.bytes_], after: npt.NDArray[np.bytes_], path: str, findings: Findings
) -> None:
    """Checks that samples that follow each other rise strictly: image_id and key of each, S64[n]."""

    def key(sample: bytes) -> str:
        return sample[-32:].decode()

    findings.rows(
        DropReason.PAIR_REPEATED, before == after, lambda row: f"{path}: {key(after[row])}: the same key twice"
    )
    wrong = "comes after {}, but sorts before it"
    findings.rows("order", before > after, lambda row: f"{path}: {key(after[row])} {wrong.format(key(before[row]))}")


# The tar --------------------------------------------------------------------------------------------------------------


def _read_tar(run: RunFolder, rows: pa.Table | None, rules: Rules, found: CheckedShard, threads: int) -> None:
    """Compares the tar with the side-car, member by member; threads compare each image with its row, in order."""
    name = f"shards/{found.name}.tar"
    with ahead.OF_PROCESS.shared(threads) as pool:
        begun = (
            (None, pool.submit(images.check, image, row, rules, name), len(image))
            for row, image in _images(run, rows, name, found)
        )
        for _, findings in ahead.in_order(begun, bytes_at_most=ahead.AHEAD_BYTES):
            found.findings.add(findings)


def _images(run: RunFolder, rows: pa.Table | None, name: str, found: CheckedShard) -> Iterator[tuple[SampleRow, bytes]]:
    """The rows whose image is at their offset, with its bytes. Reports whatever else is wrong with the tar."""
    found.findings.saw("tars")
    try:
        with storage.open_read(run.path("shards", f"{found.name}.tar")) as file:
            tar = _Tar(file)
            try:
                yield from _hold_against(tar, _each(rows), name, found.findings)
            except ValueError as error:
                found.findings.fails("tars", f"{name}: {error}")
            tar.drain()
            found.bytes, found.sha256 = tar.bytes, tar.sha256
    except OSError as error:
        found.findings.fails("tars", f"{name}: {error.strerror}")


class _Tar:
    """A tar that is read once; `bytes` and `sha256` cover what was read so far."""

    def __init__(self, file: BinaryIO) -> None:
        self._digest, self._last, self.bytes = hashlib.sha256(), b"", 0
        self.pieces = self._read(file)

    @property
    def sha256(self) -> str:
        """The SHA-256 in lower-case hex."""
        return self._digest.hexdigest()

    def drain(self) -> None:
        """Reads the rest, for the digest."""
        for _ in self.pieces:
            pass

    def check_end(self, place: int) -> None:
        """Raises ValueError unless two blocks of zeros, and nothing else, follow this place."""
        self.drain()
        if self.bytes != place + _END or any(self._last):
            raise ValueError(f"byte {place:,}: not two blocks of zeros and the end of the file")

    def _read(self, file: BinaryIO) -> Iterator[bytes]:
        while data := file.read(_READ):
            self._digest.update(data)
            self._last = (self._last + data)[-_END:]
            self.bytes += len(data)
            yield data


def _each(rows: pa.Table | None) -> Iterator[SampleRow]:
    if rows is not None:
        for begin in range(0, len(rows), _ROWS):
            yield from cast(list[SampleRow], rows.slice(begin, _ROWS).to_pylist())


def _hold_against(
    tar: _Tar, rows: Iterator[SampleRow], name: str, findings: Findings
) -> Iterator[tuple[SampleRow, bytes]]:
    """Checks that the tar has the samples of the rows, in order; yields the rows whose image is in place."""
    place = 0
    for members in shards.members(tar.pieces):
        interrupts.check()
        if (row := next(rows, None)) is None:
            findings.fails("members", f"{name}: {members[0][0]} is in no row of the side-car")
        else:
            findings.saw("members")
            offset = place + _BLOCK
            if wrong := _wrong_members(members, offset, row):
                findings.fails("members", f"{name}: {row['key']}: {wrong}")
            if offset == row["tar_offset"]:
                yield row, members[0][1]
        place += sum(_BLOCK + len(content) + -len(content) % _BLOCK for _, content in members)
    for row in rows:
        findings.saw("members")
        findings.fails("members", f"{name}: {row['key']}: it is not in the tar")
    tar.check_end(place)


def _wrong_members(members: shards.Members, offset: int, row: SampleRow) -> str:
    """What is wrong with the members of a sample, whose image is at this offset; empty if nothing is."""
    try:
        sample = shards.decoded(members)
    except (ValueError, TypeError, RecursionError) as error:
        return f"its members are not a sample ({error!s:.200})"
    if members[0][0] != (expected := f"{row['key']}.{shards.EXTENSIONS.get(row['format'])}"):
        return f"its image is {members[0][0]}, not {expected}"
    if (offset, len(sample.image)) != (row["tar_offset"], row["tar_bytes"]):
        said = f"the side-car says {row['tar_offset']} with {row['tar_bytes']}"
        return f"its image is at byte {offset} with {len(sample.image)}, {said}"
    if sample.caption != row["caption"]:
        return "its .txt is not the caption of the side-car"
    return "" if sample.row == row else "its .json is not the row of the side-car"
