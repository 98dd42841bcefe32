"""Turns mistakes in settings into sentences: what is wrong, where, the value, what to do."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

# The repair for each kind of mistake that pydantic names; the fields are filled in from its context.
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
_SHOWN = 80  # characters of a value that are shown


@dataclass(frozen=True)
class _Place:
    """Where a mistake is."""

    names: tuple[str, ...]  # of sections and settings, outermost first
    sections: tuple[str, ...]  # the names that are sections
    number: int | None  # of the [[section]], from 1; None where there is only one
    setting: str  # what is wrong in the section, such as "ports" or "ports entry 2"; empty for the section itself
    owner: type[BaseModel]  # class that has, or should have, the last name

    @property
    def is_entry(self) -> bool:
        """Whether this is inside a list of values."""
        return " entry " in self.setting

    def in_file(self, where: str) -> str:
        """The place in a file, such as `configs/mine.toml [text] words_at_least`."""
        section = ".".join(self.sections)
        header = f"[[{section}]] number {self.number}" if self.number else f"[{section}]"
        return " ".join(filter(None, (where, section and header, self.setting)))

    def on_command_line(self, override: tuple[str, ...]) -> str:
        """The place in an override, such as `--set text.words_at_least`."""
        names = override if len(override) > len(self.names) else filter(None, (*self.sections, self.setting))
        return f"--set {'.'.join(names)}"


def settings_of(annotation: object) -> type[BaseModel] | None:
    """The settings class inside the type of a section, a list of sections, or a list of names or tables; else None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(settings_of, get_args(annotation))), None)


def sentence(
    cls: type[BaseModel],
    values: Mapping[str, object],
    where: str,
    overridden: Sequence[tuple[str, ...]],
    mistake: ErrorDetails,
) -> str:
    """One line about one mistake in `values`; they come from the file `where`, except those that `--set` gave."""
    kind, value = mistake["type"], mistake["input"]
    place = _place(cls, values, mistake)
    given = [name for name in overridden if all(map(str.__eq__, name, place.names))]
    here = place.on_command_line(given[-1]) if given else place.in_file(where)
    if kind == "extra_forbidden":
        return f"{here}: no such {'setting' if place.setting else 'section'} ({_hint(cls, place)})"
    if kind == "value_error":
        return f"{here}: {mistake['msg'].removeprefix('Value error, ')}"
    if kind == "missing":
        return f"{here}: {_REPAIRS[kind]}"
    if not place.setting and kind != "too_short":
        name = ".".join(place.names)
        named = f"--set {name}" if given else f"{where} {name}"
        return f"{named} = {_shown(value)}: a section is meant; write [{name}] and its settings under it"
    return f"{here} = {_shown(value)}: {_repair(place, mistake)}"


def _place(cls: type[BaseModel], values: Mapping[str, Any], mistake: ErrorDetails) -> _Place:
    names, sections, setting, number = [], [], "", None
    owner, inside = cls, cls
    for part in mistake["loc"]:
        if isinstance(part, int) and not setting:
            is_one_of_many = isinstance(values[names[0]], list) and len(values[names[0]]) > 1
            number = part + 1 if is_one_of_many else None
        elif isinstance(part, int):
            setting += f" entry {part + 1}"
        elif not part.startswith("("):  # "(" begins the tag of a union, which is no name
            owner = inside or owner
            names.append(part)
            field = owner.model_fields.get(part)
            inside = settings_of(field.annotation) if field else None
            is_section = _is_section(field.annotation) if field else _is_table(mistake["input"])
            if is_section and not setting:
                sections.append(part)
            else:
                setting += f", {part}" if setting else part
    return _Place(tuple(names), tuple(sections), number, setting, owner)


def _is_section(annotation: object) -> bool:
    inner = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    return isinstance(inner, type) and issubclass(inner, BaseModel)


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _hint(cls: type[BaseModel], place: _Place) -> str:
    """The setting that was meant: the same name in another section, or the nearest one here."""
    elsewhere = [] if place.is_entry else _sections_with(cls, place.names[-1])
    if elsewhere:
        return f"it belongs to [{elsewhere[0]}]"
    near = difflib.get_close_matches(place.names[-1], place.owner.model_fields, n=1)
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
    return text.format_map({**context, "expected": expected, "example": _example(place, mistake["input"])})


def _example(place: _Place, value: object) -> str:
    """An example: the default or, where that is empty and a string was given for a list, the list of that string."""
    field = place.owner.model_fields.get(place.names[-1])
    default = field.get_default(call_default_factory=True) if field and not field.is_required() else None
    if isinstance(default, list) and place.is_entry:
        default = next(iter(default), None)
    if default not in (None, "", []):
        return f", such as {_shown(default)}"
    is_list = field is not None and get_origin(field.annotation) is list and not place.is_entry
    return f", such as {_shown([value])}" if is_list and isinstance(value, str) else ""


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
