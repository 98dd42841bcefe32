"""Identities in columns: the key and image_id of every row (as `altalign.key` has them for one), and a 64-bit hash of the image."""

import numpy as np
import pyarrow as pa
from numba import njit

IMAGE_HASH_VERSION = 1  # of `image_hash`, in the JSON of each table that holds such hashes

_IV = np.array(
    [
        0x6A09E667F3BCC908,
        0xBB67AE8584CAA73B,
        0x3C6EF372FE94F82B,
        0xA54FF53A5F1D36F1,
        0x510E527FADE682D1,
        0x9B05688C2B3E6C1F,
        0x1F83D9ABFB41BD6B,
        0x5BE0CD19137E2179,
    ],
    np.uint64,
)  # RFC 7693, section 2.6
_SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    ],
    np.uint8,
)  # RFC 7693, section 2.7; the last two rounds repeat the first two
_PARAMETERS = np.uint64(0x01010010)  # fan-out 1, depth 1, no key, digest of 16 bytes
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def image_hash(identities: pa.StringArray) -> np.ndarray:
    """Hash of each image identity (UTF-8): uint64[n]; 0 where it is null, which the caller masks."""
    data, offsets = _buffers(identities)
    hashes = np.empty(len(identities), np.uint64)
    _hash_rows(data, offsets, hashes)
    if identities.null_count:
        hashes[identities.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def ids(identities: pa.StringArray, captions: pa.StringArray | None) -> tuple[np.ndarray, np.ndarray]:
    """image_id and key of every row, each uint8[n, 16], whose bytes sort as their hex does.

    Args:
        identities: image identities; null counts as the empty one.
        captions: cleaned captions without nulls; None where no keys are wanted (they are then those of empty captions).
    """
    if captions is None:
        captions = pa.repeat(pa.scalar(""), len(identities))
    id_data, id_offsets = _buffers(identities.fill_null("") if identities.null_count else identities)
    data, offsets = _buffers(captions)
    image_ids, keys = np.empty((len(identities), 2), np.uint64), np.empty((len(identities), 2), np.uint64)
    _blake2b_rows(id_data, id_offsets, data, offsets, image_ids, keys, _IV, _SIGMA)
    return image_ids.view(np.uint8).reshape(-1, 16), keys.view(np.uint8).reshape(-1, 16)


def hexed(rows: np.ndarray) -> pa.StringArray:
    """uint8[n, 16] -> n strings of 32 lower-case hex digits."""
    digits = np.empty((len(rows), 32), np.uint8)
    digits[:, 0::2], digits[:, 1::2] = _HEX[rows >> 4], _HEX[rows & 15]
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * 32
    return pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(digits))


def _buffers(texts: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and int64 offsets of an Arrow string array, slices included."""
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, offsets, data = texts.buffers()
    if offsets is None or not len(texts):
        return np.zeros(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    ends = np.frombuffer(offsets, width)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8), ends


@njit(nogil=True, cache=True)
def _word(data: np.ndarray, at: int, size: int) -> int:
    """Up to 8 bytes from `at` as a little-endian number."""
    word = np.uint64(0)
    for i in range(min(size, 8)):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@njit(nogil=True, cache=True)
def _hash_rows(data: np.ndarray, offsets: np.ndarray, hashes: np.ndarray) -> None:
    """xor, multiply and shift over 8 bytes at a time; the finaliser of MurmurHash3 (Appleby, public domain) at each step."""
    for row in range(len(hashes)):
        begin, end = offsets[row], offsets[row + 1]
        h = np.uint64(end - begin) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x2545F4914F6CDD1D)
        for at in range(begin, end, 8):
            h ^= _word(data, at, end - at)
            h ^= h >> np.uint64(33)
            h *= np.uint64(0xFF51AFD7ED558CCD)
            h ^= h >> np.uint64(33)
            h *= np.uint64(0xC4CEB9FE1A85EC53)
            h ^= h >> np.uint64(33)
        hashes[row] = h


@njit(nogil=True, cache=True)
def _blake2b_rows(
    id_data: np.ndarray, id_offsets: np.ndarray, data: np.ndarray, offsets: np.ndarray, image_ids: np.ndarray, keys: np.ndarray, iv: np.ndarray, sigma: np.ndarray
) -> None:
    """BLAKE2b-128 of the identity, and of identity, zero byte, caption, for all rows."""
    words, state = np.zeros(16, np.uint64), np.empty(8, np.uint64)
    block = words.view(np.uint8)
    for row in range(len(image_ids)):
        a, b, c, d = id_offsets[row], id_offsets[row + 1], offsets[row], offsets[row + 1]
        for is_key in range(2):
            size = b - a + is_key * (1 + d - c)
            state[:] = iv
            state[0] ^= _PARAMETERS
            blocks = max(1, (size + 127) // 128)
            for number in range(blocks):
                _fill(block, number * 128, id_data, a, b, data, c, d, is_key)
                _compress(state, words, min(size, (number + 1) * 128), number + 1 == blocks, iv, sigma)
            out = keys if is_key else image_ids
            out[row, 0], out[row, 1] = state[0], state[1]


@njit(nogil=True, cache=True)
def _fill(block: np.ndarray, skip: int, id_data: np.ndarray, a: int, b: int, data: np.ndarray, c: int, d: int, is_key: int) -> None:
    """One block of 128 bytes of the message, from byte `skip` on, zeros behind its end."""
    size = b - a
    end = max(0, min(128, size - skip))
    for i in range(end):
        block[i] = id_data[a + skip + i]
    if is_key:
        if end < 128 and skip + end == size:
            block[end] = 0
            end += 1
        begin, first = c + skip + end - size - 1, end  # where the caption goes on
        end += max(0, min(128 - end, d - begin))
        for i in range(first, end):
            block[i] = data[begin + i - first]
    for i in range(end, 128):
        block[i] = 0


@njit(nogil=True, inline="always")
def _mix(a: int, b: int, c: int, d: int, x: int, y: int) -> tuple[int, int, int, int]:
    a = a + b + x
    d ^= a
    d = (d >> np.uint64(32)) | (d << np.uint64(32))
    c = c + d
    b ^= c
    b = (b >> np.uint64(24)) | (b << np.uint64(40))
    a = a + b + y
    d ^= a
    d = (d >> np.uint64(16)) | (d << np.uint64(48))
    c = c + d
    b ^= c
    b = (b >> np.uint64(63)) | (b << np.uint64(1))
    return a, b, c, d


@njit(nogil=True, cache=True)
def _compress(h: np.ndarray, m: np.ndarray, counted: int, is_last: bool, iv: np.ndarray, sigma: np.ndarray) -> None:
    """RFC 7693, section 3.2."""
    v0, v1, v2, v3, v4, v5, v6, v7 = h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]
    v8, v9, va, vb, vc, vd, ve, vf = iv[0], iv[1], iv[2], iv[3], iv[4] ^ np.uint64(counted), iv[5], iv[6], iv[7]
    if is_last:
        ve = ~ve
    for r in range(12):
        s = sigma[r]
        v0, v4, v8, vc = _mix(v0, v4, v8, vc, m[s[0]], m[s[1]])
        v1, v5, v9, vd = _mix(v1, v5, v9, vd, m[s[2]], m[s[3]])
        v2, v6, va, ve = _mix(v2, v6, va, ve, m[s[4]], m[s[5]])
        v3, v7, vb, vf = _mix(v3, v7, vb, vf, m[s[6]], m[s[7]])
        v0, v5, va, vf = _mix(v0, v5, va, vf, m[s[8]], m[s[9]])
        v1, v6, vb, vc = _mix(v1, v6, vb, vc, m[s[10]], m[s[11]])
        v2, v7, v8, vd = _mix(v2, v7, v8, vd, m[s[12]], m[s[13]])
        v3, v4, v9, ve = _mix(v3, v4, v9, ve, m[s[14]], m[s[15]])
    for i, x in enumerate((v0 ^ v8, v1 ^ v9, v2 ^ va, v3 ^ vb, v4 ^ vc, v5 ^ vd, v6 ^ ve, v7 ^ vf)):
        h[i] ^= x
