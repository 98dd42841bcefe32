"""What checks have found: how much was looked at, what of it fails, and of that the first in words. Adds up over shards."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

EXAMPLES = 3  # of what fails, in words


@dataclass(frozen=True)
class Check:
    """One check of a run: whether it holds, what was looked at or what is wrong with what to do about it, and how many things were looked at.

    `passed` is None where it could not be asked of all that it is about, and fails nowhere that it could.
    """

    name: str
    passed: bool | None
    detail: str
    checked: int

    @property
    def result(self) -> str:
        """In a word or two."""
        return "not asked" if self.passed is None else "passed" if self.passed else "FAILED"


def failed(checks: Iterable[Check]) -> list[Check]:
    """Those that do not hold."""
    return [check for check in checks if check.passed is False]


def not_asked(checks: Iterable[Check]) -> list[Check]:
    """Those that could not be asked."""
    return [check for check in checks if check.passed is None]


def summed_up(checks: Sequence[Check]) -> str:
    """How many of them failed, or passed, and could not be asked."""
    failing, unknown = len(failed(checks)), len(not_asked(checks))
    said = (
        f"{failing} of {many(len(checks), 'check(s)')} failed"
        if failing
        else f"{many(len(checks) - unknown, 'check(s)')} passed"
    )
    return f"{said}, {unknown} could not be asked" if unknown else said


def many(number: int, things: str) -> str:
    """So many things, which "(s)" makes one or several of."""
    return f"{number:,} {things.replace('(s)', 's' * (number != 1))}"


@dataclass
class _Finding:
    checked: int = 0
    failing: int = 0
    examples: list[str] = field(default_factory=list)
    hindered: int = 0
    hindrances: list[str] = field(default_factory=list)  # examples


class Findings:
    """Findings by the name of their check."""

    def __init__(self) -> None:
        self._of: dict[str, _Finding] = {}

    def saw(self, name: str, number: int = 1) -> None:
        """So many things were looked at."""
        self._of.setdefault(name, _Finding()).checked += number

    def fails(self, name: str, said: str, number: int = 1) -> None:
        """So many of them fail; `said` is about the first: where, and the value."""
        of = self._of.setdefault(name, _Finding())
        of.failing += number
        if len(of.examples) < EXAMPLES:
            of.examples.append(said)

    def cannot_ask(self, name: str, said: str) -> None:
        """A check cannot be asked, of one thing or of all; `said` is why, and what would let it."""
        of = self._of.setdefault(name, _Finding())
        of.hindered += 1
        if len(of.hindrances) < EXAMPLES:
            of.hindrances.append(said)

    def rows(self, name: str, is_failing: np.ndarray, said: Callable[[int], str]) -> None:
        """Rows were looked at (bool[n]); `said` is asked about the first that fail, by their numbers."""
        self.saw(name, len(is_failing))
        failing = np.flatnonzero(is_failing)
        for place, row in enumerate(failing[:EXAMPLES].tolist()):
            self.fails(name, said(row), 1 if place + 1 < min(EXAMPLES, len(failing)) else len(failing) - place)

    def add(self, other: "Findings") -> None:
        """Take in what was found elsewhere."""
        for name, of in other._of.items():
            mine = self._of.setdefault(name, _Finding())
            mine.checked += of.checked
            mine.failing += of.failing
            mine.examples += of.examples[: EXAMPLES - len(mine.examples)]
            mine.hindered += of.hindered
            mine.hindrances += of.hindrances[: EXAMPLES - len(mine.hindrances)]

    def failing(self, name: str) -> int:
        """How many things fail a check."""
        return self._of[name].failing if name in self._of else 0

    def checks(self, about: Mapping[str, tuple[str, str]], notes: Mapping[str, str]) -> list[Check]:
        """A check of each name of `about` that was looked at, in that order.

        Args:
            about: name -> what is looked at, with "(s)" where one of them has none, and what to do where it fails.
            notes: name -> what more to say of one that holds.
        """
        return [self._check(name, *about[name], notes.get(name, "")) for name in about if name in self._of]

    def _check(self, name: str, things: str, repair: str, note: str) -> Check:
        of = self._of[name]
        if of.failing:
            more = of.failing - len(of.examples)
            said = "; ".join(of.examples) + (f"; and {more:,} more of {many(of.checked, things)}" if more > 0 else "")
            return Check(name, False, f"{said}; {repair}", of.checked)  # noqa: FBT003 - a field
        if of.hindered:
            more = of.hindered - len(of.hindrances)
            return Check(
                name, None, "; ".join(of.hindrances) + (f"; and {more:,} more" if more > 0 else ""), of.checked
            )
        return Check(name, True, f"{many(of.checked, things)}{f', {note}' if note else ''}", of.checked)  # noqa: FBT003 - a field
