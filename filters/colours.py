"""Colours of other spaces as sRGB, by profiles that are found and those that a few numbers describe."""

import io
import struct
from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageCms

# x and y of white, red, green and blue, in 1/100,000: BT.709, BT.2020 and P3, as ITU-T H.273 counts them.
_PRIMARIES = {
    1: (31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000),
    9: (31270, 32900, 70800, 29200, 17000, 79700, 13100, 4600),
    12: (31270, 32900, 68000, 32000, 26500, 69000, 15000, 6000),
}
_D50 = (0.9642, 1.0, 0.8249)
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])
_OF_SRGB = range(45_000, 45_910)  # gAMA within 1 % of 1/2.2: its writers mean sRGB
_OF_PICTURES = range(10_000, 1_000_000)  # ours: other numbers are mistakes


def in_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """An image of 8 bits a channel (L, RGB, RGBA or CMYK) as RGB or RGBA, by its profile.

    As it is where there is none, or none that fits.
    """
    if not profile:
        return image
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        wanted = "RGBA" if image.mode == "RGBA" else "RGB"
        if profile[16:20] == b"RGB " and image.mode == "L":
            image = image.convert(wanted)
        return ImageCms.profileToProfile(image, source, _srgb(), outputMode=wanted) or image
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return image


@cache
def _srgb() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


def of_gamma(gamma: int, primaries: Sequence[int] | None) -> bytes | None:
    """The profile of gAMA and, unless None, cHRM of a PNG, in 1/100,000; None where it is sRGB.

    Raises:
        ValueError or ArithmeticError: these are no colours.
    """
    if (gamma in _OF_SRGB and primaries in (None, _PRIMARIES[1])) or gamma not in _OF_PICTURES:
        return None
    curve = _SRGB_CURVE if gamma in _OF_SRGB else struct.pack(">IH2x", 1, round(256e5 / gamma))
    return _profile(primaries or _PRIMARIES[1], curve)


def of_code_points(primaries: int, transfer: int, matrix: int, is_full: int) -> bytes | None:
    """The profile of a cICP; None where it is one of video: limited in range, YCbCr, of high dynamic range."""
    curve = {1: _OF_VIDEO, 8: struct.pack(">IH2x", 1, 256), 13: _SRGB_CURVE}
    if primaries not in _PRIMARIES or transfer not in curve or matrix or not is_full:
        return None
    return _profile(_PRIMARIES[primaries], curve[transfer])


def _table() -> bytes:
    """The curve of sRGB, of 1,024 points."""
    at = np.linspace(0, 1, 1024)
    linear = np.where(at <= 0.04045, at / 12.92, ((at + 0.055) / 1.055) ** 2.4)
    return struct.pack(">I", 1024) + np.rint(linear * 65535).astype(">u2").tobytes()


_SRGB_CURVE = _table()
_OF_VIDEO = struct.pack(">IH2x", 1, 614)  # 2.4, of displays by BT.1886


def _profile(primaries: Sequence[int], curve: bytes) -> bytes:
    """A profile of ICC 2.1, of three primaries adapted to D50 and one curve."""
    x, y = np.array(primaries, float).reshape(4, 2).T / 1e5
    white, *_ = (xyz := np.stack([x / y, np.ones(4), (1 - x - y) / y], 1))
    if y.min() <= 0:
        raise ValueError("colours without light")
    colorants = (xyz[1:].T * np.linalg.solve(xyz[1:].T, white)).T
    adapted = np.linalg.solve(_BRADFORD, (_BRADFORD @ _D50 / (_BRADFORD @ white))[:, None] * _BRADFORD)
    fixed = np.rint(np.vstack([_D50, colorants @ adapted.T]).clip(-4, 4) * 65536).astype(">i4")
    numbers = [b"XYZ \0\0\0\0" + row.tobytes() for row in fixed]
    tags = {b"desc": b"desc\0\0\0\0\0\0\0\2 \0" + bytes(78), b"cprt": b"text\0\0\0\0 \0\0\0"}
    tags |= dict(zip((b"wtpt", b"rXYZ", b"gXYZ", b"bXYZ"), numbers, strict=True))
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), b"curv\0\0\0\0" + curve)
    table, body = struct.pack(">I", len(tags)), b""
    for name, content in tags.items():
        table += name + struct.pack(">II", 132 + 12 * len(tags) + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    head = struct.pack(
        ">I4xI4s4s4s12x4s28x", 132 + 12 * len(tags) + len(body), 0x02100000, b"mntr", b"RGB ", b"XYZ ", b"acsp"
    )
    return head + fixed[0].tobytes() + bytes(48) + table + body
