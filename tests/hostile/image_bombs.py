"""Images that are small as files and huge as anything else: pixels, frames, chunks, profiles, EXIF."""

import io
import struct
import zlib
from collections.abc import Mapping

from PIL import Image

from tests.hostile.files import picture
from tests.hostile.images import DAMAGED, chunk, entry, exif, image, jpeg_with, noise, png_with, riff, segment

TOO_MANY: Mapping[str, int] = {"image_too_many_pixels": 1}
TOO_SMALL: Mapping[str, int] = {"image_too_small": 1}
FRAMES = 10_000


def _png(width: int, height: int, bits: int, colours: int, rows: bytes = b"") -> bytes:
    """A PNG with this header, and rows as they are given."""
    header = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def _gif_of_frames() -> bytes:
    file = io.BytesIO()
    Image.new("P", (256, 256)).save(file, "gif")
    data = file.getvalue()
    start = data.rindex(b",\0\0\0\0")
    return data[:start] + data[start:-1] * FRAMES + b";"


def _apng_of_frames() -> bytes:
    data = picture(90)
    size = struct.pack(">II", 210, 220)
    pixels = data[33:-12]
    control = chunk(b"acTL", struct.pack(">II", FRAMES, 0))
    first = chunk(b"fcTL", struct.pack(">I", 0) + size + struct.pack(">IIHHBB", 0, 0, 1, 10, 0, 0))
    more = [
        chunk(b"fcTL", struct.pack(">I", 2 * number + 1) + struct.pack(">IIIIHHBB", 1, 1, 0, 0, 1, 10, 0, 0))
        + chunk(b"fdAT", struct.pack(">I", 2 * number + 2) + zlib.compress(b"\0\0"))
        for number in range(FRAMES - 1)
    ]
    return data[:33] + control + first + pixels + b"".join(more) + data[-12:]


def _webp_of_frames() -> bytes:
    frame = picture(90, (256, 256), "webp", lossless=True)[12:]
    size = (255).to_bytes(3, "little") * 2
    extended = _riff_chunk(b"VP8X", b"\x02\0\0\0" + size)
    animation = _riff_chunk(b"ANIM", bytes(6))
    each = _riff_chunk(b"ANMF", bytes(6) + size + (100).to_bytes(3, "little") + b"\0" + frame)
    return riff(extended, animation, each * FRAMES)


def _riff_chunk(kind: bytes, data: bytes) -> bytes:
    return kind + len(data).to_bytes(4, "little") + data + b"\0" * (len(data) % 2)


def _tiff_of_pages() -> bytes:
    """A TIFF of 2,000 directories, all of one strip."""
    data = noise("tiff")
    start = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[start : start + 2], "little")
    directory = data[start : start + 2 + 12 * count]
    out = data[:start] + b"\0" * (len(data[:start]) % 2)
    body, at = [], len(data)
    out = data + b"\0" * (at % 2)
    at = len(out)
    for _ in range(2_000):
        body.append(directory + (at + len(directory) + 4).to_bytes(4, "little"))
        at += len(directory) + 4
    out += b"".join(body)[:-4] + bytes(4)
    return (
        out[: start + 2 + 12 * count]
        + (len(data) + len(data) % 2).to_bytes(4, "little")
        + out[start + 6 + 12 * count :]
    )


def _exif_loop() -> bytes:
    """A JPEG whose EXIF directory follows itself, and points to itself."""
    loop = entry(0x8769, 4, 1, 8) + entry(0x8825, 4, 1, 8) + entry(0xA005, 4, 1, 8)
    return jpeg_with(segment(0xE1, b"Exif\0\0" + exif(loop, 3, following=8)))


def _webp_size(width: int, height: int) -> bytes:
    """A lossless WebP of noise whose header says another size."""
    data = bytearray(picture(90, (256, 256), "webp", lossless=True))
    at = data.index(b"VP8L") + 9
    data[at : at + 4] = (width - 1 | (height - 1) << 14).to_bytes(4, "little")
    return bytes(data)


def _commented_gif() -> bytes:
    file = io.BytesIO()
    Image.new("P", (256, 256)).save(file, "gif")
    data = file.getvalue()
    at = data.rindex(b",\0\0\0\0")
    return data[:at] + b"!\xfe" + (b"\xff" + b"c" * 255) * 200_000 + b"\0" + data[at:]


def _scans(times: int) -> bytes:
    data = noise("jpeg", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * times + data[-2:]


CASES = [
    image(
        "pixels-of-one-bit",
        "30,000 x 30,000 pixels of one bit, in 110 kB",
        lambda: _png(30_000, 30_000, 1, 0, bytes(3_751 * 30_000)),
        TOO_MANY,
    ),
    image(
        "pixels-in-the-header",
        "A PNG that says it has 2^31 x 2^31 pixels",
        lambda: _png(2**31 - 1, 2**31 - 1, 8, 6),
        TOO_MANY,
    ),
    image(
        "pixels-of-a-gif",
        "A GIF of 65,535 x 65,535 pixels",
        b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x02\x02L\x01\0;",
        TOO_MANY,
    ),
    image(
        "pixels-of-a-bmp",
        "A BMP that says it has 2^31 x 2^31 pixels",
        b"BM"
        + struct.pack("<IHHI", 54, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 2**31 - 1, 2**31 - 1, 1, 24, 0, 0, 0, 0, 0, 0),
        TOO_MANY,
    ),
    image(
        "pixels-of-a-tiff",
        "A TIFF that says it has 2^32 x 2^32 pixels",
        lambda: exif(
            entry(256, 4, 1, 2**32 - 1)
            + entry(257, 4, 1, 2**32 - 1)
            + entry(258, 3, 1, 8)
            + entry(262, 3, 1, 1)
            + entry(273, 4, 1, 8),
            5,
        ),
        TOO_MANY,
    ),
    image(
        "pixels-of-a-jpeg",
        "A JPEG whose header says 65,500 x 65,500",
        lambda: noise("jpeg").replace(struct.pack(">HH", 240, 260), struct.pack(">HH", 65_500, 65_500), 1),
        TOO_MANY,
    ),
    image("pixels-of-a-webp", "A WebP that says 16,383 x 16,383", lambda: _webp_size(16_383, 16_383), TOO_MANY),
    image("pixels-in-one-row", "A PNG of 100 million pixels in one row", lambda: _png(100_000_000, 1, 1, 0), DAMAGED),
    image(
        "pixels-within-the-limit",
        "9,000 x 9,000 pixels of one bit, 81 million, which are within the limit",
        lambda: _png(9_000, 9_000, 1, 0, bytes(1_126 * 9_000)),
    ),
    image("frames-of-a-gif", "A GIF of 10,000 frames: the first counts", _gif_of_frames),
    image("frames-of-a-png", "An animated PNG of 10,000 frames", _apng_of_frames),
    image("frames-of-a-webp", "An animated WebP of 10,000 frames", _webp_of_frames),
    image(
        "frames-that-are-not-there",
        "An animated PNG that says it has 2^31 frames",
        lambda: png_with(chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))),
    ),
    image("pages-of-a-tiff", "A TIFF of 2,000 pages", _tiff_of_pages),
    image("chunks-of-a-png", "100,000 chunks of text in a PNG", lambda: png_with(chunk(b"tEXt", b"k\0v") * 100_000)),
    image(
        "chunks-of-no-pixels",
        "100,000 empty chunks of pixels in a PNG",
        lambda: png_with(chunk(b"IDAT", b"") * 100_000),
    ),
    image(
        "text-bomb-in-a-png",
        "64 MB of text in a PNG, compressed to 64 kB",
        lambda: png_with(chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(64 << 20), 1))),
    ),
    image(
        "text-bombs-in-a-png",
        "100 times 1 MB of text in a PNG",
        lambda: png_with(chunk(b"zTXt", b"k\0\0" + zlib.compress(b"a" * 1_000_000)) * 100),
    ),
    image(
        "profile-bomb-in-a-png",
        "A colour profile of 64 MB in a PNG, compressed to 64 kB",
        lambda: png_with(chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(64 << 20), 1))),
    ),
    image(
        "profile-of-10-mb",
        "A colour profile of 10 MB in a JPEG",
        lambda: jpeg_with(
            *(segment(0xE2, b"ICC_PROFILE\0" + bytes([number, 160]) + bytes(65_000)) for number in range(1, 161))
        ),
    ),
    image(
        "profile-of-junk",
        "A colour profile of junk",
        lambda: jpeg_with(segment(0xE2, b"ICC_PROFILE\0\x01\x01" + b"junk" * 500)),
    ),
    image("comments-of-a-jpeg", "65,000 comments in a JPEG", lambda: jpeg_with(segment(0xFE, b"c") * 65_000)),
    image("comment-of-a-gif", "A GIF with a comment of 50 MB", _commented_gif, DAMAGED),
    image("scans-of-a-jpeg", "A progressive JPEG whose last scan is there 500 times", lambda: _scans(500)),
    image("exif-loop", "EXIF whose directories point to themselves", _exif_loop),
    image(
        "exif-beyond-count",
        "EXIF of 65,535 entries with values of 4 GB",
        lambda: jpeg_with(segment(0xE1, b"Exif\0\0" + exif(entry(0x0112, 3, 2**32 - 1, 2**32 - 1) * 5_000, 65_535))),
    ),
    image(
        "exif-orientation-of-99",
        "An orientation that is none",
        lambda: jpeg_with(segment(0xE1, b"Exif\0\0" + exif(entry(0x0112, 3, 1, 99), 1))),
    ),
    image(
        "exif-orientation-of-text",
        "An orientation that is a text",
        lambda: jpeg_with(segment(0xE1, b"Exif\0\0" + exif(entry(0x0112, 2, 4, 0x00363636), 1))),
    ),
    image(
        "xmp-of-10-mb",
        "XMP of 10 MB in a PNG",
        lambda: png_with(chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(b"<x>" * 3_500_000, 1))),
    ),
    image("pixels-one", "One pixel", lambda: picture(90, (1, 1)), TOO_SMALL),
]
