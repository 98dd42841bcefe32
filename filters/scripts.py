"""The main script of a caption, that of most of its letters, by the frozen table of Unicode 16.0."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.filters import unicode_data

NONE = "none"  # no letter has a script of its own


@cache
def table() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8], tuple[str, ...]]:
    """Runs of code points of one script.

    Returns:
        Where each run begins (uint32[runs], ascending, the first 0), the number of its script (uint8[runs]), and the
        names of the scripts by number. Number 0 is no script of its own: Common, Inherited, unassigned.
    """
    with np.load(Path(__file__).with_name("scripts_16.npz")) as stored:
        return stored["starts"], stored["scripts"], tuple(stored["names"].tolist())


def main_scripts(captions: pa.StringArray) -> pa.StringArray:
    """The script of most letters of each caption ("Latin", "Han"), or NONE; of a tie, the name that sorts first.

    Args:
        captions: n captions without nulls, a sample: each code point takes about 20 bytes of memory for the time.
    """
    starts, numbers, names = table()
    texts: list[Any] = captions.to_pylist()
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    blocks, entries, _ = unicode_data.table()
    is_letter = entries[blocks[points >> 6].astype(np.int64) << 6 | points & 63] & unicode_data.LETTER > 0
    script = numbers[np.searchsorted(starts, points, side="right") - 1]
    counted = is_letter & (script > 0)
    cells = rows[counted] * len(names) + script[counted]
    letters = np.bincount(cells, minlength=len(texts) * len(names)).reshape(-1, len(names))  # int64[n, scripts]
    most = letters.argmax(axis=1) if len(texts) else np.zeros(0, np.int64)
    scripts = [names[number] if of_row[number] else NONE for number, of_row in zip(most, letters, strict=True)]
    return pa.array(scripts, pa.string())
