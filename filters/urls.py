"""Image URLs of tables, as written but without white space at the ends and, where valid, without their fragment.

A URL is valid if it is http or https and a WHATWG parser (ada) accepts it. A kernel decides plain URLs, which are
nearly all; the others are parsed.
"""

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from altalign.filters import one_url
from altalign.filters.bits import (
    Bytes,
    Longs,
    address_of,
    any_bit64,
    between64,
    bit_length,
    equal64,
    first64,
    first_bit,
    load8,
    load64,
)
from altalign.filters.words import text_buffers

_PLAIN, _DOUBTFUL = 0, 1

_ONE, _HIGH = np.uint64(1), np.uint8(0x80)
_NUMBER_SIGN, _HYPHEN_MINUS, _FULL_STOP, _SLASH, _QUESTION_MARK = (np.uint8(ord(character)) for character in "#-./?")
_ZERO, _BEHIND_NINE, _SMALL_A, _BEHIND_Z = np.uint8(48), np.uint8(58), np.uint8(97), np.uint8(123)
_HTTPS, _HTTP = np.uint64(int.from_bytes(b"https://", "little")), np.uint64(int.from_bytes(b"http://", "little"))
_LOWER, _SEVEN = np.uint64(0x2020202020), np.uint64((1 << 56) - 1)  # lower case of five letters; seven bytes of eight

_NAME, _DOT, _HYPHEN, _END = 1, 2, 3, 4  # kinds of bytes in a plain host; 0: not in one
_HOST = np.zeros(256, np.uint8)
_HOST[[*range(48, 58), *range(65, 91), 95, *range(97, 123)]] = _NAME
_HOST[[ord("."), ord("-"), ord("/"), ord("?")]] = [_DOT, _HYPHEN, _END, _END]


def table_urls(urls: "pa.Array[Any]") -> tuple[pa.StringArray, npt.NDArray[np.bool_]]:
    """The URLs of a column, and whether each is valid (bool[n]).

    Invalid URLs lose only the white space at their ends; null stays null. A column that needs no change is returned as
    it is.
    """
    texts = cast(pa.StringArray, urls if pa.types.is_string(urls.type) else urls.cast(pa.string(), safe=False))
    data, offsets = text_buffers(texts)
    kinds = np.empty(len(texts), np.uint8)
    if not _look(data, offsets, kinds) and (valid := valid_utf8(texts)) is not texts:
        return table_urls(valid)
    is_valid = kinds == _PLAIN
    rows = np.flatnonzero(kinds == _DOUBTFUL)
    if texts.null_count:
        is_null = texts.is_null().to_numpy(zero_copy_only=False)
        is_valid &= ~is_null
        rows = rows[~is_null[rows]]
    if not len(rows):
        return texts, is_valid
    written = cast(list[str], texts.take(rows).to_pylist())
    parsed = [one_url.parsed(url) for url in written]
    is_valid[rows] = [valid for _, valid in parsed]
    if all(url == old for (url, _), old in zip(parsed, written, strict=True)):
        return texts, is_valid
    mask = np.zeros(len(texts), bool)
    mask[rows] = True
    return pc.replace_with_mask(texts, pa.array(mask), pa.array([url for url, _ in parsed], pa.string())), is_valid


def valid_utf8(texts: pa.StringArray) -> pa.StringArray:
    """The texts with U+FFFD for bytes that are not UTF-8, which Parquet accepts; the same column if there are none."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        written = cast(list[bytes | None], texts.cast(pa.binary()).to_pylist())
        decoded = [None if text is None else text.decode(errors="replace") for text in written]
        return cast(pa.StringArray, pa.array(decoded, pa.string()))
    return texts


@njit(nogil=True, cache=True)
def _look(data: Bytes, offsets: Longs, kinds: Bytes) -> bool:
    """Fill `kinds` (uint8[n]): plain (valid, and kept as it is) or doubtful. Returns whether all bytes are ASCII.

    A plain URL has a scheme, a host of ASCII names whose last label cannot be a number, a path of any bytes but `#`,
    and nothing at its ends that could be white space.
    """
    address, is_ascii = address_of(data), True
    for row in range(len(kinds)):
        begin, end = offsets[row], offsets[row + 1]
        has_fragment, has_high = _look_through(address, begin, end, data.size)
        is_ascii &= not has_high
        kinds[row] = _DOUBTFUL
        if end - begin < 9 or has_fragment:  # the only shorter valid URLs are like http://a
            continue
        if _after_host(address, begin, end, data.size) >= 0 and 32 < load8(address, end - 1) < 128:
            kinds[row] = _PLAIN
    return is_ascii


@njit(nogil=True)
def _look_through(address: int, at: int, end: int, size: int) -> tuple[bool, bool]:
    # Whether a row has a number sign, and whether it has bytes that are not ASCII. Reads nothing past `size`.
    signs, high = np.uint64(0), np.uint64(0)
    while at < end and at + 64 <= size:
        row = first64(end - at)
        signs |= equal64(address, at, _NUMBER_SIGN) & row
        high |= any_bit64(address, at, _HIGH) & row
        at += 64
    for place in range(at, end):
        signs |= np.uint64(load8(address, place) == _NUMBER_SIGN)
        high |= np.uint64(load8(address, place) >= _HIGH)
    return signs != 0, high != 0


@njit(nogil=True)
def _after_host(address: int, begin: int, end: int, size: int) -> int:
    # Where a plain host after http:// or https:// (in any case) ends; -1 if there is none.
    scheme = load64(address, begin) | _LOWER
    if scheme == _HTTPS:
        at = begin + 8
    elif scheme & _SEVEN == _HTTP:
        at = begin + 7
    else:
        return -1
    if at + 64 > size:
        return _after_any_host(address, at, end)
    stops = equal64(address, at, _SLASH) | equal64(address, at, _QUESTION_MARK) | ~first64(end - at)
    # A host of at most 63 usual bytes is decided here; others are read byte by byte.
    before = ~stops & (stops - _ONE)
    hyphens = equal64(address, at, _HYPHEN_MINUS) & before
    dots = equal64(address, at, _FULL_STOP) & before
    names = between64(address, at, _SMALL_A, _BEHIND_Z) | between64(address, at, _ZERO, _BEHIND_NINE)
    if stops == 0 or before & ~(names | dots | hyphens) or hyphens & (hyphens << _ONE):
        return _after_any_host(address, at, end)
    stop, label = at + first_bit(stops), at + bit_length(dots)
    return -1 if stop == label or 48 <= load8(address, label) <= 57 else stop


@njit(nogil=True)
def _after_any_host(address: int, at: int, end: int) -> int:
    # The same, byte by byte; `at` is where the host begins.
    label = at  # where the last label begins
    while at < end:
        c = load8(address, at)
        kind = _HOST[c]
        if kind == _NAME:
            pass
        elif kind == _DOT:
            label = at + 1
        elif kind == _HYPHEN:
            if at - label == 3 and load8(address, at - 1) == 45:  # xn-- and its like
                return -1
        elif kind == _END:
            break
        else:
            return -1
        at += 1
    return -1 if at == label or 48 <= load8(address, label) <= 57 else at
