"""Colours of other spaces as sRGB, by profiles that are found and those that a few numbers describe."""

import io
import struct
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageCms

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


def of_gamma(gamma: int, primaries: Sequence[int] | None) -> bytes | None:
    """The profile of gAMA and, unless None, cHRM of a PNG, in 1/100,000; None where it is sRGB.

    Raises:
        ValueError or ArithmeticError: these are no colours.
    """
    if (gamma in _OF_SRGB and primaries in (None, _SRGB_PRIMARIES)) or gamma not in _OF_PICTURES:
        return None
    return _profile(primaries or _SRGB_PRIMARIES, struct.pack(">IH2x", 1, round(256e5 / gamma)))


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
