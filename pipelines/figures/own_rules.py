"""Rules of a run's own: functions of modules that `[text] filters` and `[image] filters` name.

A function gets the columns that its parameters name as Arrow arrays of n rows, its settings as keywords, and returns n
Arrow booleans, true where a row is dropped. The source of its module is part of the run: it is in the digests of
stages, beside the run's `config.toml`, and in what workers get.
"""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.data.reasons import Stage, Verdict, drop_where, own_reason
from altalign.errors import AltalignError, UsageError
from altalign.pipelines.figures.text_measures import TextMeasures
from altalign.pipelines.run.units import Module, Run
from altalign.rules.reason_words import SECTIONS
from altalign.settings.curate import CurateConfig
from altalign.storage import parquet

# What a function may ask for, by the name of its parameter.
OF_TEXT = {"caption": pa.string(), "url": pa.string(), "page_url": pa.string(), "words": pa.int32()}
OF_IMAGE = {
    "url": pa.string(),
    "format": pa.string(),
    "width": pa.int32(),
    "height": pa.int32(),
    "bytes": pa.int64(),
}
COLUMNS: Mapping[Stage, Mapping[str, pa.DataType]] = {Stage.JUDGE: OF_TEXT, Stage.IMAGE: OF_IMAGE}

Columns = Mapping[str, "pa.Array[Any]"]


class Rule(NamedTuple):
    """A rule: `[SECTION] filters` has its module and name."""

    name: str
    path: str  # of its module
    line: int  # where it begins
    function: Callable[..., Any]
    columns: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def where(self) -> str:
        """Its file and line, for errors."""
        return f"{self.path} line {self.line}: {self.name}"


# Modules -------------------------------------------------------------------------------------------------------------


def modules(config: CurateConfig, config_path: str) -> tuple[Module, ...]:
    """The modules that settings name, beside the settings file or on the Python path.

    Raises:
        UsageError: there is no such module.
    """
    named = [(SECTIONS[stage], entry) for stage in COLUMNS for entry in _section(config, stage).filters]
    found = {entry.partition(":")[0]: section for section, entry in named}
    return tuple(module(name, config_path, f"{config_path} [{section}] filters") for name, section in found.items())


def module(name: str, config_path: str, where: str) -> Module:
    """A module beside the settings file, or on the Python path.

    Raises:
        UsageError: there is none of this name; `where` names the setting.
    """
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


def digest(module: Module) -> str:
    """SHA-256 of a module's source."""
    return hashlib.sha256(module.source.encode()).hexdigest()


def keep(run: Run) -> None:
    """Write the modules beside the run's `config.toml`, where commands on the run find them."""
    for module in run.modules:
        storage.write_bytes(run.path(kept_as(module)), module.source.encode())


def kept_as(module: Module) -> str:
    """The path of a module in the run."""
    return f"{module.name.replace('.', '/')}.py"


@lru_cache(maxsize=16)
def imported(module: Module) -> ModuleType:
    """The module, run in this process under a name of its own.

    Raises:
        UsageError: it cannot be run; the error names the line.
    """
    found = ModuleType(f"altalign_own.{module.name}")
    found.__file__ = module.path
    sys.modules[found.__name__] = found  # dataclasses look for it there
    try:
        exec(compile(module.source, module.path, "exec"), found.__dict__)
    except SyntaxError as error:
        raise UsageError(f"{error.filename} line {error.lineno}: {error.msg}; put that right") from None
    except Exception as error:
        line = _line_in(module.path, error)
        raise UsageError(f"{module.path} line {line}: {type(error).__name__}: {error}; put that right") from error
    return found


def _line_in(path: str, error: BaseException) -> int | None:
    """The innermost line of a file that an error passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else None


# Rules ---------------------------------------------------------------------------------------------------------------


def _section(config: CurateConfig, stage: Stage) -> Any:
    return getattr(config, SECTIONS[stage])


def rules(run: Run, stage: Stage) -> list[Rule]:
    """The rules of a stage, in the order of settings.

    Raises:
        UsageError: a function is not there, or its parameters are neither columns nor settings.
    """
    section, by_name = _section(run.config, stage), {module.name: module for module in run.modules}
    return [
        _rule(by_name[module], name, section.own.get(name, {}), stage)
        for module, _, name in (entry.partition(":") for entry in section.filters)
    ]


def _rule(module: Module, name: str, settings: Mapping[str, object], stage: Stage) -> Rule:
    function, columns = getattr(imported(module), name, None), COLUMNS[stage]
    if not inspect.isfunction(function):
        raise UsageError(f"[{SECTIONS[stage]}] filters: {module.path} has no function {name!r}")
    parameters = inspect.signature(function).parameters
    wanted = tuple(each for each in parameters if each in columns)
    rule = Rule(name, module.path, function.__code__.co_firstlineno, function, wanted, settings)
    known = f"the columns are {', '.join(columns)}; settings are of [{SECTIONS[stage]}.own.{name}]"
    for each, parameter in parameters.items():
        is_left = each not in columns and each not in settings and parameter.default is parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY) or is_left:
            raise UsageError(f"{rule.where}: nothing is known of its parameter {str(parameter)!r}; {known}")
    for each in settings:
        if each not in parameters or each in columns:
            raise UsageError(f"[{SECTIONS[stage]}.own.{name}] {each}: {rule.where} has no such setting; {known}")
    return rule


def check(run: Run) -> None:
    """Ask every rule about no rows, so that one that cannot be asked stops the command before any work.

    Raises:
        UsageError: naming file and line.
    """
    for stage, columns in COLUMNS.items():
        none = {name: pa.array([], kind) for name, kind in columns.items()}
        for rule in rules(run, stage):
            try:
                _ask(rule, none, 0, str)
            except AltalignError as error:
                raise UsageError(f"{error} (it was tried with no rows)") from error.__cause__


def of_texts(run: Run, rows: pa.RecordBatch, measured: TextMeasures, *, file: int, first_row: int) -> list[Verdict]:
    """The verdicts of the own text rules on n candidates, which begin at this row of this file."""
    asked = rules(run, Stage.JUDGE)
    if not asked:
        return []
    caption, url, page_url = (parquet.strings(rows, name) for name in ("caption", "image_url", "page_url"))

    def said(row: int) -> str:
        return f"row {first_row + row:,} of {run.files[file].path}, caption {caption[row].as_py()!r:.80}"

    columns = {"caption": caption, "url": url, "page_url": page_url, "words": measured.words}
    return [_ask(rule, columns, rows.num_rows, said) for rule in asked]


def of_images(run: Run, columns: Columns) -> list[Verdict]:
    """The verdicts of the own image rules on n images; those without a size were not decoded, and are not shown."""
    asked = rules(run, Stage.IMAGE)
    if not asked:
        return []
    is_shown = columns["width"].is_valid()
    shown = {name: column.filter(is_shown) for name, column in columns.items()}
    rows = is_shown.to_numpy(zero_copy_only=False)

    def said(row: int) -> str:
        return f"the image {shown['url'][row].as_py()!r}"

    verdicts = []
    for rule in asked:
        mask = np.zeros(len(rows), bool)
        mask[rows] = _mask(rule, shown, int(rows.sum()), said).to_numpy(zero_copy_only=False)
        verdicts.append(drop_where(pa.array(mask), own_reason(rule.name)))
    return verdicts


def _ask(rule: Rule, columns: Columns, n: int, said: Callable[[int], str]) -> Verdict:
    return drop_where(_mask(rule, columns, n, said), own_reason(rule.name))


def _mask(rule: Rule, columns: Columns, n: int, said: Callable[[int], str]) -> pa.BooleanArray:
    """What a rule says of n rows; `said` names one of them in errors.

    Raises:
        AltalignError: the function failed, or returned something else than n booleans without nulls.
    """

    def asked(rows: slice) -> Any:
        arguments = {name: columns[name][rows] for name in rule.columns}
        return rule.function(**arguments, **rule.settings)

    repair = "put that right, and run the command with --rerun"
    try:
        mask = asked(slice(0, n))
    except Exception as error:
        row = next((row for row in range(n) if _fails(asked, row)), None)
        of_row = f" on {said(row)}" if row is not None else ""
        where = f"{rule.path} line {_line_in(rule.path, error) or rule.line}: {rule.name}"
        raise AltalignError(f"{where}: {type(error).__name__}: {error}{of_row}; {repair}") from error
    if isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    if not isinstance(mask, pa.BooleanArray) or len(mask) != n:
        what = f"{len(mask):,} of {mask.type}" if isinstance(mask, pa.Array) else type(mask).__name__
        wanted = f"give a pyarrow array of {n:,} booleans, true where a row is dropped"
        raise AltalignError(f"{rule.where}: it returned {what}; {wanted}")
    if mask.null_count:
        row = mask.is_null().to_pylist().index(True)
        decide = "decide it, such as with pyarrow.compute.fill_null"
        raise AltalignError(f"{rule.where}: it returned null for {said(row)}; {decide}")
    return mask


def _fails(asked: Callable[[slice], object], row: int) -> bool:
    try:
        asked(slice(row, row + 1))
    except Exception:
        return True
    return False
