"""What the checks of a run found: how much they looked at, how much of it fails, and examples. Adds up over shards."""

from collections import defaultdict
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
    words = f"{many(len(checks) - unknown, 'check(s)')} passed"
    if failing:
        words = f"{failing} of {many(len(checks), 'check(s)')} failed"
    return f"{words}, {unknown} could not be asked" if unknown else words


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
        self._findings = defaultdict[str, _Finding](_Finding)

    def saw(self, name: str, number: int = 1) -> None:
        """Counts things that a check looked at."""
        self._findings[name].checked += number

    def fails(self, name: str, message: str, number: int = 1) -> None:
        """Counts things that fail; the message describes the first: where it is, and the value."""
        finding = self._findings[name]
        finding.failing += number
        if len(finding.examples) < EXAMPLES:
            finding.examples.append(message)

    def cannot_ask(self, name: str, why: str) -> None:
        """Notes that a check cannot look at something: why, and what would make it possible."""
        finding = self._findings[name]
        finding.hindered += 1
        if len(finding.hindrances) < EXAMPLES:
            finding.hindrances.append(why)

    def rows(self, name: str, is_failing: npt.NDArray[np.bool_], message: Callable[[int], str]) -> None:
        """Counts rows by whether they fail (bool[n]); a message describes one by its number."""
        self.saw(name, len(is_failing))
        failing = np.flatnonzero(is_failing)
        for place, row in enumerate(failing[:EXAMPLES].tolist()):
            self.fails(name, message(row), 1 if place + 1 < min(EXAMPLES, len(failing)) else len(failing) - place)

    def add(self, other: "Findings") -> None:
        """Adds the findings of others."""
        for name, finding in other._findings.items():
            mine = self._findings[name]
            mine.checked += finding.checked
            mine.failing += finding.failing
            mine.examples += finding.examples[: EXAMPLES - len(mine.examples)]
            mine.hindered += finding.hindered
            mine.hindrances += finding.hindrances[: EXAMPLES - len(mine.hindrances)]

    def checks(self, about: Mapping[str, tuple[str, str]], notes: Mapping[str, str]) -> list[Check]:
        """One check for each name in `about` that has findings, in that order.

        `about` has what a check looks at (a noun for `many`), and what to do if it fails; notes are added to the detail
        of checks that pass.
        """
        return [
            _check(name, self._findings[name], *about[name], notes.get(name, ""))
            for name in about
            if name in self._findings
        ]


def _check(name: str, finding: _Finding, things: str, repair: str, note: str) -> Check:
    words, passed = f"{many(finding.checked, things)}{f', {note}' if note else ''}", True
    if finding.failing:
        more, passed = finding.failing - len(finding.examples), False
        words = "; ".join(finding.examples)
        words += f"; and {more:,} more of {many(finding.checked, things)}" if more > 0 else ""
        words += f"; {repair}"
    elif finding.hindered:
        more, passed = finding.hindered - len(finding.hindrances), None
        words = "; ".join(finding.hindrances) + (f"; and {more:,} more" if more > 0 else "")
    return Check(name, passed, words, finding.checked)
