"""The page of an evaluation: one HTML file that loads nothing, in the style of the report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from altalign.eval.compare import Compared
from altalign.eval.evaluation import Evaluated, Evaluation
from altalign.filters import pixels, thumbnails
from altalign.pages import frame

_HERE = Path(__file__).parent
_STYLES = ("page.css", "evaluation.css")
_CLASSES, _CONFUSED, _MATRIX = 20, 12, 20  # shown: the worst classes, confusions, classes of a whole matrix
_PIXELS_AT_MOST = 1 << 26


class ClassShare(NamedTuple):
    """A class, how many images of it were right, and of how many."""

    name: str
    right: int
    images: int


@dataclass(frozen=True)
class Part:
    """A set as it is shown."""

    of: Evaluated  # the set
    classes: Sequence[ClassShare]  # of the set, the worst first; empty where it has none
    confused: Sequence[tuple[str, str, int]]  # the true class, another that images of it were taken for, and how many
    matrix: Sequence[Sequence[int]]  # images by true and predicted class; empty of many classes
    pictures: Mapping[int, str]  # data URIs of the images that examples name and that decode, by their numbers


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
    if names and {"label", "rank"} <= outcomes.keys():
        labels, is_right = outcomes["label"], outcomes["rank"] <= 1
        images, right = np.bincount(labels, minlength=len(names)), np.bincount(labels[is_right], minlength=len(names))
        rows = [ClassShare(names[row], int(right[row]), int(images[row])) for row in range(len(names)) if images[row]]
        classes = sorted(rows, key=lambda one: (one.right / one.images, one.name))
    matrix = np.zeros((len(names), len(names)), np.int64)
    has_predictions = bool(names) and "predicted" in outcomes
    if has_predictions:
        np.add.at(matrix, (outcomes["label"], outcomes["predicted"]), 1)
    shown = matrix.tolist() if has_predictions and len(names) <= _MATRIX else []
    return Part(each, classes, _confused(matrix, names), shown, _pictures(each))


def _confused(matrix: npt.NDArray[np.int64], names: Sequence[str]) -> list[tuple[str, str, int]]:
    """The most frequent pairs of a class and another that its images were taken for."""
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSED]
    places = [divmod(int(place), len(names)) for place in order]
    return [(names[row], names[column], int(wrong[row, column])) for row, column in places if wrong[row, column]]


def _pictures(each: Evaluated) -> dict[int, str]:
    examples = each.result.examples
    rows = sorted({one for example in examples for one in (example.query, *example.found) if isinstance(one, int)})
    return {row: uri for row, data in zip(rows, each.images.read(rows), strict=True) for uri in _thumbnail(data)}


def _thumbnail(data: bytes) -> Iterator[str]:
    found = pixels.decode(data, pixels_at_most=_PIXELS_AT_MOST, colour=True, short_side_px=thumbnails.WEBP_SIDE_PX)
    if found.pixels is not None:
        yield frame.data_uri(thumbnails.webp(found.pixels))
