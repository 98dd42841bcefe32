"""Finds image elements of an HTML document, and its metas about use, in one pass over its bytes.

It has the tokenizer of the HTML standard, and of tree construction only what decides about images: an `<img>` start tag
makes an image element wherever it stands, but inside text (script, style, title, textarea, comments, …), inside
<template>, and behind an accepted <frameset>; an `<image>` does so outside of SVG and MathML. In these, and in XHTML,
`/>` ends an element and CDATA sections are text. Of open elements only their number is known, by kind.

Every byte is looked at a bounded number of times, whatever the page. Functions take `page`, the address of `size` bytes
of valid UTF-8 without a byte order mark.
"""

from functools import cache

import numba
import numpy as np

from altalign.filters.bits import address_of, equal64, first_bit, load8, load_index

# attributes of an image, two places each in a row
COLUMNS = ("src", "data-src", "data-lazy-src", "data-original", "srcset", "data-srcset", "alt")
_PLACES = 2 * len(COLUMNS)  # and behind them those of what other elements are read for, two each
_OTHERS = ("href", "name", "content")
META_PLACES = 4 * 64  # of the metas of a page; what is beyond is not read

_IMG, _IMAGE, _BASE, _TEMPLATE, _FOREIGN, _RAW, _SCRIPT, _PLAINTEXT, _FRAMESET, _HAS_CONTENT, _META, _OF_USE = (
    1 << bit for bit in range(12)
)
_COLUMN = 12  # the bits from here on: number of an attribute's column, counted from 1
_ELEMENTS = {
    _IMG: "img",
    _IMAGE: "image",
    _BASE: "base",
    _TEMPLATE: "template",
    _FOREIGN: "svg math",
    _RAW: "script style textarea title xmp iframe noembed noframes plaintext",
    _SCRIPT: "script",
    _PLAINTEXT: "plaintext",
    _FRAMESET: "frameset",
    _META: "meta",
    # These, and text, make a later <frameset> void.
    _HAS_CONTENT: "applet area body br button dd dt embed hr iframe image img input keygen li listing marquee object "
    "pre select table textarea wbr xmp",
}
_SLOTS, _MULTIPLIER = 256, 0x100000001B3  # of a hash table of names with linear probing

_SPACE = sum(1 << byte for byte in b"\t\n\f\r ")
_ENDS_NAME = sum(1 << byte for byte in b"\t\n\f\r />")
_ENDS_ATTRIBUTE_NAME = _ENDS_NAME | 1 << ord("=")
_ENDS_VALUE = sum(1 << byte for byte in b"\t\n\f\r >")
_LESS, _GREATER, _SLASH, _EQUALS, _DASH, _BANG, _QUESTION, _BRACKET, _QUOTE, _APOSTROPHE = b"<>/=-!?]\"'"
_NUL = 1
_META_NAME_AT_MOST = 256  # bytes; no name of a robot is longer


@cache
def name_table(metas: tuple[str, ...] = ()) -> np.ndarray:
    """Hash table of names: uint64[2, slots], hashes (0: free) and what they are.

    They are those of elements and attributes, and the names of `metas` that are read, in lower case.
    """
    classes: dict[str, int] = {}
    for bit, names in _ELEMENTS.items():
        for name in names.split():
            classes[name] = classes.get(name, 0) | bit
    for column, name in enumerate((*COLUMNS, *_OTHERS), 1):
        classes[name] = column << _COLUMN
    for name in metas:
        classes[name] = classes.get(name, 0) | _OF_USE
    slots = np.zeros((2, _SLOTS), np.uint64)
    for name, flags in classes.items():
        hashed = 0
        for byte in name.encode():
            hashed = (hashed * _MULTIPLIER + byte + 1) % (1 << 64)
        slot = hashed % _SLOTS
        while slots[0, slot]:
            slot = (slot + 1) % _SLOTS
        slots[:, slot] = hashed, flags
    return slots


@numba.njit(cache=True, nogil=True)
def find_images(
    text: np.ndarray, table: np.ndarray, images_at_most: int, is_xml: int
) -> tuple[np.ndarray, int, int, int]:
    """Image elements of a document in the order of their tags, its metas, and the `href` of its first <base> with one.

    Args:
        text: the page, uint8[n] of valid UTF-8 without a byte order mark, n < 2^31.
        table: `name_table()`.
        images_at_most: where there are more, it ends at the first beyond.
        is_xml: 1 if it is XHTML, else 0.

    Returns:
        int32[META_PLACES + 14 * images]: where the values of `name` and `content` begin and end of each <meta> that has
        one of the table's names and, behind the room for these, the values of `COLUMNS` of each image, as written (-1:
        no such attribute); how many places the metas have; and the two places of the base's `href`. In one array, for
        each costs as much as a short page.
    """
    page, size, names = address_of(text), len(text), address_of(table)
    found: np.ndarray = np.empty(META_PLACES + 64 * _PLACES, np.int32)
    found[:META_PLACES] = -1
    values = np.empty(_PLACES + 6, np.int32)
    base_begin, base_end, filled, met = -1, -1, META_PLACES, 0
    foreign, templates = int(is_xml), 0  # how many are open
    at = content = 0
    while at >= 0:
        begin, is_end, content = _next_tag(page, size, at, foreign, content)
        name, end = _name(page, size, begin)
        flags = _class_of(name, names)
        at, is_closed = _after_tag(page, size, end, flags & (_IMG | _IMAGE | _BASE | _META), values, names)
        if at < 0:
            break
        if is_end:
            foreign -= flags & _FOREIGN != 0 and foreign > is_xml
            templates -= flags & _TEMPLATE != 0 and templates > 0
        elif flags & _IMG or (flags & _IMAGE and not foreign):
            content = 1
            if templates:
                continue
            if filled + _PLACES > len(found):
                found = np.append(found, found)
            found[filled : filled + _PLACES] = values[:_PLACES]
            filled += _PLACES
            if filled > META_PLACES + images_at_most * _PLACES:
                break
        elif flags & _BASE:
            if base_begin < 0 and not templates and foreign <= is_xml:
                base_begin, base_end = int(values[_PLACES]), int(values[_PLACES + 1])
        elif flags & _META:
            if met < META_PLACES and not templates and _is_of_use(page, values, names):
                found[met : met + 4] = values[_PLACES + 2 :]
                met += 4
        elif not (foreign and is_closed):
            if flags & _PLAINTEXT or (flags & _FRAMESET and not content):
                break
            content |= flags & _HAS_CONTENT
            foreign += flags & _FOREIGN != 0 and not is_closed
            templates += flags & _TEMPLATE != 0
            if flags & _RAW:
                at = _after_raw(page, size, at, name, end - begin, flags & _SCRIPT, values, names)
    return found[:filled], met, base_begin, base_end


@numba.njit(cache=True, nogil=True)
def _is_of_use(page: int, values: np.ndarray, names: int) -> bool:
    """Whether a <meta> has a content, and one of the table's names."""
    begin, end = np.int64(values[_PLACES + 2]), np.int64(values[_PLACES + 3])
    if begin < 0 or end - begin > _META_NAME_AT_MOST or values[_PLACES + 4] < 0:
        return False
    while begin < end and _is_in(load8(page, begin), _SPACE):
        begin += 1
    while begin < end and _is_in(load8(page, end - 1), _SPACE):
        end -= 1
    name = np.uint64(0)
    while begin < end:
        name = _with_byte(name, load8(page, begin))
        begin += 1
    return _class_of(name, names) & _OF_USE != 0


@numba.njit(cache=True, nogil=True)
def _is_in(byte: int, bytes_below_64: int) -> bool:
    """Whether a byte is in a set of bytes below 64, as bits."""
    return byte < 64 and (bytes_below_64 >> np.int64(byte)) & 1 != 0


@numba.njit(cache=True, nogil=True)
def _find(page: int, size: int, at: int, byte: int) -> int:
    """The position of the next such byte; the page's length if there is none."""
    while at + 64 <= size:
        hits = equal64(page, at, np.uint8(byte))
        if hits:
            return at + first_bit(hits)
        at += 64
    while at < size and load8(page, at) != byte:
        at += 1
    return min(at, size)


@numba.njit(cache=True, nogil=True)
def _after(page: int, size: int, at: int, bytes_below_64: int) -> int:
    """The position behind bytes of a set."""
    while at < size and _is_in(load8(page, at), bytes_below_64):
        at += 1
    return at


@numba.njit(cache=True, nogil=True)
def _starts_with(page: int, size: int, at: int, text: bytes) -> bool:
    if at + len(text) > size:
        return False
    for place in range(len(text)):  # noqa: SIM110  (numba knows no generators in any and all)
        if load8(page, at + place) != text[place]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _next_tag(page: int, size: int, at: int, foreign: int, content: int) -> tuple[int, bool, int]:
    """The position of the next tag's name (the page's length if none), whether it is an end tag, and `content`.

    `content` is not 0 if there was text before the tag, `foreign` if the parser is in SVG or MathML.
    """
    while True:
        if not content:
            at = _after(page, size, at, _SPACE | _NUL)
            content = int(at < size and load8(page, at) != _LESS)
        at = _find(page, size, at, _LESS)
        if at + 2 >= size:
            return size, False, content
        second = load8(page, at + 1)
        is_end = second == _SLASH
        if 97 <= (load8(page, at + 1 + is_end) | 0x20) <= 122:
            return at + 1 + is_end, is_end, content
        if second == _BANG:
            at = _after_declaration(page, size, at, foreign)
        elif is_end or second == _QUESTION:
            at = _find(page, size, at + 2, _GREATER) + 1
        else:
            at, content = at + 1, 1


@numba.njit(cache=True, nogil=True)
def _after_declaration(page: int, size: int, at: int, foreign: int) -> int:
    """The end of what has `<!` at `at`: a comment, in SVG and MathML a CDATA section, or anything up to a `>`."""
    if _starts_with(page, size, at + 2, b"--"):
        begin, mark = at + 4, _DASH
    elif foreign and _starts_with(page, size, at + 2, b"[CDATA["):
        begin, mark = at + 9, _BRACKET
    else:
        return _find(page, size, at + 2, _GREATER) + 1
    at = _find(page, size, begin, _GREATER)
    while at < size:
        last = at - 1
        if mark == _DASH and load8(page, last) == _BANG and at - begin >= 3:
            last -= 1
        if load8(page, last) == mark and load8(page, last - 1) == mark:  # of a comment maybe those that it begins with
            break
        at = _find(page, size, at + 1, _GREATER)
    return at + 1


@numba.njit(cache=True, nogil=True)
def _name(page: int, size: int, at: int) -> tuple[np.uint64, int]:
    """Hash of the tag's name in lower case that begins here, and where it ends."""
    name = np.uint64(0)
    while at < size and not _is_in(load8(page, at), _ENDS_NAME):
        name = _with_byte(name, load8(page, at))
        at += 1
    return name, at


@numba.njit(cache=True, nogil=True)
def _with_byte(name: np.uint64, byte: int) -> np.uint64:
    lower = byte | 0x20 if 65 <= byte <= 90 else byte
    return name * np.uint64(_MULTIPLIER) + np.uint64(lower) + np.uint64(1)


@numba.njit(cache=True, nogil=True)
def _class_of(name: np.uint64, names: int) -> int:
    slot = np.int64(name % np.uint64(_SLOTS))
    while load_index(names, slot) != 0:
        if np.uint64(load_index(names, slot)) == name:
            return load_index(names, _SLOTS + slot)
        slot = (slot + 1) % _SLOTS
    return 0


@numba.njit(cache=True, nogil=True)
def _after_tag(page: int, size: int, at: int, read: int, values: np.ndarray, names: int) -> tuple[int, bool]:
    """The end of the tag whose name ends here (-1: it has none), and whether it ends in `/>`.

    If `read` is not 0, `values` gets where the first value of each known attribute begins and ends, or -1.
    """
    if read:
        values[:] = -1
    while at < size:
        byte = load8(page, at)
        at += 1
        if byte == _GREATER:
            return at, False
        if byte == _SLASH:
            if at < size and load8(page, at) == _GREATER:
                return at + 1, True
        elif not _is_in(byte, _SPACE):
            name = _with_byte(np.uint64(0), byte)  # an equals sign in the first place belongs to the name
            while at < size and not _is_in(load8(page, at), _ENDS_ATTRIBUTE_NAME):
                name = _with_byte(name, load8(page, at))
                at += 1
            at = begin = end = _after(page, size, at, _SPACE)
            if at < size and load8(page, at) == _EQUALS:
                begin = _after(page, size, at + 1, _SPACE)
                quote = load8(page, begin) if begin < size else 0
                if quote in (_QUOTE, _APOSTROPHE):
                    begin += 1
                    end = _find(page, size, begin, quote)
                    at = end + 1
                else:
                    end = begin
                    while end < size and not _is_in(load8(page, end), _ENDS_VALUE):
                        end += 1
                    at = end
            if read:
                column = (_class_of(name, names) >> _COLUMN) - 1
                if column >= 0 and values[2 * column] < 0:
                    values[2 * column], values[2 * column + 1] = begin, end
    return -1, False


@numba.njit(cache=True, nogil=True)
def _after_raw(
    page: int,
    size: int,
    at: int,
    name: np.uint64,
    length: int,
    script: int,
    values: np.ndarray,
    names: int,
) -> int:
    """The end of raw text and its end tag (-1: there is none).

    Inside of <!-- and --> a script may hold <script> … </script>.
    """
    is_comment, is_inner = False, False
    while True:
        if is_comment:
            while at < size and load8(page, at) != _LESS and load8(page, at) != _GREATER:
                at += 1
        else:
            at = _find(page, size, at, _LESS)
        if at + 1 >= size:
            return -1
        if load8(page, at) == _GREATER:
            if load8(page, at - 1) == _DASH and load8(page, at - 2) == _DASH:
                is_comment, is_inner = False, False
        elif load8(page, at + 1) == _SLASH:
            if _is_name(page, size, at + 2, name, length):
                if not is_inner:
                    return _after_tag(page, size, at + 2 + length, 0, values, names)[0]
                is_inner = False
        elif is_comment:
            is_inner = is_inner or _is_name(page, size, at + 1, name, length)
        else:
            is_comment = script != 0 and _starts_with(page, size, at + 1, b"!--")
        at += 1


@numba.njit(cache=True, nogil=True)
def _is_name(page: int, size: int, at: int, name: np.uint64, length: int) -> bool:
    """Whether a name of this hash and length stands here, and ends."""
    here, end = _name(page, min(size, at + length + 1), at)
    return here == name and end == at + length and end < size
