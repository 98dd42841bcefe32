"""What is asked of a selection, checked against the columns of a run before any work."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from altalign.data.columns import Known
from altalign.errors import UsageError
from altalign.filters import where
from altalign.filters.where import Condition
from altalign.pipelines.derive import largest_values as tops
from altalign.pipelines.derive.balance import Balance

Nulls = Literal["drop", "keep", ""]


@dataclass(frozen=True)
class Top:
    """The samples with the largest values of a column."""

    column: str
    share: Fraction


@dataclass(frozen=True)
class Asked:
    """A selection.

    Attributes:
        where: the condition as it was written; empty: none.
        tops: shares of the samples that the condition keeps, each of one column.
        balance: lots among samples of frequent concepts, of those that the condition keeps.
        nulls: whether samples stay whose value is missing; empty: it was not said.
    """

    where: str
    tops: tuple[Top, ...]
    nulls: Nulls
    balance: Balance | None = None

    @property
    def conditions(self) -> list[Condition]:
        """The conditions that all have to hold."""
        return where.parsed(self.where).parts if self.where else []

    @property
    def columns(self) -> list[str]:
        """The columns that it names, in order."""
        of_where = [name for condition in self.conditions for name in condition.columns()]
        return list(dict.fromkeys([*of_where, *(top.column for top in self.tops)]))

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        shares = {top.column: str(float(top.share)) for top in self.tops}
        said = {"where": self.where, "top": shares, "nulls": self.nulls}
        return {**said, "balance": self.balance.to_json()} if self.balance else said


def top(text: str) -> Top:
    """`COLUMN=SHARE`.

    Raises:
        UsageError: it is not of this form.
    """
    column, _, share = text.partition("=")
    try:
        found = Fraction(share)
    except (ValueError, ZeroDivisionError):
        found = Fraction(-1)
    if not column or not 0 < found <= 1:
        raise UsageError(f"--top {text}: not of the form COLUMN=SHARE, such as similarity=0.3")
    return Top(column, found)


def check(asked: Asked, known: Known, folder: str) -> None:
    """Refuse what cannot be asked of a run.

    Raises:
        UsageError: a column is not there or of another type, or nulls are not spoken of.
    """
    try:
        for condition in asked.conditions:
            where.check(condition, known.types)
    except where.WhereError as error:
        raise UsageError(f"--where: {error}") from None
    for each in asked.tops:
        try:
            where.kind_of(each.column, known.types)
        except where.WhereError as error:
            raise UsageError(f"--top {each.column}: {error}") from None
        if not tops.is_number(known.types[each.column]):
            raise UsageError(f"--top {each.column}: it is {known.types[each.column]}; give a column of numbers")
    _check_nulls(asked, known, folder)


def _check_nulls(asked: Asked, known: Known, folder: str) -> None:
    of_where = [name for each in asked.conditions for name in each.columns(but_of_nulls=True)]
    missing = known.missing([*of_where, *(each.column for each in asked.tops)])
    if missing and not asked.nulls:
        raise UsageError(f"{folder}: {missing}; say what becomes of those: --nulls drop, or --nulls keep")


def reason_of(condition: Condition, number: int) -> str:
    """The reason of a sample for which a condition does not hold; `number` counts conditions from 1."""
    if condition.bound:
        column, sign, _ = condition.bound
        return f"{'score_below' if sign in ('>', '>=') else 'score_above'}:{_in_reason(column)}"
    match condition:
        case Condition("OPERATOR_IS_NOT_NULL", (Condition("column", _, column),)):
            return f"score_missing:{_in_reason(column)}"
    return f"not_where:{number}"


def _in_reason(name: str) -> str:
    return "_".join(name.split())  # reasons are words


def missing_of(condition: Condition, number: int) -> str:
    """The reason of a sample for which a condition is neither true nor false."""
    names = condition.columns(but_of_nulls=True)
    return f"score_missing:{_in_reason(names[0])}" if len(names) == 1 else f"not_where:{number}"
