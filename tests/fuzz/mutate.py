"""Damages real inputs as disks, networks and people with bad intentions do; the same random numbers give the same
damage.
"""

import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from random import Random

BYTES_AT_MOST = 1 << 16  # no input is grown beyond it

_NUMBERS = (
    0,
    1,
    -1,
    7,
    127,
    128,
    255,
    256,
    32_767,
    65_535,
    65_536,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
_DIGITS = re.compile(rb"-?[0-9]+")
_CONTENT_LENGTH = re.compile(rb"(?i)(content-length:[ \t]*)[^\r\n]*")
_PNG = b"\x89PNG\r\n\x1a\n"


def mutate(data: bytes, rng: Random, *, tokens: Sequence[bytes] = (b"\0",), others: Sequence[bytes] = ()) -> bytes:
    """The input with one change, often two, seldom many.

    Args:
        data: a whole input.
        rng: the only source of chance.
        tokens: strings that mean something in this format.
        others: inputs of the same format, to splice with.
    """
    for _ in range(min(1 + int(rng.expovariate(1.0)), 8)):
        change = rng.choice(_CHANGES)
        data = change(data, rng, tokens, others)[:BYTES_AT_MOST]
    return data


def with_png_checksums(data: bytes) -> bytes:
    """A PNG whose chunks have the checksums of what they hold now, so that damage gets past the first check."""
    if not data.startswith(_PNG):
        return data
    parts, at = [_PNG], len(_PNG)
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            break
        parts += [data[at:end], struct.pack(">I", zlib.crc32(data[at + 4 : end]))]
        at = end + 4
    return b"".join([*parts, data[at:]])


def with_content_length(record: bytes) -> bytes:
    """A WARC record whose Content-Length is that of its block now."""
    head, separator, block = record.partition(b"\r\n\r\n")
    if not separator:
        return record
    length = len(block.removesuffix(b"\r\n\r\n"))
    return _CONTENT_LENGTH.sub(lambda match: match[1] + b"%d" % length, head, count=1) + separator + block


def common_ends(before: bytes, after: bytes) -> tuple[int, int]:
    """How many bytes at the start, and at the end, a mutation left as they were."""
    return _equal(before, after), _equal(before[::-1], after[::-1])


def members_of(archive: bytes) -> Iterator[bytes]:
    """The gzip members of a file, one by one, as they stand in it."""
    while archive:
        inflater = zlib.decompressobj(31)
        inflater.decompress(archive)
        end = len(archive) - len(inflater.unused_data)
        yield archive[:end]
        archive = archive[end:]


def _equal(a: bytes, b: bytes) -> int:
    """Length of the longest prefix of both."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low


def _place(data: bytes, rng: Random) -> int:
    return rng.randrange(len(data) + 1)


def _block(data: bytes, rng: Random) -> slice:
    """A block of any order of magnitude of length."""
    start = _place(data, rng)
    length = int(2 ** rng.uniform(0, max(1, len(data)).bit_length()))
    return slice(start, min(len(data), start + length))


def _put(data: bytes, where: slice, new: bytes) -> bytes:
    return data[: where.start] + new + data[where.stop :]


def _flip_bit(data: bytes, rng: Random, *_: object) -> bytes:
    if not data:
        return b"\x01"
    at = rng.randrange(len(data))
    return _put(data, slice(at, at + 1), bytes([data[at] ^ 1 << rng.randrange(8)]))


def _set_byte(data: bytes, rng: Random, *_: object) -> bytes:
    at = _place(data, rng)
    return _put(
        data,
        slice(at, at + 1),
        bytes([rng.choice((0, 9, 10, 13, 32, 34, 38, 60, 62, 127, 128, 255, rng.randrange(256)))]),
    )


def _fill_block(data: bytes, rng: Random, *_: object) -> bytes:
    where = _block(data, rng)
    return _put(data, where, bytes([rng.choice((0, 0, 255, rng.randrange(256)))]) * (where.stop - where.start))


def _delete_block(data: bytes, rng: Random, *_: object) -> bytes:
    return _put(data, _block(data, rng), b"")


def _repeat_block(data: bytes, rng: Random, *_: object) -> bytes:
    where = _block(data, rng)
    block = data[where]
    times = rng.choice((2, 2, 3, 10, 1_000))
    return _put(data, where, block * min(times, 1 + BYTES_AT_MOST // max(1, len(block))))


def _swap_blocks(data: bytes, rng: Random, *_: object) -> bytes:
    one, other = sorted((_block(data, rng), _block(data, rng)), key=lambda each: (each.start, each.stop))
    if one.stop > other.start:
        return data
    return data[: one.start] + data[other] + data[one.stop : other.start] + data[one] + data[other.stop :]


def _copy_block(data: bytes, rng: Random, *_: object) -> bytes:
    return _put(data, slice(at := _place(data, rng), at), data[_block(data, rng)])


def _truncate(data: bytes, rng: Random, *_: object) -> bytes:
    return data[: _place(data, rng)] if rng.random() < 0.8 else data[_place(data, rng) :]


def _insert_junk(data: bytes, rng: Random, *_: object) -> bytes:
    return _put(data, slice(at := _place(data, rng), at), rng.randbytes(int(2 ** rng.uniform(0, 12))))


def _token(data: bytes, rng: Random, tokens: Sequence[bytes], _others: object) -> bytes:
    token, at = rng.choice(tokens), _place(data, rng)
    return _put(data, slice(at, at + rng.choice((0, len(token)))), token * rng.choice((1, 1, 1, 1, 2, 50)))


def _number_in_text(data: bytes, rng: Random, *_: object) -> bytes:
    start = _place(data, rng)
    found = _DIGITS.search(data, start) or _DIGITS.search(data)
    if found is None:
        return data
    value = int(found[0][:18])
    return _put(
        data, slice(*found.span()), b"%d" % rng.choice((value + 1, value - 1, value * 2, value // 2, -value, *_NUMBERS))
    )


def _number_in_bytes(data: bytes, rng: Random, *_: object) -> bytes:
    """A length field, most often near the start, set or moved by a little."""
    width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    at = int(len(data) * rng.random() ** 3)
    old = int.from_bytes(data[at : at + width], order)
    value = rng.choice((old + 1, old - 1, old * 2, old // 2, *_NUMBERS)) % (1 << 8 * width)
    return _put(data, slice(at, at + width), value.to_bytes(width, order))


def _splice(data: bytes, rng: Random, _tokens: object, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others) if others else data
    return data[: _place(data, rng)] + other[_place(other, rng) :]


def _append(data: bytes, rng: Random, _tokens: object, others: Sequence[bytes]) -> bytes:
    return data + (rng.choice(others) if others else data)


_Change = Callable[[bytes, Random, Sequence[bytes], Sequence[bytes]], bytes]
_CHANGES: tuple[_Change, ...] = (
    _flip_bit,
    _flip_bit,
    _set_byte,
    _set_byte,
    _fill_block,
    _delete_block,
    _repeat_block,
    _swap_blocks,
    _copy_block,
    _truncate,
    _insert_junk,
    _token,
    _token,
    _number_in_text,
    _number_in_bytes,
    _number_in_bytes,
    _splice,
    _append,
)
