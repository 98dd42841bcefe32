"""How long the strings of a candidate may be. Readers cut what is longer, so that no column holds it whole.

Of a longer string so much is kept that it still is too long: the rules of `judge` see that, and drop the candidate.
"""

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

CAPTION_BYTES = 64 << 10  # the default of `text.bytes_at_most`, which cannot be raised
URL_BYTES = 8 << 10  # servers take no more: nginx and Apache 8 KiB, with the rest of a request's head
EXTRA_BYTES = 64 << 10  # of the columns that are kept with a pair, as one JSON object
LEFT_OUT = "{}"  # stands for a longer object; one that is whole names its columns


def cut(texts: pa.StringArray, *, bytes_at_most: int) -> pa.StringArray:
    """The same n texts, in UTF-8 where one is longer; of a longer one, its beginning, as `cut_text` cuts it."""
    is_long = longer(texts, bytes_at_most=bytes_at_most)
    if not is_long.any():
        return texts
    cuts = [cut_text(text.as_buffer().to_pybytes(), bytes_at_most=bytes_at_most) for text in texts.filter(is_long)]
    return cast(Any, pc).replace_with_mask(texts, pa.array(is_long), pa.array(cuts, pa.string()))


def cut_text(text: bytes, *, bytes_at_most: int) -> bytes:
    """The shortest beginning of a longer text, in UTF-8, that is above `bytes_at_most` and ends in no space."""
    end = bytes_at_most
    while end == bytes_at_most or (text[end : end + 1] and (text[end] & 0xC0 == 0x80 or text[end - 1] == ord(" "))):
        end += 1
    return text[:end]


def longer(texts: pa.StringArray, *, bytes_at_most: int) -> np.ndarray:
    """Whether each text has more bytes: bool[n]; a null has none."""
    lengths = pc.binary_length(texts).fill_null(0)
    return lengths.to_numpy(zero_copy_only=False) > bytes_at_most


def extra(objects: pa.StringArray) -> pa.StringArray:
    """The same n JSON objects, `LEFT_OUT` in place of each that is longer than `EXTRA_BYTES`."""
    is_long = longer(objects, bytes_at_most=EXTRA_BYTES)
    return objects if not is_long.any() else pc.if_else(pa.array(is_long), pa.scalar(LEFT_OUT), objects)
