"""Opens compressed files as streams of their content."""

import io
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa

Compression = Literal["gzip", "zstd"]


def decompressed(file: BinaryIO, compression: Compression) -> BinaryIO:
    """The content of a file, over all its members or frames; reading it raises OSError if it is broken or cut."""
    stream = pa.CompressedInputStream(pa.PythonFile(cast(Any, file), "r"), compression)
    return cast(BinaryIO, io.BufferedReader(cast(Any, stream), 1 << 20))
