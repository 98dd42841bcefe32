"""Mistakes in settings as sentences: what is wrong, where, the value, what to do."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

# What to do about each kind of mistake that pydantic names; filled in with its context.
_REPAIRS = {
    "bool_type": "give true or false, without quotes",
    "finite_number": "give a finite number{example}",
    "float_type": "give a number, without quotes{example}",
    "greater_than": "too small; give more than {gt}",
    "greater_than_equal": "too small; give {ge} or more",
    "int_from_float": "give a whole number{example}",
    "int_type": "give a whole number, without quotes{example}",
    "less_than_equal": "too large; give {le} or less",
    "list_type": "give a list{example}",
    "literal_error": "give {expected}",
    "missing": "missing; it has no default, so give it",
    "string_too_short": "empty; give it a value{example}",
    "string_type": "give text in double quotes{example}",
    "string_unicode": "not Unicode; give text in UTF-8",
    "too_short": "empty; give at least one",
}
_SHOWN = 80  # characters of a value


@dataclass(frozen=True)
class _Place:
    """Where a mistake is."""

    names: tuple[str, ...]  # of sections and settings, outermost first
    sections: int  # so many of the names are sections
    number: int | None  # of the [[section]], from 1
    entry: int | None  # of a list of values, from 1
    owner: type[BaseModel]  # class that has, or should have, the last name

    @property
    def key(self) -> str:
        """The last name."""
        return self.names[-1]

    @property
    def is_section(self) -> bool:
        """Whether a whole section is mistaken."""
        return self.sections == len(self.names)

    def in_file(self, where: str, *, is_one_of_many: bool) -> str:
        """As `configs/mine.toml [text] words_at_least`."""
        section = ".".join(self.names[: self.sections])
        header = f"[[{section}]] number {self.number}" if is_one_of_many else f"[{section}]"
        return " ".join(filter(None, [where, section and header, self._setting(self.names[self.sections :])]))

    def on_command_line(self, name: tuple[str, ...]) -> str:
        """As `--set text.words_at_least`."""
        *sections, key = max(name, self.names[: len(self.names) - (self.tail > 0)], key=len)
        return f"--set {'.'.join([*sections, self._setting((key, *self.names[len(self.names) - self.tail :]))])}"

def settings_of(annotation: Any) -> type[BaseModel] | None:
    """The settings class inside a type: of a section, a list of sections, or a list of names or tables."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(settings_of, get_args(annotation))), None)


def sentence(cls: type[BaseModel], values: Mapping[str, Any], where: str, overridden: Sequence[tuple[str, ...]], mistake: ErrorDetails) -> str:
    """One line for one mistake in `values`, which are of the file `where` but for those that `--set` gave."""
    kind, value = mistake["type"], mistake["input"]
    place = _place(cls, mistake["loc"], is_table=_is_table(value))
    given = [
        name
        for name in overridden
        if place.names[: len(name)] == name or (kind in ("value_error", "extra_forbidden") and name[: len(place.names)] == place.names)
    ]
    first = values.get(place.names[0])
    here = (
        place.on_command_line(given[-1])
        if given
        else place.in_file(where, is_one_of_many=place.number is not None and isinstance(first, list) and len(first) > 1)
    )
    if kind == "extra_forbidden":
        return f"{here}: no such {'section' if place.is_section else 'setting'} ({_hint(cls, place)})"
    if kind == "value_error":
        return f"{here}: {mistake['msg'].removeprefix('Value error, ')}"
    if kind == "missing":
        return f"{here}: {_REPAIRS[kind]}"
    if place.is_section and kind != "too_short":
        name = ".".join(place.names)
        return f"{f'--set {name}' if given else f'{where} {name}'} = {_shown(value)}: a section is meant; write [{name}] and its settings under it"
    return f"{here} = {_shown(value)}: {_repair(place, mistake)}"


def _place(cls: type[BaseModel], location: Sequence[int | str], *, is_table: bool) -> _Place:
    names: list[str] = []
    owner, inside, sections, number, entry = cls, cls, 0, None, None
    for part in location:
        if isinstance(part, int):
            number, entry = (part + 1, entry) if sections == len(names) else (number, part + 1)
        elif not part.startswith("("):  # the tag of a union is no name
            owner = inside or owner
            names.append(part)
            field = owner.model_fields.get(part)
            inside = settings_of(field.annotation) if field else None
            is_section = _is_section(field.annotation) if field else is_table and part == location[-1]
            sections += is_section and sections == len(names) - 1
    return _Place(tuple(names), sections, number, entry, owner)


def _is_section(annotation: Any) -> bool:
    inner = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    return isinstance(inner, type) and issubclass(inner, BaseModel)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _hint(cls: type[BaseModel], place: _Place) -> str:
    """The setting that was meant: the same name in another section, or the nearest one here."""
    elsewhere = [] if place.entry else _sections_with(cls, place.key)
    if elsewhere:
        return f"it belongs to [{elsewhere[0]}]"
    near = difflib.get_close_matches(place.key, place.owner.model_fields, n=1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(place.owner.model_fields)}"


def _sections_with(cls: type[BaseModel], key: str, section: str = "") -> list[str]:
    found = [section] if section and key in cls.model_fields else []
    for name, field in cls.model_fields.items():
        if _is_section(field.annotation) and (inner := settings_of(field.annotation)):
            found += _sections_with(inner, key, f"{section}.{name}" if section else name)
    return found


def _repair(place: _Place, mistake: ErrorDetails) -> str:
    text = _REPAIRS.get(mistake["type"])
    if text is None:
        return mistake["msg"][0].lower() + mistake["msg"][1:]
    context = mistake.get("ctx", {})
    expected = context.get("expected", "").replace("'", '"')
    return text.format_map({**context, "expected": expected, "example": _example(place)})


def _example(place: _Place) -> str:
    field = place.owner.model_fields.get(place.key)
    default = field.default if field and not field.is_required() else None
    if place.entry and isinstance(default, list):
        default = default[0] if default else None
    is_useful = default not in (None, "", []) and not isinstance(default, BaseModel)
    return f", such as {_shown(default)}" if is_useful else ""


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
