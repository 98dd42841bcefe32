"""Compressed files as streams of what they hold."""

import io
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa

Compression = Literal["gzip", "zstd"]


def decompressed(file: BinaryIO, compression: Compression) -> BinaryIO:
    """What a file holds, members or frames one after the other; reading it raises OSError where it is broken or cut."""
    stream = pa.CompressedInputStream(pa.PythonFile(cast(Any, file), "r"), compression)
    return cast(BinaryIO, io.BufferedReader(cast(Any, stream), 1 << 20))
