"""NumPy arrays of a run: one file each, mapped into memory where they are large."""

import io
import threading
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.errors import UnreadableError

Array = npt.NDArray[Any]  # of any shape; the caller knows the dtype

# A header is parsed as Python, which in CPython 3.11 two threads may get wrong (SystemError, cpython issue 106905).
_ONE_AT_A_TIME = threading.Lock()


def save(path: str, array: Array) -> None:
    """Write an array, whole or not at all."""
    with storage.write(path) as file:
        contiguous = np.ascontiguousarray(array)
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(contiguous))
        # np.save would report a full disk as too few bytes written
        file.write(contiguous.reshape(-1).view(np.uint8).data)


def read(path: str) -> Array:
    """An array that was saved; UnreadableError where the file is none, or is cut off."""
    return _opened(io.BytesIO(storage.read_bytes(path)), path)


def mapped(path: str) -> Array:
    """The same, mapped into memory: all processes share one copy, and pages are read when needed."""
    return _opened(storage.mappable(path), path, mmap_mode="r")


def _opened(source: Any, path: str, **how: Any) -> Array:
    try:
        with _ONE_AT_A_TIME:
            return np.load(source, allow_pickle=False, **how)
    except (ValueError, EOFError, TypeError, OverflowError, SyntaxError, TokenError) as error:  # a header is Python
        raise UnreadableError(f"{path}: not a whole NumPy array") from error


def ids_of(column: "pa.ChunkedArray[Any]") -> npt.NDArray[np.uint8]:
    """The ids of a fixed-size binary column (16 bytes, no nulls) as uint8[n, 16]."""
    array: Any = column.combine_chunks()
    return np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, 16)[array.offset : array.offset + len(array)]
