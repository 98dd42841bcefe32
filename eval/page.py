"""The page of an evaluation: one HTML file that loads nothing, in the style of the report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from altalign.eval.compare import Compared
from altalign.eval.evaluation import Evaluated, Evaluation
from altalign.eval.outcomes import Example, Found
from altalign.filters import pixels, thumbnails
from altalign.pages import frame

_HERE = Path(__file__).parent
_STYLES = ("page.css", "evaluation.css")
_CLASSES, _CONFUSED, _MATRIX = 20, 12, 20  # shown: the worst classes, confusions, classes of a whole matrix
_PIXELS_AT_MOST = 1 << 26


@dataclass(frozen=True)
class ClassShare:
    """A class, how many images of it were right, and of how many."""

    name: str
    right: int
    images: int


@dataclass(frozen=True)
class Shown:
    """A query or an answer: a picture (a data URI), a text, or both."""

    picture: str
    text: str


@dataclass(frozen=True)
class Card:
    """An example: what was asked, what was found, best first, and the rank of the right answer."""

    query: Shown
    found: Sequence[Shown]
    rank: int


@dataclass(frozen=True)
class Part:
    """A set as it is shown.

    Attributes:
        of: the set.
        classes: of the set, the worst first; empty where it has none.
        confused: the true class, another that images of it were taken for, and how many.
        names: of all classes.
        matrix: images by true and predicted class, in the order of `names`; empty of many classes.
        cards: right and wrong ones.
    """

    of: Evaluated
    classes: Sequence[ClassShare]
    confused: Sequence[tuple[str, str, int]]
    names: Sequence[str]
    matrix: Sequence[Sequence[int]]
    cards: Sequence[Card]


def html(evaluation: Evaluation, *, of: str) -> bytes:
    """The page of a model's evaluation in UTF-8. It reads the images of the examples.

    Args:
        evaluation: of all sets.
        of: the model as the heading names it.
    """
    parts = [_part(each) for each in evaluation.evaluated]
    return _rendered("evaluation.html", evaluation=evaluation, parts=parts, of=of, worst=_CLASSES)


def comparison(found: Sequence[Compared], *, a: str, b: str) -> bytes:
    """The page of two models on the same sets in UTF-8."""
    return _rendered("models.html", found=found, a=a, b=b)


def _rendered(name: str, **values: object) -> bytes:
    style = frame.joined(_STYLES, _HERE / "static")
    template = frame.environment(_HERE / "templates").get_template(name)
    page = template.render(**values, style=Markup(style), policy=frame.policy("", style))
    return page.encode("utf-8", "backslashreplace")


def _part(each: Evaluated) -> Part:
    outcomes, names = each.result.outcomes, each.result.classes
    classes = list[ClassShare]()
    confused, matrix = list[tuple[str, str, int]](), np.zeros((0, 0), np.int64)
    if names and {"label", "rank"} <= outcomes.keys():
        labels, is_right = outcomes["label"], outcomes["rank"] <= 1
        images, right = np.bincount(labels, minlength=len(names)), np.bincount(labels[is_right], minlength=len(names))
        rows = [ClassShare(names[row], int(right[row]), int(images[row])) for row in range(len(names)) if images[row]]
        classes = sorted(rows, key=lambda one: (one.right / one.images, one.name))
    if names and "predicted" in outcomes:
        matrix = np.zeros((len(names), len(names)), np.int64)
        np.add.at(matrix, (outcomes["label"], outcomes["predicted"]), 1)
        confused = _confused(matrix, names)
    shown = matrix.tolist() if len(names) <= _MATRIX else []
    return Part(each, classes, confused, names, shown, _cards(each))


def _confused(matrix: npt.NDArray[np.int64], names: Sequence[str]) -> list[tuple[str, str, int]]:
    """The most frequent pairs of a class and another that its images were taken for."""
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSED]
    places = [divmod(int(place), len(names)) for place in order]
    return [(names[row], names[column], int(wrong[row, column])) for row, column in places if wrong[row, column]]


def _cards(each: Evaluated) -> list[Card]:
    examples = each.result.examples
    pictures = _pictures(each, examples)
    return [
        Card(_shown(one.query, pictures, one.text), [_shown(found, pictures) for found in one.found], one.rank)
        for one in examples
    ]


def _shown(what: Found, pictures: Mapping[int, str], text: str = "") -> Shown:
    return Shown(pictures.get(what, ""), text) if isinstance(what, int) else Shown("", what)


def _pictures(each: Evaluated, examples: Sequence[Example]) -> dict[int, str]:
    """Thumbnails of all images that examples name, by their numbers; those that do not decode are left out."""
    rows = sorted({one for example in examples for one in (example.query, *example.found) if isinstance(one, int)})
    return {row: uri for row, data in zip(rows, each.images.read(rows), strict=True) for uri in _thumbnail(data)}


def _thumbnail(data: bytes) -> Iterator[str]:
    found = pixels.decode(data, pixels_at_most=_PIXELS_AT_MOST, colour=True, short_side_px=thumbnails.WEBP_SIDE_PX)
    if found.pixels is not None:
        yield frame.data_uri(thumbnails.webp(found.pixels))
