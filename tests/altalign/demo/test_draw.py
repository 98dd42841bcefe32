"""Pictures show their scenes."""

import hashlib
import io
import os
import struct
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image, ImageOps

from altalign.demo import draw
from altalign.demo.scenes import COLOURS, PLACES, SHAPES, Group, Scene, random_scene

FORMATS = {
    "jpeg": "JPEG", "progressive": "JPEG", "turned": "JPEG", "cmyk": "JPEG", "png": "PNG", "png8": "PNG",
    "webp": "WEBP", "gif": "GIF", "avif": "AVIF", "bmp": "BMP", "tiff": "TIFF",
}  # fmt: skip
GOLDEN_PIXELS = "7c27a8f5c723208ffb6c8ef2bdc91516168e970bd8a160b272295b4a0ba825c5"


def test_pixels_are_golden() -> None:
    rng, digest = Random(7), hashlib.sha256()
    for _ in range(40):
        digest.update(draw.draw(random_scene(rng), rng.randint(210, 300), rng.randint(210, 300), rng).tobytes())
    assert digest.hexdigest() == GOLDEN_PIXELS


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", ["small", "large"])
def test_a_shape_is_drawn_in_its_colour_at_its_place(place: str, size: str) -> None:
    for shape in SHAPES:
        scene = Scene((Group(shape, "red"),), place, "blue", size)
        pixels = np.asarray(draw.draw(scene, 300, 240, Random(3))).astype(int)
        rows, columns = np.nonzero(pixels[..., 0] > pixels[..., 2])
        x, y = columns.mean() / 300 - 0.5, rows.mean() / 240 - 0.5
        words = place.split()
        assert (x < -0.1, x > 0.1) == ("left" in words, "right" in words), shape
        assert (y < -0.1, y > 0.1) == ("top" in words, "bottom" in words), shape
        assert (len(rows) / 300 / 240 > 0.045) == (size == "large"), shape


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_as_many_shapes_are_drawn_as_counted(count: int) -> None:
    pixels = np.asarray(
        draw.draw(Scene((Group("circle", "white", count),), "row", "black"), 320, 256, Random(4))
    ).astype(int)
    across = (pixels.sum(axis=2) > 500).any(axis=0)
    assert np.count_nonzero(np.diff(across.astype(int)) == 1) == count


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_decodes_to_the_picture(form: str) -> None:
    image = draw.draw(Scene((Group("star", "red"),), "left", "yellow", "large"), 260, 220, Random(5))
    with Image.open(io.BytesIO(draw.encode(image, form))) as stored:
        assert stored.format == FORMATS[form]
        assert stored.size == ((220, 260) if form == "turned" else (260, 220))
        shown = np.asarray(ImageOps.exif_transpose(stored).convert("RGB")).astype(int)
    assert np.abs(shown - np.asarray(image)).mean() < 12


ENCODE_ALL = """
import hashlib, random
from altalign.demo import draw, scenes
rng, digest = random.Random(1), hashlib.sha256()
for form in draw._ENCODINGS:
    for _ in range(12):
        image = draw.draw(scenes.random_scene(rng), rng.randint(224, 320), rng.randint(224, 320), rng)
        digest.update(draw.encode(image, form))
print(digest.hexdigest())
"""


def test_no_byte_of_a_file_comes_from_memory_that_nobody_set() -> None:
    def digest(filling: str) -> bytes:
        environment = os.environ | {"MALLOC_PERTURB_": filling}  # what glibc fills fresh memory with
        return subprocess.run(
            [sys.executable, "-c", ENCODE_ALL],
            cwd=Path(__file__).parents[3],
            env=environment,
            check=True,
            capture_output=True,
        ).stdout

    assert digest("1") == digest("170")


def test_a_bomb_is_small_and_says_that_it_is_large() -> None:
    data = draw.bomb()
    assert len(data) < 60_000
    assert struct.unpack(">II", data[16:24]) == (20_000, 20_000)


def test_a_small_bomb_decodes() -> None:
    with Image.open(io.BytesIO(draw.bomb(300))) as image:
        assert image.size == (300, 300)
        assert image.getextrema() == (0, 0)


def test_shapes_stand_out_from_their_ground() -> None:
    rng = Random(11)
    for _ in range(500):
        scene = random_scene(rng)
        assert all(
            np.linalg.norm(np.subtract(COLOURS[group.colour], COLOURS[scene.ground])) > 110 for group in scene.groups
        )
