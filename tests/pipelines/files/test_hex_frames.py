"""Frames of hex digits against a decoder that is not ours."""

import numpy as np
import pyarrow as pa
import pytest

from altalign.pipelines.files import hex_frames


def decoded(frame: bytes, size: int) -> bytes:
    return pa.Codec("zstd").decompress(frame, decompressed_size=size, asbytes=True)


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 100, 4_095, 4_096, 4_097, 8_192, 30_000])
@pytest.mark.parametrize(
    "head",
    [b"", b"\0", b"a head of some bytes" * 40, bytes(300_000)],
    ids=["no head", "a byte", "some", "more than a block"],
)
def test_a_frame_holds_its_head_and_the_digits(rows: int, head: bytes) -> None:
    digests = np.random.default_rng(rows).integers(0, 256, (rows, 16), np.uint8)
    expected = head + digests.tobytes().hex().encode()
    frame = hex_frames.frame(head, digests)
    assert decoded(frame, len(expected)) == expected
    assert len(frame) < len(head) + 16.1 * rows + 200 + 16 * min(rows, 8)


def test_a_head_alone() -> None:
    assert decoded(hex_frames.frame(b"head", np.zeros((0, 16), np.uint8)), 4) == b"head"


@pytest.mark.parametrize("byte", [0x00, 0x0F, 0xF0, 0xFF, 0xA9])
def test_digits_that_are_all_the_same(byte: int) -> None:
    digests = np.full((5_000, 16), byte, np.uint8)
    assert decoded(hex_frames.frame(b"", digests), 160_000) == b"%02x" % byte * 80_000


def test_rows_that_do_not_lie_side_by_side() -> None:
    digests = np.random.default_rng(5).integers(0, 256, (500, 32), np.uint8)[::2, 16:]
    assert decoded(hex_frames.frame(b"", digests), 250 * 32) == digests.tobytes().hex().encode()
