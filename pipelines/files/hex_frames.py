"""Zstandard frames (RFC 8878) of hex digits, made without compressing: sixteen digits that are equally frequent have a code of four bits each.

With the code of a digit being its value, the codes of a digest are the digest itself. A stream of codes is read from
its end, so its bytes are those of the digests in reverse, and one more that says where it ends.
"""

import numpy as np

_MAGIC = bytes.fromhex("28b52ffd")
_RAW, _COMPRESSED = 0, 2  # kinds of blocks
_BLOCK_BYTES = 1 << 17  # of a block's content, at most
_DIGITS = b"0123456789abcdef"
_BYTES_PER_STREAM = _BLOCK_BYTES // 8  # of digests: four streams, two digits a byte
_FEW_BYTES = 128  # of digests, for which the code and what is about it would take more than it saves


def _weights() -> bytes:
    """The description of the code (section 4.2.1): weight 1 of every digit, 0 of other bytes, in 4 bits each; that of the last digit follows from the rest."""
    listed = _DIGITS[-1]
    weights = np.zeros(listed + listed % 2, np.uint8)
    weights[list(_DIGITS[:-1])] = 1
    return bytes([127 + listed]) + (weights[::2] << 4 | weights[1::2]).tobytes()


_CODE = _weights()


def frame(head: bytes, digests: np.ndarray) -> bytes:
    """A frame that holds a head as it is, then the lower-case hex digits of digests.

    Args:
        head: any bytes; one at least where there are no digests.
        digests: uint8[n, 16].
    """
    data = np.ascontiguousarray(digests).reshape(-1)
    # one segment; its size in eight bytes
    parts = [_MAGIC, b"\xe0", (len(head) + 2 * len(data)).to_bytes(8, "little")]
    blocks = [(_RAW, head[at : at + _BLOCK_BYTES]) for at in range(0, len(head), _BLOCK_BYTES)]
    blocks += [_block(data[at : at + 4 * _BYTES_PER_STREAM]) for at in range(0, len(data), 4 * _BYTES_PER_STREAM)]
    for number, (kind, content) in enumerate(blocks):
        is_last = number == len(blocks) - 1
        parts += [(is_last | kind << 1 | len(content) << 3).to_bytes(3, "little"), content]
    return b"".join(parts)


def _block(data: np.ndarray) -> tuple[int, bytes]:
    """A compressed block of literals alone (sections 3.1.1.3.1 and 3.1.1.3.2): code, three sizes, four streams, no sequences; few digits as they are."""
    if len(data) < _FEW_BYTES:
        return _RAW, data.tobytes().hex().encode()
    size = len(data) // 4
    streams = np.empty((4, size + 1), np.uint8)
    streams[:, :size] = data.reshape(4, size)[:, ::-1]
    streams[:, size] = 1
    content = _CODE + (size + 1).to_bytes(2, "little") * 3 + streams.tobytes()
    # compressed, four streams, the sizes after and before
    header = 2 | 3 << 2 | 2 * len(data) << 4 | len(content) << 22
    return _COMPRESSED, header.to_bytes(5, "little") + content + b"\0"
