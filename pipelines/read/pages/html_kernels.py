"""Finds image elements of an HTML document in one pass over its bytes.

It has the tokenizer of the HTML standard, and only the parts of tree construction that decide about images.

An `<img>` start tag makes an image element wherever it stands, but inside text (script, style, title, textarea,
comments, …), inside <template>, and behind an accepted <frameset>; an `<image>` does so outside of SVG. What is text
depends on whether the parser is in HTML or in SVG and MathML, so open elements of these are kept on a stack: <svg>,
<math> and all in them, and <template>. Of HTML elements nothing is kept but those inside of <foreignObject> and its
like; of others only how many of a name are open.

Every byte is looked at a bounded number of times, whatever the page. Functions take `page`, uint8 of valid UTF-8
without a byte order mark.
"""

import numba
import numpy as np

from altalign.filters.bits import address_of, equal64, first_bit, load8, load_index

# attributes of an image, two places each in a row
COLUMNS = ("src", "data-src", "data-lazy-src", "data-original", "srcset", "data-srcset", "alt")
DEPTH_AT_MOST = 128  # elements nested deeper in SVG, MathML or <template> are taken for siblings

IMG, IMAGE, BASE, TEMPLATE, SVG, MATH, RAW, SCRIPT, PLAINTEXT, FRAMESET, HAS_CONTENT, BREAKS_OUT, FONT = (
    1 << bit for bit in range(13)
)
SVG_INTEGRATION, MATH_TEXT, GLYPH, ANNOTATION, UNTRACKED, P_OR_BR = (1 << bit for bit in range(13, 19))
COLUMN = 19  # the four bits from here on: number of an attribute's column, counted from 1
NUMBER = 23  # the bits from here on: number of an element that is counted while it is open, from 1
HREF, ENCODING, FONT_STYLE = range(len(COLUMNS), len(COLUMNS) + 3)  # columns that are of no image
_PLACES, _ALL_PLACES = 2 * len(COLUMNS), 2 * (len(COLUMNS) + 3)
_WITH_ATTRIBUTES = IMG | IMAGE | BASE | FONT | ANNOTATION  # others' are passed over

# Of an open element.
_IN_HTML, _IN_SVG, _IN_MATH, _IS_TEMPLATE, _HTML_INSIDE, _TEXT_INSIDE, _ANNOTATES = (1 << bit for bit in range(7))
_HOLDS_HTML = _HTML_INSIDE | _TEXT_INSIDE | _ANNOTATES
_DEPTH, _TEMPLATES = range(2)  # of the state: how many elements, and templates, are open

SLOTS, MULTIPLIER = 1_024, 0x100000001B3  # of a hash table of names with linear probing
NUMBERS = 256
_SPACE = sum(1 << byte for byte in b"\t\n\f\r ")
_ENDS_NAME = sum(1 << byte for byte in b"\t\n\f\r />")
_ENDS_ATTRIBUTE_NAME = _ENDS_NAME | 1 << ord("=")
_ENDS_VALUE = sum(1 << byte for byte in b"\t\n\f\r >")
_LESS, _GREATER, _SLASH, _EQUALS, _DASH, _BANG, _QUESTION, _BRACKET, _QUOTE, _APOSTROPHE = b"<>/=-!?]\"'"
_NUL = 1


@numba.njit(cache=True, nogil=True)
def find_images(text: np.ndarray, table: np.ndarray, images_at_most: int) -> tuple[np.ndarray, int, int]:
    """Image elements of a document in the order of their tags, and the `href` of its first <base> that has one.

    Args:
        text: the page, uint8[n] of valid UTF-8 without a byte order mark, n < 2^31.
        table: `image_elements.name_table()`.
        images_at_most: where there are more, it ends at the first beyond.

    Returns:
        int32[14 * images], where the values of `COLUMNS` begin and end, as written (-1: no such attribute); and the
        same two places of the base's `href`.
    """
    page, size, names = address_of(text), len(text), address_of(table)
    images: np.ndarray = np.empty(64 * _PLACES, np.int32)
    values = np.empty(_ALL_PLACES, np.int32)
    stack, kinds, state = np.empty(DEPTH_AT_MOST, np.uint64), np.empty(DEPTH_AT_MOST, np.int64), np.zeros(2, np.int64)
    counters = np.zeros(NUMBERS, np.int64)
    base_begin, base_end, filled = -1, -1, 0
    at = content = int(state[_DEPTH])  # 0; for a literal numba would compile once more what it is given to
    while at >= 0:
        kind = int(kinds[state[_DEPTH] - 1]) if state[_DEPTH] else 0
        begin, is_end, content = _next_tag(page, size, at, kind, content)
        name, end = _name(page, size, begin)
        flags = _class_of(name, names)
        is_read = flags & _WITH_ATTRIBUTES
        at, is_closed = _attributes(page, size, end, values, names) if is_read else _after_tag(page, size, end)
        if at < 0:
            break
        if is_end:
            if kind:
                _end(stack, kinds, state, counters, name, flags)
            elif counters[flags >> NUMBER]:
                counters[flags >> NUMBER] -= 1
            continue
        if kind and not _goes_by_html(kind, flags):
            if not (flags & BREAKS_OUT or (flags & FONT and values[2 * FONT_STYLE] >= 0)):
                if not is_closed:
                    _push(stack, kinds, state, name, _foreign_kind(kind, flags, page, values))
                continue
            _break_out(kinds, state)
            kind = int(kinds[state[_DEPTH] - 1]) if state[_DEPTH] else 0
        if not kind or kind & _IS_TEMPLATE:
            counters[flags >> NUMBER] += flags >> NUMBER != 0
        if flags & PLAINTEXT or (flags & FRAMESET and not content):
            break
        content |= flags & HAS_CONTENT
        if flags & (IMG | IMAGE):
            if not state[_TEMPLATES]:
                images = _with(images, filled, values)
                filled += _PLACES
                if filled > images_at_most * _PLACES:
                    break
        elif flags & RAW:
            at = _after_script(page, size, at, begin, end) if flags & SCRIPT else _after_raw(page, size, at, begin, end)
        elif flags & BASE:
            if base_begin < 0 and not state[_TEMPLATES]:
                base_begin, base_end = int(values[2 * HREF]), int(values[2 * HREF + 1])
        elif kind or flags & (SVG | MATH | TEMPLATE):
            _open(stack, kinds, state, name, flags, is_closed)
    return images[:filled], base_begin, base_end


@numba.njit(cache=True, nogil=True)
def _with(images: np.ndarray, filled: int, values: np.ndarray) -> np.ndarray:
    """The array with one more image after the first `found` places; a larger array if this one is full."""
    if filled == len(images):
        larger = np.empty(2 * filled, np.int32)
        for place in range(filled):
            larger[place] = images[place]
        images = larger
    for place in range(_PLACES):
        images[filled + place] = values[place]
    return images


# Bytes: `page` is the address of `size` of them, in UTF-8


@numba.njit(cache=True, nogil=True)
def _is_letter(byte: int) -> bool:
    return 97 <= (byte | 0x20) <= 122


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
def _after_spaces(page: int, size: int, at: int) -> int:
    while at < size and _is_in(load8(page, at), _SPACE):
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
def _equals(page: int, begin: int, end: int, text: bytes) -> bool:
    """Whether the bytes from `begin` to `end` are this text (lower case), in any case."""
    if end - begin != len(text):
        return False
    for place in range(len(text)):
        byte = load8(page, begin + place)
        if byte != text[place] and (not _is_letter(byte) or byte | 0x20 != text[place]):
            return False
    return True


# Bytes to tags


@numba.njit(cache=True, nogil=True)
def _next_tag(page: int, size: int, at: int, kind: int, content: int) -> tuple[int, bool, int]:
    """The position of the next tag's name (the page's length if none), whether it is an end tag, and `content`.

    `content` is not 0 if there was text before the tag; `kind` is that of the innermost open element.
    """
    while True:
        if not content:
            while at < size and _is_in(load8(page, at), _SPACE | _NUL):
                at += 1
            content = int(at < size and load8(page, at) != _LESS)
        at = _find(page, size, at, _LESS)
        if at + 2 >= size:
            return size, False, content
        second = load8(page, at + 1)
        if _is_letter(second):
            return at + 1, False, content
        if second == _SLASH:
            if _is_letter(load8(page, at + 2)):
                return at + 2, True, content
            at = _find(page, size, at + 2, _GREATER) + 1
        elif second == _BANG:
            at = _after_declaration(page, size, at, kind)
        elif second == _QUESTION:
            at = _find(page, size, at + 2, _GREATER) + 1
        else:
            at, content = at + 1, 1


@numba.njit(cache=True, nogil=True)
def _after_declaration(page: int, size: int, at: int, kind: int) -> int:
    """The end of what has `<!` at `at`: a comment, outside of HTML a CDATA section, or anything up to the next `>`."""
    if _starts_with(page, size, at + 2, b"--"):
        begin = at + 4
        at = _find(page, size, begin, _GREATER)
        while at < size:
            if load8(page, at - 1) == _DASH and load8(page, at - 2) == _DASH:  # maybe those that it begins with
                break
            if (
                at - begin >= 3
                and load8(page, at - 1) == _BANG
                and load8(page, at - 2) == _DASH
                and load8(page, at - 3) == _DASH
            ):
                break
            at = _find(page, size, at + 1, _GREATER)
    elif kind and not kind & _IN_HTML and _starts_with(page, size, at + 2, b"[CDATA["):
        at = _find(page, size, at + 11, _GREATER)
        while at < size and not (load8(page, at - 1) == _BRACKET and load8(page, at - 2) == _BRACKET):
            at = _find(page, size, at + 1, _GREATER)
    else:
        at = _find(page, size, at + 2, _GREATER)
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
    return name * np.uint64(MULTIPLIER) + np.uint64(lower) + np.uint64(1)


@numba.njit(cache=True, nogil=True)
def _class_of(name: np.uint64, names: int) -> int:
    slot = np.int64(name % np.uint64(SLOTS))
    while load_index(names, slot) != 0:
        if np.uint64(load_index(names, slot)) == name:
            return load_index(names, SLOTS + slot)
        slot = (slot + 1) % SLOTS
    return 0


@numba.njit(cache=True, nogil=True)
def _after_tag(page: int, size: int, at: int) -> tuple[int, bool]:
    """The end of the tag whose name ends here (-1: it has none), and whether it ends in `/>`."""
    value_end = at
    while True:
        while at < size and load8(page, at) != _GREATER and load8(page, at) != _EQUALS:
            at += 1
        if at >= size:
            return -1, False
        if load8(page, at) == _GREATER:
            return at + 1, at > value_end and load8(page, at - 1) == _SLASH
        name_end = at
        while name_end > value_end and _is_in(load8(page, name_end - 1), _SPACE):
            name_end -= 1
        if name_end == value_end or load8(page, name_end - 1) == _SLASH:
            at += 1  # without a name before it, an equals sign is the first of a name
        else:
            _, _, at = _value(page, size, at)
            value_end = at


@numba.njit(cache=True, nogil=True)
def _attributes(page: int, size: int, at: int, values: np.ndarray, names: int) -> tuple[int, bool]:
    """As `_after_tag`; writes to `values` where the first value of each known attribute begins and ends."""
    for place in range(len(values)):
        values[place] = -1
    while at < size:
        if _is_in(load8(page, at), _SPACE):
            at += 1
        elif load8(page, at) == _GREATER:
            return at + 1, False
        elif load8(page, at) == _SLASH:
            at += 1
            if at < size and load8(page, at) == _GREATER:
                return at + 1, True
        else:
            name = np.uint64(0)
            while True:  # an equals sign in the first place belongs to the name
                name = _with_byte(name, load8(page, at))
                at += 1
                if at >= size or _is_in(load8(page, at), _ENDS_ATTRIBUTE_NAME):
                    break
            begin, end, at = _value(page, size, _after_spaces(page, size, at))
            column = (_class_of(name, names) >> COLUMN & 15) - 1
            if column >= 0 and values[2 * column] < 0:
                values[2 * column], values[2 * column + 1] = begin, end
    return -1, False


@numba.njit(cache=True, nogil=True)
def _value(page: int, size: int, at: int) -> tuple[int, int, int]:
    """Begin and end of the value after the equals sign here, and the position after it; empty without a sign."""
    if at >= size or load8(page, at) != _EQUALS:
        return at, at, at
    at = _after_spaces(page, size, at + 1)
    begin = at
    if at < size and (load8(page, at) == _QUOTE or load8(page, at) == _APOSTROPHE):
        at = _find(page, size, at + 1, load8(page, at))
        return begin + 1, at, at + 1
    while at < size and not _is_in(load8(page, at), _ENDS_VALUE):
        at += 1
    return begin, at, at


@numba.njit(cache=True, nogil=True)
def _after_raw(page: int, size: int, at: int, begin: int, end: int) -> int:
    """The end of raw text and its end tag (-1: there is none). The element's name is given by its place."""
    while True:
        at = _find(page, size, at, _LESS)
        if at + 1 >= size:
            return -1
        if load8(page, at + 1) == _SLASH and _is_name(page, size, at + 2, begin, end):
            return _after_tag(page, size, at + 2 + end - begin)[0]
        at += 1


@numba.njit(cache=True, nogil=True)
def _is_name(page: int, size: int, at: int, begin: int, end: int) -> bool:
    """Whether the name at another place stands here too, in any case, and ends."""
    behind = at + end - begin
    if behind >= size or not _is_in(load8(page, behind), _ENDS_NAME):
        return False
    for place in range(end - begin):  # noqa: SIM110  (numba knows no generators in any and all)
        if load8(page, at + place) | 0x20 != load8(page, begin + place) | 0x20:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _after_script(page: int, size: int, at: int, begin: int, end: int) -> int:
    """As `_after_raw`; inside of <!-- and --> a script may hold <script> … </script>."""
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
            if _is_name(page, size, at + 2, begin, end):
                if not is_inner:
                    return _after_tag(page, size, at + 2 + end - begin)[0]
                is_inner = False
        elif not is_comment:
            if _starts_with(page, size, at + 1, b"!--"):
                is_comment = True
                at += 1  # its dashes may be those of its end
        elif not is_inner:
            is_inner = _is_name(page, size, at + 1, begin, end)
        at += 1


# Tags to elements


@numba.njit(cache=True, nogil=True)
def _goes_by_html(kind: int, flags: int) -> bool:
    """Whether a start tag is read by the rules of HTML, in an element of this kind; else by those of SVG and MathML."""
    return (kind & (_IN_HTML | _HTML_INSIDE)) | (kind & _TEXT_INSIDE and not flags & GLYPH) | (
        kind & _ANNOTATES and flags & SVG
    ) != 0


@numba.njit(cache=True, nogil=True)
def _break_out(kinds: np.ndarray, state: np.ndarray) -> None:
    """Close elements of SVG and MathML down to one that holds HTML."""
    while state[_DEPTH] and not kinds[state[_DEPTH] - 1] & (_IN_HTML | _HTML_INSIDE | _TEXT_INSIDE):
        state[_DEPTH] -= 1


@numba.njit(cache=True, nogil=True)
def _foreign_kind(parent: int, flags: int, page: int, values: np.ndarray) -> int:
    """Kind of an element of SVG or MathML."""
    if parent & _IN_SVG:
        return _IN_SVG | (_HTML_INSIDE if flags & SVG_INTEGRATION else 0)
    if flags & ANNOTATION:
        at, end = values[2 * ENCODING], values[2 * ENCODING + 1]
        holds_html = _equals(page, at, end, b"text/html") or _equals(page, at, end, b"application/xhtml+xml")
        return _IN_MATH | (_HTML_INSIDE if holds_html else _ANNOTATES)
    return _IN_MATH | (_TEXT_INSIDE if flags & MATH_TEXT else 0)


@numba.njit(cache=True, nogil=True)
def _open(stack: np.ndarray, kinds: np.ndarray, state: np.ndarray, name: np.uint64, flags: int, is_closed: int) -> None:
    """Keep an element that HTML's rules opened, where it may matter."""
    if flags & (SVG | MATH):
        if not is_closed:
            _push(stack, kinds, state, name, _IN_SVG if flags & SVG else _IN_MATH)
    elif flags & TEMPLATE:
        _push(stack, kinds, state, name, _IN_HTML | _IS_TEMPLATE)
    elif state[_DEPTH] and not flags & UNTRACKED and not kinds[state[_DEPTH] - 1] & _IS_TEMPLATE:
        _push(stack, kinds, state, name, _IN_HTML)


@numba.njit(cache=True, nogil=True)
def _push(stack: np.ndarray, kinds: np.ndarray, state: np.ndarray, name: np.uint64, kind: int) -> None:
    if state[_DEPTH] < DEPTH_AT_MOST:
        stack[state[_DEPTH]], kinds[state[_DEPTH]] = name, kind
        state[_DEPTH] += 1
        state[_TEMPLATES] += kind & _IS_TEMPLATE != 0


@numba.njit(cache=True, nogil=True)
def _close(kinds: np.ndarray, state: np.ndarray, to: int) -> None:
    for at in range(to, state[_DEPTH]):
        state[_TEMPLATES] -= kinds[at] & _IS_TEMPLATE != 0
    state[_DEPTH] = to


@numba.njit(cache=True, nogil=True)
def _end(
    stack: np.ndarray, kinds: np.ndarray, state: np.ndarray, counters: np.ndarray, name: np.uint64, flags: int
) -> None:
    """Close what an end tag closes."""
    at, is_barred = state[_DEPTH] - 1, False
    if flags & P_OR_BR and at >= 0 and not kinds[at] & _IN_HTML:
        _break_out(kinds, state)
        return
    while at >= 0 and not kinds[at] & _IN_HTML:  # SVG and MathML
        if stack[at] == name:
            _close(kinds, state, at)
            return
        is_barred |= kinds[at] & _HOLDS_HTML != 0
        at -= 1
    if flags & TEMPLATE:
        if state[_TEMPLATES]:
            while not kinds[at] & _IS_TEMPLATE:
                at -= 1
            _close(kinds, state, at)
        return
    if is_barred:
        return
    while at >= 0 and kinds[at] & _IN_HTML and not kinds[at] & _IS_TEMPLATE:  # HTML inside of these
        if stack[at] == name:
            _close(kinds, state, at)
            return
        at -= 1
    if (at < 0 or kinds[at] & _IS_TEMPLATE) and counters[flags >> NUMBER]:
        counters[flags >> NUMBER] -= 1
        _close(kinds, state, at + 1)
