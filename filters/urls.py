"""Image URLs of tables: taken as written, white space at the ends removed, and without their fragment where they are valid.

Valid: http or https, and accepted by a WHATWG parser (ada). A kernel decides the plain ones, which are nearly all; the rest are parsed.
"""

from typing import Any, cast

import ada_url
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from filters.words import text_buffers

_PLAIN, _DOUBTFUL = 0, 1
# Property White_Space.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"


def table_urls(urls: "pa.Array[Any]") -> tuple[pa.StringArray, np.ndarray]:
    """The URLs of a column, and whether each is valid (bool[n]).

    Invalid ones stay as written but for white space at their ends; null stays null. A column that needs no change comes back as it is.
    """
    texts = _as_strings(urls)
    data, offsets = text_buffers(texts)
    kinds = np.empty(len(texts), np.uint8)
    _look(data, offsets, kinds)
    is_valid = kinds == _PLAIN
    rows = np.flatnonzero(kinds == _DOUBTFUL)
    if texts.null_count:
        is_null = texts.is_null().to_numpy(zero_copy_only=False)
        is_valid &= ~is_null
        rows = rows[~is_null[rows]]
    if not len(rows):
        return texts, is_valid
    written = cast(list[str], texts.take(rows).to_pylist())
    parsed = [_parsed(url) for url in written]
    is_valid[rows] = [valid for _, valid in parsed]
    if all(url == old for (url, _), old in zip(parsed, written, strict=True)):
        return texts, is_valid
    mask = np.zeros(len(texts), bool)
    mask[rows] = True
    return pc.replace_with_mask(texts, pa.array(mask), pa.array([url for url, _ in parsed], pa.string())), is_valid


def _parsed(url: str) -> tuple[str, bool]:
    """A URL as it is kept, and whether it is valid."""
    url = url.strip(_WHITE_SPACE)
    try:
        is_valid = ada_url.URL(url).protocol in ("http:", "https:")
    except ValueError:
        is_valid = False
    return (url.partition("#")[0] if is_valid else url), is_valid


def _as_strings(urls: "pa.Array[Any]") -> pa.StringArray:
    """As an Arrow string array of valid UTF-8; bytes that are none become U+FFFD."""
    try:
        texts = cast(pa.StringArray, urls.cast(pa.string()))
        texts.validate(full=True)
    except pa.ArrowInvalid:
        written = urls.cast(pa.binary(), safe=False)
        return pa.array([None if url is None else url.decode("utf-8", "replace") for url in written.to_pylist()], pa.string())
    return texts


@njit(nogil=True, cache=True)
def _look(data: np.ndarray, offsets: np.ndarray, kinds: np.ndarray) -> None:
    """Plain (valid, to be kept as it is), or doubtful.

    Plain: a scheme, a host of ASCII names whose last label cannot be a number, a path of any bytes but `#`, and nothing at the
    ends that could be white space.
    """
    for row in range(len(kinds)):
        begin, end = offsets[row], offsets[row + 1]
        kinds[row] = _DOUBTFUL
        at = _after_scheme(data, begin, end)
        if at < 0 or data[end - 1] <= 32 or data[end - 1] >= 128:
            continue
        label = at  # where the last label begins
        is_plain = True
        while at < end and is_plain:
            c = data[at]
            if c == 47 or c == 63:  # / ?
                break
            if c == 46:  # .
                label = at + 1
            is_plain = c == 45 or c == 46 or 48 <= c <= 57 or 65 <= c <= 90 or c == 95 or 97 <= c <= 122
            if c == 45 and at - label == 3 and data[at - 1] == 45:  # xn-- and its like
                is_plain = False
            at += 1
        if not is_plain or at == label or 48 <= data[label] <= 57:
            continue
        while at < end and data[at] != 35:
            at += 1
        if at == end:
            kinds[row] = _PLAIN


@njit(nogil=True, cache=True)
def _after_scheme(data: np.ndarray, begin: int, end: int) -> int:
    """Where the host begins behind http:// or https:// in any case; -1 where there is none."""
    if end - begin < 9:
        return -1
    if (data[begin] | 32) != 104 or (data[begin + 1] | 32) != 116 or (data[begin + 2] | 32) != 116 or (data[begin + 3] | 32) != 112:
        return -1
    at = begin + 4
    if (data[at] | 32) == 115:
        at += 1
    return at + 3 if data[at] == 58 and data[at + 1] == 47 and data[at + 2] == 47 else -1
