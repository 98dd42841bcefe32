"""Content encodings: taken off whole, or said to be broken; never more than the limit."""

import gzip
import zlib
from collections.abc import Callable
from contextlib import suppress

import brotli
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.pipelines.read.coding import CodingError, decoded

ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": lambda body: pa.compress(body, "zstd", asbytes=True),
    "identity": lambda body: body,
}


@given(
    body=st.binary(min_size=1, max_size=2_000),
    encodings=st.lists(st.sampled_from(list(ENCODERS)), max_size=3),
    spaces=st.sampled_from(["", " ", "\t"]),
)
def test_what_was_encoded_comes_back(body: bytes, encodings: list[str], spaces: str) -> None:
    encoded = body
    for encoding in encodings:
        encoded = ENCODERS[encoding](encoded)
    assert decoded(encoded, f"{spaces},{spaces}".join(encodings).upper(), 10_000) == body


@pytest.mark.parametrize("encoding", [name for name in ENCODERS if name != "identity"])
def test_more_than_the_limit_is_one_byte_more(encoding: str) -> None:
    encoded = ENCODERS[encoding](bytes(5_000_000))
    assert len(decoded(encoded, encoding, 1_000)) == 1_001
    assert len(decoded(encoded, encoding, 5_000_000)) == 5_000_000


@pytest.mark.parametrize("encoding", [name for name in ENCODERS if name != "identity"])
@given(cut=st.integers(1, 60))
def test_what_is_cut_is_broken(encoding: str, cut: int) -> None:
    encoded = ENCODERS[encoding](bytes(range(256)) * 3)
    with pytest.raises(CodingError):
        decoded(encoded[:-cut], encoding, 10_000)


@given(body=st.binary(max_size=200), encoding=st.sampled_from(["gzip", "deflate", "br", "zstd"]))
def test_any_bytes_are_decoded_or_refused(body: bytes, encoding: str) -> None:
    found = b""
    with suppress(CodingError):
        found = decoded(body, encoding, 1_000)
    assert len(found) <= 1_001


UNKNOWN = ["utf-8", "binary", "none", "aws-chunked", "image/jpeg", "compress", "pack200-gzip", "7bit", "gzip;q=1", "é"]


@given(
    names=st.lists(st.sampled_from([*UNKNOWN, "", "identity"])),
    known=st.sampled_from(["", "gzip", "X-GZip", "deflate", "br", "zstd"]),
    body=st.binary(max_size=50).map(lambda rest: b"\xff\xd8" + rest),
)
def test_an_encoding_that_is_not_known_leaves_the_body(names: list[str], known: str, body: bytes) -> None:
    value = ", ".join([*names, UNKNOWN[0], known])
    assert decoded(body, value, 100) == body
    if known.lower() in ("gzip", "x-gzip", "zstd"):
        assert decoded(ENCODERS[known.lower().removeprefix("x-")](body), value, 100) == body


def test_more_encodings_than_three_are_refused() -> None:
    with pytest.raises(CodingError):
        decoded(b"x", "gzip, gzip, gzip, gzip", 100)


def test_what_follows_gzip_is_left_out() -> None:
    assert decoded(gzip.compress(b"image") + b"\0\0\0", "gzip", 100) == b"image"


def test_gzip_of_few_members_is_read_and_of_many_is_refused_at_once() -> None:
    """Each member copies what follows it: all of these would take minutes, in which nothing else comes."""
    assert decoded(gzip.compress(b"a") * 64, "gzip", 100) == b"a" * 64
    with pytest.raises(CodingError, match="more than 64 members"):
        decoded(gzip.compress(b"") * 1_000_000, "gzip", 20_000_000)
