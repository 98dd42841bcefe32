"""The image judge under attack: every format, damaged anywhere.

Bytes never raise; what is sound can be stored, and is sound then too.
"""

import io
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from altalign.demo import draw
from altalign.demo.scenes import random_scene
from altalign.filters import pixels
from tests.fuzz.mutate import mutate, with_png_checksums
from tests.fuzz.target import Target

_PIXELS_AT_MOST = 2_000_000
_TOKENS = {
    "jpeg": (
        *(
            b"\xff" + bytes([marker])
            for marker in (0, 0xC0, 0xC2, 0xC4, 0xCC, 0xD0, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xE1, 0xE2, 0xEE, 0xFE, 0xFF)
        ),
        b"Exif\0\0",
    ),
    "png": (
        b"IHDR",
        b"PLTE",
        b"IDAT",
        b"IEND",
        b"tRNS",
        b"iCCP",
        b"zTXt",
        b"iTXt",
        b"eXIf",
        b"acTL",
        b"fcTL",
        b"fdAT",
        b"gAMA",
        b"\0\0\0\0",
    ),
    "webp": (b"RIFF", b"WEBP", b"VP8 ", b"VP8L", b"VP8X", b"ANIM", b"ANMF", b"ALPH", b"ICCP", b"EXIF", b"XMP "),
    "gif": (b"GIF87a", b"GIF89a", b"\x21\xf9\x04", b"\x21\xff\x0bNETSCAPE2.0", b"\x21\xfe", b"\x2c", b"\x3b", b"\0"),
    "avif": (
        b"ftyp",
        b"avif",
        b"avis",
        b"meta",
        b"iloc",
        b"ipma",
        b"ispe",
        b"av1C",
        b"irot",
        b"imir",
        b"clap",
        b"auxC",
        b"grid",
        b"idat",
        b"mdat",
        b"moov",
    ),
    "bmp": (
        b"BM",
        b"\x28\0\0\0",
        b"\x7c\0\0\0",
        b"\1\0\0\0",
        b"\2\0\0\0",
        b"\3\0\0\0",
        b"\0\0",
        b"\0\1",
        b"\0\2\xff\xff",
    ),
    "tiff": (
        *(
            b"%b\0" % bytes([tag]) + b"\1"
            for tag in (0, 1, 2, 3, 6, 0x11, 0x12, 0x15, 0x16, 0x17, 0x1A, 0x42, 0x44, 0x45, 0x53)
        ),
        b"II*\0",
        b"MM\0*",
        b"\5\0",
    ),
}
_OPTIONS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "jpeg": [
        ("RGB", {}),
        ("L", {}),
        ("RGB", {"progressive": True}),
        ("CMYK", {}),
        ("RGB", {"restart_marker_rows": 1}),
        ("RGB", {"subsampling": 0, "optimize": True}),
    ],
    "png": [
        ("RGB", {}),
        ("RGBA", {}),
        ("P", {"transparency": 3}),
        ("1", {}),
        ("I;16", {}),
        ("LA", {}),
        ("RGB", {"save_all": True}),
        ("L", {"bits": 4}),
    ],
    "webp": [
        ("RGB", {}),
        ("RGBA", {"lossless": True}),
        ("RGBA", {}),
        ("RGB", {"save_all": True}),
        ("RGB", {"exif": b"Exif\0\0II*\0\10\0\0\0\0\0"}),
    ],
    "gif": [("P", {}), ("L", {"interlace": 1}), ("P", {"save_all": True, "transparency": 2})],
    "avif": [
        ("RGB", {"speed": 10}),
        ("RGBA", {"speed": 10}),
        ("RGB", {"save_all": True, "speed": 10}),
        ("L", {"speed": 10}),
    ],
    "bmp": [("RGB", {}), ("P", {}), ("1", {}), ("L", {}), ("RGBA", {})],
    "tiff": [
        *(
            ("RGB", {"compression": name})
            for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits", "zstd")
        ),
        *(
            ("1", {"compression": "group4"}),
            ("1", {"compression": "group3"}),
            ("I;16", {}),
            ("F", {}),
            ("CMYK", {}),
            ("LAB", {}),
            ("RGBA", {"save_all": True}),
            ("P", {}),
        ),
    ],
}


@cache
def _seeds(kind: str) -> tuple[bytes, ...]:
    """Small pictures in every variant of a format, half of them with a side above what decoders scale down to."""
    found = []
    for number, (mode, options) in enumerate(_OPTIONS[kind]):
        rng = Random(number)
        picture = draw.draw(random_scene(rng), 40 + 97 * (number % 3), 33 + 100 * (number % 2), rng)
        frames = {"append_images": [_in_mode(picture.rotate(90), mode)]} if options.get("save_all") else {}
        exif = Image.Exif()
        exif[0x0112] = number % 9
        file = io.BytesIO()
        # Pillow 12.3 dies of AVIF frames with EXIF, when it writes them
        described = {} if kind in ("gif", "bmp") or frames else {"exif": exif}
        _in_mode(picture, mode).save(file, kind.upper(), **{**described, **options, **frames})
        found.append(file.getvalue())
    return tuple(found)


def _in_mode(picture: Image.Image, mode: str) -> Image.Image:
    match mode:
        case "I;16":
            return Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) << 7)
        case "P":
            return picture.quantize(16, Image.Quantize.FASTOCTREE)
        case "LAB":
            return Image.merge("LAB", picture.split())
        case "RGBA" | "LA":
            picture = picture.convert(mode)
            picture.putalpha(Image.linear_gradient("L").resize(picture.size))
            return picture
    return picture.convert(mode)


def _make(kind: str, rng: Random) -> tuple[bytes, bytes]:
    seeds = _seeds(kind)
    original = rng.choice(seeds)
    mutated = mutate(original, rng, tokens=_TOKENS[kind], others=seeds)
    return original, with_png_checksums(mutated) if kind == "png" and rng.random() < 0.7 else mutated


def _check(path: Path, _original: bytes) -> str:
    data = path.read_bytes()
    found = _decoded(data, colour=False, short_side_px=128)
    again = _decoded(data, colour=False, short_side_px=128)
    coloured = _decoded(data, colour=True, short_side_px=32)
    assert _known(found) == _known(again), "the same bytes, and another verdict"
    assert (found.pixels is None and again.pixels is None) or np.array_equal(found.pixels, again.pixels), (
        "the same bytes, and other pixels"
    )
    assert _known(found) == _known(coloured), (
        f"the verdict depends on how it is decoded: {_known(found)} and in colour {_known(coloured)}"
    )
    if found.pixels is None:
        return "damaged" if found.damage else "too large" if found.format else "no image"
    _check_stored(data, found)
    return "sound"


def _decoded(data: bytes, *, colour: bool, short_side_px: int) -> pixels.Decoded:
    found = pixels.decode(data, pixels_at_most=_PIXELS_AT_MOST, colour=colour, short_side_px=short_side_px)
    assert found.format == pixels.sniff(data)
    assert 1 <= found.orientation <= 8
    if found.format is None:
        assert (found.width, found.height, found.damage, found.pixels) == (None, None, None, None)
        return found
    if found.width is None or found.height is None:
        assert (found.width, found.height, found.pixels) == (None, None, None)
        assert found.damage
        return found
    assert min(found.width, found.height) >= 1
    if found.width * found.height > _PIXELS_AT_MOST:
        assert (found.damage, found.pixels) == (None, None)
    elif found.pixels is None:
        assert found.damage
    else:
        assert found.damage is None
        assert found.pixels.dtype == np.uint8
        assert found.pixels.shape[2:] == ((3,) if colour else ())
        assert (
            min(found.width, found.height, short_side_px)
            <= min(found.pixels.shape[:2])
            <= min(found.width, found.height)
        )
        assert max(found.pixels.shape[:2]) <= max(found.width, found.height)
    return found


def _known(found: pixels.Decoded) -> tuple[Any, ...]:
    return (
        found.format,
        found.width,
        found.height,
        found.damage is None,
        found.orientation if found.pixels is not None else 0,
    )


def _check_stored(data: bytes, found: pixels.Decoded) -> None:
    """What a shard stores of a sound image is sound, of the size that it is said to be, and the same each time."""
    as_found = pixels.to_stored(data, portable=False, resize_short_side_px=0)
    assert (as_found.bytes, as_found.format, as_found.width, as_found.height) == (
        data,
        found.format,
        found.width,
        found.height,
    )
    for resize in (0, 20):
        stored = pixels.to_stored(data, portable=True, resize_short_side_px=resize)
        again = pixels.decode(stored.bytes, pixels_at_most=_PIXELS_AT_MOST, colour=True)
        assert stored.format == again.format == "jpeg"
        assert (again.damage, again.width, again.height) == (None, stored.width, stored.height), (
            f"stored, and then: {again.damage}"
        )
        assert stored == pixels.to_stored(data, portable=True, resize_short_side_px=resize)


TARGETS = {kind: Target(f".{kind}", partial(_make, kind), _check) for kind in _OPTIONS}
