"""Tables of settings: defaults and choices from their classes, descriptions from the docstrings below them."""

import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from altalign.eval.settings import TASKS
from altalign.settings.common import stage_of
from docs.read_source import docstrings

# sections that are given as [[…]]
ARRAYS = ("input", "score", "phases", "set")
ELSEWHERE = ("evaluation.retrieval",)  # those of [[set]] with this task

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
    """A table of each section that has settings: name, default, the stage that reads it, description."""
    own = {each for _, cls in sections(config) for each in cls.__mro__ if each.__module__.startswith("altalign.")}
    modules = {sys.modules[each.__module__] for each in own}
    described = {name: text for module in modules for name, text in docstrings(module).items()}
    found = {}
    head = ["Setting", "Default", *(["Read by"] if has_stages else []), "Meaning"]
    for section, cls in sections(config):
        rows = []
        for name, field in cls.model_fields.items():
            if section_of(field) is None:
                stage = [stage_of(config, f"{section}.{name}") or ""] if has_stages else []
                meaning = next((described[each] for each in _names(cls, name) if each in described), "")
                rows.append([f"`{name}`", shown_default(field), *stage, meaning])
        if rows and section not in ELSEWHERE:
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
    """A default, or that there is none; then the other choices, and an upper limit that a user may meet."""
    default = None if field.is_required() else f"`{shown_value(field.get_default(call_default_factory=True))}`"
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    shown = [f'`"{choice}"`' for choice in choices]
    limits = [mark.le for mark in field.metadata if isinstance(mark, annotated_types.Le)]
    others = [
        *(choice for choice in shown if choice != default),
        *(f"`<= {limit}`" for limit in limits if limit < FAR),  # type: ignore[operator]
    ]
    return ", ".join([default or "required", *others])


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
