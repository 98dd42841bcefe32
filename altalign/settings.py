"""Settings: frozen, strict, no unknown key; loaded from TOML with overrides; every mistake is one line.

A setting that a stage of the pipeline reads says so: `Annotated[int, ReadBy("judge")]`. Digests of stages and the
refusal of a run folder that other settings made rest on that alone.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from altalign.errors import UsageError


@dataclass(frozen=True)
class ReadBy:
    """The first stage that reads a setting."""

    stage: str


class Settings(BaseModel):
    """Base of every settings class."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    @classmethod
    def load(cls, path: Path, overrides: Sequence[str] = ()) -> Self:
        """Read a TOML file and apply `section.key=value` overrides (values in TOML; what is none is a string).

        Raises:
            UsageError: the file is missing or no TOML, a key is unknown, a value has the wrong type or is out of range.
        """
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except IsADirectoryError:
            raise UsageError(f"{path}: a folder, where a settings file (TOML) is meant") from None
        except FileNotFoundError:
            raise UsageError(f"{path}: no such settings file") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path}: not TOML: {error}") from None
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
        for override in overrides:
            _apply(values, override)
        return cls.from_values(values, where=str(path))

    @classmethod
    def from_values(cls, values: Mapping[str, Any], *, where: str) -> Self:
        """Check values; `where` names them in errors.

        Raises:
            UsageError: naming every mistake, one a line.
        """
        try:
            return cls.model_validate_json(json.dumps(values, default=str))
        except ValidationError as error:
            raise UsageError("\n".join(_sentence(cls, where, mistake) for mistake in error.errors())) from None


def dump(values: Mapping[str, Any]) -> str:
    """Settings as TOML: nested tables, keys in the order of the class."""
    return tomli_w.dumps(dict(values), multiline_strings=False)


def flatten(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and leaves of nested settings; the entries of a list of tables are numbered."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else key)
    elif isinstance(values, (list, tuple)) and values and isinstance(values[0], Mapping):
        for number, value in enumerate(values):
            yield from flatten(value, f"{prefix}[{number}]")
    else:
        yield prefix, values


def stage_of(cls: type[BaseModel], name: str) -> str | None:
    """The stage that reads the setting of this dotted name (None: no stage's result depends on it)."""
    stage = None
    for part in name.split("."):
        field = cls.model_fields.get(part.split("[")[0])
        if field is None:
            return stage
        stage = next((mark.stage for mark in field.metadata if isinstance(mark, ReadBy)), stage)
        cls = _settings_of(field) or cls
    return stage


def _apply(values: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    *sections, key = name.strip().split(".")
    if not equals or not key or not all(sections):
        raise UsageError(f"--set {override}: not of the form section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    table: Any = values
    for section in sections:
        table = table.setdefault(section, {})
        if isinstance(table, list):
            if len(table) != 1:
                raise UsageError(f"--set {override}: there are {len(table)} [[{section}]]; change them in the file")
            table = table[0]
        if not isinstance(table, dict):
            raise UsageError(f"--set {override}: {section} is no table")
    table[key] = value


def _settings_of(field: FieldInfo) -> type[Settings] | None:
    for annotation in (field.annotation, *get_args(field.annotation)):
        if isinstance(annotation, type) and issubclass(annotation, Settings):
            return annotation
    return None


def _sentence(cls: type[BaseModel], where: str, mistake: Any) -> str:
    """One line for one mistake: file, [section] key, the value, what to do."""
    location = [part for part in mistake["loc"] if not (isinstance(part, str) and part.startswith("function-"))]
    names = [str(part) for part in location if isinstance(part, str)]
    owner = cls
    for name in names[:-1]:
        field = owner.model_fields.get(name)
        owner = (_settings_of(field) if field else None) or owner
    section, key = ".".join(names[:-1]), names[-1] if names else ""
    is_section = key in owner.model_fields and _settings_of(owner.model_fields[key]) is not None
    place = f"{where} [{section or key}] {key}" if (section or is_section) else f"{where} {key}"
    if is_section and not section:
        place = f"{where} [{key}]"
    if mistake["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, owner.model_fields, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(owner.model_fields)}"
        return f"{place}: no such setting ({hint})" if section or not isinstance(mistake["input"], dict) else f"{where} [{key}]: no such section ({hint})"
    message = mistake["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{place.rstrip()} = {json.dumps(mistake['input'], default=str, ensure_ascii=False)}: {message}" if mistake["type"] != "value_error" else f"{place.rstrip()}: {message}"
