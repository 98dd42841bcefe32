"""Reads one shard again: the whole side-car and the whole tar, with every image decoded and asked its rules."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.audit import rows as run_rows
from altalign.audit.checks import rules as text_rules
from altalign.audit.checks.findings import Findings
from altalign.audit.checks.rules import Rules
from altalign.data import shards
from altalign.data.reasons import DropReason
from altalign.data.schema import SAMPLE, SampleRow
from altalign.errors import UnreadableError
from altalign.filters import image, pixels
from altalign.filters.image_headers import STRICT_PILLOW, is_plain_jpeg
from altalign.machine import interrupts, memory
from altalign.machine.threads import AHEAD_BYTES, OF_PROCESS, in_order

_SHORT_SIDE_PX = 128  # images are decoded to at least this short side
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
    """Checks a shard by its name, without an ending, against the rules of its run.

    So many threads decode images, over all shards that are read at the same time. Only keys whose first `bits` bits
    are zero are kept for later; keys are hashes, so this is a random sample.
    """
    checked = CheckedShard(Findings(), name)
    with STRICT_PILLOW:
        rows = _sidecar(rules, checked)
        if rows is not None:
            text_rules.check(rows, rules, f"shards/{name}.parquet", checked.findings)
            keys = _check_order(rows, checked)
            is_kept = [_leading(key) >> max(0, 32 - bits) == 0 for key in keys.tolist()] if bits else slice(None)
            checked.keys = keys[is_kept]
        tar = f"shards/{name}.tar"
        with OF_PROCESS.shared(threads) as pool:  # threads compare each image with its row, in order
            begun = (
                (None, pool.submit(check_image, data, row, rules, tar), len(data))
                for row, data in _images(rules, rows, tar, checked)
            )
            for _, findings in in_order(begun, bytes_at_most=AHEAD_BYTES):
                checked.findings.add(findings)
    return checked


def _leading(key: bytes) -> int:
    """The first 32 bits of a key; all ones if it is not hexadecimal, which another check reports."""
    try:
        return int(key[:8], 16)
    except ValueError:
        return (1 << 32) - 1


# The side-car ---------------------------------------------------------------------------------------------------------


def _sidecar(rules: Rules, checked: CheckedShard) -> pa.Table | None:
    """The rows of the side-car; None if it is not a whole side-car."""
    name = f"shards/{checked.name}.parquet"
    checked.findings.saw("side_cars")
    try:
        data = storage.read_bytes(rules.run.path("shards", f"{checked.name}.parquet"))
        checked.parquet_sha256 = hashlib.sha256(data).hexdigest()
        rows = pa.concat_tables([SAMPLE.empty_table(), *run_rows.row_groups(name, file=pa.BufferReader(data))])
        rows.validate(full=True)
    except UnreadableError as error:
        checked.findings.fails("side_cars", str(error))
    except pa.ArrowException as error:
        why = str(error).splitlines()[0]
        checked.findings.fails("side_cars", f"{name}: not the columns and text of a side-car ({why})")
    except OSError as error:
        checked.findings.fails("side_cars", f"{name}: {error.strerror}")
    else:
        nulls = [column for column in SAMPLE.names if column not in shards.NULLABLE and rows[column].null_count]
        if not nulls:
            checked.rows, checked.by_source = len(rows), Counter(map(str, rows["source"].to_pylist()))
            return rows
        checked.findings.fails("side_cars", f"{name}: {rows[nulls[0]].null_count:,} rows have no {nulls[0]}")
    return None


def _check_order(rows: pa.Table, checked: CheckedShard) -> npt.NDArray[np.bytes_]:
    """Checks that (image_id, key) rises strictly inside the shard, and keeps both ends; returns the keys, S32[n]."""
    columns = (rows[name].to_pylist() for name in ("image_id", "key"))
    ids: list[npt.NDArray[np.bytes_]] = [np.array([str(value).encode() for value in some], "S32") for some in columns]
    images, keys = ids
    if not len(keys):
        return keys
    both = np.char.add(images, keys)
    check_neighbours(both[:-1], both[1:], f"shards/{checked.name}.parquet", checked.findings)
    checked.first, checked.last = both[0].decode(errors="replace"), both[-1].decode(errors="replace")
    checked.images = int((images[1:] != images[:-1]).sum()) + 1
    return keys


def check_neighbours(
    before: npt.NDArray[np.bytes_], after: npt.NDArray[np.bytes_], path: str, findings: Findings
) -> None:
    """Checks that samples that follow each other rise strictly: image_id and key of each, S64[n]."""

    def key(sample: bytes) -> str:
        return sample[-32:].decode()

    def twice(row: int) -> str:
        return f"{path}: {key(after[row])}: the same key twice"

    def wrong(row: int) -> str:
        return f"{path}: {key(after[row])} comes after {key(before[row])}, but sorts before it"

    findings.rows(DropReason.PAIR_REPEATED, before == after, twice)
    findings.rows("order", before > after, wrong)


# The tar --------------------------------------------------------------------------------------------------------------


def _images(rules: Rules, rows: pa.Table | None, name: str, checked: CheckedShard) -> Iterator[tuple[SampleRow, bytes]]:
    """The rows whose image is at their offset, with its bytes. Reports whatever else is wrong with the tar."""
    checked.findings.saw("tars")
    try:
        with storage.open_read(rules.run.path("shards", f"{checked.name}.tar")) as file:
            tar = _Tar(file)
            try:
                yield from _hold_against(tar, _each(rows), name, checked.findings)
            except ValueError as error:
                checked.findings.fails("tars", f"{name}: {error}")
            tar.drain()
            checked.bytes, checked.sha256 = tar.bytes, tar.digest.hexdigest()
    except OSError as error:
        checked.findings.fails("tars", f"{name}: {error.strerror}")


class _Tar:
    """A tar that is read once; `bytes` and `digest` cover what was read so far."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest, self._last, self.bytes = hashlib.sha256(), b"", 0
        self.pieces = self._read(file)

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
            self.digest.update(data)
            self._last = (self._last + data)[-_END:]
            self.bytes += len(data)
            yield data


def _each(rows: pa.Table | None) -> Iterator[SampleRow]:
    for begin in range(0, len(rows) if rows is not None else 0, _ROWS):
        yield from cast(list[SampleRow], cast(pa.Table, rows).slice(begin, _ROWS).to_pylist())


def _hold_against(
    tar: _Tar, rows: Iterator[SampleRow], name: str, findings: Findings
) -> Iterator[tuple[SampleRow, bytes]]:
    """Checks that the tar has the samples of the rows, in order; yields the rows whose image is in place.

    Raises ValueError: it is not a whole tar.
    """
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
        by_row = f"the side-car says {row['tar_offset']} with {row['tar_bytes']}"
        return f"its image is at byte {offset} with {len(sample.image)}, {by_row}"
    if sample.caption != row["caption"]:
        return "its .txt is not the caption of the side-car"
    return "" if sample.row == row else "its .json is not the row of the side-car"


# The images -----------------------------------------------------------------------------------------------------------


def check_image(data: bytes, row: SampleRow, rules: Rules, name: str) -> Findings:
    """Checks the bytes of an image against its row of the side-car and the image rules; the name is the tar's.

    Raises Interrupted: a signal has asked the command to end.
    """
    interrupts.check()
    findings, where = Findings(), f"{name}: {row['key']}"
    findings.saw("image_bytes")
    digest = hashlib.sha256(data).hexdigest()
    if digest != row["sha256"] or len(data) != row["bytes"]:
        by_row = f"the side-car says {row['bytes']:,} of {row['sha256']}"
        findings.fails("image_bytes", f"{where}: its image has {len(data):,} bytes of SHA-256 {digest}, {by_row}")
    try:
        limits = {"colour": False, "short_side_px": _SHORT_SIDE_PX, "pixels_at_most": rules.config.image.pixels_at_most}
        # threads share the memory that there is
        with memory.reserved(0 if memory.is_ample() else pixels.peak_bytes(data, **limits)):
            decoded = pixels.decode(data, **limits)
    except MemoryError as error:
        why = f"no memory to decode its image ({error}), so no image rule was checked; run it with more memory"
        findings.cannot_ask("image_sizes", f"{where}: {why}")
        return findings
    findings.saw("image_sizes")
    mine, by_row = (
        f"{kind or 'no image'} of {width} x {height} px"
        for kind, width, height in (
            (decoded.format, decoded.width, decoded.height),
            (row["format"], row["width"], row["height"]),
        )
    )
    if mine != by_row:
        findings.fails("image_sizes", f"{where}: its image is {mine}, the side-car says {by_row}")
    _ask_rules(data, decoded, row, digest, rules, where, findings)
    _check_form(data, row, digest, rules, where, findings)
    return findings


def _ask_rules(
    data: bytes, decoded: pixels.Decoded, row: SampleRow, digest: str, rules: Rules, where: str, findings: Findings
) -> None:
    """Asks the image rules about what is measured now.

    Size and shape are those of the original image, unless it was made smaller: then their rules are left out.
    """
    config, is_as_found = rules.config, digest == row["found_sha256"]
    measured: dict[str, tuple[object, pa.DataType]] = {
        "format": (decoded.format, pa.string()),
        "damage": (decoded.damage if decoded.format else None, pa.string()),
    }
    long = max(decoded.width or 0, decoded.height or 0)
    if is_as_found or (config.shards.resize_short_side_px == 0 and long < pixels.JPEG_SIDE_AT_MOST_PX):
        measured |= {"width": (decoded.width, pa.int64()), "height": (decoded.height, pa.int64())}
    if config.image.blocked_hashes:
        is_blocked = row["found_sha256"] in rules.blocked.sha256
        is_blocked |= is_as_found and rules.blocked.names(data, sha256=digest)
        measured["is_blocked"] = (is_blocked, pa.bool_())
    columns = {name: pa.array([value], kind) for name, (value, kind) in measured.items()}
    for rule in image.RULES:
        if columns.keys() >= {*rule.columns}:
            text_rules.ask(rule, columns, config, lambda what: lambda row: f"{where}: {what(row)}", findings)
    if rules.is_of_web and is_as_found and row["source"] not in rules.sources_in_hand:
        findings.saw(DropReason.HTTP_TOO_LARGE)
        if row["bytes"] > config.fetch.bytes_at_most:
            why = f"{row['bytes']:,} bytes, [fetch] bytes_at_most = {config.fetch.bytes_at_most}"
            findings.fails(DropReason.HTTP_TOO_LARGE, f"{where}: {why}")


def _check_form(data: bytes, row: SampleRow, digest: str, rules: Rules, where: str, findings: Findings) -> None:
    """Checks the stored image against the settings of `[shards]`."""
    settings = rules.config.shards
    findings.saw("stored_form")
    short_side = min(row["width"], row["height"])
    if settings.portable and not (row["format"] == "jpeg" and is_plain_jpeg(data)):
        why = " that is turned, or neither RGB nor gray" * (row["format"] == "jpeg")
        findings.fails("stored_form", f"{where}: {row['format']}{why}, [shards] portable = true")
    elif 0 < settings.resize_short_side_px < short_side:
        limit = f"[shards] resize_short_side_px = {settings.resize_short_side_px}"
        findings.fails("stored_form", f"{where}: a short side of {short_side:,} px, {limit}")
    elif not settings.portable and not settings.resize_short_side_px and digest != row["found_sha256"]:
        findings.fails("stored_form", f"{where}: its image is not that of found_sha256, [shards] portable = false")
