"""A rule is one declaration: a function of columns, the setting that it is held against, and the words about it.

`filters/text.py` and `filters/image.py` declare the built-in rules, each list in the order in which it is asked. From
these lists follow the reasons of stages, what `explain`, reports and cards say, and what the audit checks again. A
rule of a run's own is the same kind of object, made of the function that its settings name (`rules/own.py`).
"""

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from altalign.errors import AltalignError

Columns: TypeAlias = "Mapping[str, pa.Array[Any]]"  # n rows each, by name


@dataclass(frozen=True)
class Words:
    """What users read about a reason."""

    reason: str
    # A sentence for the reference and the report. The settings that it names, `SECTION.NAME` between backticks, are
    # those that the reason depends on.
    meaning: str
    # Of one row: `{setting}` is the threshold with its value, other names are the row's. Empty: the threshold alone.
    explain: str = ""
    card: str = ""  # the meaning in a few words; empty: the first sentence of `meaning`
    why: str = ""  # why the rule is there, where it is not of the paper; empty: `meaning`
    threshold: str = ""  # the setting with the number that rows are held against, `SECTION.NAME`; empty: there is none
    on_with: str = ""  # the setting without which the rule is off; empty: it is always on

    @property
    def settings(self) -> list[str]:
        """The settings that `meaning` names, in its order."""
        return [word for word in self.meaning.split("`")[1::2] if "." in word]

    @property
    def in_card(self) -> str:
        """The meaning as the card has it."""
        first = self.meaning.replace("`", "").partition(". ")[0].removesuffix(".")
        return self.card or first[0].lower() + first[1:]


@dataclass(frozen=True)
class Paper:
    """What a paper says of a rule: a row of the report's fidelity page, and one of docs/concepts/fidelity.md."""

    quote: str  # the paper's words
    title: str  # the rule in a few words
    says: str  # the paper's threshold as text
    number: float | None = None  # the same as a number; None where the paper gives none
    less_is_stricter: bool = True  # whether a lower threshold drops more
    shown: str = "{:,}"  # how the run's threshold is written
    note: str = ""  # a remark on the difference
    off: str = ""  # the remark where the rule is off
    where: str = "ALIGN, section 3"


@dataclass(frozen=True)
class Rule:
    """A rule on columns."""

    words: Words
    function: Callable[..., Any]  # takes columns and settings; returns Arrow booleans, true where a row is dropped
    columns: tuple[str, ...]  # that the function takes
    settings: tuple[str, ...]  # `SECTION.NAME`; the function takes them as keywords, by their last names
    paper: Paper | None = None  # that it is of; None of our own rules
    measured: str = ""  # the measure of the audit's histograms that the threshold cuts; empty: none
    where: str = ""  # file and line of the function, for errors
    asked_where: str = ""  # the column in which a row needs a value to be asked about; empty: all rows are

    @property
    def name(self) -> str:
        """The reason of the rows that it drops."""
        return self.words.reason

    def __call__(self, *columns: Any, **settings: Any) -> Any:
        """What the function returns."""
        return self.function(*columns, **settings)

    def mask(self, columns: Columns, config: Any, name_row: Callable[[int], str] = str) -> "pa.BooleanArray":
        """Which of n rows the rule drops; `name_row` names a row in errors, by its number.

        Raises:
            AltalignError: the function failed, or returned something else than n booleans without nulls.
        """
        n = len(next(iter(columns.values())))
        if not self.asked_where:
            return self._mask({name: columns[name] for name in self.columns}, n, config, name_row)
        is_asked = columns[self.asked_where].is_valid()
        numbers: Any = pc.indices_nonzero(is_asked)
        some = {name: columns[name].filter(is_asked) for name in self.columns}
        mask = self._mask(some, len(numbers), config, lambda row: name_row(numbers[row].as_py()))
        none: Any = pa.repeat(pa.scalar(False), n)  # noqa: FBT003 (Arrow's own signature)
        return pc.replace_with_mask(none, is_asked, mask)

    def _mask(self, columns: Columns, n: int, config: Any, name_row: Callable[[int], str]) -> "pa.BooleanArray":
        settings = {name.rpartition(".")[2]: value_of(config, name) for name in self.settings}

        def error_of(row: int) -> Exception | None:
            try:
                self.function(**{name: column[row : row + 1] for name, column in columns.items()}, **settings)
            except Exception as error:
                return error
            return None

        where, path = f"{self.where}: {self.function.__name__}", self.function.__code__.co_filename
        try:
            mask = self.function(**columns, **settings)
        except Exception as error:
            row = next(filter(error_of, range(n)), None)
            on_row = f" on {name_row(row)}" if row is not None else ""
            if line := line_in(path, error):
                where = f"{path} line {line}: {self.function.__name__}"
            repair = "put that right, and run the command with --rerun"
            raise AltalignError(f"{where}: {type(error).__name__}: {error}{on_row}; {repair}") from error
        if isinstance(mask, pa.ChunkedArray):
            mask = mask.combine_chunks()
        if not isinstance(mask, pa.BooleanArray) or len(mask) != n:
            what = f"{len(mask):,} of {mask.type}" if isinstance(mask, pa.Array) else type(mask).__name__
            repair = f"give a pyarrow array of {n:,} booleans, true where a row is dropped"
            raise AltalignError(f"{where}: it returned {what}; {repair}")
        if mask.null_count:
            row = mask.is_null().to_pylist().index(True)
            repair = "decide it, such as with pyarrow.compute.fill_null"
            raise AltalignError(f"{where}: it returned null for {name_row(row)}; {repair}")
        return mask


def line_in(path: str, error: BaseException) -> int | None:
    """The innermost line of a file that an error passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else None


def rule(
    *,
    setting: str = "",
    measured: str = "",
    explain: str = "",
    card: str = "",
    why: str = "",
    on_with: str = "",
    paper: Paper | None = None,
) -> Callable[[Callable[..., Any]], Rule]:
    """Declare a function as a rule. Its name is the reason, its docstring the meaning (`Words`, `Paper`, `Rule`).

    Parameters are columns by their names; a keyword is the last name of `setting`, the threshold.
    """

    def declared(function: Callable[..., Any]) -> Rule:
        parameters = inspect.signature(function).parameters.values()
        columns = tuple(each.name for each in parameters if each.kind is not each.KEYWORD_ONLY)
        meaning = " ".join((function.__doc__ or "").split())
        words = Words(function.__name__, meaning, explain, card, why, threshold=setting, on_with=on_with)
        settings = (setting,) if len(columns) < len(parameters) else ()
        where = f"{function.__code__.co_filename} line {function.__code__.co_firstlineno}"
        return Rule(words, function, columns, settings, paper=paper, measured=measured, where=where)

    return declared


def value_of(config: Any, name: str) -> Any:
    """The value of a setting, `SECTION.NAME`; sections may be tables of the user's."""

    def inner(section: Any, key: str) -> Any:
        return section[key] if isinstance(section, Mapping) else getattr(section, key)

    return reduce(inner, name.split("."), config)


def by_measure(rules: Sequence[Rule]) -> dict[str, set[str]]:
    """The rules that each measure is of, by its name."""
    measures = dict[str, set[str]]()
    for each in rules:
        if each.measured:
            measures.setdefault(each.measured, set()).add(each.name)
    return measures
