"""Cleans captions: decodes entities, removes controls, makes text NFC and white space single spaces (product.md, 3).

Most captions are clean as they come. One kernel reads every byte and finds the rows that are not; a batch without such
rows is returned as it is. A second kernel mends rows where only spaces and controls are wrong; the rest is done here.
"""

import re
from html.entities import html5
from typing import Any, cast

import numpy as np
import pyarrow as pa
import unicodedata2
from numba import njit

from altalign.filters import one_caption, unicode_data
from altalign.filters.bits import (
    Bytes,
    Longs,
    address_of,
    any_bit64,
    below64,
    between64,
    copy,
    count_bits,
    equal64,
    first64,
    first_bit,
    load8,
    store8,
)
from altalign.filters.unicode_data import COMBINING, CONTROL, NFC_CHECK, WHITE_SPACE, UnicodeTable
from altalign.filters.utf8 import decode, entry_of, place_of
from altalign.filters.words import text_buffers

REFERENCE = re.compile(
    r"&(?:#(?:[xX](?P<hex>[0-9A-Fa-f]+)|(?P<decimal>[0-9]+));?|(?P<name>[A-Za-z][A-Za-z0-9]*)(?P<end>[;=]?))"
)
# Characters that references to C1 controls stand for (HTML Standard, numeric character reference end state).
WINDOWS_1252 = {
    byte: bytes([byte]).decode("cp1252") for byte in range(0x80, 0xA0) if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}
MOST_DIGITS = 7  # 1114111, the last code point, has so many
REPLACEMENT = "\ufffd"
BYTES_AT_MOST = (1 << 31) - 1  # what an Arrow string array holds


def clean(captions: "pa.Array[Any]") -> pa.StringArray:
    """Captions as they are stored: no controls, NFC, single spaces and none at the ends; case is kept.

    Args:
        captions: n strings of any Arrow kind, dictionaries of strings too; null becomes "", bytes that are not UTF-8
            become U+FFFD.

    Returns:
        n captions without nulls; the same buffers where nothing had to be done.

    Raises:
        ValueError: the captions hold more than 2 GiB.
    """
    captions = _strings(captions)
    data, offsets = text_buffers(captions)
    needs = np.zeros(len(captions), np.uint8)
    if not look(data, offsets, unicode_data.table(), needs):
        return captions
    fixed = _clean_texts(data, offsets, needs)
    if not needs.any():
        return captions
    fixed_data = np.frombuffer(b"".join(fixed), np.uint8)
    fixed_offsets = np.cumsum([0, *map(len, fixed)], dtype=np.int64)
    out = np.empty(int(offsets[-1] - offsets[0]) + fixed_data.size, np.uint8)
    out_offsets = np.empty(len(captions) + 1, np.int64)
    size = rebuild(data, offsets, unicode_data.table(), needs, fixed_data, fixed_offsets, out, out_offsets)
    return _array(out[:size], out_offsets)


def decode_entities(captions: "pa.Array[Any]") -> pa.StringArray:
    """Captions with HTML character references decoded once, as in an attribute's value; call it before `clean`.

    Takes, returns and raises what `clean` does, but leaves bytes that are not UTF-8 in rows without "&".
    """
    captions = _strings(captions)
    data, offsets = text_buffers(captions)
    places = np.flatnonzero(data[offsets[0] : offsets[-1]] == ord("&")) + offsets[0]
    rows = np.unique(np.searchsorted(offsets, places, side="right") - 1)
    if not rows.size:
        return captions
    parts, copied = [], offsets[0]
    lengths = np.diff(offsets)
    for row in rows.tolist():
        text = decode_entities_in(data[offsets[row] : offsets[row + 1]].tobytes().decode(errors="replace")).encode()
        parts += [data[copied : offsets[row]].tobytes(), text]
        copied, lengths[row] = offsets[row + 1], len(text)
    parts.append(data[copied : offsets[-1]].tobytes())
    return _array(np.frombuffer(b"".join(parts), np.uint8), np.cumsum([0, *lengths], dtype=np.int64))


def decode_entities_in(text: str) -> str:
    """One string with HTML character references decoded once, as in an attribute's value.

    In an attribute, a name without its semicolon stays as it is before "=", letters and digits; `html.unescape` would
    decode it.
    """
    return REFERENCE.sub(_character, text) if "&" in text else text


def _character(reference: re.Match[str]) -> str:
    if name := reference["name"]:
        return reference[0] if reference["end"] == "=" else html5.get(name + reference["end"], reference[0])
    digits = (reference["hex"] or reference["decimal"]).lstrip("0")
    if not 1 <= len(digits) <= MOST_DIGITS:
        return REPLACEMENT
    point = int(digits, 16 if reference["hex"] else 10)
    if point >= unicode_data.CODE_POINTS or 0xD800 <= point < 0xE000:
        return REPLACEMENT
    return WINDOWS_1252.get(point) or chr(point)


def _clean_texts(data: Bytes, offsets: Longs, needs: Bytes) -> list[bytes]:
    # The clean texts of the rows that need TEXT; rows that prove clean lose that need.
    rows = np.flatnonzero(needs & TEXT)
    texts, clean_rows, view = [], [], data.data
    for row, start, end, need in zip(
        rows.tolist(), offsets[rows].tolist(), offsets[rows + 1].tolist(), needs[rows].tolist(), strict=True
    ):
        stored = bytes(view[start:end])
        text = stored.decode(errors="replace")
        cleaned = one_caption.clean(text) if need & SPACES else unicodedata2.normalize("NFC", text)
        if cleaned == text and (REPLACEMENT not in text or cleaned.encode() == stored):
            clean_rows.append(row)
        else:
            texts.append(cleaned.encode())
    needs[clean_rows] = 0
    return texts


def _strings(captions: "pa.Array[Any]") -> pa.StringArray:
    # A string array without nulls; the same buffers if it is one already.
    if not pa.types.is_string(captions.type):
        captions = captions.cast(pa.string())
    return cast(pa.StringArray, captions.fill_null("") if captions.null_count else captions)


def _array(data: Bytes, offsets: Longs) -> pa.StringArray:
    if data.size > BYTES_AT_MOST:
        raise ValueError(
            f"captions of one batch hold {data.size} bytes, more than the {BYTES_AT_MOST} of an Arrow string array: "
            "use smaller batches"
        )
    ends = pa.py_buffer(offsets.astype(np.int32).data)
    return pa.StringArray.from_buffers(offsets.size - 1, ends, pa.py_buffer(data.data))


# Kernels behind `clean`: they find the captions that need work and do its simple part ---------------------------------

SPACES = 1  # the row has white space or controls to mend
TEXT = 2  # the row may not be NFC, or is not UTF-8: it is left to Python

# First bytes of U+00C0 to U+02FF and of U+0400 to U+047F, each range with the byte after its last. These code points
# are in none of the classes that matter here.
LATIN, LATIN_END, CYRILLIC, CYRILLIC_END = np.uint8(0xC3), np.uint8(0xCC), np.uint8(0xD0), np.uint8(0xD2)
SPACE, DELETE, HIGH, FIRST_LEAD = np.uint8(0x20), np.uint8(0x7F), np.uint8(0x80), np.uint8(0xC0)


@njit(nogil=True, cache=True)
def look(data: Bytes, offsets: Longs, table: UnicodeTable, needs: Bytes) -> int:
    """Fill `needs` (uint8[n]) with what each row needs: 0, SPACES, TEXT or both. Returns how many rows need anything.

    Rows are the bytes of `data` between `offsets` (int64[n + 1]).
    """
    count, of_unicode = 0, (address_of(table.blocks), address_of(table.entries), address_of(table.combining))
    edge = np.empty(128, np.uint8)  # copy of the last bytes, so that nothing behind them is read
    edge_from = max(0, data.size - 64)
    copy(address_of(edge), address_of(data) + edge_from, data.size - edge_from)
    for row in range(offsets.size - 1):
        need = _look_at_row(address_of(data), data.size, address_of(edge), offsets[row], offsets[row + 1], *of_unicode)
        needs[row] = need
        count += need != 0
    return count


@njit(nogil=True)
def _look_at_row(
    data: int, size: int, edge: int, start: int, end: int, blocks: int, entries: int, combining: int
) -> int:
    need, stray = 0, 0  # stray: continuation bytes less those that code points have; 0 at the end if all is valid
    last_mark = np.int64(0)  # end of the last combining mark << 8 | its class
    before = np.uint64(1)  # the last byte was a space; the row's begin counts as one
    for chunk in range(start, end, 64):
        source, base = (data, chunk) if chunk + 64 <= size else (edge, chunk - max(0, size - 64))
        row = first64(end - chunk)
        spaces = equal64(source, base, SPACE) & row
        if (
            below64(source, base, SPACE) | equal64(source, base, DELETE) | (spaces & (spaces << np.uint64(1) | before))
        ) & row:
            need |= SPACES
        before = spaces >> np.uint64(63)
        high = any_bit64(source, base, HIGH) & row
        if high == 0:
            continue
        leads = ~below64(source, base, FIRST_LEAD) & high
        stray += count_bits(high ^ leads)
        plain = (between64(source, base, LATIN, LATIN_END) | between64(source, base, CYRILLIC, CYRILLIC_END)) & (
            high ^ leads
        ) >> np.uint64(1)
        stray -= count_bits(plain)
        leads &= ~plain
        while leads:
            at = chunk + first_bit(leads)
            leads &= leads - np.uint64(1)
            point, length = decode(data, at, end)
            stray -= length - 1
            entry = entry_of(point, blocks, entries)
            if point < 0:
                need |= TEXT
            elif entry & (CONTROL | WHITE_SPACE | NFC_CHECK | COMBINING):
                need_here, last_mark = _look_at_point(entry, point, at, length, last_mark, blocks, combining)
                need |= need_here
    if end > start and load8(data, end - 1) == SPACE:
        need |= SPACES
    return need | TEXT if stray or (need and last_mark) else need  # a control between two marks hides their order


@njit(nogil=True)
def _look_at_point(
    entry: int, point: int, at: int, size: int, last_mark: int, blocks: int, combining: int
) -> tuple[int, int]:
    # What a code point of some class needs, and the new `last_mark`. UAX #15, section 9: quick check, order of marks.
    if entry & (CONTROL | WHITE_SPACE):
        return SPACES, last_mark
    need = TEXT if entry & NFC_CHECK else 0
    if entry & COMBINING:
        order = load8(combining, place_of(point, blocks))
        if last_mark >> 8 == at and order < last_mark & 0xFF:
            need = TEXT
        last_mark = (at + size) << 8 | order
    return need, last_mark


@njit(nogil=True, cache=True)
def rebuild(
    data: Bytes,
    offsets: Longs,
    table: UnicodeTable,
    needs: Bytes,
    fixed: Bytes,
    fixed_offsets: Longs,
    out: Bytes,
    out_offsets: Longs,
) -> int:
    """Write clean rows; returns the number of bytes written.

    A row is copied as it is, or has its spaces mended, or (where it needs TEXT) is the next row of `fixed`.
    Shapes: out uint8[bytes of data and fixed], out_offsets int64[n + 1].
    """
    to, of_fixed, row = 0, 0, 0
    source, target = address_of(data), address_of(out)
    blocks, entries = address_of(table.blocks), address_of(table.entries)
    out_offsets[0] = 0
    while row < needs.size:
        if needs[row] & TEXT:
            start, end = fixed_offsets[of_fixed], fixed_offsets[of_fixed + 1]
            copy(target + to, address_of(fixed) + start, end - start)
            to += end - start
            of_fixed += 1
        elif needs[row]:
            to = _mend(source, offsets[row], offsets[row + 1], blocks, entries, target, to)
        else:
            first = row
            while row + 1 < needs.size and needs[row + 1] == 0:
                row += 1
            for i in range(first, row):
                out_offsets[i + 1] = to + offsets[i + 1] - offsets[first]
            start, end = offsets[first], offsets[row + 1]
            copy(target + to, source + start, end - start)
            to += end - start
        out_offsets[row + 1] = to
        row += 1
    return to


@njit(nogil=True)
def _mend(data: int, at: int, end: int, blocks: int, entries: int, out: int, to: int) -> int:
    # Copies a row of valid UTF-8 without its controls; runs of white space become one space, or none at the ends of the
    # row. Returns where the copy ends.
    begin, pending = to, False
    while at < end:
        point, size = decode(data, at, end)
        entry = entry_of(point, blocks, entries)
        if entry & WHITE_SPACE:
            pending = to > begin
        elif not entry & CONTROL:
            if pending:
                store8(out, to, SPACE)
                to += 1
                pending = False
            copy(out + to, data + at, size)
            to += size
        at += size
    return to
