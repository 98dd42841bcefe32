"""Waves of a pool: rows that came with `altalign add --mode frozen` stand behind those that were there.

`tables/frozen.json` has the numbers of the first input files of each such addition, and how far the tables have
drifted. It goes with the tables: whoever makes these anew judges all rows alike.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from altalign import storage
from altalign.pipelines.run.units import Run

FILE = "frozen.json"  # in tables/


def facts(run: Run) -> dict[str, Any]:
    """The content of the file; empty where the tables are of all rows."""
    return storage.read_json(run.path("tables", FILE))


def of_files(run: Run, files: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The wave of each of n input files, by their numbers: int64[n]; 0 of those that the tables are of."""
    return np.searchsorted(_firsts(run), files, side="right")


def are_several(run: Run) -> bool:
    """Whether rows have come that the tables are not of."""
    return len(_firsts(run)) > 0


def first_file(run: Run) -> int:
    """The number of the first input file of the last wave; there are several."""
    return int(_firsts(run)[-1])


def _firsts(run: Run) -> npt.NDArray[np.int64]:
    path = run.path("tables", FILE)
    if not storage.exists(path):
        return np.zeros(0, np.int64)
    return _read(storage.absolute(path), storage.stamp(path))


@lru_cache(maxsize=1)
def _read(path: str, _changed: storage.Stamp) -> npt.NDArray[np.int64]:
    return np.array(storage.read_json(path)["first_files"], np.int64)
