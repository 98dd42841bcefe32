"""Images that are cut, corrupt, of another format than they say, or of none."""

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from functools import cache

import numpy as np
from PIL import Image

from tests.hostile.cases import NONE, Case
from tests.hostile.files import Content, gzipped, host, made, picture, warc
from tests.hostile.pages import CAPTION, SHOWN
from tests.pipelines.read.pages.archives import response

DAMAGED: Mapping[str, int] = {"image_damaged": 1}
UNDECODABLE: Mapping[str, int] = {"image_undecodable": 1}
KINDS = ("jpeg", "png", "gif", "webp", "avif", "bmp", "tiff")


def image(
    name: str, about: str, data: Content, dropped: Mapping[str, int] = NONE, media_type: str = "image/png"
) -> Case:
    """A case that is an image, which a good page shows; it is kept where nothing drops it."""

    def build() -> bytes:
        shows = gzipped(response(f"{host(name)}/page", SHOWN))
        return warc(name, shows, gzipped(response(f"{host(name)}/it.png", made(data), media_type)))

    return Case(name, about, "warc", ".warc.gz", build, dropped, () if dropped else (CAPTION,))


@cache
def noise(kind: str, size: tuple[int, int] = (260, 240), **options: object) -> bytes:
    """A good image whose bytes spread over all of it."""
    values = np.arange(size[0] * size[1] * 3, dtype=np.uint32) * 2_654_435_761 >> 20
    file = io.BytesIO()
    Image.fromarray(values.astype(np.uint8).reshape(size[1], size[0], 3)).save(file, kind, **options)
    return file.getvalue()


def spoilt(data: bytes) -> bytes:
    """The same with every third of its middle bytes turned round."""
    third = len(data) // 3
    middle = bytes(byte ^ 0xFF if at % 3 == 0 else byte for at, byte in enumerate(data[third : 2 * third]))
    return data[:third] + middle + data[2 * third :]


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def png_with(*chunks: bytes, data: bytes | None = None) -> bytes:
    """A good PNG with chunks behind its first."""
    data = data or picture(90)
    return data[:33] + b"".join(chunks) + data[33:]


def jpeg_with(*segments: bytes) -> bytes:
    """A good JPEG with segments behind its first two bytes."""
    data = noise("jpeg")
    return data[:2] + b"".join(segments) + data[2:]


def segment(marker: int, data: bytes) -> bytes:
    """A segment of a JPEG."""
    return bytes([0xFF, marker]) + (len(data) + 2).to_bytes(2, "big") + data


def exif(entries: bytes, count: int, following: int = 0) -> bytes:
    """A TIFF of one directory: of so many entries, and where the next directory is."""
    return b"II*\0\x08\0\0\0" + count.to_bytes(2, "little") + entries + following.to_bytes(4, "little")


def entry(tag: int, kind: int, count: int, value: int) -> bytes:
    """An entry of such a directory."""
    return struct.pack("<HHII", tag, kind, count, value)


def riff(*chunks: bytes) -> bytes:
    """A WebP of these chunks."""
    body = b"WEBP" + b"".join(chunks)
    return b"RIFF" + len(body).to_bytes(4, "little") + body


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("a.txt"), "text")
    return file.getvalue()


def _tiff_loop() -> bytes:
    """A TIFF whose only directory follows itself."""
    data = bytearray(noise("tiff"))
    at = int.from_bytes(data[4:8], "little")
    entries = int.from_bytes(data[at : at + 2], "little")
    data[at + 2 + 12 * entries : at + 6 + 12 * entries] = at.to_bytes(4, "little")
    return bytes(data)


_CUT = [
    image(
        f"{kind}-cut",
        f"{kind.upper()} cut in its middle",
        lambda kind=kind: noise(kind)[: len(noise(kind)) // 2],
        DAMAGED,
        f"image/{kind}",
    )
    for kind in KINDS
]
_HEADS = [
    image(
        f"{kind}-head-alone",
        f"The first 30 bytes of a {kind.upper()}",
        lambda kind=kind: noise(kind)[:30],
        DAMAGED,
        f"image/{kind}",
    )
    for kind in KINDS
]
_SPOILT = [
    image(
        f"{kind}-corrupt",
        f"{kind.upper()} with its middle turned round",
        lambda kind=kind: spoilt(noise(kind)),
        dropped,
        f"image/{kind}",
    )
    # the last two decode to another image
    for kind, dropped in (("jpeg", DAMAGED), ("png", DAMAGED), ("gif", DAMAGED), ("webp", NONE), ("avif", NONE))
]

_OTHER = [
    image(
        "png-wrong-checksum",
        "A PNG chunk with a wrong checksum",
        lambda: picture(90)[:-20] + b"\0\0\0\0" + picture(90)[-16:],
        DAMAGED,
    ),
    image(
        "png-header-twice",
        "A PNG with two headers of different sizes",
        lambda: png_with(picture(90, (400, 400))[8:33]),
        DAMAGED,
    ),
    image(
        "png-of-no-pixels",
        "A PNG of 0 x 0",
        lambda: picture(90)[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 0, 8, 0, 0, 0, 0)) + picture(90)[33:],
        DAMAGED,
    ),
    image("png-chunk-of-4-gb", "A PNG chunk that says it has 4 GB", lambda: png_with(b"\xff\xff\xff\xfftEXt"), DAMAGED),
    image(
        "png-of-a-wrong-depth",
        "A PNG of 99 bits a sample",
        lambda: picture(90)[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", 210, 220, 99, 0, 0, 0, 0)) + picture(90)[33:],
        DAMAGED,
    ),
    image(
        "png-without-pixels", "A PNG without a chunk of pixels", lambda: picture(90)[:33] + chunk(b"IEND", b""), DAMAGED
    ),
    image(
        "png-too-few-pixels",
        "A PNG whose pixels end before their last row, which the decoder does not tell",
        lambda: picture(90)[:33] + chunk(b"IDAT", zlib.compress(bytes(211 * 100))) + chunk(b"IEND", b""),
    ),
    image(
        "png-more-pixels",
        "A PNG with more pixels than its header has room for",
        lambda: picture(90)[:33] + chunk(b"IDAT", zlib.compress(bytes(211 * 900))) + chunk(b"IEND", b""),
    ),
    image(
        "jpeg-without-tables",
        "A JPEG whose tables are missing",
        lambda: noise("jpeg")[:2] + noise("jpeg")[noise("jpeg").index(b"\xff\xc0") :],
        DAMAGED,
    ),
    image("jpeg-without-end", "A JPEG without its end marker alone", lambda: noise("jpeg")[:-2], DAMAGED),
    image("jpeg-with-junk-behind-it", "A JPEG with 1 MB of junk behind it", lambda: noise("jpeg") + b"junk" * 250_000),
    image(
        "jpeg-with-markers-of-nothing",
        "A JPEG with 100,000 fill bytes",
        lambda: noise("jpeg")[:2] + b"\xff" * 100_000 + noise("jpeg")[3:],
    ),
    image(
        "gif-frame-outside",
        "A GIF whose frame lies outside its screen, which grows by it",
        lambda: _gif(left=1_000),
        {"image_too_elongated": 1},
    ),
    image("gif-without-frames", "A GIF without a frame", lambda: _gif()[:13] + b";", DAMAGED),
    image(
        "webp-sizes-that-lie",
        "A WebP that says it is longer than it is",
        lambda: noise("webp")[:4] + b"\xff\xff\xff\x7f" + noise("webp")[8:],
        DAMAGED,
    ),
    image("webp-of-nothing", "A WebP without a chunk", lambda: riff(), DAMAGED),
    image("bmp-negative-height", "A BMP from top to bottom, whose height is negative", lambda: _bmp(height=-220)),
    image("bmp-of-run-lengths", "A BMP of run lengths that end at once", lambda: _bmp(compression=1, bits=8), DAMAGED),
    image("tiff-loop", "A TIFF whose directory follows itself: only the first image counts", _tiff_loop),
    image(
        "tiff-of-any-offset", "A TIFF whose directory is beyond its end", b"II*\0\xff\xff\xff\x7f" + bytes(40), DAMAGED
    ),
    image(
        "tiff-of-65535-entries",
        "A TIFF that says it has 65,535 entries",
        lambda: exif(entry(256, 4, 1, 300), 65_535),
        DAMAGED,
    ),
    image(
        "tiff-strips-everywhere",
        "A TIFF of a billion strips",
        lambda: exif(
            b"".join(entry(tag, 4, 1, 300) for tag in (256, 257))
            + entry(273, 4, 1 << 30, 8)
            + entry(279, 4, 1 << 30, 8),
            4,
        ),
        DAMAGED,
    ),
]

_POLYGLOTS = [
    image(
        "svg",
        "An SVG",
        b'<svg xmlns="http://www.w3.org/2000/svg" width="300" height="300"/>',
        UNDECODABLE,
        "image/svg+xml",
    ),
    image("html-named-jpeg", "A page called `.jpg`", SHOWN, UNDECODABLE, "image/jpeg"),
    image("pdf-named-jpeg", "A PDF called `.jpg`", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj", UNDECODABLE, "image/jpeg"),
    image(
        "video-named-heic",
        "A video, of the same container as AVIF and HEIC",
        b"\0\0\0\x18ftypisom\0\0\2\0isomiso2" + bytes(200),
        UNDECODABLE,
        "image/heic",
    ),
    image(
        "jpeg-2000",
        "A JPEG 2000, which we do not read",
        b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(200),
        UNDECODABLE,
        "image/jp2",
    ),
    image("icon", "An icon, which we do not read", b"\0\0\1\0\1\0\x10\x10" + bytes(200), UNDECODABLE, "image/x-icon"),
    image(
        "postscript",
        "PostScript, which some libraries run",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 300 300\n",
        UNDECODABLE,
        "application/postscript",
    ),
    image("text-named-png", "A text", b"not an image at all", UNDECODABLE),
    image(
        "text-that-begins-with-bm",
        "A text that begins as BMP does",
        b"BMW builds cars, and this is no image of one",
        UNDECODABLE,
    ),
    image("png-behind-a-space", "A PNG with a byte before it", lambda: b" " + picture(90), UNDECODABLE),
    image(
        "gif-that-is-javascript",
        "A GIF that is a script, too: a small image",
        b"GIF89a/*\0\0\0\0\0;*/=1;alert(1);",
        DAMAGED,
        "image/gif",
    ),
    image("jpeg-that-is-a-zip", "A JPEG with a ZIP behind it", lambda: noise("jpeg") + _zip(), NONE, "image/jpeg"),
    image(
        "png-with-a-script",
        "A PNG with a script in its text",
        lambda: png_with(chunk(b"tEXt", b"Comment\0<script>alert(1)</script>")),
        NONE,
        "text/html",
    ),
    image("jpeg-named-png", "A JPEG called PNG", lambda: noise("jpeg"), NONE, "image/png"),
]


def _gif(left: int = 0) -> bytes:
    """A GIF of 256 x 256 pixels, its frame so far from the left."""
    file = io.BytesIO()
    Image.new("P", (256, 256)).save(file, "gif")
    data = bytearray(file.getvalue())
    at = data.rindex(b",\0\0\0\0")
    data[at + 1 : at + 3] = left.to_bytes(2, "little")
    return bytes(data)


def _bmp(height: int = 220, compression: int = 0, bits: int = 24) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, 212, height, 1, bits, compression, 0, 0, 0, 256 if bits == 8 else 0, 0)
    palette = bytes(1_024) if bits == 8 else b""
    body = b"\0\1" if compression else bytes(212 * 3 * 220)
    offset = 14 + len(head) + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(body), 0, 0, offset) + head + palette + body


CASES = [*_CUT, *_HEADS, *_SPOILT, *_OTHER, *_POLYGLOTS]
