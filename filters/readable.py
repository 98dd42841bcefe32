"""Files as Pillow reads them right: without metadata that it stumbles on, and runs of BMP that it misreads."""

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
from PIL import Image, ImageCms

# What decoders raise on bytes that are not what they claim. Pillow's plug-ins parse in Python, hence the lookup, type
# and arithmetic errors. MemoryError is not among them: of an image within the limits, no plug-in raises it for corrupt
# bytes, so it tells of the machine.
_OF_PLUGINS = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, AttributeError, ArithmeticError)
DECODER_ERRORS = (*_OF_PLUGINS, RuntimeError, AssertionError, struct.error, zlib.error)

_PROFILE_BYTES_AT_MOST = 1 << 25  # ours
# Chunks of PNG beside the critical ones that decide what is seen.
_SEEN = {b"tRNS", b"eXIf"}
_OF_ANIMATION = {b"acTL", b"fcTL", b"fdAT"}
_ACTL_BYTES = 20  # of a whole one
_OF_COLOUR = {b"iCCP", b"sRGB", b"gAMA", b"cHRM"}
_BITS_OF_RLE = {1: 8, 2: 4}
JFIF_BYTES = 18
FRAMES = tuple(marker for marker in range(0xC0, 0xD0) if marker not in (0xC4, 0xC8, 0xCC))  # of JPEG
_NO_LENGTH = (0x01, *range(0xD0, 0xD9))  # markers of JPEG that stand alone


def png(data: bytes) -> tuple[bytes, bytes | None]:
    """A PNG of the chunks that decide what is seen, and its colour profile.

    Texts of any length go, and ancillary chunks whose checksum is wrong. An animation stays one where its default image
    is not shown; else that is the first frame. Of profiles, iCCP counts before sRGB, and that before gAMA with cHRM.
    """
    first = dict[bytes, int]()
    for kind, at, end in _chunks(data):
        if kind in (b"IDAT", b"fcTL") or (kind == b"acTL" and end - at == _ACTL_BYTES):
            first.setdefault(kind, at)
    is_hidden = first.get(b"acTL", len(data)) < first.get(b"IDAT", 0) < first.get(b"fcTL", 0)
    kept_kinds = _SEEN | (_OF_ANIMATION if is_hidden else set())
    parts, colour, start = list[bytes](), dict[bytes, bytes](), 0
    for kind, at, end in _chunks(data):
        if kind[:1].islower():
            is_sound = data[end - 4 : end] == zlib.crc32(data[at + 4 : end - 4]).to_bytes(4, "big")
            if is_sound and kind in _OF_COLOUR:
                colour.setdefault(kind, data[at + 8 : end - 4])
            if not (is_sound and kind in kept_kinds):
                parts.append(data[start:at])
                start = end
    profile = None
    with suppress(*DECODER_ERRORS):
        if embedded := colour.get(b"iCCP"):
            profile = zlib.decompressobj().decompress(embedded.partition(b"\0")[2][1:], _PROFILE_BYTES_AT_MOST)
        elif b"sRGB" not in colour and b"gAMA" in colour:
            primaries = struct.unpack(">8I", colour[b"cHRM"]) if b"cHRM" in colour else None
            profile = _of_gamma(*struct.unpack(">I", colour[b"gAMA"]), primaries)
    return (b"".join([*parts, data[start:]]) if parts else data), profile


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, beginning and end of each chunk, up to IEND."""
    at, kind = 8, b""
    while at + 8 <= len(data) and kind != b"IEND":
        end, kind = at + 12 + int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        yield kind, at, end
        at = end


def jpeg(data: bytes) -> bytes:
    """A JPEG without its APP segments, but for whole ones of JFIF and of Adobe's mark: Pillow stumbles on some."""
    parts, start = list[bytes](), 0
    for marker, at, end in segments(data):
        if 0xE0 <= marker <= 0xEF and not (marker in (0xE0, 0xEE) and end - at >= JFIF_BYTES - 2):
            parts.append(data[start:at])
            start = end
    return b"".join([*parts, data[start:]])


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, beginning and end of each segment of a JPEG before its first scan."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF and (marker := data[at + 1]) != 0xDA:
        if marker == 0xFF:  # a byte that fills
            at += 1
            continue
        end = at + 2 + (0 if marker in _NO_LENGTH else int.from_bytes(data[at + 2 : at + 4], "big"))
        yield marker, at, end
        at = max(end, at + 2)


def bmp(data: bytes) -> bytes:
    """A BMP in which each pixel of a run of single ones is a run of its own: Pillow loses the last of an odd count.

    Raises:
        ValueError: its runs leave pixels out: these are clear in browsers, and of the first colour in Pillow.
    """
    bits, at = _BITS_OF_RLE.get(int.from_bytes(data[30:34], "little")), int.from_bytes(data[10:14], "little")
    if int.from_bytes(data[14:18], "little") < 40 or bits is None:
        return data
    width, height = (int.from_bytes(data[begin : begin + 4], "little", signed=True) for begin in (18, 22))
    out, x, y, is_left_out = bytearray(data[:at]), 0, 0, False
    while at + 2 <= len(data) and y < abs(height):
        count, value = data[at], data[at + 1]
        at += 2
        if count or value < 2:
            out += bytes((count, value))
            if not count:
                if value:
                    break
                is_left_out |= x < width
                x, y = 0, y + 1
            x += count
        elif value == 2:
            is_left_out |= any(data[at : at + 2])
            at += 2
        else:
            size = (value * bits + 7) // 8
            run = data[at : at + size]
            nibbles = [each for byte in run for each in (byte & 0xF0, byte << 4 & 0xF0)][:value] if bits == 4 else run
            out += b"".join(bytes((1, each)) for each in nibbles)
            at += size + size % 2
            x += value
    if is_left_out:
        raise ValueError("run lengths that leave pixels out")
    return bytes(out)


# x and y of white, red, green and blue in 1/100,000
_SRGB_PRIMARIES = (31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000)
_D50 = (0.9642, 1.0, 0.8249)
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])
_OF_SRGB = range(45_000, 45_910)  # gAMA within 1 % of 1/2.2: its writers mean sRGB
_OF_PICTURES = range(10_000, 1_000_000)  # ours: other numbers are mistakes
_SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


def in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """An image of 8 bits a channel (L, RGB, RGBA or CMYK) as RGB or RGBA; as it is where the profile does not fit."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        mode = "RGBA" if image.mode == "RGBA" else "RGB"
        if profile[16:20] == b"RGB " and image.mode == "L":
            image = image.convert(mode)
        return ImageCms.profileToProfile(image, source, _SRGB, outputMode=mode) or image
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return image


def _of_gamma(gamma: int, primaries: Sequence[int] | None) -> bytes | None:
    """The profile (ICC 2.1, primaries adapted to D50) of gAMA and perhaps cHRM in 1/100,000; None where it is sRGB."""
    if (gamma in _OF_SRGB and primaries in (None, _SRGB_PRIMARIES)) or gamma not in _OF_PICTURES:
        return None
    x, y = np.array(primaries or _SRGB_PRIMARIES, float).reshape(4, 2).T / 1e5
    white, *_ = (xyz := np.stack([x / y, np.ones(4), (1 - x - y) / y], 1))
    if y.min() <= 0:
        raise ValueError("colours without light")
    colorants = (xyz[1:].T * np.linalg.solve(xyz[1:].T, white)).T
    adapted = np.linalg.solve(_BRADFORD, (_BRADFORD @ _D50 / (_BRADFORD @ white))[:, None] * _BRADFORD)
    fixed = np.rint(np.vstack([_D50, colorants @ adapted.T]).clip(-4, 4) * 65536).astype(">i4")
    numbers = [b"XYZ \0\0\0\0" + row.tobytes() for row in fixed]
    tags = {b"desc": b"desc\0\0\0\0\0\0\0\2 \0" + bytes(78), b"cprt": b"text\0\0\0\0 \0\0\0"}
    tags |= dict(zip((b"wtpt", b"rXYZ", b"gXYZ", b"bXYZ"), numbers, strict=True))
    curve = b"curv\0\0\0\0" + struct.pack(">IH2x", 1, round(256e5 / gamma))
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    table, body = struct.pack(">I", len(tags)), b""
    for name, content in tags.items():
        table += name + struct.pack(">II", 132 + 12 * len(tags) + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    size = 132 + 12 * len(tags) + len(body)
    head = struct.pack(">I4xI4s4s4s12x4s28x", size, 0x02100000, b"mntr", b"RGB ", b"XYZ ", b"acsp")
    return head + fixed[0].tobytes() + bytes(48) + table + body
