"""Reads one shard again: the whole side-car and the whole tar, with images decoded and asked their rules."""

import hashlib
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, BinaryIO, TypeAlias

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
from altalign.data.schema import SAMPLE, SIDE_CAR, SampleRow
from altalign.errors import UnreadableError, first_line
from altalign.filters import image, pixels
from altalign.filters.image_headers import STRICT_PILLOW, is_plain_jpeg
from altalign.machine import interrupts, memory
from altalign.machine.threads import AHEAD_BYTES, OF_PROCESS, in_order
from altalign.settings.curate import CurateConfig, ShardsSettings

Column: TypeAlias = "pa.ChunkedArray[Any]"

_SHORT_SIDE_PX = 128  # images are decoded to at least this short side
_ROWS = 1_024  # rows of a side-car that are Python objects at a time
_BLOCK = 512  # bytes of a tar
_END = 2 * _BLOCK  # zeros that end an archive
_READ = 1 << 20


@dataclass
class CheckedShard:
    """What was found in a shard, and what is later compared with its neighbours and the run."""

    name: str
    findings: Findings = field(default_factory=Findings)
    rows: int | None = None  # None: the side-car cannot be read
    first: bytes = b""  # image_id and key of the first sample
    last: bytes = b""
    images: int = 0
    by_source: Counter[str] = field(default_factory=Counter)
    # keys of samples to search for among the dropped rows: S32[n]
    keys: npt.NDArray[np.bytes_] = field(default_factory=lambda: np.empty(0, "S32"))
    sha256: str = ""  # empty: the tar is not there
    parquet_sha256: str = ""


def read(name: str, *, rules: Rules, threads: int, zeros: int, decoded_below: int) -> CheckedShard:
    """Checks a shard by its name, without an ending, against the rules of its run.

    So many threads decode images, over all shards that are read at the same time: those of keys whose first 16 digits
    are a number below this one. Only keys that begin with so many zeros are kept for later. Keys are hashes, so both
    are random samples.
    """
    checked, tar = CheckedShard(name), f"shards/{name}.tar"
    with STRICT_PILLOW:
        rows = _sidecar(rules, checked)
        if len(rows):
            text_rules.check(rows, rules, f"shards/{name}.parquet", checked.findings)
            columns = (rows[column].to_pylist() for column in ("image_id", "key"))
            ids, keys = (np.array([str(value).encode() for value in some], "S32") for some in columns)
            both: Any = np.char.add(ids, keys)
            check_neighbours(both[:-1], both[1:], f"shards/{name}.parquet", checked.findings)
            checked.first, checked.last = both[0], both[-1]
            checked.images = int((ids[1:] != ids[:-1]).sum()) + 1
            checked.keys = keys[np.char.startswith(keys, b"0" * zeros)]
        with OF_PROCESS.shared(threads) as pool:  # threads compare each image with its row, in order
            begun = (
                (None, pool.submit(check_image, data, row, rules, tar, decoded_below=decoded_below), len(data))
                for row, data in _images(rules, rows, tar, checked)
            )
            for _, findings in in_order(begun, bytes_at_most=AHEAD_BYTES):
                checked.findings.add(findings)
    return checked


def _sidecar(rules: Rules, checked: CheckedShard) -> pa.Table:
    """The samples of the side-car, whose column `image` is compared with the others; none if it is not a whole one."""
    name = f"shards/{checked.name}.parquet"
    checked.findings.saw("side_cars")
    try:
        data = storage.read_bytes(rules.run.path("shards", f"{checked.name}.parquet"))
        checked.parquet_sha256 = hashlib.sha256(data).hexdigest()
        rows = pa.concat_tables([SIDE_CAR.empty_table(), *run_rows.row_groups(name, file=pa.BufferReader(data))])
        rows.validate(full=True)
        nulls = [column for column in SAMPLE.names if column not in shards.NULLABLE and rows[column].null_count]
        if nulls:
            raise pa.ArrowInvalid(f"{rows[nulls[0]].null_count:,} rows have no {nulls[0]}")
    except pa.ArrowException as error:
        checked.findings.fails("side_cars", f"{name}: not the columns and text of a side-car ({first_line(error)})")
    except (UnreadableError, OSError) as error:
        checked.findings.fails("side_cars", f"{name}: {error.strerror}" if isinstance(error, OSError) else str(error))
    else:
        checked.rows, checked.by_source = len(rows), Counter(map(str, rows["source"].to_pylist()))
        samples = rows.select(SAMPLE.names)
        _check_files(rows["image"], shards.sidecar_of(samples, f"{checked.name}.tar")["image"], name, checked.findings)
        return samples
    return SAMPLE.empty_table()


def _check_files(found: Column, expected: Column, name: str, findings: Findings) -> None:
    """Checks that the column `image` says of each image what the other columns say."""
    if found.equals(expected):
        findings.saw("image_files", len(found))
        return
    values, others = found.to_pylist(), expected.to_pylist()
    wrong = np.array([value != other for value, other in zip(values, others, strict=True)])

    def what(row: int) -> str:
        return f"image is {values[row]}, and the other columns say {others[row]}"

    findings.rows("image_files", wrong, lambda row: f"{name}: row {row}", what)


def check_neighbours(
    before: npt.NDArray[np.bytes_], after: npt.NDArray[np.bytes_], path: str, findings: Findings
) -> None:
    """Checks that samples that follow each other rise strictly: image_id and key of each, S64[n]."""

    def where(row: int) -> str:
        return f"{path}: {after[row][-32:].decode()}"

    findings.rows(DropReason.PAIR_REPEATED, before == after, where, "the same key twice")
    findings.rows("order", before > after, where, "it sorts before the sample that it comes after")


# The tar --------------------------------------------------------------------------------------------------------------


def _images(rules: Rules, rows: pa.Table, name: str, checked: CheckedShard) -> Iterator[tuple[SampleRow, bytes]]:
    """Reads the tar once; yields the rows whose image is at their offset, with its bytes.

    Reports whatever else is wrong: the tar has the samples of the rows, in order, and ends after them.
    """
    findings, digest, size, end = checked.findings, hashlib.sha256(), 0, b""

    def read(file: BinaryIO) -> Iterator[bytes]:
        nonlocal size, end
        while data := file.read(_READ):
            digest.update(data)
            size, end = size + len(data), (end + data)[-_END:]
            yield data

    findings.saw("tars")
    every = (row for batch in rows.to_batches(max_chunksize=_ROWS) for row in batch.to_pylist())
    left, place = (list(same) for _, same in groupby(every, itemgetter("tar_offset"))), 0  # of a sample each
    try:
        with storage.open_read(rules.run.path("shards", f"{checked.name}.tar")) as file:
            pieces = read(file)
            try:
                for members in shards.members(pieces):
                    interrupts.check()
                    if not (of_sample := next(left, [])):
                        findings.fails("members", f"{name}: {members[0][0]} is in no row of the side-car")
                    else:
                        findings.saw("members")
                        if wrong := _wrong_members(members, place + _BLOCK, of_sample, rules.config.shards):
                            findings.fails("members", f"{name}: {of_sample[0]['key']}: {wrong}")
                        if place + _BLOCK == of_sample[0]["tar_offset"]:
                            yield from ((row, members[0][1]) for row in of_sample)
                    place += sum(_BLOCK + len(content) + -len(content) % _BLOCK for _, content in members)
                for of_sample in left:
                    findings.saw("members")
                    findings.fails("members", f"{name}: {of_sample[0]['key']}: it is not in the tar")
                deque(pieces, maxlen=0)
                if size != place + _END or any(end):
                    raise ValueError(f"byte {place:,}: not two blocks of zeros and the end of the file")
            except ValueError as error:
                findings.fails("tars", f"{name}: {error}")
                deque(pieces, maxlen=0)  # for the digest
            checked.sha256 = digest.hexdigest()
    except OSError as error:
        findings.fails("tars", f"{name}: {error.strerror}")


def _wrong_members(members: shards.Members, offset: int, rows: list[SampleRow], settings: ShardsSettings) -> str:
    """What is wrong with the members of a sample of these rows, whose image is at this offset; empty if nothing is."""
    row = rows[0]
    try:
        sample = shards.decoded(members)
    except (ValueError, TypeError, RecursionError) as error:
        return f"its members are not a sample ({error!s:.200})"
    if members[0][0] != (expected := f"{row['key']}.{shards.EXTENSIONS.get(row['format'])}"):
        return f"its image is {members[0][0]}, not {expected}"
    if (offset, len(sample.image)) != (row["tar_offset"], row["tar_bytes"]):
        return "its image is not where the side-car says"
    if sample.caption != row["caption"]:
        return "its .txt is not the caption of the side-car"
    if sample.row != row:
        return "its .json is not the row of the side-car"
    captions = None
    if settings.captions == "all":
        texts, keys, sources = ([each[name] for each in rows] for name in ("caption", "key", "source"))
        captions = dict(zip(shards.OF_CAPTIONS, (texts, keys, settings.shares(sources)), strict=True))
    is_whole = sample.captions == captions and (captions or len(rows) == 1)
    return "" if is_whole else "the captions of its .json are not the rows of the side-car"


# The images -----------------------------------------------------------------------------------------------------------


def check_image(data: bytes, row: SampleRow, rules: Rules, name: str, *, decoded_below: int) -> Findings:
    """Checks the bytes of an image against its row of the side-car and the image rules; the name is the tar's."""
    interrupts.check()
    findings, where, config = Findings(), f"{name}: {row['key']}", rules.config
    findings.saw("image_bytes")
    digest = hashlib.sha256(data).hexdigest()
    if digest != row["sha256"] or len(data) != row["bytes"]:
        by_row = f"the side-car says {row['bytes']:,} of {row['sha256']}"
        findings.fails("image_bytes", f"{where}: its image has {len(data):,} bytes of SHA-256 {digest}, {by_row}")
    findings.saw("stored_form")
    if wrong := _wrong_form(data, row, digest, rules):
        findings.fails("stored_form", f"{where}: {wrong}")
    # What is measured now is asked about; size and shape are those of the original image, unless it was made smaller.
    is_as_found = digest == row["found_sha256"]
    columns: dict[str, pa.Array[Any]] = {}
    if int(row["key"][:16], 16) < decoded_below:
        columns |= _decoded(data, row, where, config, findings, is_as_found=is_as_found)
    if config.image.blocked_hashes:
        is_blocked = row["found_sha256"] in rules.blocked.digests.get("sha256", ())
        is_blocked |= is_as_found and rules.blocked.names(data, sha256=digest)
        columns["is_blocked"] = pa.array([is_blocked], pa.bool_())
    for rule in image.RULES:
        if columns.keys() >= {*rule.columns}:
            text_rules.ask(rule, columns, config, lambda _: where, findings)
    return findings


def _decoded(
    data: bytes, row: SampleRow, where: str, config: CurateConfig, findings: Findings, *, is_as_found: bool
) -> dict[str, "pa.Array[Any]"]:
    """What decoding says of an image, as columns of the image rules; none where there is no memory for it."""
    try:
        limits = {"colour": False, "short_side_px": _SHORT_SIDE_PX, "pixels_at_most": config.image.pixels_at_most}
        # threads share the memory that there is
        with memory.reserved(0 if memory.is_ample() else pixels.peak_bytes(data, **limits)):
            decoded = pixels.decode(data, **limits)
    except MemoryError as error:
        why = f"no memory to decode its image ({error}), so no image rule was checked; run it with more memory"
        findings.cannot_ask("image_sizes", f"{where}: {why}")
        return {}
    findings.saw("image_sizes")
    mine, by_row = (
        f"{form or 'no image'} of {width} x {height} px"
        for form, width, height in (
            (decoded.format, decoded.width, decoded.height),
            (row["format"], row["width"], row["height"]),
        )
    )
    if mine != by_row:
        findings.fails("image_sizes", f"{where}: its image is {mine}, the side-car says {by_row}")
    long = max(decoded.width or 0, decoded.height or 0)
    columns: dict[str, pa.Array[Any]] = {
        "format": pa.array([decoded.format], pa.string()),
        "damage": pa.array([decoded.damage if decoded.format else None], pa.string()),
    }
    if is_as_found or (config.shards.resize_short_side_px == 0 and long < pixels.JPEG_SIDE_AT_MOST_PX):
        columns |= {"width": pa.array([decoded.width], pa.int64()), "height": pa.array([decoded.height], pa.int64())}
    return columns


def _wrong_form(data: bytes, row: SampleRow, digest: str, rules: Rules) -> str:
    """How the stored image is not as `[shards]` has it; empty if it is."""
    settings, short_side = rules.config.shards, min(row["width"], row["height"])
    if settings.portable and not (row["format"] == "jpeg" and is_plain_jpeg(data)):
        why = " that is turned, or neither RGB nor gray" * (row["format"] == "jpeg")
        return f"{row['format']}{why}, [shards] portable = true"
    if 0 < settings.resize_short_side_px < short_side:
        return f"a short side of {short_side:,} px, [shards] resize_short_side_px = {settings.resize_short_side_px}"
    if not settings.portable and not settings.resize_short_side_px and digest != row["found_sha256"]:
        return "its image is not that of found_sha256, [shards] portable = false"
    return ""
