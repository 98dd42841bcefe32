"""Cleans captions: decodes entities, removes controls, makes text NFC and white space single spaces (product.md, 3).

Most captions are clean as they come. One kernel reads every byte and finds the rows that are not; a batch without such
rows is returned as it is. A second kernel mends rows where only spaces and controls are wrong; the rest is done here.
"""

import re
from html.entities import html5
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import unicodedata2

from altalign.filters import caption_kernels, one_caption, unicode_data
from altalign.filters.caption_kernels import SPACES, TEXT
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
    blocks, entries, combining = unicode_data.table()
    needs = np.zeros(len(captions), np.uint8)
    if not caption_kernels.look(data, offsets, blocks, entries, combining, needs):
        return captions
    fixed = _clean_texts(data, offsets, needs)
    if not needs.any():
        return captions
    fixed_data = np.frombuffer(b"".join(fixed), np.uint8)
    fixed_offsets = np.cumsum([0, *map(len, fixed)], dtype=np.int64)
    out = np.empty(int(offsets[-1] - offsets[0]) + fixed_data.size, np.uint8)
    out_offsets = np.empty(len(captions) + 1, np.int64)
    size = caption_kernels.rebuild(data, offsets, blocks, entries, needs, fixed_data, fixed_offsets, out, out_offsets)
    return _array(out[:size], out_offsets)


def decode_entities(captions: "pa.Array[Any]") -> pa.StringArray:
    """Captions with HTML character references decoded once, as in an attribute's value; call it before `clean`.

    Args:
        captions: n strings of any Arrow kind, dictionaries of strings too; null becomes "". In rows that hold "&",
            bytes that are not UTF-8 become U+FFFD.

    Returns:
        n captions without nulls; the same buffers where no row holds "&".

    Raises:
        ValueError: the captions hold more than 2 GiB.
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
    name, digits = reference["name"], reference["hex"] or reference["decimal"]
    if name is not None:
        if reference["end"] == ";":
            return html5.get(name + ";", reference[0])
        return html5.get(name, reference[0]) if reference["end"] == "" else reference[0]
    if len(digits.lstrip("0")) > MOST_DIGITS:
        return REPLACEMENT
    point = int(digits, 16 if reference["hex"] else 10)
    if point == 0 or point >= unicode_data.CODE_POINTS or 0xD800 <= point < 0xE000:
        return REPLACEMENT
    return WINDOWS_1252.get(point) or chr(point)


def _clean_texts(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], needs: npt.NDArray[np.uint8]
) -> list[bytes]:
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


def _array(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> pa.StringArray:
    if data.size > BYTES_AT_MOST:
        raise ValueError(
            f"captions of one batch hold {data.size} bytes, more than the {BYTES_AT_MOST} of an Arrow string array: "
            "use smaller batches"
        )
    ends = pa.py_buffer(offsets.astype(np.int32).data)
    return pa.StringArray.from_buffers(offsets.size - 1, ends, pa.py_buffer(data.data))
