"""Decodes one image of a shard again and compares it with its row of the side-car and with the image rules."""

import hashlib
from functools import partial

import pyarrow as pa

from altalign.audit.checks.findings import Findings
from altalign.audit.checks.rules import Rules, ask
from altalign.data.reasons import DropReason
from altalign.data.schema import SampleRow
from altalign.filters import image, pixels
from altalign.filters.image_headers import is_plain_jpeg
from altalign.machine import interrupts, memory

_SHORT_SIDE_PX = 128  # images are decoded to at least this short side


def check(data: bytes, row: SampleRow, rules: Rules, name: str) -> Findings:
    """Checks the bytes of an image against its row of the side-car and the image rules; `name` is the tar's.

    Raises Interrupted: a signal has asked the command to end.
    """
    interrupts.check()
    findings, where, limits = Findings(), f"{name}: {row['key']}", rules.config.image
    findings.saw("image_bytes")
    digest = hashlib.sha256(data).hexdigest()
    if digest != row["sha256"] or len(data) != row["bytes"]:
        said = f"the side-car says {row['bytes']:,} of {row['sha256']}"
        findings.fails("image_bytes", f"{where}: its image has {len(data):,} bytes of SHA-256 {digest}, {said}")
    try:
        decoded = _decoded(data, limits.pixels_at_most)
    except MemoryError as error:
        why = f"no memory to decode its image ({error}), so no image rule was checked; run it with more memory"
        findings.cannot_ask("image_sizes", f"{where}: {why}")
        return findings
    findings.saw("image_sizes")
    said = (row["format"], row["width"], row["height"])
    if (seen := (decoded.format, decoded.width, decoded.height)) != said:
        findings.fails("image_sizes", f"{where}: its image is {_size(*seen)}, the side-car says {_size(*said)}")
    _check_rules(data, decoded, row, digest, rules, where, findings)
    _check_form(data, row, digest, rules, where, findings)
    return findings


def _decoded(data: bytes, pixels_at_most: int) -> pixels.Decoded:
    """Decodes an image in gray. Raises MemoryError if there is too little; threads share what there is."""
    peak = partial(pixels.peak_bytes, colour=False, pixels_at_most=pixels_at_most, short_side_px=_SHORT_SIDE_PX)
    with memory.reserved(0 if memory.is_ample() else peak(data)):
        return pixels.decode(data, pixels_at_most=pixels_at_most, colour=False, short_side_px=_SHORT_SIDE_PX)


def _size(kind: str | None, width: int | None, height: int | None) -> str:
    return f"{kind or 'no image'} of {width} x {height} px"


def _check_rules(
    data: bytes, decoded: pixels.Decoded, row: SampleRow, digest: str, rules: Rules, where: str, findings: Findings
) -> None:
    """Asks the image rules about what is measured now."""
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
            ask(rule, columns, config, lambda what: lambda number: f"{where}: {what(number)}", findings)
    if rules.is_of_web and is_as_found and row["source"] not in rules.sources_in_hand:
        findings.saw(DropReason.HTTP_TOO_LARGE)
        if row["bytes"] > config.fetch.bytes_at_most:
            said = f"{row['bytes']:,} bytes, [fetch] bytes_at_most = {config.fetch.bytes_at_most}"
            findings.fails(DropReason.HTTP_TOO_LARGE, f"{where}: {said}")


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
