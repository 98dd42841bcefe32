"""What the checks of a run found: how much they looked at, how much of it fails, and examples. Adds up over shards."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

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


class Findings:
    """Collects findings by the name of their check."""

    def __init__(self) -> None:
        self.checked, self.failing, self.hindered = Counter[str](), Counter[str](), Counter[str]()
        self.examples = defaultdict[str, list[str]](list)  # of what fails, EXAMPLES at most
        self.hindrances = defaultdict[str, list[str]](list)  # likewise

    def saw(self, name: str, number: int = 1) -> None:
        """Counts things that a check looked at."""
        self.checked[name] += number

    def fails(self, name: str, message: str) -> None:
        """Counts a thing that fails; the message says where it is, and the value."""
        self.failing[name] += 1
        self.examples[name] = [*self.examples[name], message][:EXAMPLES]

    def cannot_ask(self, name: str, why: str) -> None:
        """Notes that a check cannot look at something: why, and what would make it possible."""
        self.hindered[name] += 1
        self.hindrances[name] = [*self.hindrances[name], why][:EXAMPLES]

    def rows(
        self,
        name: str,
        is_failing: npt.NDArray[np.bool_],
        where: Callable[[int], str],
        what: Callable[[int], str] | str,
    ) -> None:
        """Counts rows by whether they fail (bool[n]); of some it says where they are and what is wrong."""
        self.saw(name, len(is_failing))
        failing = np.flatnonzero(is_failing).tolist()
        for row in failing[:EXAMPLES]:
            self.fails(name, f"{where(row)}: {what(row) if callable(what) else what}")
        self.failing[name] += max(0, len(failing) - EXAMPLES)

    def add(self, other: "Findings") -> None:
        """Adds the findings of others."""
        self.checked.update(other.checked)
        self.failing.update(other.failing)
        self.hindered.update(other.hindered)
        for mine, theirs in ((self.examples, other.examples), (self.hindrances, other.hindrances)):
            for name, messages in theirs.items():
                mine[name] = (mine[name] + messages)[:EXAMPLES]

    def checks(self, about: Mapping[str, tuple[str, str]], notes: Mapping[str, str]) -> list[Check]:
        """One check for each name in `about` that has findings, in that order.

        `about` has what a check looks at (a noun for `many`), and what to do if it fails; notes are added to the detail
        of checks that pass.
        """
        checks = []
        for name, (things, repair) in about.items():
            if not any(name in numbers for numbers in (self.checked, self.failing, self.hindered)):
                continue
            words, passed = many(self.checked[name], things) + (f", {notes[name]}" if name in notes else ""), True
            if self.failing[name]:
                more, passed = self.failing[name] - len(self.examples[name]), False
                of_all = f"and {more:,} more of {many(self.checked[name], things)}"
                words = "; ".join([*self.examples[name], *([of_all] if more > 0 else []), repair])
            elif self.hindered[name]:
                more, passed = self.hindered[name] - len(self.hindrances[name]), None
                words = "; ".join([*self.hindrances[name], *([f"and {more:,} more"] if more > 0 else [])])
            checks.append(Check(name, passed, words, self.checked[name]))
        return checks
