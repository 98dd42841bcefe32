"""Conditions on columns, as `altalign select --where` takes them: a small part of SQL's WHERE, with its logic of nulls.

    language = 'en' AND similarity >= 0.28 AND NOT (source IN ('ads', 'shop') OR words BETWEEN 1 AND 2)

Comparisons (`= == != <> < <= > >=`), `IN (…)`, `BETWEEN … AND …`, `LIKE '…'` (`%` and `_`), `IS NULL`, each with NOT
where SQL has it; AND, OR, NOT and parentheses. Operands are columns, numbers, 'texts', TRUE and FALSE. Nothing else is
understood, and nothing is run.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

CHARACTERS_AT_MOST = 65_536
NESTING_AT_MOST = 50

Column = "pa.Array[Any] | pa.ChunkedArray[Any]"
Test = Literal["=", "!=", "<", "<=", ">", ">=", "in", "between", "like", "null"]
_OPPOSITE: Mapping[str, Test] = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SAME: Mapping[str, Test] = {"==": "=", "<>": "!="}


class WhereError(ValueError):
    """The text is no condition, or not one on these columns; the words say where and why."""


@dataclass(frozen=True)
class Name:
    """A column."""

    name: str


Value = bool | int | float | str
Operand = Name | Value


@dataclass(frozen=True)
class Compared:
    """A test of an operand with others: of one for comparisons and LIKE, two for BETWEEN, any for IN, none for NULL."""

    left: Operand
    test: Test
    others: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Not:
    """The opposite of a condition."""

    of: "Condition"


@dataclass(frozen=True)
class Joined:
    """All (AND) or one (OR) of some conditions."""

    by: Literal["and", "or"]
    parts: "tuple[Condition, ...]"


Condition = Compared | Not | Joined


# Parsing --------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def parsed(text: str) -> Condition:
    """The condition that a text says.

    Raises:
        WhereError: it says none.
    """
    import pyparsing as pp

    if len(text) > CHARACTERS_AT_MOST:
        raise WhereError(f"{len(text):,} characters, and at most {CHARACTERS_AT_MOST:,} are read")
    depth = deepest = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    if deepest > NESTING_AT_MOST or text.lower().count("not") > 1_000:
        raise WhereError(f"nested more than {NESTING_AT_MOST} deep; write it flatter")
    try:
        return _grammar().parse_string(text, parse_all=True)[0]
    except pp.ParseBaseException as error:
        at = error.loc
        near = text[at : at + 30] or "its end"
        raise WhereError(f"not understood at character {at + 1}, {near!r}") from None
    except RecursionError:
        raise WhereError("nested too deep; write it flatter") from None


@cache
def _grammar() -> Any:
    import pyparsing as pp

    def word(name: str) -> Any:
        return pp.Suppress(pp.CaselessKeyword(name))

    keywords = pp.MatchFirst([pp.CaselessKeyword(each) for each in _KEYWORDS])
    plain = pp.Regex(_PLAIN)
    name = (~keywords + plain | pp.QuotedString('"', esc_quote='""')).set_parse_action(
        lambda found: Name(str(found[0]))
    )
    number = pp.Regex(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?").set_parse_action(lambda found: _number(str(found[0])))
    text = pp.QuotedString("'", esc_quote="''")
    literal = number | text | _boolean(pp)
    operand = literal | name
    listed = pp.Suppress("(") + pp.Group(pp.DelimitedList(literal)) + pp.Suppress(")")

    def tested(test: Any, made: Callable[[Any], Compared]) -> Any:
        """A test of an operand, or NOT and the same."""
        without = (operand + word("not") + test).set_parse_action(lambda found: Not(made(found)))
        return (operand + test).set_parse_action(made) | without

    sign = pp.one_of("<= >= <> != == = < >")
    compared = (operand + sign + operand).set_parse_action(lambda found: _compared(*found))
    isin = tested(word("in") + listed, lambda found: Compared(found[0], "in", tuple(found[1])))
    bounds = operand + word("and") + operand
    between = tested(word("between") + bounds, lambda found: Compared(found[0], "between", (found[1], found[2])))
    like = tested(word("like") + text, lambda found: Compared(found[0], "like", (found[1],)))
    null = (operand + word("is") + word("null")).set_parse_action(lambda found: Compared(found[0], "null"))
    not_null = (operand + word("is") + word("not") + word("null")).set_parse_action(
        lambda found: Not(Compared(found[0], "null"))
    )
    truth = operand.copy().add_parse_action(lambda found: Compared(found[0], "=", (True,)))

    either = pp.Forward()
    one = pp.Suppress("(") + either + pp.Suppress(")") | (compared | isin | between | like | null | not_null | truth)
    opposite = pp.Forward()
    opposite <<= (word("not") + opposite).set_parse_action(lambda found: Not(found[0])) | one
    every = (opposite + (word("and") + opposite)[...]).set_parse_action(lambda found: _joined("and", found))
    either <<= (every + (word("or") + every)[...]).set_parse_action(lambda found: _joined("or", found))
    return either


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_KEYWORDS = ("and", "or", "not", "in", "between", "like", "is", "null", "true", "false")


def _boolean(pp: Any) -> Any:
    true = pp.CaselessKeyword("true").copy().set_parse_action(lambda: True)
    false = pp.CaselessKeyword("false").copy().set_parse_action(lambda: False)
    return true | false


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("+-").isdecimal() and len(text) < 19 else float(text)


def _compared(left: Operand, sign: str, right: Operand) -> Compared:
    test: Any = _SAME.get(sign, sign)
    if not isinstance(left, Name) and isinstance(right, Name):
        return Compared(right, _OPPOSITE[test], (left,))
    return Compared(left, test, (right,))


def _joined(by: Literal["and", "or"], parts: Sequence[Condition]) -> Condition:
    return parts[0] if len(parts) == 1 else Joined(by, tuple(parts))


# Writing --------------------------------------------------------------------------------------------------------------


def written(condition: Condition | Operand) -> str:
    """The text that `parsed` makes this condition, or this operand, of."""
    match condition:
        case Compared(left, "null"):
            return f"{written(left)} IS NULL"
        case Compared(left, "between", (low, high)):
            return f"{written(left)} BETWEEN {written(low)} AND {written(high)}"
        case Compared(left, "in", others):
            return f"{written(left)} IN ({', '.join(map(written, others))})"
        case Compared(left, test, (other,)):
            return f"{written(left)} {test.upper()} {written(other)}"
        case Not(of):
            return f"NOT ({written(of)})"
        case Joined(by, parts):
            return f" {by.upper()} ".join(f"({written(part)})" for part in parts)
        case Name(name):
            is_plain = _PLAIN.fullmatch(name) and name.lower() not in _KEYWORDS
            return name if is_plain else '"{}"'.format(name.replace('"', '""'))
        case bool():
            return str(condition).upper()
        case str():
            return "'{}'".format(condition.replace("'", "''"))
        case _:
            return repr(condition)


# What a condition is of -----------------------------------------------------------------------------------------------


def conjuncts(condition: Condition) -> list[Condition]:
    """The conditions that all have to hold, in order."""
    if isinstance(condition, Joined) and condition.by == "and":
        return [each for part in condition.parts for each in conjuncts(part)]
    return [condition]


def of_reasons(lineage: Mapping[str, Any] | None) -> dict[str, str]:
    """What the reasons `not_where:N` of a run of this lineage say, in words; none where several selections made it."""

    def asked(made: Mapping[str, Any] | None) -> Iterator[str]:
        if made and (text := made.get("settings", {}).get("where")):
            yield str(text)
        for before in (made or {}).get("before") or ():
            yield from asked(before)

    texts = list(asked(lineage))
    with suppress(WhereError):  # of another version
        conditions = conjuncts(parsed(texts[0])) if len(texts) == 1 else []
        return {f"not_where:{n}": f"condition {written(each)} does not hold" for n, each in enumerate(conditions, 1)}
    return {}


def columns(condition: Condition, *, but_of_nulls: bool = False) -> list[str]:
    """The columns that a condition names, each once; with `but_of_nulls` not those that are only asked to be null."""
    match condition:
        case Compared(left, test, others):
            named = [left, *others] if not (but_of_nulls and test == "null") else []
            found = [each.name for each in named if isinstance(each, Name)]
        case Not(of):
            found = columns(of, but_of_nulls=but_of_nulls)
        case Joined(_, parts):
            found = [name for part in parts for name in columns(part, but_of_nulls=but_of_nulls)]
    return list(dict.fromkeys(found))


def check(condition: Condition, types: Mapping[str, pa.DataType]) -> None:
    """Refuse a condition on columns that are not there, or are of another type.

    Raises:
        WhereError: naming the column.
    """
    for name in columns(condition):
        if name not in types:
            near = difflib.get_close_matches(name, types, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(types)}"
            raise WhereError(f"no column {name!r} ({hint})")
    for each in _comparisons(condition):
        kinds = [_kind(of, types) for of in (each.left, *each.others)]
        if each.test == "like" and kinds[0] != "text":
            raise WhereError(f"{_said(each.left)} is {kinds[0]}, and LIKE is of text")
        if each.test != "null" and len({*kinds}) > 1:
            other = next(of for of, kind in zip(each.others, kinds[1:], strict=True) if kind != kinds[0])
            raise WhereError(
                f"{_said(each.left)} is {kinds[0]}, and {_said(other)} is {_kind(other, types)}; compare like with like"
            )


def _comparisons(condition: Condition) -> list[Compared]:
    match condition:
        case Compared():
            return [condition]
        case Not(of):
            return _comparisons(of)
        case Joined(_, parts):
            return [each for part in parts for each in _comparisons(part)]


def _said(operand: Operand) -> str:
    return operand.name if isinstance(operand, Name) else repr(operand)


def _kind(operand: Operand, types: Mapping[str, pa.DataType]) -> str:
    if not isinstance(operand, Name):
        return "truth" if isinstance(operand, bool) else "text" if isinstance(operand, str) else "a number"
    of = types[operand.name]
    return "truth" if pa.types.is_boolean(of) else "text" if pa.types.is_string(of) else "a number"


# Asking ---------------------------------------------------------------------------------------------------------------


def holds(condition: Condition, column: Callable[[str], Any], rows: int) -> pa.BooleanArray:
    """Whether a condition holds for each of n rows: bool[n], null where SQL says NULL; `column` has the columns."""
    match condition:
        case Not(of):
            return pc.invert(holds(of, column, rows))
        case Joined(by, parts):
            join = pc.and_kleene if by == "and" else pc.or_kleene
            found = holds(parts[0], column, rows)
            for part in parts[1:]:
                found = join(found, holds(part, column, rows))
            return found
        case Compared(left, "in" | "like" as test, others):
            return _compare(_values(left, column, rows), test, others)
        case Compared(left, test, others):
            return _compare(_values(left, column, rows), test, [_values(of, column, rows) for of in others])


def _values(operand: Operand, column: Callable[[str], Any], rows: int) -> Any:
    """A column as one array; numbers as float64, which holds every number of a score, and integers below 2^53."""
    if not isinstance(operand, Name):
        if isinstance(operand, (bool, str)):
            return pa.repeat(pa.scalar(operand), rows)
        return pa.repeat(pa.scalar(float(operand)), rows)
    values = column(operand.name)
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    return values.cast(pa.float64(), safe=False) if is_number else values


def _compare(left: Any, test: Test, others: Sequence[Any]) -> pa.BooleanArray:
    match test:
        case "=":
            return pc.equal(left, others[0])
        case "!=":
            return pc.not_equal(left, others[0])
        case "<":
            return pc.less(left, others[0])
        case "<=":
            return pc.less_equal(left, others[0])
        case ">":
            return pc.greater(left, others[0])
        case ">=":
            return pc.greater_equal(left, others[0])
        case "between":
            return pc.and_kleene(pc.greater_equal(left, others[0]), pc.less_equal(left, others[1]))
        case "in":
            listed: Any = pc.is_in(left, value_set=pa.array(others, left.type))
            return pc.if_else(left.is_valid(), listed, pa.scalar(None, pa.bool_()))
        case "like":
            return pc.match_like(left, str(others[0]))
        case "null":
            return pc.is_null(left)
