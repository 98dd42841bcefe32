"""What the checks of a run found: how much they looked at, how much of it fails, and examples. Adds up over shards."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

EXAMPLES = 3  # failures that are described


@dataclass(frozen=True)
class Check:
    """The result of one check of a run.

    Attributes:
        name: the name of the check.
        passed: whether it passed; None if it could not look at everything and nothing that it saw fails.
        detail: what it looked at; if it failed, what is wrong and what to do.
        checked: how many things it looked at.
    """

    name: str
    passed: bool | None
    detail: str
    checked: int

    @property
    def result(self) -> str:
        """The result in a word or two."""
        return "not asked" if self.passed is None else "passed" if self.passed else "FAILED"

    def __str__(self) -> str:
        return f"{self.result} {self.name}: {self.detail}"


def failed(checks: Iterable[Check]) -> list[Check]:
    """The checks that failed."""
    return [check for check in checks if check.passed is False]


def not_asked(checks: Iterable[Check]) -> list[Check]:
    """The checks that could not be asked."""
    return [check for check in checks if check.passed is None]


def summed_up(checks: Sequence[Check]) -> str:
    """How many checks failed or passed, and how many could not be asked, in words."""
    failing, unknown = len(failed(checks)), len(not_asked(checks))
    said = f"{many(len(checks) - unknown, 'check(s)')} passed"
    if failing:
        said = f"{failing} of {many(len(checks), 'check(s)')} failed"
    return f"{said}, {unknown} could not be asked" if unknown else said


def many(number: int, things: str) -> str:
    """A number with its noun, in which "(s)" becomes an s unless the number is 1."""
    return f"{number:,} {things.replace('(s)', 's' * (number != 1))}"


@dataclass
class _Finding:
    checked: int = 0
    failing: int = 0
    examples: list[str] = field(default_factory=list)
    hindered: int = 0
    hindrances: list[str] = field(default_factory=list)  # examples


class Findings:
    """Collects findings by the name of their check."""

    def __init__(self) -> None:
        self._of: dict[str, _Finding] = {}

    def saw(self, name: str, number: int = 1) -> None:
        """Counts things that a check looked at."""
        self._of.setdefault(name, _Finding()).checked += number

    def fails(self, name: str, said: str, number: int = 1) -> None:
        """Counts things that fail; `said` describes the first: where it is, and the value."""
        of = self._of.setdefault(name, _Finding())
        of.failing += number
        if len(of.examples) < EXAMPLES:
            of.examples.append(said)

    def cannot_ask(self, name: str, said: str) -> None:
        """Notes that a check cannot look at something; `said` is why, and what would make it possible."""
        of = self._of.setdefault(name, _Finding())
        of.hindered += 1
        if len(of.hindrances) < EXAMPLES:
            of.hindrances.append(said)

    def rows(self, name: str, is_failing: npt.NDArray[np.bool_], said: Callable[[int], str]) -> None:
        """Counts rows by whether they fail (bool[n]); `said` describes one by its number."""
        self.saw(name, len(is_failing))
        failing = np.flatnonzero(is_failing)
        for place, row in enumerate(failing[:EXAMPLES].tolist()):
            self.fails(name, said(row), 1 if place + 1 < min(EXAMPLES, len(failing)) else len(failing) - place)

    def add(self, other: "Findings") -> None:
        """Adds the findings of others."""
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
        """One check for each name in `about` that has findings, in that order.

        Args:
            about: name -> what the check looks at (a noun for `many`), and what to do if it fails.
            notes: name -> what to add to the detail if it passes.
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
            said = "; ".join(of.hindrances) + (f"; and {more:,} more" if more > 0 else "")
            return Check(name, None, said, of.checked)
        return Check(name, True, f"{many(of.checked, things)}{f', {note}' if note else ''}", of.checked)  # noqa: FBT003 - a field
