"""Scenes: what a picture of the demo web shows, and captions that say it; and texts of the web that describe nothing.

`words.toml` has the words.
"""

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

_WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
COLOURS: dict[str, tuple[int, int, int]] = {name: (*rgb,) for name, rgb in _WORDS["scenes"]["colours"].items()}
SHAPES: list[str] = _WORDS["scenes"]["shapes"]
TEXTURES: list[str] = _WORDS["scenes"]["textures"]
PLACES: list[str] = _WORDS["scenes"]["places"]
BOILERPLATE: list[str] = _WORDS["boilerplate"]
LANGUAGES = ("de", "fr", "es", "ru", "ja", "zh")  # beside English
# What these have words for here: few, so that their pairs of words recur in a small pool.
COMMON_COLOURS, COMMON_SHAPES, COMMON_PLACES = (list(_WORDS["de"][name]) for name in ("colours", "shapes", "places"))


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
    """A random scene, `common` of what all languages of the demo have words for.

    One that is `distinctive` shows two shapes or more, which stand out in brightness.
    """
    colours = COMMON_COLOURS if common else list(COLOURS)
    shapes = COMMON_SHAPES if common else SHAPES
    ground = rng.choice(colours)
    texture = "plain" if common else rng.choice(TEXTURES)
    if distinctive:
        on_ground = [name for name in colours if abs(sum(COLOURS[name]) - sum(COLOURS[ground])) > 240]
    else:
        on_ground = [name for name in colours if math.dist(COLOURS[name], COLOURS[ground]) > 110]
    first = Group(rng.choice(shapes), rng.choice(on_ground))
    kind = rng.random() * (0.55 if distinctive else 1)
    if kind < 0.28:
        count = rng.randint(2, 5)
        orders = ("row", "column", "scattered") if count > 2 else ("row", "column")
        return Scene((Group(first.shape, first.colour, count),), rng.choice(orders), ground, texture=texture)
    if kind < 0.55:
        second = Group(rng.choice([shape for shape in shapes if shape != first.shape]), rng.choice(on_ground))
        return Scene((first, second), rng.choice(("left", "above")), ground, texture=texture)
    place = rng.choice(COMMON_PLACES if common else PLACES)
    return Scene((first,), place, ground, rng.choice(("small", "large")), texture)


# Captions -------------------------------------------------------------------------------------------------------------


def caption(scene: Scene, language: str, rng: Random) -> str:
    """A sentence or a title that says what the scene shows, 3 to 20 words."""
    text = english(scene, rng) if language == "en" else foreign(scene, language, rng)
    return text[0].upper() + text[1:] if rng.random() < 0.3 else text


def english(scene: Scene, rng: Random) -> str:
    """What the scene shows, in one of many phrasings."""
    words = _WORDS["en"]
    first, last = scene.groups[0], scene.groups[-1]
    size = scene.size if rng.random() < 0.6 else ""
    ground = f"{scene.texture} {scene.ground}" if scene.texture != "plain" and rng.random() < 0.7 else scene.ground
    bare = " ".join(filter(None, (size, first.colour, first.shape)))
    count = words["numbers"][first.count - 1]
    shapes = first.shape if first.count == 1 else words["plurals"].get(first.shape, f"{first.shape}s")
    slots = {
        "a": _with_article(bare) if first.count == 1 else f"{count} {first.colour} {shapes}",
        "bare": bare,
        "b": _with_article(f"{last.colour} {last.shape}"),
        "other": f"{last.colour} {last.shape}",
        "count": count,
        "shape": shapes,
        "colour": first.colour,
        "ground": ground,
        "on": f"on {_with_article(f'{ground} background')}",
    }
    if len(scene.groups) == 2:
        slots["relation"], slots["inverse"] = words["relations"][scene.arrangement]
        return rng.choice(words["two"]).format(**slots)
    if first.count > 1:
        return rng.choice(words["several"]).format(**slots, order=words["orders"][scene.arrangement])
    at = words["at"].get(scene.arrangement, f"in the {scene.arrangement} corner")
    return rng.choice(words["one"]).format(**slots, place=scene.arrangement, at=at)


def foreign(scene: Scene, language: str, rng: Random) -> str:
    """What a scene with common shapes, colours and places (`common=True`) shows, in another language."""
    words = _WORDS[language]
    first, last = scene.groups[0], scene.groups[-1]
    gender = words["genders"][words["shapes"][first.shape][0]]
    slots = {
        "a": _noun(words, first),
        "b": _noun(words, last),
        "bare": _noun(words, Group(first.shape, first.colour), has_article=False),
        "count": gender["numbers"][first.count - 2] if first.count > 1 else "",
        "on": words["on"].format(colour=words["colours"][scene.ground][words["of_ground"]]),
        "place": words["places"].get(scene.arrangement, ""),
    }
    kind = "two" if len(scene.groups) == 2 else "several" if first.count > 1 else "one"
    return rng.choice(words[kind]).format(**slots)


def _noun(words: dict[str, Any], group: Group, *, has_article: bool = True) -> str:
    """Colour and shape, in agreement, with an article or a number before them."""
    forms, colours = words["shapes"][group.shape], words["colours"][group.colour]
    gender, place = words["genders"][forms[0]], group.count - 2
    if place < 0:
        before, colour, shape = gender["article"] if has_article else "", colours[gender["one"]], forms[1]
    else:
        before, colour, shape = gender["numbers"][place], colours[gender["many"][place]], forms[words["plural"][place]]
    return before + words["noun"].format(colour=colour, shape=shape)


def long_text(caption_anew: Callable[[], str]) -> str:
    """More than 20 words: captions one after another."""
    texts = [caption_anew()]
    while sum(len(text.replace("&", "").split()) for text in texts) < 22:
        texts.append(caption_anew())
    return "; ".join(texts)


def rare_text(caption: str, rng: Random) -> str:
    """A text with a token that occurs nowhere else."""
    token = "".join(rng.choices("bcdfghjkmnpqvwxz", k=12))
    number = rng.randint(10**6, 10**8)
    slots = {"tid": rng.randint(10, 99), "token": token, "caption": caption, "number": number}
    return rng.choice(_WORDS["rare"]).format(**slots)


def short_text(rng: Random) -> str:
    """Fewer than 3 words."""
    return rng.choice((*_WORDS["too_short"], f"IMG_{rng.randint(1000, 9999)}", f"DSC {rng.randint(1, 999):04}"))


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
