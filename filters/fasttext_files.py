"""Whether bytes are a whole classifier that fastText saved (.bin, or quantized .ftz).

fastText itself reads on where a file has ended, and predicts from what happens to be in memory. So a file's length is
compared with what its headers say: those of fastText 0.9 (src/args.cc, dictionary.cc, densematrix.cc, quantmatrix.cc,
productquantizer.cc), little-endian.
"""

import struct

_MAGIC, _SUPERVISED = 793712314, 3
_ARGUMENTS_END = 64  # magic, version, twelve integers, a double
_CENTROIDS_BYTES = 256 * 4  # of each dimension


class ModelFileError(ValueError):
    """The bytes are no whole classifier; the words say why."""


def check(data: bytes) -> None:
    """Refuse what is no whole classifier.

    Raises:
        ModelFileError: the bytes are of something else, or of word vectors, or more or fewer than they say.
    """
    if not data.startswith(struct.pack("<i", _MAGIC)):
        raise ModelFileError("its first bytes are not those of fastText")
    try:
        model = struct.unpack_from("<2i12i", data)[2 + 7]
        if model != _SUPERVISED:
            raise ModelFileError("word vectors, not a classifier")
        end = _end(data)
    except (struct.error, ValueError, IndexError) as error:
        raise error if isinstance(error, ModelFileError) else ModelFileError("its headers are cut or damaged") from None
    if end != len(data):
        raise ModelFileError(f"it has {len(data):,} bytes, and its headers say {end:,}: it is cut or damaged")


def _end(data: bytes) -> int:
    """Where the file ends by its own headers."""
    entries, _, _, _, pruned = struct.unpack_from("<3i2q", data, _ARGUMENTS_END)
    at = _ARGUMENTS_END + struct.calcsize("<3i2q")
    for _ in range(entries):  # a word, a zero byte, its count and kind
        at = data.index(b"\0", at) + 10
    at += 8 * max(0, pruned)
    is_quantized = bool(data[at])
    at = _matrix_end(data, at + 1, is_quantized=is_quantized)
    return _matrix_end(data, at + 1, is_quantized=is_quantized and bool(data[at]))


def _matrix_end(data: bytes, at: int, *, is_quantized: bool) -> int:
    if not is_quantized:
        rows, columns = struct.unpack_from("<2q", data, at)
        return at + 16 + 4 * rows * columns
    has_norms, rows, columns, codes = struct.unpack_from("<?2qi", data, at)
    at += 21 + codes + 16 + columns * _CENTROIDS_BYTES
    return at + rows + 16 + _CENTROIDS_BYTES if has_norms else at
