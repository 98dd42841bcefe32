"""Settings: frozen, strict, without unknown keys; loaded from TOML with overrides. Every mistake is one line.

A setting that a stage of the pipeline reads says so: `Annotated[int, ReadBy("judge")]`. The digests of stages, and the
refusal of a run folder that other settings made, rest on that alone.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any, Self, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from altalign import storage
from altalign.errors import UsageError
from altalign.settings.errors import sentence, settings_of
from altalign.terminal import command


@dataclass(frozen=True)
class ReadBy:
    """The first stage that reads a setting."""

    stage: str


# Endings of files that hold data.
_DATA = (".parquet", ".csv", ".tsv", ".jsonl", ".ndjson", ".tar", ".warc", ".wat", ".gz", ".zst", ".arrow")


class Settings(BaseModel):
    """Base of every settings class."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def load(cls, path: Path | str, overrides: Sequence[str] = ()) -> Self:
        """Read a TOML file and apply `section.key=value` overrides (a value that is not TOML is a string).

        Raises:
            UsageError: the file is missing or not TOML, a key is unknown, or a value has the wrong type or is out of
                range.
        """
        values = _read(path)
        return cls._checked(values, str(path), [_apply(values, override) for override in overrides])

    @classmethod
    def from_values(cls, values: Mapping[str, Any], *, where: str, overrides: Sequence[str] = ()) -> Self:
        """Check values, with overrides as those of `load`; `where` names them in errors.

        Raises:
            UsageError: naming every mistake, one a line.
        """
        plain = _plain(values, where)
        return cls._checked(plain, where, [_apply(plain, override) for override in overrides])

    @classmethod
    def _checked(cls, values: Mapping[str, object], where: str, overridden: Sequence[tuple[str, ...]]) -> Self:
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            own = any(name in values and name in cls.model_fields for name in _TELLING)
            if not own and (of := next((of for name, of in _TELLING.items() if name in values), None)):
                raise UsageError(f"{where}: this is {of} {where}") from None
            sentences = [sentence(cls, values, where, overridden, mistake) for mistake in error.errors()]
            raise UsageError("\n".join(sentences)) from None


# a section that one kind of settings file alone has, and what takes such a file
_TELLING = {
    "input": "a curation's config: altalign curate",
    "data": "a training's config: altalign train",
    "score": "a file of scores: altalign score RUN --with",
}


def _plain(values: object, where: str) -> Any:
    """Values of a Python program as TOML would give them: tuples are lists, and paths are text.

    Raises:
        UsageError: a name is no text; in errors of pydantic it would look like a place in a list.
    """
    if isinstance(values, (list, tuple)):
        return [_plain(entry, where) for entry in values]
    if not isinstance(values, Mapping):
        return os.fspath(values) if isinstance(values, os.PathLike) else values
    for name in values:
        if not isinstance(name, str):
            raise UsageError(f"{where}: {name!r} is no name of a setting; give text, as in a settings file")
    return {name: _plain(value, f"{where} {name}") for name, value in values.items()}


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


def stage_of(cls: type[BaseModel], name: str) -> str | None:
    """The stage that reads the setting of this dotted name (None: no stage's result depends on it).

    Raises:
        KeyError: there is no such setting.
    """
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
    if Path(path).suffix.lower() in _DATA:
        repair = f"`{command('init', str(path))}` writes one"
        raise UsageError(f"{path}: data, where a settings file (TOML) is meant; {repair}")
    try:
        is_remote = storage.is_remote(str(path))
        data = storage.read_bytes(str(path)) if is_remote else Path(path).read_bytes()
        text = data.decode("utf-8-sig")  # editors on Windows begin a file with a byte-order mark
        return tomllib.loads(text)
    except IsADirectoryError:
        meant = "a folder, where a settings file (TOML) is meant; give the path of the file"
        raise UsageError(f"{path}: {meant}") from None
    except FileNotFoundError:
        raise UsageError(f"{path}: no such settings file; give the path of a TOML file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except ValueError as error:  # bad TOML, or an integer of thousands of digits
        hint = "; text is written in quotes" if str(error).startswith("Invalid value") else ""
        raise UsageError(f"{path}: not TOML: {error}{hint}") from None


def _apply(values: dict[str, Any], override: str) -> tuple[str, ...]:
    """Set one `section.key=value` in `values`; returns the parts of its name."""
    name, equals, text = override.partition("=")
    *sections, key = (part.strip() for part in name.split("."))
    if not equals or not key or not all(sections):
        raise UsageError(f"--set {override}: not of the form section.key=value, such as text.words_at_least=3")
    table: Any = values
    for depth, section in enumerate(sections, start=1):
        table = table.setdefault(section, {})
        if isinstance(table, list):
            if len(table) != 1:
                raise UsageError(f"--set {override}: there are {len(table)} [[{section}]]; change them in the file")
            table = table[0]
        if not isinstance(table, dict):
            raise UsageError(f"--set {override}: {'.'.join(sections[:depth])} is no section; give section.key=value")
    table[key] = _value(text.strip())
    return (*sections, key)


def _value(text: str) -> Any:
    """The text as a TOML value, or the text itself if it is none or a date: folders are named after days."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    is_text = len(parsed) != 1 or isinstance(parsed["value"], (date, time))
    return text if is_text else parsed["value"]
