"""Tables of settings: defaults and values from their classes, descriptions from the docstrings below them."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from altalign.eval.settings import TASKS
from altalign.settings.common import stage_of
from docs.read_source import docstrings

# sections that are given as [[…]]
ARRAYS = (
    "input",
    "score",
    "evaluation.retrieval",
    "phases",
    "set",
)

FAR = 10**6  # an upper limit from here on guards the arithmetic alone

Table = list[list[str]]  # the head first


def sections(config: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Dotted name and class of every section, outer ones first."""
    waiting: list[tuple[str, type[BaseModel]]] = [("", config)]
    while waiting:
        section, cls = waiting.pop(0)
        yield section, cls
        inner = {f"{section}.{name}".strip("."): section_of(field) for name, field in cls.model_fields.items()}
        waiting += [(name, found) for name, found in inner.items() if found]


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The class of a field that is a section."""
    return next(
        (
            a
            for a in (field.annotation, *get_args(field.annotation))
            if isinstance(a, type) and issubclass(a, BaseModel)
        ),
        None,
    )


def settings_tables(config: type[BaseModel], *, has_stages: bool) -> dict[str, Table]:
    """A table of each section that has settings: name, default, values, the stage that reads it, description."""
    own = {each for _, cls in sections(config) for each in cls.__mro__ if each.__module__.startswith("altalign.")}
    modules = {sys.modules[each.__module__] for each in own}
    described = {name: text for module in modules for name, text in docstrings(module).items()}
    found = {}
    head = ["Setting", "Default", "Values", *(["Read by"] if has_stages else []), "What it is"]
    for section, cls in sections(config):
        rows = []
        for name, field in cls.model_fields.items():
            if section_of(field) is None:
                stage = [stage_of(config, f"{section}.{name}") or ""] if has_stages else []
                meaning = next((described[each] for each in _names(cls, name) if each in described), "")
                rows.append([f"`{name}`", shown_default(field), shown_values(field), *stage, meaning])
        if rows:
            heading = f"[[{section}]]" if section in ARRAYS else f"[{section}]"
            found[heading] = [head, *rows]
    return found


def tasks_table() -> Table:
    """The tasks of an evaluation's sets: what may stand for a set, and the settings of each."""
    rows = [
        [f"`{name}`", *(", ".join(f"`{each}`" for each in names) for names in (task.needs, task.takes, task.metrics))]
        for name, task in TASKS.items()
    ]
    return [["`task`", "Needs", "Takes", "`metric`, the first where none is given"], *rows]


def _names(cls: type[BaseModel], name: str) -> list[str]:
    """Where a setting's docstring may stand: in the class, or in one that it is made of."""
    return [f"{each.__name__}.{name}" for each in cls.__mro__]


def shown_default(field: FieldInfo) -> str:
    """A default, or that there is none."""
    return "required" if field.is_required() else f"`{shown_value(field.get_default(call_default_factory=True))}`"


def shown_values(field: FieldInfo) -> str:
    """The values that a setting may have: its type, where the default does not show it, and its limits."""
    limits = shown_range(field)
    is_plain = field.annotation in (bool, int, float, str) and not field.is_required()
    return ", ".join(filter(None, ["" if is_plain else shown_type(field.annotation), limits]))


def shown_type(annotation: Any) -> str:
    """A type in words."""
    if get_origin(annotation) is Literal:
        *most, last = [f'`"{choice}"`' for choice in get_args(annotation)]
        return f"{', '.join(most)} or {last}"
    if get_origin(annotation) is dict:
        return f"table of {shown_type(get_args(annotation)[1])}"
    if get_origin(annotation) is list:
        return f"list of {shown_type(get_args(annotation)[0])}"
    if get_origin(annotation) is Annotated:
        return shown_type(get_args(annotation)[0])
    if isinstance(annotation, type):
        return "table" if issubclass(annotation, BaseModel) else annotation.__name__
    return " or ".join(map(shown_type, get_args(annotation)))  # a union


def shown_value(value: Any) -> str:
    """A value as TOML has it."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case int() if value >= 10_000:
            return f"{value:_}"
    return str(value)


def shown_range(field: FieldInfo) -> str:
    """The limits of a setting that a user may meet."""
    low = max((mark.ge for mark in field.metadata if isinstance(mark, annotated_types.Ge)), default=None)  # type: ignore[type-var]
    parts = [f"`>= {low}`"] if low is not None else []
    for mark in field.metadata:
        match mark:
            case annotated_types.Gt():
                parts.append(f"`> {mark.gt}`")
            case annotated_types.Le() if mark.le < FAR:  # type: ignore[operator]
                parts.append(f"`<= {mark.le}`")
            case annotated_types.MinLen():
                parts.append("not empty")
    return ", ".join(parts)
