"""Identities in columns: key and image_id of every row (for one: `altalign.data.key`), and a 64-bit image hash."""

from binascii import hexlify
from math import isqrt
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from altalign.filters.bits import ALL, Bytes, Hashes, Longs, address_of, copy, load8, load64
from altalign.filters.words import HASH_VERSION, text_buffers

IMAGE_HASH_VERSION = 1  # version of `image_hash`
HASH_VERSIONS = {"words": HASH_VERSION, "images": IMAGE_HASH_VERSION}  # stored in the JSON of each table of hashes


def image_hash(identities: pa.StringArray) -> Hashes:
    """Hash of each image identity (UTF-8), uint64[n]; 0 for nulls, which the caller masks."""
    hashes = np.empty(len(identities), np.uint64)
    _hash_rows(*text_buffers(identities), hashes)
    if identities.null_count:
        hashes[identities.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def image_ids(identities: pa.StringArray) -> Bytes:
    """image_id of every row, uint8[n, 16]; the bytes sort as their hex does. A null identity counts as empty."""
    return _digests(identities, None)


def ids(identities: pa.StringArray, captions: pa.StringArray) -> tuple[Bytes, Bytes]:
    """image_id and key of every row, each uint8[n, 16], of image identities and cleaned captions without nulls.

    The bytes sort as their hex does. A null identity counts as empty.

    Raises:
        ValueError: there are nulls among the captions, or not as many captions as identities.
    """
    if captions.null_count or len(captions) != len(identities):
        raise ValueError(
            f"keys of {len(identities)} identities, {len(captions)} captions, of these {captions.null_count} nulls: "
            "give one caption each"
        )
    return image_ids(identities), _digests(identities, captions)


def rows_of(ids: Bytes, rows: npt.NDArray[np.integer | np.bool_]) -> Bytes:
    """Some rows of uint8[n, 16]. Each is taken as one item, which needs an eighth of the time."""
    return ids.view("V16")[rows, 0].view(np.uint8).reshape(-1, 16)


def hexed(rows: Bytes, is_known: pa.BooleanArray | None = None) -> pa.StringArray:
    """The rows of uint8[n, 16] as strings of 32 lower-case hex digits; null where `is_known` (bool[n]) is false."""
    digits = hexlify(np.ascontiguousarray(rows).data)
    offsets = np.arange(0, len(digits) + 1, 32, dtype=np.int32)
    texts = pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets.data), pa.py_buffer(digits))
    if is_known is None or is_known.true_count == len(rows):
        return texts
    return pc.if_else(is_known, texts, pa.scalar(None, pa.string()))


def _digests(identities: pa.StringArray, captions: pa.StringArray | None) -> Bytes:
    """Digests of identity, zero byte and caption, uint8[n, 16]; without captions, of identities alone."""
    first = text_buffers(cast(pa.StringArray, identities.fill_null("")) if identities.null_count else identities)
    second = (first[0], np.zeros_like(first[1])) if captions is None else text_buffers(captions)
    digests = np.empty((len(identities), 2), np.uint64)
    _digest_rows(*first, *second, 0 if captions is None else 1, digests)
    return digests.view(np.uint8).reshape(-1, 16)


@njit(nogil=True, cache=True)
def _hash_rows(data: Bytes, offsets: Longs, hashes: Hashes) -> None:
    """Fill `hashes`, 8 bytes of text at a step; each step is MurmurHash3's finaliser (Appleby, public domain)."""
    address = address_of(data)
    for row in range(len(hashes)):
        at, end = offsets[row], offsets[row + 1]
        size = end - at
        h = np.uint64(size) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x2545F4914F6CDD1D)
        while at < end:
            if at + 8 <= end:
                word = load64(address, at)
            elif size >= 8:  # reads the last 8 bytes: memory may end with the text
                word = load64(address, end - 8) >> np.uint64(8 * (at + 8 - end))
            else:
                word = np.uint64(0)
                for i in range(size):
                    word |= np.uint64(load8(address, at + i)) << np.uint64(8 * i)
            h ^= word
            h = (h ^ (h >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
            h = (h ^ (h >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
            h ^= h >> np.uint64(33)
            at += 8
        hashes[row] = h


# BLAKE2b-128 (RFC 7693) of many short messages: `hashlib` gives the same digests, at twice the time -------------------

_BLOCK_BYTES, _BLOCK_WORDS = 128, 16
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
    return a, _turned(b ^ c, 63), c, d


@njit(nogil=True)
def _compress(state: Hashes, m: Hashes, size: np.uint64, last: np.uint64) -> None:
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
def _digest_rows(
    first: Bytes, first_offsets: Longs, second: Bytes, second_offsets: Longs, zeros: int, digests: Hashes
) -> None:
    """Fill `digests` (uint64[n, 2], little-endian) with those of n messages: `first`, so many zero bytes, `second`.

    Parts are bytes between offsets (int64[n + 1]).
    """
    first_at, second_at = address_of(first), address_of(second)
    state, words = np.empty(8, np.uint64), np.empty(_BLOCK_WORDS, np.uint64)
    for row in range(len(digests)):
        first_size = first_offsets[row + 1] - first_offsets[row]
        second_size = second_offsets[row + 1] - second_offsets[row]
        size = first_size + zeros + second_size
        blocks = max(1, -(-size // _BLOCK_BYTES))
        if _BLOCK_WORDS * blocks > len(words):
            words = np.empty(2 * _BLOCK_WORDS * blocks, np.uint64)
        words[: _BLOCK_WORDS * blocks] = 0
        at = address_of(words)
        copy(at, first_at + first_offsets[row], first_size)
        copy(at + first_size + zeros, second_at + second_offsets[row], second_size)
        state[:] = _START
        for block in range(blocks):
            is_last = block == blocks - 1
            end = np.uint64(size if is_last else _BLOCK_BYTES * (block + 1))
            _compress(state, words[_BLOCK_WORDS * block :], end, ALL if is_last else np.uint64(0))
        digests[row, 0], digests[row, 1] = state[0], state[1]
