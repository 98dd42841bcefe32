"""Conditions on columns, as `altalign select --where` takes them: a small part of SQL's WHERE, with its logic of nulls.

    language = 'en' AND similarity >= 0.28 AND NOT (source IN ('ads', 'shop') OR words BETWEEN 1 AND 2)

DuckDB parses a condition and evaluates it. Between the two it is a tree of nothing but what `_read` lists, so that no
condition calls a function, reads a file or changes a setting. Numbers compare as float64; NaN counts as NULL.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from math import isfinite
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from altalign.filters.reservations import NOTATIONS, reason

CHARACTERS_AT_MOST = 65_536

_SELECT = "SELECT "
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_LITERALS = {"INTEGER": "a number", "NUMERIC": "a number", "STRING": "text", "BOOLEAN": "truth"}
# DuckDB's types of nodes, and how each is written.
_FORMS = {
    "COMPARE_EQUAL": "{} = {}",
    "COMPARE_NOTEQUAL": "{} != {}",
    "COMPARE_LESSTHAN": "{} < {}",
    "COMPARE_LESSTHANOREQUALTO": "{} <= {}",
    "COMPARE_GREATERTHAN": "{} > {}",
    "COMPARE_GREATERTHANOREQUALTO": "{} >= {}",
    "COMPARE_BETWEEN": "{} BETWEEN {} AND {}",
    "~~": "{} LIKE {}",
    "!~~": "{} NOT LIKE {}",
    "OPERATOR_IS_NULL": "{} IS NULL",
    "OPERATOR_IS_NOT_NULL": "{} IS NOT NULL",
    "OPERATOR_NOT": "NOT {}",
}
_AND, _OR = "{} AND {}", "{} OR {}"  # of two conditions or more
_BOUNDS = {"{} < {}": "<", "{} <= {}": "<=", "{} > {}": ">", "{} >= {}": ">="}


class WhereError(ValueError):
    """The text is no condition, or not one on these columns; the words say where and why."""


@dataclass(frozen=True)
class Condition:
    """A condition, or an operand of one."""

    form: str  # SQL with {} for each operand; of what has none: `column`, `a number`, `text` or `truth`
    operands: "tuple[Condition, ...]" = ()
    value: str = ""  # the name of a column, a text, or a number or truth as SQL has it

    def __str__(self) -> str:
        return self.written(lambda name: name if _PLAIN.fullmatch(name) else quoted(name, '"'))

    def written(self, column: Callable[[str], str]) -> str:
        """The condition in SQL, with columns as the function writes their names."""
        if not self.operands:
            value = column(self.value) if self.form == "column" else self.value
            return quoted(value, "'") if self.form == "text" else value
        each = [f"({one.written(column)})" if one.operands else one.written(column) for one in self.operands]
        return self.form.format(*each)

    @property
    def parts(self) -> "list[Condition]":
        """The conditions that all have to hold, in order."""
        return [part for each in self.operands for part in each.parts] if self.form.startswith(_AND) else [self]

    def columns(self, *, but_of_nulls: bool = False) -> list[str]:
        """The columns that it names, each once; with `but_of_nulls` not those that are only compared with NULL."""
        if self.form == "column":
            return [self.value]
        if but_of_nulls and self.form.endswith(" NULL"):
            return []
        return list(dict.fromkeys(name for each in self.operands for name in each.columns(but_of_nulls=but_of_nulls)))

    @property
    def bound(self) -> tuple[str, str, float] | None:
        """Column, sign and number, where a column is `<`, `<=`, `>` or `>=` a number."""
        match self.operands:
            case Condition("column", _, name), Condition("a number", _, number) if self.form in _BOUNDS:
                return name, _BOUNDS[self.form], float(number)
        return None

    @property
    def not_null(self) -> str:
        """The column of which it asks no more than a value; empty where it asks something else."""
        is_lone = self.form == _FORMS["OPERATOR_IS_NOT_NULL"] and self.operands[0].form == "column"
        return self.operands[0].value if is_lone else ""


def quoted(text: str, mark: str) -> str:
    """A text or a name in SQL, by its mark of quotation."""
    return mark + text.replace(mark, 2 * mark) + mark


@cache
def _database() -> Any:
    """A database in the memory of this process, which reaches nothing outside."""
    import duckdb

    closed = {"enable_external_access": False, "python_enable_replacements": False, "lock_configuration": True}
    return duckdb.connect(config={"threads": 1, "autoload_known_extensions": False, **closed})


# Parsing --------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def parsed(text: str) -> Condition:
    """The condition that a text says; WhereError where it says none."""
    if len(text) > CHARACTERS_AT_MOST:
        raise WhereError(f"{len(text):,} characters, and at most {CHARACTERS_AT_MOST:,} are read")
    try:
        text.encode()  # raises where a command line was no UTF-8
        select, plain = _select(text), _select("1")
        (tree,) = select.pop("select_list")
        condition = _read(tree, text)
    except RecursionError:
        raise WhereError("nested too deep; write it flatter") from None
    except ValueError as error:
        raise error if isinstance(error, WhereError) else _not_one() from None
    if select != {name: value for name, value in plain.items() if name != "select_list"}:
        raise _not_one()
    return condition


def _select(text: str) -> dict[str, Any]:
    """DuckDB's tree of `SELECT text`."""
    with _database().cursor() as cursor:
        answer = json.loads(cursor.execute("SELECT json_serialize_sql(?)", [_SELECT + text]).fetchall()[0][0])
    if "position" in answer:
        raise _not_understood(text, int(answer["position"]))
    if "expression depth" in answer.get("error_message", ""):
        raise RecursionError
    if answer["error"] or len(answer["statements"]) > 1 or "select_list" not in answer["statements"][0]["node"]:
        raise _not_one()
    return answer["statements"][0]["node"]


def _read(node: Mapping[str, Any], text: str) -> Condition:
    """The condition, or operand, that a node of DuckDB's tree is."""

    def made(form: str, *operands: Mapping[str, Any]) -> Condition:
        return Condition(form, tuple(_read(each, text) for each in operands))

    match node:
        case {"alias": name} if name:  # of what stands in the place of a column
            pass
        case {"class": "COLUMN_REF", "column_names": names}:
            return Condition("column", value=".".join(names))
        case {"class": "CONSTANT", "literal": {"kind": kind, "text": value}} if kind in _LITERALS:
            with suppress(ValueError):  # of `1e`
                if _LITERALS[kind] != "a number" or isfinite(float(value)):
                    return Condition(_LITERALS[kind], value=value)
        case {"class": "COMPARISON", "type": form, "left": left, "right": right} if form in _FORMS:
            if (left["class"], right["class"]) == ("CONSTANT", "COLUMN_REF"):  # the column comes first in a bound
                turned = _FORMS[form].translate({ord("<"): ">", ord(">"): "<"})
                return made(turned, right, left)
            return made(_FORMS[form], left, right)
        case {"class": "BETWEEN", "input": value, "lower": lower, "upper": upper}:
            return made(_FORMS["COMPARE_BETWEEN"], value, lower, upper)
        case {"type": "CONJUNCTION_AND" | "CONJUNCTION_OR" as form, "children": each}:
            return made((" AND " if form == "CONJUNCTION_AND" else " OR ").join(["{}"] * len(each)), *each)
        case {"type": "COMPARE_IN", "children": each}:
            return made(f"{{}} IN ({', '.join(['{}'] * (len(each) - 1))})", *each)
        case {"class": "OPERATOR", "type": form, "children": [value]} if form in _FORMS:
            return made(_FORMS[form], value)
        case {"class": "FUNCTION", "function_name": "~~" | "!~~" as form, "is_operator": True, "arguments": [one, two]}:
            return made(_FORMS[form], one["expression"], two["expression"])
        case {"class": "FUNCTION", "function_name": "+", "is_operator": True, "arguments": [number]}:
            return _read(number["expression"], text)
    raise _not_understood(text, node["query_location"])


def _not_one() -> WhereError:
    return WhereError("not one condition; give one, such as words >= 4 AND width > 300")


def _not_understood(text: str, position: int) -> WhereError:
    """The error of DuckDB's place, in bytes of `SELECT text`."""
    place = len((_SELECT + text).encode()[:position].decode()) - len(_SELECT)
    shown = repr(text[place:][:30]) if text[place:] else "its end"
    return WhereError(f"not understood at character {place + 1}, {shown}; give comparisons, such as words >= 4")


# Columns --------------------------------------------------------------------------------------------------------------


def kind_of(column: str, types: Mapping[str, pa.DataType]) -> str:
    """`truth`, `text` or `a number`; WhereError where there is no such column."""
    if column not in types:
        raise WhereError(f"no column {column!r} (there are: {', '.join(types)})")
    kind = types[column]
    return "truth" if pa.types.is_boolean(kind) else "text" if pa.types.is_string(kind) else "a number"


def check(condition: Condition, types: Mapping[str, pa.DataType]) -> None:
    """Refuse by WhereError a condition on columns that are not there, or are of another type."""
    if (kind := _kind(condition, types)) != "truth":
        raise WhereError(f"{condition} is {kind}, and a condition is true or false; compare it with something")


def _kind(condition: Condition, types: Mapping[str, pa.DataType]) -> str:
    form, operands = condition.form, condition.operands
    if not operands:
        return kind_of(condition.value, types) if form == "column" else form
    kinds = [_kind(each, types) for each in operands]
    needed, why = kinds[0], f"{operands[0]} is {kinds[0]}"
    if "LIKE" in form:
        needed, why = "text", "LIKE is of text"
    elif form.startswith((_AND, _OR, "NOT")):
        needed, why = "truth", "AND, OR and NOT join conditions"
    for operand, kind in zip(operands, kinds, strict=True):
        if kind != needed:
            raise WhereError(f"{why}, and {operand} is {kind}; compare like with like")
    return "truth"


def of_reasons(lineage: Mapping[str, Any] | None) -> dict[str, str]:
    """What the reasons `not_where:N` and `opt_out_NOTATION` of a run of this lineage say, in words.

    No condition where several selections made it.
    """

    def texts(made: Mapping[str, Any] | None, setting: str) -> Iterator[str]:
        if made and (text := made.get("settings", {}).get(setting)):
            yield str(text)
        for before in (made or {}).get("before") or ():
            yield from texts(before, setting)

    found, conditions, purposes = dict[str, str](), list(texts(lineage, "where")), list(texts(lineage, "respect"))
    with suppress(WhereError):  # of another version
        parts = parsed(conditions[0]).parts if len(conditions) == 1 else []
        found |= {f"not_where:{n}": f"condition {part} does not hold" for n, part in enumerate(parts, 1)}
    if purposes:
        opposes = f"opposes {' or '.join(dict.fromkeys(map(repr, purposes)))}"
        found |= {str(reason(notation)): f"{notation} {opposes}" for notation in NOTATIONS}
    return found


# Evaluation -----------------------------------------------------------------------------------------------------------


def holds(conditions: Sequence[Condition], table: pa.Table) -> list[pa.BooleanArray]:
    """Whether each of some conditions holds for the n rows of a table: bool[n] each, null where SQL says NULL."""
    if not conditions:
        return []
    names = sorted({name for condition in conditions for name in condition.columns()})
    places = {name: f"c{place}" for place, name in enumerate(names)}  # DuckDB takes `A` and `a` for one column
    values = [pa.nulls(len(table))]
    for name in names:
        column: Any = table[name]
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            # float64 holds every number of a score, and integers below 2^53
            column = column.cast(pa.float64(), safe=False)
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, pa.float64()), column)
        values.append(column)
    select = ", ".join(condition.written(places.__getitem__) for condition in conditions)
    with _database().cursor() as cursor:
        cursor.register("rows", pa.table(values, ["row", *places.values()]))
        columns: Any = cursor.sql(f"SELECT {select} FROM rows").to_arrow_table().columns
    return [each.combine_chunks() for each in columns]
