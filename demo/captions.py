"""Captions: English ones of a scene in several phrasings, and the texts of the web that describe nothing."""

from collections.abc import Callable
from random import Random

from altalign.demo.languages import LANGUAGES
from altalign.demo.scenes import Group, Scene

_NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
_PLURALS = {"cross": "crosses"}
_AT = {
    "centre": "in the centre",
    "top": "at the top",
    "bottom": "at the bottom",
    "left": "on the left",
    "right": "on the right",
}
_ORDERS = {"row": "in a row", "column": "in a column", "scattered": "scattered"}
_RELATIONS = {"left": ("to the left of", "to the right of"), "above": ("above", "below")}

_ONE = (
    "{a} {on}",
    "{a} {at}",
    "{a} {at} {on}",
    "picture of {a} {at}",
    "{bare}, {place}, {ground} background",
    "{ground} background with {a} {at}",
    "the {shape} {at} is {colour}",
    "drawing: {a} {on}",
    "there is {a} {at} {on}",
    "{bare} & {ground} background",
)
_SEVERAL = (
    "{a} {on}",
    "{a} {order}",
    "{a} {order} {on}",
    "picture of {a} {on}",
    "{count} {shape}, all {colour}, {order}",
    "drawing: {a} {order}",
    "{ground} background with {a}",
    "there are {a} {order} {on}",
)
_TWO = (
    "{a} {relation} {b}",
    "{b} {inverse} {a}",
    "{a} and {b} {on}",
    "picture of {a} {relation} {b}",
    "{a} {relation} {b} {on}",
    "drawing: {b} {inverse} {a}",
    "{bare} & {other}, {ground} background",
)

BOILERPLATE = (
    "click here to see more",
    "View full size image",
    "image for this article",
    "please wait, loading",
    "Advertisement: learn more",
)
TOO_SHORT = ("logo", "photo", "thumbnail", "red star", "Click here", "1920x1080", "banner 2", "img")


def caption(scene: Scene, language: str, rng: Random) -> str:
    """A sentence or a title that says what the scene shows, 3 to 20 words."""
    text = english(scene, rng) if language == "en" else LANGUAGES[language](scene, rng)
    return text[0].upper() + text[1:] if rng.random() < 0.3 else text


def english(scene: Scene, rng: Random) -> str:
    """What the scene shows, in one of many phrasings."""
    first, last = scene.groups[0], scene.groups[-1]
    size = scene.size if rng.random() < 0.6 else ""
    ground = f"{scene.texture} {scene.ground}" if scene.texture != "plain" and rng.random() < 0.7 else scene.ground
    bare = " ".join(filter(None, (size, first.colour, first.shape)))
    slots = {
        "a": _with_article(bare) if first.count == 1 else f"{_NUMBERS[first.count]} {first.colour} {_plural(first)}",
        "bare": bare,
        "b": _with_article(f"{last.colour} {last.shape}"),
        "other": f"{last.colour} {last.shape}",
        "count": _NUMBERS[first.count],
        "shape": first.shape if first.count == 1 else _plural(first),
        "colour": first.colour,
        "ground": ground,
        "on": _with_article(f"{ground} background", "on"),
    }
    if len(scene.groups) == 2:
        slots["relation"], slots["inverse"] = _RELATIONS[scene.arrangement]
        return rng.choice(_TWO).format(**slots)
    if first.count > 1:
        return rng.choice(_SEVERAL).format(**slots, order=_ORDERS[scene.arrangement])
    at = _AT.get(scene.arrangement, f"in the {scene.arrangement} corner")
    return rng.choice(_ONE).format(**slots, place=scene.arrangement, at=at)


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


def _plural(group: Group) -> str:
    return _PLURALS.get(group.shape, f"{group.shape}s")


def _with_article(noun: str, preposition: str = "") -> str:
    article = "an" if noun[0] in "aeiou" else "a"
    return f"{preposition} {article} {noun}".strip()
