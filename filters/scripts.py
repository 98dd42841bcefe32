"""The main script of a caption, that of most of its letters, by the frozen table of Unicode 16.0."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.filters import score_kernels, unicode_data
from altalign.filters.unicode_data import CODE_POINTS
from altalign.filters.words import text_buffers

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


@cache
def _of_points() -> npt.NDArray[np.uint8]:
    """The number of each code point's script."""
    starts, numbers, _ = table()
    return np.repeat(numbers, np.diff(np.append(starts, CODE_POINTS).astype(np.int64)))


def main_scripts(captions: pa.StringArray) -> "pa.DictionaryArray[Any, Any]":
    """The script of most letters of each caption ("Latin", "Han"), or NONE; of a tie, the name that sorts first.

    Args:
        captions: n captions without nulls.

    Returns:
        dictionary<string>[n], with the names of all scripts.
    """
    _, _, names = table()
    data, offsets = text_buffers(captions)
    blocks, entries, _ = unicode_data.table()
    numbers_of_rows = np.zeros(len(captions), np.uint8)
    score_kernels.main_script(data, offsets, blocks, entries, _of_points(), len(names), numbers_of_rows)
    numbers: Any = pa.array(numbers_of_rows)
    return pa.DictionaryArray.from_arrays(numbers, pa.array([NONE, *names[1:]], pa.string()))
