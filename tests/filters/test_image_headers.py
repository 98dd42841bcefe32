"""Formats by their first bytes; what is refused before it is decoded."""

import io

import pytest
from PIL import Image

from altalign.filters.image_headers import opened, sniff
from altalign.filters.pixels import decode, peak_bytes, to_stored
from tests.support.pictures import FORMATS, encoded, picture


def test_formats_are_told_by_their_first_bytes() -> None:
    for kind in FORMATS:
        assert sniff(encoded(picture(), kind)) == kind
    assert sniff(b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf") == "avif"
    assert sniff(b"\0\0\0\x1cftypavis\0\0\0\0avis") == "avif"
    assert sniff(encoded(picture(), "tiff", big_tiff=True)) == "tiff"


def test_an_opened_image_has_its_size() -> None:
    for kind in FORMATS:
        image, width, height = opened(kind, encoded(picture(40, 30), kind))
        assert (width, height) == image.size == (40, 30)


def commented_gif(comment_bytes: int) -> bytes:
    """A GIF with so many bytes of comments, in blocks of 256, before its frame."""
    file = io.BytesIO()
    Image.new("P", (40, 30)).save(file, "gif")
    data = file.getvalue()
    at = data.index(b",", 13 + 3 * (2 << (data[10] & 7)))  # behind the palette: where the frame begins
    return data[:at] + b"!\xfe" + (b"\xff" + b"c" * 255) * (comment_bytes // 256) + b"\0" + data[at:]


def test_a_gif_with_too_much_before_its_first_frame_is_refused_by_all_that_opens_it() -> None:
    data = commented_gif((1 << 20) + 256)
    assert "bytes before the first frame" in (decode(data, pixels_at_most=10_000, colour=False).damage or "")
    assert peak_bytes(data, colour=False) == 0
    with pytest.raises(ValueError, match="bytes before the first frame"):
        to_stored(data, portable=False, resize_short_side_px=0)
    assert to_stored(commented_gif(4_096), portable=False, resize_short_side_px=0).format == "gif"


def test_what_libtiff_says_of_damage_is_not_printed_by_us_and_is_by_others(capfd: pytest.CaptureFixture[str]) -> None:
    data = bytearray(encoded(picture(), "tiff", compression="tiff_adobe_deflate"))
    data[200:300] = bytes(100)
    found = decode(bytes(data), pixels_at_most=100_000, colour=False)
    assert found.damage
    assert capfd.readouterr() == ("", "")
    with pytest.raises(OSError, match="decoder error"):
        Image.open(io.BytesIO(bytes(data))).load()
    assert "Decoding error" in capfd.readouterr().err
