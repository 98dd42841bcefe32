"""Draws scenes, and stores pictures in the formats found on the web, sound or not."""

import io
import math
import struct
import tomllib
import zlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageOps

from altalign.demo.scenes import COLOURS, Group, Scene

# group, centre in shares of width and height, radius in shares of the short side
Spot = tuple[Group, float, float, float]

SHADE_PX = 960
_AXIS = {"left": -1, "right": 1, "top": -1, "bottom": 1}
_WRITTEN = tomllib.loads(Path(__file__).with_name("pages.toml").read_text(encoding="utf-8"))
_ENCODINGS: dict[str, dict[str, Any]] = _WRITTEN["encodings"]
MEDIA_TYPES = {"progressive": "image/jpeg", "turned": "image/jpeg", "cmyk": "image/jpeg", "png8": "image/png"}


def draw(scene: Scene, width: int, height: int, rng: Random) -> Image.Image:
    """The scene as an RGB image, with a little unevenness of light and grain."""
    ground = _near(COLOURS[scene.ground], rng)
    image = Image.new("RGB", (width, height), ground)
    pen = ImageDraw.Draw(image)
    _texture(pen, scene.texture, ground, width, height, rng)
    short = min(width, height)
    for group, x, y, radius in _spots(scene, rng):
        _shape(pen, group, x * width, y * height, radius * short, rng)
    sheet = _sheets()[rng.randrange(len(_sheets()))]
    x, y = rng.randint(0, SHADE_PX - width), rng.randint(0, SHADE_PX - height)
    return ImageChops.add(image, sheet.crop((x, y, x + width, y + height)), 1, -128)


def encode(image: Image.Image, form: str) -> bytes:
    """The image's bytes in a format or a variant: progressive, turned (EXIF orientation 6), cmyk, png8 (palette)."""
    options = dict(_ENCODINGS[form])
    if form == "turned":
        image = image.transpose(Image.Transpose.ROTATE_90)
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = 6
    elif form == "cmyk":
        image = image.convert("CMYK")
    elif form == "png":
        image = ImageOps.posterize(image, 4)
    elif form in ("png8", "gif"):
        image = image.quantize(32, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    data = io.BytesIO()
    image.save(data, **options)
    return data.getvalue()


@cache
def bomb(side: int = 20_000) -> bytes:
    """A PNG of 1-bit pixels, side x side, in a few dozen kB."""
    squeeze = zlib.compressobj(9)
    row = bytes(1 + (side + 7) // 8)
    pixels = b"".join(squeeze.compress(row) for _ in range(side)) + squeeze.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _near(colour: tuple[int, int, int], rng: Random) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(0, part + rng.randint(-10, 10))) for part in colour)
    return red, green, blue


def _spots(scene: Scene, rng: Random) -> list[Spot]:
    if len(scene.groups) == 2:
        first, second = scene.groups
        along, across, radius = rng.uniform(0.24, 0.3), rng.uniform(0.4, 0.6), rng.uniform(0.14, 0.19)
        ends = ((first, along, across), (second, 1 - along, across + rng.uniform(-0.08, 0.08)))
        return [(group, x, y, radius) if scene.arrangement == "left" else (group, y, x, radius) for group, x, y in ends]
    (group,), count = scene.groups, scene.groups[0].count
    if scene.arrangement == "scattered":
        radius = rng.uniform(0.09, 0.12)
        cells = rng.sample([(x, y) for x in (0.2, 0.5, 0.8) for y in (0.2, 0.5, 0.8)], count)
        return [(group, x + rng.uniform(-0.05, 0.05), y + rng.uniform(-0.05, 0.05), radius) for x, y in cells]
    if count > 1:
        radius, across = rng.uniform(0.36, 0.44) / (count + 1), rng.uniform(0.3, 0.7)
        line = [((number + 1) / (count + 1), across) for number in range(count)]
        return [(group, x, y, radius) if scene.arrangement == "row" else (group, y, x, radius) for x, y in line]
    words = scene.arrangement.split()
    side = sum(_AXIS[word] for word in words if word in ("left", "right"))
    level = sum(_AXIS[word] for word in words if word in ("top", "bottom"))
    radius, reach = (rng.uniform(0.09, 0.12), 0.3) if scene.size == "small" else (rng.uniform(0.24, 0.29), 0.2)
    x, y = 0.5 + side * reach + rng.uniform(-0.04, 0.04), 0.5 + level * reach + rng.uniform(-0.04, 0.04)
    return [(group, x, y, radius)]


def _texture(
    pen: ImageDraw.ImageDraw, texture: str, ground: tuple[int, int, int], width: int, height: int, rng: Random
) -> None:
    if texture == "plain":
        return
    shift = 34 if sum(ground) < 384 else -34
    other = tuple(min(255, max(0, part + shift)) for part in ground)
    step = rng.randint(24, 44)
    if texture == "striped":
        slant = rng.choice((-1, 0, 1)) * height
        for x in range(-height, width + height, step):
            pen.polygon([(x, 0), (x + step // 2, 0), (x + step // 2 + slant, height), (x + slant, height)], fill=other)
    for row, y in enumerate(range(0, height, step)):
        for column, x in enumerate(range(0, width, step)):
            if texture == "dotted":
                pen.ellipse((x, y, x + step // 2, y + step // 2), fill=other)
            elif texture == "checked" and (row + column) % 2:
                pen.rectangle((x, y, x + step - 1, y + step - 1), fill=other)


def _shape(pen: ImageDraw.ImageDraw, group: Group, x: float, y: float, radius: float, rng: Random) -> None:
    colour = _near(COLOURS[group.colour], rng)
    if group.shape == "ring":
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=max(2, round(radius * 0.3)))
        return
    turn = rng.uniform(-0.12, 0.12)
    cos, sin = math.cos(turn) * radius, math.sin(turn) * radius
    pen.polygon([(x + px * cos - py * sin, y + px * sin + py * cos) for px, py in _outline(group.shape)], fill=colour)


@cache
def _outline(shape: str) -> tuple[tuple[float, float], ...]:
    """Corners within a circle of radius 1, y downwards."""
    match shape:
        case "circle":
            return _round(48, lambda _: 1)
        case "flower":
            return _round(60, lambda angle: 0.72 + 0.28 * math.cos(5 * angle))
        case "star":
            return _round(10, lambda angle: 1 if round(angle / math.pi * 5) % 2 == 0 else 0.42)
        case "triangle" | "hexagon":
            return _round({"triangle": 3, "hexagon": 6}[shape], lambda _: 1)
        case "diamond":
            return ((0, -1), (0.62, 0), (0, 1), (-0.62, 0))
        case "square":
            return ((-0.78, -0.78), (0.78, -0.78), (0.78, 0.78), (-0.78, 0.78))
        case "cross":
            a, b = 0.3, 0.95
            right = (-a, a, a, b, b, a, a, -a, -a, -b, -b, -a)
            return tuple(zip(right, (-b, -b, -a, -a, a, a, b, b, a, a, -a, -a), strict=True))
        case "heart":
            steps = [math.tau * step / 40 for step in range(40)]
            heights = (13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t) for t in steps)
            return tuple((math.sin(t) ** 3, -height / 16 - 0.1) for t, height in zip(steps, heights, strict=True))
        case _:
            raise ValueError(f"{shape}: no such shape")


def _round(corners: int, radius_at: Any) -> tuple[tuple[float, float], ...]:
    angles = [math.tau * corner / corners for corner in range(corners)]
    return tuple((radius_at(angle) * math.sin(angle), -radius_at(angle) * math.cos(angle)) for angle in angles)


@cache
def _sheets() -> list[Image.Image]:
    """Uneven light and grain around the value 128, of which pieces are cut."""
    numbers = np.random.default_rng(2021)
    sheets = []
    for cells in (6, 8, 11, 14):
        coarse = Image.fromarray(numbers.integers(96, 161, (cells, cells), dtype=np.uint8))
        light = coarse.resize((SHADE_PX, SHADE_PX), Image.Resampling.BICUBIC)
        grain = Image.fromarray(numbers.integers(124, 133, (SHADE_PX, SHADE_PX), dtype=np.uint8))
        sheet = ImageChops.add(light, grain, 1, -128)
        sheets.append(Image.merge("RGB", (sheet, sheet, sheet)))
    return sheets
