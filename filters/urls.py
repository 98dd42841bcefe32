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
from altalign.filters.bits import Bytes, Longs, address_of, load64
from altalign.filters.words import text_buffers

_HTTPS, _HTTP = np.uint64(int.from_bytes(b"https://", "little")), np.uint64(int.from_bytes(b"http://", "little"))
_LOWER, _SEVEN = np.uint64(0x2020202020), np.uint64((1 << 56) - 1)  # lower case of five letters; seven bytes of eight
_HIGH, _NUMBER_SIGN, _HYPHEN, _DOT, _SLASH, _QUESTION_MARK = 0x80, *b"#-./?"
_IN_HOST = np.zeros(256, bool)
_IN_HOST[[*b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_-."]] = True


def table_urls(urls: "pa.Array[Any]") -> tuple[pa.StringArray, npt.NDArray[np.bool_]]:
    """The URLs of a column, and whether each is valid (bool[n]).

    Invalid URLs lose only the white space at their ends; null stays null. A column that needs no change is returned as
    it is.
    """
    texts = cast(pa.StringArray, urls if pa.types.is_string(urls.type) else urls.cast(pa.string(), safe=False))
    data, offsets = text_buffers(texts)
    is_valid = np.zeros(len(texts), bool)
    if not _find_plain(data, offsets, is_valid) and (valid := valid_utf8(texts)) is not texts:
        return table_urls(valid)
    is_null = texts.is_null().to_numpy(zero_copy_only=False)
    is_valid &= ~is_null
    rows = np.flatnonzero(~is_valid & ~is_null)
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
def _find_plain(data: Bytes, offsets: Longs, is_plain: npt.NDArray[np.bool_]) -> bool:
    """Fill `is_plain` (bool[n]): valid, and kept as it is. Returns whether all bytes are ASCII.

    A plain URL has a scheme, a host of ASCII names whose last label cannot be a number, a path of any bytes but `#`,
    and nothing at its ends that could be white space.
    """
    is_ascii = True
    for row in range(len(is_plain)):
        at, end = offsets[row], offsets[row + 1]
        has_high = has_fragment = False
        for place in range(at, end):  # without branches, which the compiler makes vector code of
            has_high |= data[place] >= _HIGH
            has_fragment |= data[place] == _NUMBER_SIGN
        is_ascii &= not has_high
        if end - at < 9 or has_fragment or not 32 < data[end - 1] < _HIGH:  # shorter ones are like http://a
            continue
        scheme = load64(address_of(data), at) | _LOWER
        if scheme != _HTTPS and scheme & _SEVEN != _HTTP:
            continue
        at += 8 if scheme == _HTTPS else 7
        label, is_usual = at, True
        while at < end and _IN_HOST[data[at]]:
            if data[at] == _DOT:
                label = at + 1
            elif data[at] == _HYPHEN and data[at - 1] == _HYPHEN:  # xn-- and its like
                is_usual = False
            at += 1
        is_number = at == label or 48 <= data[label] <= 57
        is_plain[row] = is_usual and not is_number and (at == end or data[at] == _SLASH or data[at] == _QUESTION_MARK)
    return is_ascii
