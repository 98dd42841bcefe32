"""What it would take to parse a page, estimated in one linear pass, so that hostile pages are refused before they are parsed.

The parser is linear on all pages but those made to hurt: each start or end tag of a block walks the open elements (a million nested
<div> take hours), each attribute is compared with those before it, and formatting elements left open are built again in
every block (two thousand make gigabytes). The pass keeps a rough stack of open elements and counts just that.

Limits (measured with selectolax 1.0 on one core): 24,000 nested <div> are 3e8 steps and 0.8 s, 24,000 attributes of one tag 3e8
steps and 1.3 s, 750,000 <img> 0.5 GB and 1.9 s. Real pages stay below 1e6 steps and 1e5 elements.
"""

from collections.abc import Iterable
from functools import cache

import numba
import numpy as np

STEPS_AT_MOST = 300_000_000
ELEMENTS_AT_MOST = 750_000

_VOID, _FORMATTING, _BARRIER, _TABLE_BARRIER, _CLOSES_P, _RAW, _REPLACES, _FOREIGN, _INTEGRATION, _TABLE_PART, _ALONE, _PLAIN = (1 << bit for bit in range(12))
_CLASSES = {
    _VOID: "area base br col embed hr img input link meta param source track wbr image bgsound basefont frame keygen html head body",
    _FORMATTING: "a b big code em font i nobr s small strike strong tt u",
    _BARRIER: "applet caption table td th marquee object template",
    _TABLE_BARRIER: "table template",
    _CLOSES_P: "address article aside blockquote center details dialog dir div dl dd dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 "
    "header hgroup hr li listing main menu nav ol p plaintext pre search section summary table ul xmp",
    _RAW: "script style textarea title xmp iframe noembed noframes plaintext",
    _REPLACES: "li dd dt option optgroup",
    _FOREIGN: "svg math",
    _INTEGRATION: "foreignobject desc title annotation-xml mi mo mn ms mtext",
    _TABLE_PART: "caption tbody thead tfoot tr td th",
    _ALONE: "a nobr",
}
_SLOTS = 1_024  # of a hash table of names with linear probing
_MULTIPLIER = 0x100000001B3
_P, _TABLE = 0x71, 0x6FC294D1487D3E33  # hashes of two names
_OPEN_AT_MOST = 32_768  # steps run out long before: sum of 1 … 24,500
_DEPTH, _WAITING, _BASE, _FOREIGNS, _PS, _TABLES, _ELEMENTS, _DEEPEST = range(8)  # of the state: how many there are of each


def refusal(page: bytes) -> str | None:
    """Why a page (UTF-8) is not parsed; None where it can be."""
    steps, elements, deepest, attributes = _scan(np.frombuffer(page, np.uint8), *_names(), STEPS_AT_MOST, ELEMENTS_AT_MOST)
    if elements > ELEMENTS_AT_MOST:
        return f"more than {ELEMENTS_AT_MOST:,} elements"
    if steps > STEPS_AT_MOST:
        return f"more than {STEPS_AT_MOST:,} steps to parse ({deepest:,} nested elements, {attributes:,} attributes on one tag)"
    return None


@cache
def _names() -> tuple[np.ndarray, np.ndarray]:
    """Hash table of names: uint64[slots] (0: free) and int64[slots] of classes."""
    classes: dict[str, int] = {}
    for bit, names in _CLASSES.items():
        for name in names.split():
            classes[name] = classes.get(name, 0) | bit
    hashes, bits = np.zeros(_SLOTS, np.uint64), np.zeros(_SLOTS, np.int64)
    for name, of in classes.items():
        slot = (hashed := _hashed(name.encode())) % _SLOTS
        while hashes[slot]:
            slot = (slot + 1) % _SLOTS
        hashes[slot], bits[slot] = hashed, of
    return hashes, bits


def _hashed(name: Iterable[int]) -> int:
    value = 0
    for byte in name:
        value = (value * _MULTIPLIER + byte + 1) % (1 << 64)
    return value


@numba.njit(cache=True, nogil=True, inline="always")
def _class_of(name: np.uint64, hashes: np.ndarray, bits: np.ndarray) -> int:
    slot = np.int64(name % np.uint64(_SLOTS))
    while hashes[slot] != 0:
        if hashes[slot] == name:
            return bits[slot]
        slot = (slot + 1) % _SLOTS
    return 0


@numba.njit(cache=True, nogil=True, inline="always")
def _lower(byte: np.uint8) -> np.uint8:
    return np.uint8(byte + 32) if 65 <= byte <= 90 else byte


@numba.njit(cache=True, nogil=True, inline="always")
def _is_space(byte: np.uint8) -> bool:
    return byte in (0x20, 0x0A, 0x09, 0x0D, 0x0C)


@numba.njit(cache=True, nogil=True, inline="always")
def _name_at(page: np.ndarray, at: int) -> tuple[np.uint64, int]:
    """Hash of the lower-case name that begins here, and where it ends."""
    name = np.uint64(0)
    while at < len(page) and not _is_space(page[at]) and page[at] != 0x2F and page[at] != 0x3E:
        name = name * np.uint64(_MULTIPLIER) + np.uint64(_lower(page[at])) + np.uint64(1)
        at += 1
    return name, at


@numba.njit(cache=True, nogil=True, inline="always")
def _attributes_at(page: np.ndarray, at: int) -> tuple[int, bool, int]:
    """Number of attributes from here to the end of the tag, whether it ends in `/>`, and where."""
    attributes = 0
    while at < len(page):
        while at < len(page) and (_is_space(page[at]) or page[at] == 0x2F):
            at += 1
        if at >= len(page) or page[at] == 0x3E:
            return attributes, at > 0 and page[at - 1] == 0x2F, at + 1
        attributes += 1
        at += 1  # an equals sign in the first place belongs to the name
        while at < len(page) and not _is_space(page[at]) and page[at] not in (0x2F, 0x3E, 0x3D):
            at += 1
        while at < len(page) and _is_space(page[at]):
            at += 1
        if at < len(page) and page[at] == 0x3D:
            at += 1
            while at < len(page) and _is_space(page[at]):
                at += 1
            if at < len(page) and page[at] in (0x22, 0x27):
                quote = page[at]
                at += 1
                while at < len(page) and page[at] != quote:
                    at += 1
                at += 1
            else:
                while at < len(page) and not _is_space(page[at]) and page[at] != 0x3E:
                    at += 1
    return attributes, False, at


@numba.njit(cache=True, nogil=True, inline="always")
def _after_markup(page: np.ndarray, at: int) -> int:
    """The end of the comment, doctype or bogus comment whose `<!`, `<?` or `</` is at `at`."""
    if at + 3 < len(page) and page[at + 1] == 0x21 and page[at + 2] == 0x2D and page[at + 3] == 0x2D:
        at += 4
        while at < len(page):
            if page[at] == 0x3E and page[at - 1] == 0x2D and page[at - 2] == 0x2D:
                return at + 1
            if page[at] == 0x3E and page[at - 1] == 0x21 and page[at - 2] == 0x2D and page[at - 3] == 0x2D:
                return at + 1
            at += 1
        return at
    while at < len(page) and page[at] != 0x3E:
        at += 1
    return at + 1


@numba.njit(cache=True, nogil=True, inline="always")
def _after_raw(page: np.ndarray, at: int, name: np.uint64) -> int:
    """Where the end tag of a raw text element begins."""
    while at + 1 < len(page):
        if page[at] == 0x3C and page[at + 1] == 0x2F:
            found, _ = _name_at(page, at + 2)
            if found == name:
                return at
        at += 1
    return len(page)


@numba.njit(cache=True, nogil=True, inline="always")
def _find_open(names: np.ndarray, bits: np.ndarray, depth: int, name: np.uint64, barrier: int) -> int:
    """Where the innermost open element of this name is, not looking past a barrier; -1 where there is none."""
    for at in range(depth - 1, -1, -1):
        if names[at] == name:
            return at
        if bits[at] & barrier:
            return -1
    return -1


@numba.njit(cache=True, nogil=True, inline="always")
def _find_replaced(names: np.ndarray, bits: np.ndarray, depth: int, name: np.uint64) -> int:
    """Where an element is that one of its name closes, below nothing but formatting; -1 where there is none."""
    for at in range(depth - 1, -1, -1):
        if names[at] == name:
            return at
        if not bits[at] & _FORMATTING:
            return -1
    return -1


@numba.njit(cache=True, nogil=True, inline="always")
def _end_formatting(names: np.ndarray, bits: np.ndarray, waiting: np.ndarray, state: np.ndarray, name: np.uint64) -> int:
    """Which open element the end of a formatting element closes; one that holds others goes, and they stay."""
    at = _find_open(names, bits, state[_DEPTH], name, _BARRIER)
    if at >= 0 and at < state[_DEPTH] - 1:
        names[at], bits[at] = 0, 0
        return -1
    if at < 0:
        for number in range(state[_WAITING] - 1, -1, -1):
            if waiting[number, 0] == name:
                for later in range(number + 1, state[_WAITING]):
                    waiting[later - 1] = waiting[later]
                state[_WAITING] -= 1
                break
    return at


@numba.njit(cache=True, nogil=True, inline="always")
def _wait(waiting: np.ndarray, state: np.ndarray, name: np.uint64, bits: int) -> None:
    """Remember a formatting element to be built again; of those without attributes three of a name at most."""
    if bits & _PLAIN:
        alike = 0
        for number in range(state[_WAITING]):
            alike += waiting[number, 0] == name
        if alike >= 3:
            return
    if state[_WAITING] < _OPEN_AT_MOST:
        waiting[state[_WAITING], 0], waiting[state[_WAITING], 1] = name, bits
        state[_WAITING] += 1


@numba.njit(cache=True, nogil=True, inline="always")
def _close(names: np.ndarray, bits: np.ndarray, below: np.ndarray, waiting: np.ndarray, state: np.ndarray, to: int) -> None:
    """Close open elements down to `to`. Formatting elements among them wait for the next block, but those inside a barrier are gone."""
    until = state[_DEPTH]
    for at in range(state[_DEPTH] - 1, to - 1, -1):
        state[_PS] -= names[at] == np.uint64(_P)
        state[_TABLES] -= names[at] == np.uint64(_TABLE)
        state[_FOREIGNS] -= (bits[at] & _FOREIGN) != 0
        if bits[at] & _BARRIER:
            state[_WAITING], state[_BASE], until = min(below[at, 0], state[_WAITING]), below[at, 1], at
    for at in range(to + 1, until):
        if bits[at] & _FORMATTING:
            _wait(waiting, state, names[at], bits[at])
    state[_DEPTH] = to


@numba.njit(cache=True, nogil=True, inline="always")
def _build_again(names: np.ndarray, bits: np.ndarray, waiting: np.ndarray, state: np.ndarray) -> None:
    """Open the formatting elements that wait, as text and inline elements make the parser do."""
    for number in range(state[_BASE], state[_WAITING]):
        if state[_DEPTH] < _OPEN_AT_MOST:
            names[state[_DEPTH]], bits[state[_DEPTH]] = waiting[number, 0], np.int64(waiting[number, 1])
            state[_DEPTH] += 1
        state[_ELEMENTS] += 1
    state[_WAITING] = min(state[_BASE], state[_WAITING])


@numba.njit(cache=True, nogil=True, inline="always")
def _open(names: np.ndarray, bits: np.ndarray, below: np.ndarray, state: np.ndarray, name: np.uint64, of: int) -> None:
    depth = state[_DEPTH]
    if depth >= _OPEN_AT_MOST:
        return
    if of & _INTEGRATION:
        of = of | _BARRIER if state[_FOREIGNS] else 0
    names[depth], bits[depth], below[depth, 0], below[depth, 1] = name, of, state[_WAITING], state[_BASE]
    if of & _BARRIER:
        state[_BASE] = state[_WAITING]
    state[_DEPTH] = depth + 1
    state[_DEEPEST] = max(state[_DEEPEST], depth + 1)
    state[_PS] += name == np.uint64(_P)
    state[_TABLES] += name == np.uint64(_TABLE)
    state[_FOREIGNS] += (of & _FOREIGN) != 0


@numba.njit(cache=True, nogil=True, inline="always")
def _closed_by_end(names: np.ndarray, bits: np.ndarray, waiting: np.ndarray, state: np.ndarray, name: np.uint64, of: int) -> int:
    """The open element down to which an end tag closes; -1: it closes none."""
    if of & _FORMATTING:
        return _end_formatting(names, bits, waiting, state, name)
    in_table = of & _TABLE_PART or name == np.uint64(_TABLE)
    return _find_open(names, bits, state[_DEPTH], name, _TABLE_BARRIER if in_table else _BARRIER)


@numba.njit(cache=True, nogil=True, inline="always")
def _closed_by_start(names: np.ndarray, bits: np.ndarray, waiting: np.ndarray, state: np.ndarray, name: np.uint64, of: int) -> int:
    """The open element down to which a start tag closes; -1: it closes none."""
    if of & _ALONE:
        return _end_formatting(names, bits, waiting, state, name)
    if of & _TABLE_PART:
        return _find_open(names, bits, state[_DEPTH], name, _TABLE_BARRIER)
    to = -1
    if of & _REPLACES:
        to = _find_replaced(names, bits, state[_DEPTH], name)
    if to < 0 and of & _CLOSES_P and state[_PS]:
        to = _find_open(names, bits, state[_DEPTH], np.uint64(_P), _BARRIER)
    return to


@numba.njit(cache=True, nogil=True, inline="always")
def _next_tag(page: np.ndarray, at: int) -> tuple[int, bool]:
    """Where the name of the next tag begins, and whether it is an end tag; the length of the page at the end."""
    while at + 1 < len(page):
        if page[at] != 0x3C:
            at += 1
            continue
        is_end = page[at + 1] == 0x2F
        first = at + 2 if is_end else at + 1
        if first < len(page) and 97 <= _lower(page[first]) <= 122:
            return first, is_end
        at = _after_markup(page, at) if is_end or page[at + 1] in (0x21, 0x3F) else at + 1
    return len(page), False


@numba.njit(cache=True, nogil=True)
def _scan(page: np.ndarray, hashes: np.ndarray, classes: np.ndarray, steps_at_most: int, elements_at_most: int) -> tuple[int, int, int, int]:
    """Steps, elements built, depth and attributes; stops where a limit is passed."""
    names, bits, below = np.empty(_OPEN_AT_MOST, np.uint64), np.empty(_OPEN_AT_MOST, np.int64), np.empty((_OPEN_AT_MOST, 2), np.int64)
    waiting = np.empty((_OPEN_AT_MOST, 2), np.uint64)  # formatting elements closed by the end of a block around them
    state = np.zeros(8, np.int64)
    steps, most_attributes = 0, 0
    at, is_end = _next_tag(page, 0)
    while at < len(page) and steps <= steps_at_most and state[_ELEMENTS] <= elements_at_most:
        name, at = _name_at(page, at)
        attributes, is_closed, at = _attributes_at(page, at)
        of = _class_of(name, hashes, classes)
        if of & _FORMATTING and not attributes:
            of |= _PLAIN
        most_attributes = max(most_attributes, attributes)
        steps += attributes * (attributes - 1) // 2 + state[_DEPTH] + state[_WAITING]
        state[_ELEMENTS] += 1
        to = _closed_by_end(names, bits, waiting, state, name, of) if is_end else _closed_by_start(names, bits, waiting, state, name, of)
        if to >= 0:
            _close(names, bits, below, waiting, state, to)
        if not (is_end or of & _CLOSES_P):
            _build_again(names, bits, waiting, state)
        if of & _RAW and not is_end and not state[_FOREIGNS]:
            at = _after_raw(page, at, name)
        elif not (is_end or of & _VOID or (of & _TABLE_PART and not state[_TABLES]) or (is_closed and not of and state[_FOREIGNS])):
            _open(names, bits, below, state, name, of)
        while at < len(page) and _is_space(page[at]):
            at += 1
        if at < len(page) and page[at] != 0x3C:
            _build_again(names, bits, waiting, state)  # text
        at, is_end = _next_tag(page, at)
    return steps, state[_ELEMENTS], state[_DEEPEST], most_attributes
