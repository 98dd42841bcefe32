"""What it would take to parse a page, estimated in one linear pass, so that hostile pages are refused before they are parsed.

The parser is linear on all pages but those made to hurt: each start or end tag of a block walks the open elements (a million nested
<div> take hours), each attribute is compared with those before it, and formatting elements left open are built again in
every block (two thousand make gigabytes). The pass keeps a rough stack of open elements and counts just that.

Limits (measured with selectolax 1.0 on one core): 20,000 nested <div> are 2e8 steps and 0.5 s, 20,000 attributes of one tag 2e8
steps and 0.9 s, a million elements 0.6 GB and 1.4 s. Real pages stay below 1e6 steps and 1e5 elements.
"""

from collections.abc import Iterable
from functools import cache

import numba
import numpy as np

STEPS_AT_MOST = 300_000_000
ELEMENTS_AT_MOST = 1_000_000

_VOID, _FORMATTING, _BARRIER, _CLOSES_P, _RAW, _REPLACES_ITSELF, _FOREIGN = 1, 2, 4, 8, 16, 32, 64
_CLASSES = {
    _VOID: "area base br col embed hr img input link meta param source track wbr image bgsound basefont frame keygen html head body",
    _FORMATTING: "a b big code em font i nobr s small strike strong tt u",
    _BARRIER: "applet caption table td th marquee object template",
    _CLOSES_P: "address article aside blockquote center details dialog dir div dl dd dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 "
    "header hgroup hr li listing main menu nav ol p plaintext pre search section summary table ul xmp",
    _RAW: "script style textarea title xmp iframe noembed noframes plaintext",
    _REPLACES_ITSELF: "p li dd dt option optgroup td th tr tbody thead tfoot a nobr",
    _FOREIGN: "svg math",
}
_SLOTS = 1_024  # of a hash table of names with linear probing
_P = 0x50
_MULTIPLIER = 0x100000001B3
_SPACES_AND_ENDS = (0x20, 0x09, 0x0A, 0x0C, 0x0D, 0x2F, 0x3E)
_REBUILT_AT_MOST = 65_536  # open formatting elements kept track of


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
    """Hash table of names: uint64[slots] (0: free) and uint8[slots] of classes."""
    classes: dict[str, int] = {}
    for bit, names in _CLASSES.items():
        for name in names.split():
            classes[name] = classes.get(name, 0) | bit
    hashes, bits = np.zeros(_SLOTS, np.uint64), np.zeros(_SLOTS, np.uint8)
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


@numba.njit(cache=True, nogil=True)
def _class_of(name: np.uint64, hashes: np.ndarray, bits: np.ndarray) -> np.uint8:
    slot = np.int64(name % np.uint64(_SLOTS))
    while hashes[slot] != 0:
        if hashes[slot] == name:
            return bits[slot]
        slot = (slot + 1) % _SLOTS
    return np.uint8(0)


@numba.njit(cache=True, nogil=True)
def _lower(byte: np.uint8) -> np.uint8:
    return np.uint8(byte + 32) if 65 <= byte <= 90 else byte


@numba.njit(cache=True, nogil=True)
def _is_space(byte: np.uint8) -> bool:
    return byte in (0x20, 0x09, 0x0A, 0x0C, 0x0D)


@numba.njit(cache=True, nogil=True)
def _name_at(page: np.ndarray, at: int) -> tuple[np.uint64, int]:
    """Hash of the lower-case name that begins here, and where it ends."""
    name = np.uint64(0)
    while at < len(page) and not _is_space(page[at]) and page[at] != 0x2F and page[at] != 0x3E:
        name = name * np.uint64(_MULTIPLIER) + np.uint64(_lower(page[at])) + np.uint64(1)
        at += 1
    return name, at


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
def _after_raw(page: np.ndarray, at: int, name: np.uint64) -> int:
    """Where the end tag of a raw text element begins."""
    while at + 1 < len(page):
        if page[at] == 0x3C and page[at + 1] == 0x2F:
            found, _ = _name_at(page, at + 2)
            if found == name:
                return at
        at += 1
    return len(page)


@numba.njit(cache=True, nogil=True)
def _find_open(stack: np.ndarray, bits: np.ndarray, depth: int, name: np.uint64) -> int:
    """Where the innermost open element of this name is, not looking past a barrier; -1 where there is none."""
    for at in range(depth - 1, -1, -1):
        if stack[at] == name:
            return at
        if bits[at] & _BARRIER:
            return -1
    return -1


@numba.njit(cache=True, nogil=True)
def _find_replaced(stack: np.ndarray, bits: np.ndarray, depth: int, name: np.uint64) -> int:
    """Where an element is that one of its name closes, below nothing but formatting; -1 where there is none."""
    for at in range(depth - 1, -1, -1):
        if stack[at] == name:
            return at
        if not bits[at] & _FORMATTING:
            return -1
    return -1


@numba.njit(cache=True, nogil=True)
def _scan(page: np.ndarray, hashes: np.ndarray, classes: np.ndarray, steps_at_most: int, elements_at_most: int) -> tuple[int, int, int, int]:  # noqa: C901
    """Steps, elements built, depth and attributes; stops where a limit is passed."""
    stack, bits, rebuilt_below = np.zeros(1024, np.uint64), np.zeros(1024, np.uint8), np.zeros(1024, np.int64)
    waiting = np.zeros(_REBUILT_AT_MOST, np.uint64)  # formatting elements closed by the end of a block around them: built again in the next
    depth, waits, foreign, open_p = 0, 0, 0, 0
    steps, elements, deepest, most_attributes = 0, 0, 0, 0
    p_name = np.uint64(_P + 32 + 1)
    at = 0
    while at < len(page) and steps <= steps_at_most and elements <= elements_at_most:
        if page[at] != 0x3C or at + 1 >= len(page):
            at += 1
            continue
        after = page[at + 1]
        is_end = after == 0x2F and at + 2 < len(page)
        first = _lower(page[at + 2]) if is_end else _lower(after)
        if not 97 <= first <= 122:
            at = _after_markup(page, at) if after in (0x21, 0x2F, 0x3F) else at + 1
            continue
        name, at = _name_at(page, at + 2 if is_end else at + 1)
        attributes, is_closed, at = _attributes_at(page, at)
        of = _class_of(name, hashes, classes)
        most_attributes = max(most_attributes, attributes)
        steps += attributes * (attributes - 1) // 2 + depth
        elements += 1
        to = -1  # the open element that this tag closes
        if is_end:
            to = _find_open(stack, bits, depth, name)
            if to < 0 and of & _FORMATTING:
                for number in range(waits - 1, -1, -1):
                    if waiting[number] == name:
                        waiting[number:waits - 1] = waiting[number + 1 : waits].copy()
                        waits -= 1
                        break
            elif to >= 0 and of & _FORMATTING and to < depth - 1:
                stack[to], bits[to] = 0, 0  # what it holds stays open
                to = -1
        elif of & _CLOSES_P and open_p:
            to = _find_open(stack, bits, depth, p_name)
        if not is_end and to < 0 and of & _REPLACES_ITSELF:
            to = _find_replaced(stack, bits, depth, name)
        if to >= 0:
            cleared = -1
            for number in range(to, depth):
                open_p -= stack[number] == p_name
                foreign -= (bits[number] & _FOREIGN) != 0
                if bits[number] & _BARRIER:
                    cleared = rebuilt_below[number] if cleared < 0 else cleared
                elif number > to and cleared < 0 and bits[number] & _FORMATTING and waits < _REBUILT_AT_MOST:
                    waiting[waits] = stack[number]
                    waits += 1
            waits = min(waits, cleared) if cleared >= 0 else waits
            depth = to
        if is_end:
            continue
        if waits and not of & _CLOSES_P:
            elements += waits
            if depth + waits >= len(stack):
                stack, bits, rebuilt_below = _grown(stack, waits), _grown(bits, waits), _grown(rebuilt_below, waits)
            stack[depth : depth + waits], bits[depth : depth + waits] = waiting[:waits], _FORMATTING
            depth, waits = depth + waits, 0
        if of & _RAW and not foreign:
            at = _after_raw(page, at, name)
        elif not (of & _VOID or (foreign and is_closed and not of)):
            if depth + 1 >= len(stack):
                stack, bits, rebuilt_below = _grown(stack, 0), _grown(bits, 0), _grown(rebuilt_below, 0)
            stack[depth], bits[depth], rebuilt_below[depth] = name, of, waits
            depth += 1
            open_p += name == p_name
            foreign += (of & _FOREIGN) != 0
            deepest = max(deepest, depth)
    return steps, elements, deepest, most_attributes


@numba.njit(cache=True, nogil=True)
def _grown(array: np.ndarray, by: int) -> np.ndarray:
    grown = np.zeros(2 * len(array) + by, array.dtype)
    grown[: len(array)] = array
    return grown
