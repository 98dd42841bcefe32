"""What a selection would keep with other thresholds of its scores: sliders, and cells that the page adds up.

Exact, for what was not selected has the values that it was decided by, and every rule that it fails. A row comes in by
thresholds alone where it fails no other rule.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from altalign.audit.report.sliders import Slider
from altalign.audit.report.what_if import Cells
from altalign.filters import where
from altalign.filters.where import Compared, Name

STOPS = (40, 20, 10, 5, 3)  # of a slider, about; fewer and fewer, should cells be too many
CELLS_AT_MOST = 100_000
SLIDERS_AT_MOST = 6

Floats = npt.NDArray[np.float64]
Numbers = Callable[[str], Floats]  # of a column, NaN where there is no value; empty where there is no such column


@dataclass(frozen=True)
class Part:
    """A part of what was asked: a condition as it is written, `--top` and its words, or a threshold with its slider."""

    said: str
    is_top: bool
    slider: str = ""
    moved: str = ""  # what stands before the value of another threshold


@dataclass(frozen=True)
class Moved:
    """The sliders, and the cells that they add up.

    Attributes:
        sliders: one a threshold.
        cells: samples by the sliders' numbers.
        kept: samples that the run has.
        asked: the selection in parts, for the command of another one.
        others: what else decides, in words; empty if nothing does.
    """

    sliders: tuple[Slider, ...]
    cells: Cells
    kept: int
    asked: tuple[Part, ...]
    others: str = ""

    def keeps(self, at: Mapping[str, int]) -> int:
        """How many samples stay with sliders at these stops; a test holds the page to it."""
        stay = np.ones(len(self.cells.pairs), bool)
        for slider in self.sliders:
            stay &= slider.allows(self.cells.columns[slider.key], at.get(slider.key, slider.at))
        return int(self.cells.pairs[stay].sum())

    def to_page(self) -> dict[str, object]:
        """The data of the page's script."""
        told = {name: name for name in ("key", "stops", "labels", "at")} | {"below": "is_from_below"}
        return {
            "sliders": [{short: getattr(each, name) for short, name in told.items()} for each in self.sliders],
            "cells": self.cells.packed(),
            "kept": self.kept,
            "asked": [[part.said, part.is_top, part.slider, part.moved] for part in self.asked],
        }


@dataclass(frozen=True)
class _Threshold:
    """A slider to be: whether what is above the threshold stays, and whether the threshold itself does."""

    key: str
    column: str
    test: str
    value: float

    @property
    def keeps_above(self) -> bool:
        return self.test in (">", ">=")

    @property
    def reasons(self) -> set[str]:
        name = "_".join(self.column.split())
        return {f"score_below:{name}", f"not_in_top:{self.column}"} if self.keeps_above else {f"score_above:{name}"}

    def slider(self, values: Floats, stops: int) -> Slider:
        """The slider, with about so many stops over these values, of which there are some."""
        stand = np.unique([*_round(float(values.min()), float(values.max()), stops), self.value])
        toward = {">": np.inf, "<": -np.inf}.get(self.test)
        bounds = stand if toward is None else np.nextafter(stand, toward)
        labels = tuple(f"{self.test} {stop:.6g}" for stop in stand)
        return Slider(
            *(self.key, self.column, "", tuple(stand.tolist()), tuple(bounds.tolist()), labels),
            at=int(np.searchsorted(stand, self.value)),
            about="Both ways.",
            is_from_below=self.keeps_above,
            is_of_text=False,
        )


def of_selection(settings: Mapping[str, Any], kept: Numbers, dropped: Numbers, failed: Sequence[Any]) -> Moved | None:
    """The sliders of a selection; None where it has no threshold of a score.

    Args:
        settings: what was asked, as the manifest has it.
        kept: values of the samples of the run.
        dropped: values of what was not selected.
        failed: the rules that each of these fails.
    """
    asked, thresholds = _asked(settings, kept)
    if not thresholds:
        return None
    movable = set[str]().union(*(each.reasons for each in thresholds))
    comes_in = np.array([movable.issuperset(rules) for rules in failed], bool)
    values = {}
    for column in dict.fromkeys(each.column for each in thresholds):
        of_dropped = dropped(column) if len(dropped(column)) else np.full(len(failed), np.nan)
        values[column] = np.concatenate([kept(column), of_dropped[comes_in]])
    number = len(kept(thresholds[0].column))
    others = "Lots of the balance stay as they were drawn." if settings.get("balance") else ""

    def moved(stops: int) -> Moved:
        sliders = tuple(each.slider(_finite(values[each.column]), stops) for each in thresholds)
        return Moved(sliders, _cells(sliders, values), number, tuple(asked), others)

    tried = map(moved, STOPS)
    return next((found for found in tried if len(found.cells.pairs) <= CELLS_AT_MOST), moved(STOPS[-1]))


def _asked(settings: Mapping[str, Any], kept: Numbers) -> tuple[list[Part], list[_Threshold]]:
    """What was asked in parts, and the thresholds among them that have values."""
    parts, found = list[Part](), list[_Threshold]()

    def add(said: str, column: str, test: str, value: float, *, is_top: bool) -> None:
        key = f"score-{len(found)}"
        found.append(_Threshold(key, column, test, value))
        parts.append(Part(said, is_top, key, f"{where.written(Name(column))} {test} "))

    text, tops = settings.get("where"), settings.get("top")
    for condition in where.conjuncts(where.parsed(text)) if isinstance(text, str) and text else []:
        said = where.written(condition)
        match condition:
            case Compared(Name(name), ">" | ">=" | "<" | "<=" as test, (int() | float() as value,)) if len(
                found
            ) < SLIDERS_AT_MOST and len(_finite(kept(name))):
                add(said, name, test, float(value), is_top=False)
            case _:
                parts.append(Part(said, is_top=False))
    for name, share in (tops if isinstance(tops, dict) else {}).items():
        said, values = f"{name}={share}", _finite(kept(name))
        if len(found) < SLIDERS_AT_MOST and len(values):
            add(said, name, ">=", float(values.min()), is_top=True)
        else:
            parts.append(Part(said, is_top=True))
    return parts, found


def _finite(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _round(low: float, high: float, stops: int) -> list[float]:
    """About so many round values, from one below all values to one above them."""
    width = (high - low) / stops or 1.0
    power = 10.0 ** np.floor(np.log10(width))
    width = next(power * step for step in (1, 2, 5, 10) if power * step >= width * (1 - 1e-9))
    return [
        float(f"{step * width:.12g}") for step in range(int(np.ceil(low / width)) - 1, int(np.floor(high / width)) + 2)
    ]


def _cells(sliders: Sequence[Slider], values: Mapping[str, Floats]) -> Cells:
    """Samples by the numbers of all sliders; one without a value stays wherever a slider stands."""
    columns = []
    for slider in sliders:
        of = values[slider.label]
        columns.append(np.where(np.isnan(of), 255 if slider.is_from_below else 0, slider.numbers(of)).astype(np.uint8))
    distinct, pairs = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    return Cells({slider.key: distinct[:, place] for place, slider in enumerate(sliders)}, pairs.astype(np.int64))
