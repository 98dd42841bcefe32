"""Rules of a run's own: functions of modules that `[text] filters` and `[image] filters` name.

A function gets the columns that its parameters name as Arrow arrays of n rows, its settings as keywords, and returns n
Arrow booleans, true where a row is dropped. The source of its module is part of the run: it is in the digests of
stages, beside the run's `config.toml`, and in what workers get.
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pyarrow as pa

from altalign import storage
from altalign.data.reasons import REASONS, RULES, SECTIONS, Stage, own_reason
from altalign.errors import AltalignError, UsageError
from altalign.rules.rule import Rule, Words, line_in
from altalign.settings.curate import CurateConfig

# What a function may ask for, by the name of its parameter.
COLUMNS: Mapping[Stage, Mapping[str, pa.DataType]] = {
    Stage.JUDGE: {"caption": pa.string(), "url": pa.string(), "page_url": pa.string(), "words": pa.int32()},
    Stage.IMAGE: {
        "url": pa.string(),
        "format": pa.string(),
        "width": pa.int32(),
        "height": pa.int32(),
        "bytes": pa.int64(),
    },
}


class Module(NamedTuple):
    """A module with rules of the run's own: its name, where it was found, and its source."""

    name: str
    path: str
    source: str

    @property
    def kept_as(self) -> str:
        """Its path in the run."""
        return f"{self.name.replace('.', '/')}.py"

    @property
    def digest(self) -> str:
        """SHA-256 of its source."""
        return hashlib.sha256(self.source.encode()).hexdigest()


def filters(stage: Stage, config: CurateConfig) -> list[str]:
    """The entries of settings that name rules of a run's own, `MODULE:FUNCTION`."""
    return getattr(config, SECTIONS[stage]).filters if stage in SECTIONS else []


def reasons(stage: Stage, config: CurateConfig) -> list[str]:
    """The reasons of a stage in a run, those of its own rules last."""
    return [*REASONS[stage], *map(own_reason, filters(stage, config))]


def modules(config: CurateConfig, config_path: str) -> tuple[Module, ...]:
    """The modules that settings name, beside the settings file or on the Python path; UsageError where one is not."""
    named = [(SECTIONS[stage], entry) for stage in COLUMNS for entry in filters(stage, config)]
    sections = {entry.partition(":")[0]: section for section, entry in named}
    return tuple(module(name, config_path, f"{config_path} [{section}] filters") for name, section in sections.items())


def module(name: str, config_path: str, where: str) -> Module:
    """A module beside the settings file, or on the Python path; UsageError names the setting `where`."""
    path = (storage.join(storage.folder_of(config_path), *name.split(".")) + ".py").removeprefix("./")
    if not storage.exists(path):
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):  # a package above it is not there, or is no package
            spec = None
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            raise UsageError(
                f"{where}: no module {name!r}: there is no {path}, and none on the Python path; give MODULE:FUNCTION, "
                "and put MODULE.py beside the settings file"
            )
        path = spec.origin
    try:
        return Module(name, path, storage.read_bytes(path).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from None


@lru_cache(maxsize=16)
def imported(module: Module) -> ModuleType:
    """The module, run in this process under a name of its own; UsageError names the line that cannot be run."""
    made = ModuleType(f"altalign_own.{module.name}")
    made.__file__ = module.path
    sys.modules[made.__name__] = made  # dataclasses look for it there
    try:
        exec(compile(module.source, module.path, "exec"), made.__dict__)
    except SyntaxError as error:
        raise UsageError(f"{error.filename} line {error.lineno}: {error.msg}; put that right") from None
    except Exception as error:
        line = line_in(module.path, error)
        raise UsageError(f"{module.path} line {line}: {type(error).__name__}: {error}; put that right") from error
    return made


def rules(stage: Stage, config: CurateConfig, modules: Iterable[Module]) -> list[Rule]:
    """All rules of a stage: the built-in ones, then those of the run's own in the order of settings (`function_of`)."""
    by_name = {module.name: module for module in modules}
    entries = (entry.partition(":") for entry in filters(stage, config))
    return [*RULES[stage], *(_rule(by_name[module], name, stage, config) for module, _, name in entries)]


def _rule(module: Module, name: str, stage: Stage, config: CurateConfig) -> Rule:
    section, settings = SECTIONS[stage], getattr(config, SECTIONS[stage]).own.get(name, {})
    function, taken = function_of(module, name, COLUMNS[stage], settings, f"[{section}] filters")
    asked_where = "width" if stage is Stage.IMAGE else ""  # images without a size were not decoded, and are not shown
    named = tuple(f"{section}.own.{name}.{each}" for each in settings)
    where = f"{module.path} line {function.__code__.co_firstlineno}"
    return Rule(Words(own_reason(name), ""), function, taken, named, where=where, asked_where=asked_where)


def function_of(
    module: Module, name: str, columns: Collection[str], settings: Collection[str], where: str
) -> tuple[FunctionType, tuple[str, ...]]:
    """A function of a module, and the columns that it takes; the setting `where` names it.

    Raises:
        UsageError: the function is not there, or its parameters are neither columns nor settings.
    """
    function = getattr(imported(module), name, None)
    if not inspect.isfunction(function):
        raise UsageError(f"{where}: {module.path} has no function {name!r}")
    parameters = inspect.signature(function).parameters
    line = f"{module.path} line {function.__code__.co_firstlineno}: {name}"
    known = f"the columns are {', '.join(columns)}"
    for each, parameter in parameters.items():
        is_left = each not in columns and each not in settings and parameter.default is parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY) or is_left:
            raise UsageError(f"{line}: nothing is known of its parameter {str(parameter)!r}; {known}")
    if surplus := [each for each in settings if each not in parameters or each in columns]:
        raise UsageError(f"{line} has no such setting as {surplus[0]!r}; {known}")
    return function, tuple(each for each in parameters if each in columns)


def check(config: CurateConfig, modules: Iterable[Module]) -> None:
    """Ask every own rule about no rows: UsageError, with file and line, of one that cannot be asked."""
    for stage, columns in COLUMNS.items():
        none: dict[str, Any] = {name: pa.array([], kind) for name, kind in columns.items()}
        for rule in rules(stage, config, modules)[len(RULES[stage]) :]:
            try:
                rule.mask(none, config)
            except AltalignError as error:
                raise UsageError(f"{error} (it was tried with no rows)") from error.__cause__
