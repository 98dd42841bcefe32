"""The page of an evaluation: one HTML file that loads nothing, in the style of the report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from altalign.eval.evaluation import Evaluated, Evaluation
from altalign.eval.results import Compared
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


class Part(NamedTuple):
    """A set as it is shown."""

    evaluated: Evaluated
    classes: Sequence[ClassShare]  # the worst first; empty where the set has none
    confused: Sequence[tuple[str, str, int]]  # the true class, another that images of it were taken for, and how many
    matrix: Sequence[Sequence[int]]  # images by true and predicted class; empty of many classes
    pictures: Mapping[int, str]  # data URIs of the images that examples name and that decode, by their numbers


def html(evaluation: Evaluation, *, model: str) -> bytes:
    """The page of a model's evaluation in UTF-8. It reads the images of the examples."""
    parts = [_part(each) for each in evaluation.evaluated]
    values = {"evaluation": evaluation, "parts": parts, "model": model, "worst": _CLASSES}
    return frame.rendered(_HERE, "evaluation.html", styles=_STYLES, **values)


def comparison(compared: Sequence[Compared], *, a: str, b: str) -> bytes:
    """The page of two models on the same sets in UTF-8."""
    return frame.rendered(_HERE, "models.html", styles=_STYLES, compared=compared, a=a, b=b)


def _part(each: Evaluated) -> Part:
    outcomes, names = each.result.outcomes, each.result.classes
    classes, confused, matrix = list[ClassShare](), list[tuple[str, str, int]](), list[list[int]]()
    if names and {"label", "rank"} <= outcomes.keys():
        labels, is_right = outcomes["label"], outcomes["rank"] <= 1
        images, right = np.bincount(labels, minlength=len(names)), np.bincount(labels[is_right], minlength=len(names))
        rows = [ClassShare(names[row], int(right[row]), int(images[row])) for row in range(len(names)) if images[row]]
        classes = sorted(rows, key=lambda one: (one.right / one.images, one.name))
    if names and "predicted" in outcomes:
        whole = np.zeros((len(names), len(names)), np.int64)
        np.add.at(whole, (outcomes["label"], outcomes["predicted"]), 1)
        matrix = whole.tolist() if len(names) <= _MATRIX else []
        np.fill_diagonal(whole, 0)
        for place in np.argsort(-whole, axis=None, kind="stable")[:_CONFUSED]:
            row, column = divmod(int(place), len(names))
            if whole[row, column]:
                confused.append((names[row], names[column], int(whole[row, column])))
    return Part(each, classes, confused, matrix, _pictures(each))


def _pictures(each: Evaluated) -> dict[int, str]:
    shown = [one for example in each.result.examples for one in (example.query, *example.answers)]
    rows, pictures = sorted({one for one in shown if isinstance(one, int)}), dict[int, str]()
    limits = {"pixels_at_most": _PIXELS_AT_MOST, "colour": True, "short_side_px": thumbnails.WEBP_SIDE_PX}
    for row, data in zip(rows, each.images.read(rows), strict=True):
        if (decoded := pixels.decode(data, **limits).pixels) is not None:
            pictures[row] = frame.data_uri(thumbnails.webp(decoded))
    return pictures
