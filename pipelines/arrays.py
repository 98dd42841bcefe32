"""NumPy arrays of a run: a file each, mapped into memory where they are large."""

import io
from typing import Any

import numpy as np

from altalign import storage
from altalign.errors import UnreadableError


def save(path: str, array: np.ndarray) -> None:
    """Write an array, whole or not at all."""
    with storage.write(path) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)


def read(path: str) -> np.ndarray:
    """An array that was saved.

    Raises:
        UnreadableError: the file is none, or is cut.
    """
    return _opened(io.BytesIO(storage.read_bytes(path)), path)


def mapped(path: str) -> np.ndarray:
    """The same, mapped into memory: one copy for all processes, and not read before it is asked for."""
    return _opened(storage.mappable(path), path, mmap_mode="r")


def _opened(source: Any, path: str, **how: Any) -> np.ndarray:
    try:
        return np.load(source, allow_pickle=False, **how)
    except (ValueError, EOFError) as error:
        raise UnreadableError(f"{path}: not a whole NumPy array") from error
