"""Images that are cut, lie about their size, or are of none of the formats that are read."""

import io
import struct
import zlib
from collections.abc import Mapping
from functools import cache

import numpy as np
from PIL import Image

from tests.hostile.cases import NONE, Case
from tests.hostile.files import gzipped, host, picture, warc
from tests.hostile.web_cases import CAPTION, SHOWN
from tests.support.archives import response

DAMAGED: Mapping[str, int] = {"image_damaged": 1}
UNDECODABLE: Mapping[str, int] = {"image_undecodable": 1}
TOO_MANY: Mapping[str, int] = {"image_too_many_pixels": 1}
KINDS = ("jpeg", "png", "gif", "webp", "avif", "bmp", "tiff")


def image(about: str, data: bytes, dropped: Mapping[str, int] = NONE) -> Case:
    """A case that is an image, which a good page shows; it is kept where nothing drops it."""

    def build(name: str) -> bytes:
        shows = gzipped(response(f"{host(name)}/page", SHOWN))
        return warc(name, shows, gzipped(response(f"{host(name)}/it.png", data, "image/png")))

    return Case(about, "warc", ".warc.gz", build, dropped, () if dropped else (CAPTION,))


@cache
def noise(kind: str) -> bytes:
    """A good image whose bytes spread over all of it."""
    values = np.arange(260 * 240 * 3, dtype=np.uint32) * 2_654_435_761 >> 20
    file = io.BytesIO()
    Image.fromarray(values.astype(np.uint8).reshape(240, 260, 3)).save(file, kind)
    return file.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def _png(width: int, height: int) -> bytes:
    """A PNG that says it has so many pixels."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + _chunk(b"IDAT", zlib.compress(b"")) + _chunk(b"IEND", b"")


def _oriented(orientation: int) -> bytes:
    """A JPEG with this orientation in its EXIF."""
    entry = struct.pack("<HHII", 0x0112, 3, 1, orientation)
    data = b"Exif\0\0II*\0\x08\0\0\0\1\0" + entry + bytes(4)
    jpeg = noise("jpeg")
    return jpeg[:2] + b"\xff\xe1" + (len(data) + 2).to_bytes(2, "big") + data + jpeg[2:]


IMAGES = [
    *(image(f"{kind.upper()} cut in its middle", noise(kind)[: len(noise(kind)) // 2], DAMAGED) for kind in KINDS),
    image("a PNG chunk of a wrong checksum", picture(90)[:-20] + bytes(4) + picture(90)[-16:], DAMAGED),
    image("a PNG without pixels", picture(90)[:33] + _chunk(b"IEND", b""), DAMAGED),
    image("a PNG of 2^31 x 2^31 pixels", _png(2**31 - 1, 2**31 - 1), TOO_MANY),
    image(
        "a JPEG that says 65,500 x 65,500 pixels",
        noise("jpeg").replace(struct.pack(">HH", 240, 260), struct.pack(">HH", 65_500, 65_500), 1),
        TOO_MANY,
    ),
    image("one pixel", picture(90, (1, 1)), {"image_too_small": 1}),
    image("an orientation of 99", _oriented(99)),
    image("a JPEG with junk behind it", noise("jpeg") + b"junk" * 9_000),
    image("an SVG", b"<svg xmlns='http://www.w3.org/2000/svg'/>", UNDECODABLE),
    image("a text that begins as BMP does", b"BMW builds cars, and this is no image of one", UNDECODABLE),
    image("a GIF that is a script", b"GIF89a/*\0\0\0\0\0;*/=1;alert(1);", DAMAGED),
]
