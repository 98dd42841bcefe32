"""Captions of a scene in several languages and phrasings, and the texts of the web that describe nothing.

`words.toml` has the words.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from altalign.demo.scenes import Group, Scene

_WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
_ENGLISH: dict[str, Any] = _WORDS["en"]
LANGUAGES = ("de", "fr", "es", "ru", "ja", "zh")  # beside English
BOILERPLATE: list[str] = _WORDS["boilerplate"]
TOO_SHORT: list[str] = _WORDS["too_short"]


def caption(scene: Scene, language: str, rng: Random) -> str:
    """A sentence or a title that says what the scene shows, 3 to 20 words."""
    text = english(scene, rng) if language == "en" else foreign(scene, language, rng)
    return text[0].upper() + text[1:] if rng.random() < 0.3 else text


def english(scene: Scene, rng: Random) -> str:
    """What the scene shows, in one of many phrasings."""
    first, last = scene.groups[0], scene.groups[-1]
    size = scene.size if rng.random() < 0.6 else ""
    ground = f"{scene.texture} {scene.ground}" if scene.texture != "plain" and rng.random() < 0.7 else scene.ground
    bare = " ".join(filter(None, (size, first.colour, first.shape)))
    count = _ENGLISH["numbers"][first.count - 1]
    shapes = first.shape if first.count == 1 else _ENGLISH["plurals"].get(first.shape, f"{first.shape}s")
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
        slots["relation"], slots["inverse"] = _ENGLISH["relations"][scene.arrangement]
        return rng.choice(_ENGLISH["two"]).format(**slots)
    if first.count > 1:
        return rng.choice(_ENGLISH["several"]).format(**slots, order=_ENGLISH["orders"][scene.arrangement])
    at = _ENGLISH["at"].get(scene.arrangement, f"in the {scene.arrangement} corner")
    return rng.choice(_ENGLISH["one"]).format(**slots, place=scene.arrangement, at=at)


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
    gender_of, *_ = forms = words["shapes"][group.shape]
    gender, colours = words["genders"][gender_of], words["colours"][group.colour]
    if group.count == 1:
        before, colour, shape = gender["article"] if has_article else "", colours[gender["one"]], forms[1]
    else:
        place = group.count - 2
        before = gender["numbers"][place]
        colour, shape = colours[gender["many"][place]], forms[words["plural"][place]]
    return before + words["noun"].format(colour=colour, shape=shape)


def long_text(told: Callable[[], str]) -> str:
    """More than 20 words: captions one after another."""
    texts = [told()]
    while sum(len(text.replace("&", "").split()) for text in texts) < 22:
        texts.append(told())
    return "; ".join(texts)


def rare_text(told: str, rng: Random) -> str:
    """A text with a token that occurs nowhere else."""
    token = "".join(rng.choices("bcdfghjkmnpqvwxz", k=12))
    number = rng.randint(10**6, 10**8)
    texts = (
        f"image tid {rng.randint(10, 99)}&id {token}",
        f"{told} {token}",
        f"IMG {number} copy.jpg",
        f"{told}, item no. {number}",
        f"file {token} 2.jpg",
    )
    return rng.choice(texts)


def short_text(rng: Random) -> str:
    """Fewer than 3 words."""
    return rng.choice((*TOO_SHORT, f"IMG_{rng.randint(1000, 9999)}", f"DSC {rng.randint(1, 999):04}"))


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
