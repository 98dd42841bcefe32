"""Settings: frozen, strict, without unknown keys; loaded from TOML with overrides. Every mistake is one line.

A setting that a stage of the pipeline reads says so: `Annotated[int, ReadBy("judge")]`. The digests of stages, and the
refusal of a run folder that other settings made, rest on that alone.
"""

import json
import os
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any, Self, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from altalign import storage
from altalign.errors import UsageError

TAKE_IT_OUT = "take it out"
# Sections that are those of one command alone, and how it is given the settings.
_OF_COMMANDS = {
    "input": "altalign curate {}",
    "data": "altalign train {}",
    "score": "altalign score RUN --with {}",
    "set": "altalign eval --sets {}",
}
Removed = Mapping[str, tuple[object, str]]  # [SECTION.]SETTING: the value that holds now, and what to do about another


@dataclass(frozen=True)
class ReadBy:
    """The first stage that reads a setting."""

    stage: str


class Settings(BaseModel):
    """Base of every settings class."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def load(cls, path: Path | str, overrides: Sequence[str] = ()) -> Self:
        """Read a TOML file and apply `section.key=value` overrides (a value that is not TOML is a string)."""
        values = _read(path)
        theirs = [name for name in _OF_COMMANDS if name in values and name not in cls.model_fields]
        if theirs and not any(name in values and name in cls.model_fields for name in _OF_COMMANDS):
            command = _OF_COMMANDS[theirs[0]].format(shlex.quote(str(path)))
            raise UsageError(f"{path}: has [{theirs[0]}], so these are the settings of another command: {command}")
        return cls._checked(values, str(path), [_apply(values, override) for override in overrides])

    @classmethod
    def from_values(cls, values: Mapping[str, Any], *, where: str, overrides: Sequence[str] = ()) -> Self:
        """Check values, with overrides as those of `load`; `where` names them in the UsageError, a line a mistake."""
        plain = _plain(values)
        return cls._checked(plain, where, [_apply(plain, override) for override in overrides])

    @classmethod
    def _checked(cls, values: Mapping[str, object], where: str, overridden: Sequence[tuple[str, ...]]) -> Self:
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            sentences = [_sentence(cls, where, overridden, mistake) for mistake in error.errors()]
            raise UsageError("\n".join(sentences)) from None


def _plain(value: object) -> Any:
    """A value of a Python program as TOML would give it: tuples are lists, paths and names are text."""
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def dump(values: Mapping[str, object]) -> str:
    """Settings as TOML: nested tables, keys in the order of the class."""
    return tomli_w.dumps(dict(values), multiline_strings=False)


def flatten(values: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and leaves of nested settings; the entries of a list of tables are numbered."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else key)
    elif isinstance(values, (list, tuple)) and values and isinstance(values[0], Mapping):
        for number, value in enumerate(values):
            yield from flatten(value, f"{prefix}[{number}]")
    else:
        yield prefix, values


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others over them, section by section; a list replaces a list."""
    both = {
        name: merged(base[name], value) if isinstance(value, Mapping) and isinstance(base.get(name), Mapping) else value
        for name, value in over.items()
    }
    return {**base, **both}


def twice(names: Sequence[str]) -> str | None:
    """The first name that is there a second time."""
    return next((name for number, name in enumerate(names) if name in names[:number]), None)


def stage_of(cls: type[BaseModel], name: str) -> str | None:
    """The stage that reads the setting of this dotted name (None: no stage's result depends on it)."""
    stage, owner = None, cls
    for part in name.split("."):
        if owner is None:
            raise KeyError(name)
        field = owner.model_fields[part.split("[")[0]]
        stage = next((mark.stage for mark in field.metadata if isinstance(mark, ReadBy)), stage)
        if get_origin(field.annotation) is dict:  # what is below has names of its user's own
            break
        owner = settings_of(field.annotation)
    return stage


def _read(path: Path | str) -> dict[str, Any]:
    try:
        data = storage.read_bytes(str(path))
        return tomllib.loads(data.decode("utf-8-sig"))  # editors on Windows begin a file with a byte-order mark
    except FileNotFoundError:
        raise UsageError(f"{path}: no such settings file; give the path of a TOML file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); give the path of a settings file") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start}); give a settings file (TOML) in UTF-8") from None
    except ValueError as error:  # bad TOML, or an integer of thousands of digits
        hint = "; text is written in quotes" if str(error).startswith("Invalid value") else ""
        raise UsageError(f"{path}: not TOML: {error}{hint}") from None


def _apply(values: dict[str, Any], override: str) -> tuple[str, ...]:
    """Set one `section.key=value` in `values`; returns the parts of its name."""
    name, equals, text = override.partition("=")
    *sections, key = parts = tuple(part.strip() for part in name.split("."))
    if not equals or not all(parts):
        raise UsageError(f"--set {override}: not of the form section.key=value, such as text.words_at_least=3")
    table: Any = values
    for section in sections:
        table = table.setdefault(section, {})
        if isinstance(table, list) and len(table) == 1:
            table = table[0]
        if not isinstance(table, dict):
            why = f"{section} is no section, or there are several; change it in the file"
            raise UsageError(f"--set {override}: {why}")
    table[key] = _value(text.strip())
    return parts


def _value(text: str) -> Any:
    """The text as a TOML value, or the text itself if it is none or a date: folders are named after days."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    is_text = len(parsed) != 1 or isinstance(parsed["value"], (date, time))
    return text if is_text else parsed["value"]


def without_removed(values: Mapping[str, Any], removed: Removed) -> dict[str, Any]:
    """The values of a settings file without settings that were removed, where these say what holds now."""
    kept = dict(values)
    for name, (now, advice) in removed.items():
        section, _, setting = name.rpartition(".")  # one without a section is of these values themselves
        table = kept.get(section) if section else kept
        if not isinstance(table, Mapping) or setting not in table:
            continue
        if (value := table[setting]) != now:
            where = f"[{section}] " * bool(section)
            raise ValueError(f"{where}{setting} = {value!r}: there is no such setting any more; {advice}")
        left = {other: value for other, value in table.items() if other != setting}
        kept = {**kept, section: left} if section else left
    return kept


# Mistakes as sentences: what is wrong, where, the value, what to do ---------------------------------------------------

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
    "string_pattern_mismatch": "not of the form {pattern}{example}",
    "string_too_short": "empty; give it a value{example}",
    "string_type": "give text in double quotes{example}",
    "string_unicode": "not Unicode; give text in UTF-8",
    "too_short": "empty; give at least one",
}
_SHOWN = 80  # characters of a value that are shown


def settings_of(annotation: object) -> type[BaseModel] | None:
    """The settings class inside the type of a section, a list of sections, or a list of names or tables; else None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(settings_of, get_args(annotation))), None)


def _sentence(cls: type[BaseModel], where: str, overridden: Sequence[tuple[str, ...]], mistake: ErrorDetails) -> str:
    """One line about one mistake, in the file `where` or, such as `--set text.words_at_least`, in what overrides it."""
    names, section, setting, number = list[str](), list[str](), "", 0
    owner, inner, field = cls, cls, None  # the class that has, or should have, the last name
    for part in mistake["loc"]:
        if isinstance(part, int) and not setting:
            number = part  # of a [[section]]
        elif isinstance(part, int):
            setting += f" entry {part + 1}"
        elif not part.startswith("("):  # "(" begins the tag of a union, which is no name
            names.append(part)
            owner = inner or owner
            field = owner.model_fields.get(part)
            inner = settings_of(field.annotation) if field else None
            if field and _is_section(field.annotation):
                section.append(part)
            else:
                setting += f", {part}" if setting else part
    kind, value, default = mistake["type"], json.dumps(mistake["input"], default=str, ensure_ascii=False), None
    header = f"[{'.'.join(section)}]" if not number else f"[[{'.'.join(section)}]] number {number + 1}"
    here = " ".join(filter(None, (where, header if section else "", setting)))
    if given := [name for name in overridden if all(map(str.__eq__, name, names))]:
        here = f"--set {'.'.join(max((*section, *filter(None, [setting])), given[-1], key=len))}"
    if kind == "extra_forbidden":
        what = "section" if len(names) == 1 and isinstance(mistake["input"], (dict, list)) else "setting"
        return f"{here}: no such {what} (there are: {', '.join(owner.model_fields)})"
    if kind == "value_error":
        return f"{here}: {mistake['msg'].removeprefix('Value error, ')}"
    if kind == "missing":
        return f"{here}: missing; it has no default, so give it"
    if len(value) > _SHOWN:
        value = f"{value[: _SHOWN - 1]}…"
    if not setting and kind != "too_short":
        return f"{here} = {value}: a section is meant; write its settings under [{'.'.join(section)}]"
    if field and not field.is_required() and " entry " not in setting:
        default = field.get_default(call_default_factory=True)
    context = mistake.get("ctx", {})
    example = f", such as {json.dumps(default)}" if default not in (None, "", []) else ""
    expected = context.get("expected", "").replace("'", '"')
    words = mistake["msg"][0].lower() + mistake["msg"][1:]
    if kind in _REPAIRS:
        words = _REPAIRS[kind].format_map({**context, "expected": expected, "example": example})
    return f"{here} = {value}: {words}"


def _is_section(annotation: object) -> bool:
    inner = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    return isinstance(inner, type) and issubclass(inner, BaseModel)
