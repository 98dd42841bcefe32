"""Cleans captions: decodes entities, removes controls, makes text NFC and white space single spaces (product.md, 3).

Most captions are clean as they come. A kernel reads every byte and finds the rows that may not be, which `one_caption`
cleans; a batch without such rows is returned as it is.
"""

import re
from html.entities import html5
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from altalign.filters import bits, one_caption, unicode_data
from altalign.filters.bits import Bytes, Longs, address_of, below64, equal64
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
    is_doubtful = np.zeros(len(captions), bool)
    if not _find_doubtful(data, offsets, unicode_data.table(), is_doubtful):
        return captions
    rows = np.flatnonzero(is_doubtful)
    texts, changed = list[str](), list[int]()
    for row, start, end in zip(rows.tolist(), offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True):
        stored = data[start:end].tobytes()
        text = stored.decode(errors="replace")
        cleaned = one_caption.clean(text)
        if cleaned != text or (REPLACEMENT in text and cleaned.encode() != stored):
            texts.append(cleaned)
            changed.append(row)
    return _with(captions, changed, texts)


def decode_entities(captions: "pa.Array[Any]") -> pa.StringArray:
    """Captions with HTML character references decoded once, as in an attribute's value; call it before `clean`.

    Takes, returns and raises what `clean` does, but leaves bytes that are not UTF-8 in rows without "&".
    """
    captions = _strings(captions)
    data, offsets = text_buffers(captions)
    places = np.flatnonzero(data[offsets[0] : offsets[-1]] == ord("&")) + offsets[0]
    rows = np.unique(np.searchsorted(offsets, places, side="right") - 1).tolist()
    texts = [data[offsets[row] : offsets[row + 1]].tobytes().decode(errors="replace") for row in rows]
    return _with(captions, rows, [decode_entities_in(text) for text in texts])


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


def _strings(captions: "pa.Array[Any]") -> pa.StringArray:
    """A string array without nulls; the same buffers if it is one already."""
    if not pa.types.is_string(captions.type):
        captions = captions.cast(pa.string())
    return cast(pa.StringArray, captions.fill_null("") if captions.null_count else captions)


def _with(captions: pa.StringArray, rows: list[int], texts: list[str]) -> pa.StringArray:
    """The captions with other texts in some rows."""
    if not rows:
        return captions
    mask = np.zeros(len(captions), bool)
    mask[rows] = True
    try:
        return cast(Any, pc).replace_with_mask(captions, pa.array(mask), pa.array(texts, pa.string()))
    except pa.ArrowCapacityError as error:
        raise ValueError("captions of one batch hold more than 2 GiB: use smaller batches") from error


# First bytes of U+00C0 to U+02FF and of U+0400 to U+047F, each range with the byte after its last. These code points
# are in none of the classes that matter here.
_LATIN, _LATIN_END, _CYRILLIC, _CYRILLIC_END = np.uint8(0xC3), np.uint8(0xCC), np.uint8(0xD0), np.uint8(0xD2)
_SPACE, _DELETE, _HIGH, _FIRST_LEAD = np.uint8(0x20), np.uint8(0x7F), np.uint8(0x80), np.uint8(0xC0)
_ONE = np.uint64(1)


@njit(nogil=True, cache=True)
def _find_doubtful(data: Bytes, offsets: Longs, table: UnicodeTable, is_doubtful: npt.NDArray[np.bool_]) -> bool:
    """Fill `is_doubtful` (bool[n]): rows that may not be clean, or are not UTF-8. Returns whether there are any."""
    any_is, of_unicode = False, (address_of(table.blocks), address_of(table.entries), address_of(table.combining))
    edge = np.empty(128, np.uint8)  # copy of the last bytes, so that nothing behind them is read
    edge_from = max(0, data.size - 64)
    bits.copy(address_of(edge), address_of(data) + edge_from, data.size - edge_from)
    for row in range(len(is_doubtful)):
        start, end = offsets[row], offsets[row + 1]
        is_doubtful[row] = _is_doubtful(address_of(data), data.size, address_of(edge), start, end, *of_unicode)
        any_is |= is_doubtful[row]
    return any_is


@njit(nogil=True)
def _is_doubtful(
    data: int, size: int, edge: int, start: int, end: int, blocks: int, entries: int, combining: int
) -> bool:
    stray = 0  # continuation bytes less those that code points have; 0 at the end if all is valid
    mark_end, mark_class = np.int64(-1), np.int64(0)  # of the last combining mark
    before = _ONE  # the last byte was a space; the row's begin counts as one
    for chunk in range(start, end, 64):
        source, base = (data, chunk) if chunk + 64 <= size else (edge, chunk - max(0, size - 64))
        row = bits.first64(end - chunk)
        spaces = equal64(source, base, _SPACE) & row
        controls = (below64(source, base, _SPACE) | equal64(source, base, _DELETE)) & row
        if controls | spaces & (spaces << _ONE | before):
            return True
        before = spaces >> np.uint64(63)
        high = bits.any_bit64(source, base, _HIGH) & row
        if high == 0:
            continue
        leads = ~below64(source, base, _FIRST_LEAD) & high
        plain = bits.between64(source, base, _LATIN, _LATIN_END)
        plain = (plain | bits.between64(source, base, _CYRILLIC, _CYRILLIC_END)) & (high ^ leads) >> _ONE
        stray += bits.count_bits(high ^ leads) - bits.count_bits(plain)
        leads &= ~plain
        while leads:
            at = chunk + bits.first_bit(leads)
            leads &= leads - _ONE
            point, length = decode(data, at, end)
            stray -= length - 1
            entry = entry_of(point, blocks, entries)
            if point < 0 or entry & (CONTROL | WHITE_SPACE | NFC_CHECK):
                return True
            if entry & COMBINING:  # UAX #15, section 9: marks side by side are in the order of their classes
                order = bits.load8(combining, place_of(point, blocks))
                if mark_end == at and order < mark_class:
                    return True
                mark_end, mark_class = at + length, order
    return stray != 0 or (end > start and bits.load8(data, end - 1) == _SPACE)
