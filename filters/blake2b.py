"""The kernel behind `altalign.filters.identity.ids`: BLAKE2b-128 (RFC 7693) of many short messages.

A message is `first`, or `first`, a zero byte and `second`. `hashlib` gives the same digests, at twice the time.
"""

from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from altalign.filters.bits import ALL, address_of, copy, fill

BLOCK_BYTES, BLOCK_WORDS = 128, 16
Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
# RFC 7693, section 2.6: the fractional parts of the square roots of the first eight primes
_IV = np.array([isqrt(prime << 128) & (2**64 - 1) for prime in (2, 3, 5, 7, 11, 13, 17, 19)], np.uint64)
_START = _IV ^ np.array([0x01010010] + [0] * 7, np.uint64)  # fan-out 1, depth 1, no key, digest of 16 bytes
# section 2.7: the order of the words in each round, as hexadecimal digits; the last two rounds repeat the first two
_ROUNDS = (
    "0123456789abcdef ea489fd61c02b753 b8c052fdae367194 7931dcbe265a40f8 905724afe1bc683d 2c6a0b834d75fe19 "
    "c51fed4a0763928b db7ec13950f4862a 6fe9b308c2d714a5 a2847615fb9e3cd0 0123456789abcdef ea489fd61c02b753"
)
# unsigned: a signed index costs a comparison
_SIGMA = np.array([[int(digit, 16) for digit in each] for each in _ROUNDS.split()], np.uint64)


@njit(nogil=True, inline="always")
def _turned(x: Any, bits: int) -> Any:
    return (x >> np.uint64(bits)) | (x << np.uint64(64 - bits))


@njit(nogil=True)
def _mix(a: Any, b: Any, c: Any, d: Any, x: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Section 3.1, over uint64."""
    a = a + b + x
    d = _turned(d ^ a, 32)
    c = c + d
    b = _turned(b ^ c, 24)
    a = a + b + y
    d = _turned(d ^ a, 16)
    c = c + d
    b = _turned(b ^ c, 63)
    return a, b, c, d


@njit(nogil=True)
def _compress(state: Words, m: Words, size: np.uint64, last: np.uint64) -> None:
    """Section 3.2: a block, with the message's bytes up to its end, and all ones if it is the last."""
    v0, v1, v2, v3, v4, v5, v6, v7 = state  # variables, which stay in registers
    v8, v9, v10, v11, v12, v13, v14, v15 = _IV
    v12, v14 = v12 ^ size, v14 ^ last
    for number in range(12):
        s = _SIGMA[number]
        v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m[s[0]], m[s[1]])
        v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m[s[2]], m[s[3]])
        v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m[s[4]], m[s[5]])
        v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m[s[6]], m[s[7]])
        v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m[s[8]], m[s[9]])
        v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m[s[10]], m[s[11]])
        v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m[s[12]], m[s[13]])
        v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m[s[14]], m[s[15]])
    for k, word in enumerate((v0 ^ v8, v1 ^ v9, v2 ^ v10, v3 ^ v11, v4 ^ v12, v5 ^ v13, v6 ^ v14, v7 ^ v15)):
        state[k] ^= word


@njit(nogil=True, cache=True)
def hash_rows(first: Bytes, first_offsets: Offsets, second: Bytes, second_offsets: Offsets, digests: Words) -> None:
    """Fill `digests` (uint64[n, 2], little-endian) with those of n messages.

    Parts are bytes between offsets (int64[n + 1]). Where `second_offsets` is empty, a message is its first part alone.
    """
    first_at, second_at = address_of(first), address_of(second)
    state, words = np.empty(8, np.uint64), np.empty(BLOCK_WORDS, np.uint64)
    for row in range(len(digests)):
        first_size = first_offsets[row + 1] - first_offsets[row]
        second_size = second_offsets[row + 1] - second_offsets[row] if second_offsets.size else -1
        size = first_size + 1 + second_size
        blocks = max(1, -(-size // BLOCK_BYTES))
        if BLOCK_WORDS * blocks > len(words):
            words = np.empty(2 * BLOCK_WORDS * blocks, np.uint64)
        at = address_of(words)
        fill(at + BLOCK_BYTES * (blocks - 1), BLOCK_BYTES, np.uint8(0))  # what follows the message
        copy(at, first_at + first_offsets[row], first_size)
        if second_size >= 0:
            fill(at + first_size, 1, np.uint8(0))
            copy(at + first_size + 1, second_at + second_offsets[row], second_size)
        state[:] = _START
        for block in range(blocks):
            is_last = block == blocks - 1
            end = np.uint64(size if is_last else BLOCK_BYTES * (block + 1))
            _compress(state, words[BLOCK_WORDS * block :], end, ALL if is_last else np.uint64(0))
        digests[row, 0], digests[row, 1] = state[0], state[1]
