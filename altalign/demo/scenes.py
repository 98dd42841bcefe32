"""Scenes: what a picture of the demo web shows. `draw` draws a scene and `captions` tells it, so captions are true."""

import math
from dataclasses import dataclass
from random import Random

COLOURS = {
    "red": (206, 32, 41),
    "blue": (34, 78, 190),
    "green": (40, 150, 62),
    "yellow": (246, 214, 52),
    "white": (244, 244, 242),
    "black": (28, 28, 30),
    "orange": (244, 134, 24),
    "purple": (124, 48, 168),
    "pink": (246, 150, 192),
    "brown": (120, 72, 36),
    "grey": (138, 140, 144),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "heart", "ring", "hexagon", "diamond", "flower")
TEXTURES = ("plain", "plain", "plain", "striped", "dotted", "checked")
PLACES = ("centre", "top", "bottom", "left", "right", "top left", "top right", "bottom left", "bottom right")

# What languages other than English have words for here: few, so that their pairs of words recur in a small pool.
COMMON_COLOURS = ("red", "blue", "green", "yellow", "white", "black")
COMMON_SHAPES = ("circle", "square", "triangle", "star", "heart")
COMMON_PLACES = PLACES[:5]


@dataclass(frozen=True)
class Group:
    """Like shapes: `count` of one shape and colour."""

    shape: str
    colour: str
    count: int = 1


@dataclass(frozen=True)
class Scene:
    """One shape at a place, several like ones in an order, or two shapes side by side.

    `arrangement` is a place (one group of one), "row", "column" or "scattered" (one group of several), or "left" or
    "above": where the first of two groups is, seen from the second.
    """

    groups: tuple[Group, ...]
    arrangement: str
    ground: str
    size: str = ""  # small or large, where there is one shape
    texture: str = "plain"


def random_scene(rng: Random, *, common: bool = False, distinctive: bool = False) -> Scene:
    """A random scene.

    Args:
        rng: where choices come from.
        common: only use what all languages of the demo have words for.
        distinctive: show two shapes or more, which stand out in brightness.
    """
    colours = COMMON_COLOURS if common else tuple(COLOURS)
    shapes = COMMON_SHAPES if common else SHAPES
    ground = rng.choice(colours)
    texture = "plain" if common else rng.choice(TEXTURES)
    on_ground = [colour for colour in colours if _stands_out(colour, ground, in_brightness=distinctive)]
    first = Group(rng.choice(shapes), rng.choice(on_ground))
    kind = rng.random() * (0.55 if distinctive else 1)
    if kind < 0.28:
        count = rng.randint(2, 5)
        orders = ("row", "column", "scattered") if count > 2 else ("row", "column")
        return Scene((Group(first.shape, first.colour, count),), rng.choice(orders), ground, texture=texture)
    if kind < 0.55:
        second = Group(rng.choice([shape for shape in shapes if shape != first.shape]), rng.choice(on_ground))
        return Scene((first, second), rng.choice(("left", "above")), ground, texture=texture)
    return Scene(
        (first,), rng.choice(COMMON_PLACES if common else PLACES), ground, rng.choice(("small", "large")), texture
    )


def _stands_out(colour: str, ground: str, *, in_brightness: bool) -> bool:
    if in_brightness:
        return abs(sum(COLOURS[colour]) - sum(COLOURS[ground])) > 240
    return math.dist(COLOURS[colour], COLOURS[ground]) > 110
