"""One shard, read again: side-car and tar from their first byte to their last, every image decoded."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from altalign import interrupts, memory, storage
from altalign.errors import UnreadableError
from altalign.reasons import DropReason
from altalign.schema import SAMPLE
from altalign.shards import EXTENSIONS
from audit import parquet
from audit.checks import rules as text_rules
from audit.checks.findings import Findings
from audit.checks.rules import Rules
from audit.checks.tars import Member, NotATarError, Tar
from audit.run_folder import RunFolder
from filters import pixels

_ROWS = 1_024  # of a side-car that are Python objects at a time
_SHORT_SIDE_PX = 128  # that images are decoded to at least
_NULLABLE = ("image_url", "page_url")


@dataclass
class Found:
    """What was found in a shard, and what there is to be held against its neighbours and the run."""

    findings: Findings
    name: str
    rows: int | None = None  # None: the side-car cannot be read
    first: str = ""  # image_id and key of the first sample
    last: str = ""
    images: int = 0
    by_source: Counter[str] = field(default_factory=Counter)
    keys: np.ndarray = field(default_factory=lambda: np.empty(0, "S32"))  # of samples that are looked for among dropped rows
    bytes: int | None = None  # None: the tar is not there
    sha256: str = ""
    parquet_sha256: str = ""


def read(run: RunFolder, name: str, rules: Rules, *, looked_for: Callable[[np.ndarray], np.ndarray]) -> Found:
    """Check a shard by its name, without an ending; `looked_for` takes keys (S32) and gives those that are kept for later."""
    found = Found(Findings(), name)
    rows = _sidecar(run, found)
    if rows is not None:
        text_rules.check(rows, rules, f"shards/{name}.parquet", found.findings)
        found.keys = looked_for(_check_order(rows, found))
    _read_tar(run, rows, rules, found)
    return found


# The side-car ------------------------------------------------------------------------------------------------------------


def _sidecar(run: RunFolder, found: Found) -> pa.Table | None:
    """The rows of the side-car; None where they are not those of one."""
    name, path = f"shards/{found.name}.parquet", run.path("shards", f"{found.name}.parquet")
    found.findings.saw("side_cars")
    try:
        data = storage.read_bytes(path)
        found.parquet_sha256 = hashlib.sha256(data).hexdigest()
        rows = pa.concat_tables([SAMPLE.empty_table(), *parquet.row_groups_of(pa.BufferReader(data), name)])
        rows.validate(full=True)
    except UnreadableError as error:
        found.findings.fails("side_cars", str(error))
    except pa.ArrowException as error:
        found.findings.fails("side_cars", f"{name}: not the columns and text of a side-car ({str(error).splitlines()[0]})")
    except OSError as error:
        found.findings.fails("side_cars", f"{name}: {error.strerror}")
    else:
        nulls = [column for column in SAMPLE.names if column not in _NULLABLE and rows[column].null_count]
        if not nulls:
            found.rows, found.by_source = len(rows), Counter(map(str, rows["source"].to_pylist()))
            return rows
        found.findings.fails("side_cars", f"{name}: {rows[nulls[0]].null_count:,} rows have no {nulls[0]}")
    return None


def _check_order(rows: pa.Table, found: Found) -> np.ndarray:
    """The order of (image_id, key) inside the shard, and that no key is there twice; the ends are kept for what is between shards. Returns the keys, S32."""
    images, keys = (np.array([str(value).encode() for value in rows[name].to_pylist()], "S32") for name in ("image_id", "key"))
    if not len(keys):
        return keys
    both = np.char.add(images, keys)
    check_neighbours(both[:-1], both[1:], f"shards/{found.name}.parquet", found.findings)
    found.first, found.last = both[0].decode(errors="replace"), both[-1].decode(errors="replace")
    found.images = int((images[1:] != images[:-1]).sum()) + 1
    return keys


def check_neighbours(before: np.ndarray, after: np.ndarray, path: str, findings: Findings) -> None:
    """Samples that follow each other (image_id and key of each) rise strictly."""
    findings.rows(DropReason.PAIR_REPEATED, before == after, lambda row: f"{path}: {after[row][-32:].decode()}: the same key twice")
    findings.rows("order", before > after, lambda row: f"{path}: {after[row][-32:].decode()} comes after {before[row][-32:].decode()}, which it precedes")


# The tar -----------------------------------------------------------------------------------------------------------------


def _read_tar(run: RunFolder, rows: pa.Table | None, rules: Rules, found: Found) -> None:
    """Hold the tar against the side-car, member by member."""
    name = f"shards/{found.name}.tar"
    found.findings.saw("tars")
    try:
        with storage.open_read(run.path("shards", f"{found.name}.tar")) as file:
            tar = Tar(file)
            try:
                _hold_against(tar.members(), _each(rows), rules, name, found.findings)
            except NotATarError as error:
                found.findings.fails("tars", f"{name}: {error}")
            tar.drain()
            found.bytes, found.sha256 = tar.bytes, tar.sha256
    except OSError as error:
        found.findings.fails("tars", f"{name}: {error.strerror}")


def _each(rows: pa.Table | None) -> Iterator[dict[str, Any]]:
    if rows is not None:
        for begin in range(0, len(rows), _ROWS):
            yield from rows.slice(begin, _ROWS).to_pylist()


def _hold_against(members: Iterator[Member], rows: Iterator[dict[str, Any]], rules: Rules, name: str, findings: Findings) -> None:
    """Three members a row, in order; then neither more members nor more rows."""
    for row in rows:
        interrupts.check()
        three = [member for _, member in zip(range(3), members, strict=False)]
        findings.saw("members")
        if wrong := _wrong_members(three, row):
            findings.fails("members", f"{name}: {row['key']}: {wrong}")
        if len(three) < 3:
            return
        if three[0].offset == row["tar_offset"]:
            _check_image(three[0].content, row, rules, name, findings)
    if (extra := next(members, None)) is not None:
        findings.fails("members", f"{name}: {extra.name} is in no row of the side-car")
        for _ in members:
            pass


def _wrong_members(members: list[Member], row: dict[str, Any]) -> str:
    """What is wrong with the members of a sample; empty where nothing is."""
    if len(members) < 3:
        return f"{len(members)} of its 3 members are there"
    key, extension = row["key"], EXTENSIONS.get(row["format"])
    wanted = [f"{key}.{extension}", f"{key}.txt", f"{key}.json"]
    found = [member.name for member in members]
    if found != wanted:
        return f"its members are {', '.join(found)}, not {', '.join(wanted)}"
    image_member, text, written = members
    if (image_member.offset, len(image_member.content)) != (row["tar_offset"], row["tar_bytes"]):
        return f"its image is at byte {image_member.offset} with {len(image_member.content)}, the side-car says {row['tar_offset']} with {row['tar_bytes']}"
    if text.content != row["caption"].encode():
        return "its .txt is not the caption of the side-car"
    wanted_json = {column: row[column] or "" if column in _NULLABLE else row[column] for column in SAMPLE.names}
    try:
        columns = json.loads(written.content)
    except (ValueError, RecursionError):
        return "its .json is none"
    if columns != wanted_json or list(columns) != SAMPLE.names:
        return "its .json is not the row of the side-car"
    return ""


def _check_image(data: bytes, row: dict[str, Any], rules: Rules, name: str, findings: Findings) -> None:
    """The bytes of an image against its row, and against the image rules."""
    where, limits = f"{name}: {row['key']}", rules.config.image
    findings.saw("image_bytes")
    digest = hashlib.sha256(data).hexdigest()
    if digest != row["sha256"] or len(data) != row["bytes"]:
        findings.fails("image_bytes", f"{where}: its image has {len(data):,} bytes of SHA-256 {digest}, the side-car says {row['bytes']:,} of {row['sha256']}")
    try:
        decoded = _decoded(data, limits.pixels_at_most)
    except MemoryError as error:
        findings.cannot_ask("image_sizes", f"{where}: no memory to decode its image ({error}), so no image rule was asked of it; more memory lets it")
        return
    findings.saw("image_sizes")
    said = (row["format"], row["width"], row["height"])
    if (seen := (decoded.format, decoded.width, decoded.height)) != said:
        findings.fails("image_sizes", f"{where}: its image is {_size(*seen)}, the side-car says {_size(*said)}")
    _check_rules(decoded, row, digest, rules, where, findings)
    _check_form(row, digest, rules, where, findings)
    if limits.blocked_hashes:
        findings.saw(DropReason.IMAGE_BLOCKED)
        is_as_found = digest == row["found_sha256"]
        md5 = hashlib.md5(data, usedforsecurity=False).hexdigest() if is_as_found and rules.blocked.md5 else ""
        if row["found_sha256"] in rules.blocked.sha256 or md5 in rules.blocked.md5:
            findings.fails(DropReason.IMAGE_BLOCKED, f"{where}: the hash of its image is in [image] blocked_hashes")


def _decoded(data: bytes, pixels_at_most: int) -> pixels.Decoded:
    """The image, gray. Raises MemoryError where there is too little, of which threads share what there is."""
    needed = 0 if memory.is_ample() else pixels.peak_bytes(data, colour=False, pixels_at_most=pixels_at_most, short_side_px=_SHORT_SIDE_PX)
    with memory.reserved(needed):
        return pixels.decode(data, pixels_at_most=pixels_at_most, colour=False, short_side_px=_SHORT_SIDE_PX)


def _size(kind: str | None, width: int | None, height: int | None) -> str:
    return f"{kind or 'no image'} of {width} x {height} px"


def _check_rules(decoded: pixels.Decoded, row: dict[str, Any], digest: str, rules: Rules, where: str, findings: Findings) -> None:
    """The image rules, in plain Python, of what is measured now. Size and shape are those of the image as found unless it was made smaller."""
    config, limits = rules.config, rules.config.image
    short, long = sorted((decoded.width or 0, decoded.height or 0))
    ratio = Fraction(str(limits.aspect_ratio_below))
    is_as_found = digest == row["found_sha256"]
    held = {DropReason.IMAGE_UNDECODABLE: decoded.format is None, DropReason.IMAGE_DAMAGED: decoded.damage is not None}
    if is_as_found or (config.shards.resize_short_side_px == 0 and long < pixels.JPEG_SIDE_AT_MOST_PX):
        held |= {
            DropReason.IMAGE_TOO_MANY_PIXELS: short * long > limits.pixels_at_most,
            DropReason.IMAGE_TOO_SMALL: short <= limits.short_side_above_px,
            DropReason.IMAGE_TOO_ELONGATED: long * ratio.denominator >= short * ratio.numerator,
        }
    size = _size(decoded.format, decoded.width, decoded.height)
    for rule, holds in held.items():
        findings.saw(rule)
        if holds:
            setting = _LIMITS.get(rule, "")
            limit = f", [image] {setting} = {getattr(limits, setting)}" if setting else ""
            findings.fails(rule, f"{where}: {size}{f' ({decoded.damage})' if rule == DropReason.IMAGE_DAMAGED else ''}{limit}")
    if config.fetch.source == "web" and is_as_found and row["source"] not in rules.sources_in_hand:
        findings.saw(DropReason.HTTP_TOO_LARGE)
        if row["bytes"] > config.fetch.bytes_at_most:
            findings.fails(DropReason.HTTP_TOO_LARGE, f"{where}: {row['bytes']:,} bytes, [fetch] bytes_at_most = {config.fetch.bytes_at_most}")


_LIMITS = {
    DropReason.IMAGE_TOO_MANY_PIXELS: "pixels_at_most",
    DropReason.IMAGE_TOO_SMALL: "short_side_above_px",
    DropReason.IMAGE_TOO_ELONGATED: "aspect_ratio_below",
}


def _check_form(row: dict[str, Any], digest: str, rules: Rules, where: str, findings: Findings) -> None:
    """What `[shards]` says of stored images."""
    settings = rules.config.shards
    findings.saw("stored_form")
    short_side = min(row["width"], row["height"])
    if settings.portable and row["format"] != "jpeg":
        findings.fails("stored_form", f"{where}: {row['format']}, [shards] portable = true")
    elif 0 < settings.resize_short_side_px < short_side:
        findings.fails("stored_form", f"{where}: a short side of {short_side:,} px, [shards] resize_short_side_px = {settings.resize_short_side_px}")
    elif not settings.portable and not settings.resize_short_side_px and digest != row["found_sha256"]:
        findings.fails("stored_form", f"{where}: its image is not that of found_sha256, [shards] portable = false")
