"""The script that most letters of a caption are of, by the frozen table of Unicode 16.0."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from altalign.filters import unicode_data

NONE = "none"  # no letters, or none of a script of its own


@cache
def table() -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Where a run of code points of one script begins (uint32, ascending, the first 0), its script's number (uint8), and the scripts' names.

    Number 0 is of what has no script of its own: Common, Inherited, unassigned.
    """
    with np.load(Path(__file__).with_name("scripts_16.npz")) as stored:
        return stored["starts"], stored["scripts"], tuple(stored["names"].tolist())


def main_scripts(captions: pa.StringArray) -> pa.StringArray:
    """The script of most letters of each caption ("Latin", "Han"); of as many, the one whose name comes first; NONE where there is none.

    Args:
        captions: n captions, without nulls. For samples: each code point takes some 20 bytes of memory meanwhile.
    """
    starts, numbers, names = table()
    texts: list[Any] = captions.to_pylist()
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    blocks, entries, _ = unicode_data.table()
    is_letter = entries[blocks[points >> 6].astype(np.int64) << 6 | points & 63] & unicode_data.LETTER > 0
    script = numbers[np.searchsorted(starts, points, side="right") - 1]
    counted = is_letter & (script > 0)
    letters = np.bincount(rows[counted] * len(names) + script[counted], minlength=len(texts) * len(names)).reshape(
        -1, len(names)
    )
    most = letters.argmax(axis=1) if len(texts) else np.zeros(0, np.int64)
    return pa.array(
        [names[number] if of_row[number] else NONE for number, of_row in zip(most, letters, strict=True)], pa.string()
    )
