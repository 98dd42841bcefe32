"""A run and its units: where its files are, which tables it holds, and what is finished."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.data import listing, unit_marks
from altalign.data.stages import STAGES, damaged
from altalign.machine import interrupts
from altalign.pipelines.read.folder import FolderPart
from altalign.rules.own import Module
from altalign.settings.curate import CurateConfig
from altalign.storage import arrays, parquet

WORK_VERSION = 10  # of the layout of work/: a run that another version began is refused
ROWS_PER_UNIT = 500_000
IMAGES_PER_UNIT = 4_096

# A unit of a plan, as JSON: its `name`, and what the work of its step needs (`*_tables.py` name that).
Unit = dict[str, Any]


# The content of a finished unit's mark, a named tuple; a field that is None is not written.
U = TypeVar("U", bound=Unit)
F = TypeVar("F", bound="tuple[Any, ...]")
F_co = TypeVar("F_co", bound="tuple[Any, ...]", covariant=True)


@dataclass(frozen=True)
class Marks(Generic[F_co]):
    """The marks of a step: their folder in `work/`, and the named tuple of their facts."""

    step: str
    facts: type[F_co]


@dataclass(frozen=True, slots=True)  # there may be hundreds of thousands
class InputFile:
    """One input file, or part of a folder."""

    number: int  # in input order
    path: str
    input: int  # which [[input]] names it
    part: FolderPart | None = None
    named: str = ""  # in the names of its rows: its path below the folder that all files of its input are in

    @property
    def name(self) -> str:
        """Name of its unit, and of the files that are extracted from it."""
        return f"{self.number:06d}"


@dataclass(frozen=True)
class Run:
    """A run folder, its settings, its input files, and the modules with its own rules."""

    folder: str
    config: CurateConfig
    files: tuple[InputFile, ...]
    modules: tuple[Module, ...] = ()

    def path(self, *parts: str) -> str:
        """A path inside the run."""
        return storage.join(self.folder, *parts)

    def work(self, *parts: str) -> str:
        """A path inside `work/`, where stages leave what they hand on."""
        return storage.join(self.folder, "work", *parts)

    def source_of(self, file: int) -> str:
        """The `source` of candidates from this input file."""
        return self.config.input[self.files[file].input].source

    def stamps(self) -> Iterator[storage.Stamp]:
        """The stamps of the input files, in order: as they are now, of a folder as it was when it was found."""
        remote = next((file.path for file in self.files if storage.is_remote(file.path)), "")
        return storage.each(
            lambda file: file.part.stamp if file.part else storage.stamp(file.path), self.files, place=remote
        )

    def marks(self, step: str) -> unit_marks.UnitMarks:
        """The marks of a step's units."""
        return unit_marks.opened(self.work(step, "marks"))

    def mark(self, step: str, name: str) -> str:
        """Path of a unit's mark, until it is in a bundle."""
        return self.marks(step).path(name)

    def end(self, stage: str) -> str:
        """Path of what says that a stage is done; of the last stage the manifest does."""
        return self.path("manifest.json") if stage == STAGES[-1] else self.work(stage, "done.json")

    def facts(self, marks: Marks[F], name: str) -> F | None:
        """The facts of a unit; None where it is not finished."""
        mark = self.marks(marks.step).read(name)
        return _facts(marks, mark) if mark else None

    def facts_of(self, marks: Marks[F], name: str) -> F:
        """The same of a unit that is finished; DamagedError where its mark is not there."""
        return self._finished_facts(marks, name, self.marks(marks.step).read(name, again=True))

    def _finished_facts(self, marks: Marks[F], name: str, mark: Mapping[str, Any]) -> F:
        if not mark:
            raise damaged(self.folder, self.mark(marks.step, name), "it is not there")
        return _facts(marks, mark)

    def finished(self, step: str) -> list[str]:
        """Names of the finished units of a step, in the order of their numbers."""
        return self.marks(step).names()

    def all_facts(self, marks: Marks[F]) -> Iterator[tuple[str, F]]:
        """Yields name and facts of every finished unit of a step, in the order of `finished`."""
        for name, mark in self.marks(marks.step).items(self.finished(marks.step)):
            yield name, self._finished_facts(marks, name, mark)

    def write_mark(self, path: str, facts: Mapping[str, object], block: storage.Block) -> None:
        """Write a mark that names what a block has written, by size and digest, once the disk keeps all of that."""
        if self.config.run.durable:
            storage.sync(block)
        noted = ((path, file) for path, file in block.files.items() if not path.startswith(self.path("log/")))
        files = {path: file or listing.grown(path, block.kind(path)) for path, file in noted}
        written = {storage.relative(path, self.folder) or path: [*file] for path, file in sorted(files.items())}
        storage.write_sealed(path, {**facts, "files": written}, durable=self.config.run.durable)

    def is_done(self, stage: str) -> bool:
        """Whether a stage is done."""
        return storage.exists(self.end(stage))


def _facts(marks: Marks[F], mark: Mapping[str, Any]) -> F:
    kind = cast(Any, marks.facts)
    return kind(*map(mark.get, kind._fields))


def map_unit(run: Run, marks: Marks[F], unit: U, work: Callable[[Run, U], F]) -> F:
    """Do a unit that is not finished, and write its mark; returns its facts."""
    if (finished := run.facts(marks, unit["name"])) is not None:
        return finished
    interrupts.check()
    with storage.noted(run.work()) as block:
        facts = work(run, unit)
    values = {name: value for name, value in cast(Any, facts)._asdict().items() if value is not None}
    run.write_mark(run.mark(marks.step, unit["name"]), {"unit": unit["name"], **values}, block)
    return facts


# Tables ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Table:
    """A kind of file in a run folder.

    Attributes:
        where: its path in the run folder; `*` stands for the name of a unit, of which each has its own file.
        holds: what it is, in words.
        columns: a schema, or the type of an array's elements; None where it has none.
        is_raw: whether its rows lie as in memory, or as messages of Arrow's IPC; else they are in Parquet, or NumPy's.
    """

    where: str
    holds: str
    columns: "pa.Schema | np.dtype[Any] | None" = None
    is_raw: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The schema of a table in Parquet or Arrow."""
        return cast(pa.Schema, self.columns)

    def path(self, run: Run, name: str = "") -> str:
        """The file of a unit; without a name, of a table that has one file."""
        folder, *parts = self.where.replace("*", name).split("/")
        return run.work(*parts) if folder == "work" else run.path(folder, *parts)

    def read(self, run: Run, name: str = "") -> pa.Table:
        """The rows of a table in Parquet."""
        return parquet.read_table(self.path(run, name)).select(self.schema.names)

    def write(self, run: Run, rows: pa.Table, name: str = "") -> None:
        """Write a table in Parquet; other columns of the rows are left out."""
        parquet.write(self.path(run, name), rows.select(self.schema.names), self.schema)

    def array(self, run: Run, name: str = "", *, mapped: bool = False) -> npt.NDArray[Any]:
        """The array that a file holds; `mapped`: into memory, where it is not raw."""
        path = self.path(run, name)
        if self.is_raw:
            return np.frombuffer(storage.read_bytes(path), cast(Any, self.columns))
        return arrays.mapped(path) if mapped else arrays.read(path)

    def save(self, run: Run, array: npt.NDArray[Any], name: str = "") -> None:
        """Write an array."""
        if self.is_raw:
            storage.write_bytes(self.path(run, name), array.tobytes())
        else:
            arrays.save(self.path(run, name), array)


# Runs of parts of others ----------------------------------------------------------------------------------------------

FOLDER = "trial"  # in work/: a sample has the form of a run folder below it, and a digest of what it was drawn from
SET_ASIDE = "fetched"  # in work/: what a run had fetched before earlier stages ran anew, below a number each
DISCARDED = "discarded"  # in work/: what runs anew, as long as files of it are left


@dataclass(frozen=True)
class Sampled(Run):
    """A run of some of the images of another, the whole run."""

    whole: Run | None = None

    def work(self, *parts: str) -> str:
        """A path inside `work/`; what `extract` left is that of the whole run."""
        return self.whole.work(*parts) if self.whole and parts[:1] == ("extract",) else super().work(*parts)


@dataclass(frozen=True)
class Grown(Run):
    """A run over the input of a finished one and more."""

    before: str = ""  # the folder of that one
    more: tuple[str, ...] = ()  # folders of its input that hold other files now, and are read anew
    untouched: frozenset[str] = frozenset()  # shards of that one that stay as they are, and whose tars are there

    def path(self, *parts: str) -> str:
        """A path inside the run, or of a shard, without an ending, that stays as it is."""
        is_before = parts[:1] == ("shards",) and parts[-1] in self.untouched
        return storage.join(self.before, *parts) if is_before else super().path(*parts)


def has_work(before: Run) -> bool:
    """Whether there is a `work/`, in the layout of this version."""
    extract = storage.read_json(before.path("run.json")).get("stages", {}).get(STAGES[0], {})
    return extract.get("reads", {}).get("work_version") == WORK_VERSION and before.is_done(STAGES[0])


def fetched_before(run: Run) -> list[str]:
    """The folders of runs that have fetched images of this one: its own, of samples, of what it has grown from."""
    before = [run.before] if isinstance(run, Grown) else []
    return [*_folders_in(run.work(SET_ASIDE))[::-1], *trials(run), *before]  # the newest first


def trials(run: Run) -> list[str]:
    """The folders of all samples that were drawn of a run, or of the run that it is a sample of."""
    return _folders_in((run.whole if isinstance(run, Sampled) and run.whole else run).work(FOLDER))


def _folders_in(folder: str) -> list[str]:
    names = storage.entries(folder) if storage.kind(folder) == "folder" else []
    return [storage.join(folder, name) for name in sorted(names) if not storage.is_partial(name)]


# Digests --------------------------------------------------------------------------------------------------------------


def digest(value: object) -> str:
    """SHA-256 of a value as JSON, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def content(path: str) -> str:
    """SHA-256 of a file, in hex; "missing" where there is none."""
    return hashlib.sha256(storage.read_bytes(path)).hexdigest() if storage.exists(path) else "missing"


def files_named(config: CurateConfig) -> list[str]:
    """The files that measuring images uses: a block list, the NSFW model and its TOML, and those of an embedder."""
    model = config.image.nsfw.model
    of_model = [model, str(Path(model).with_suffix(".toml"))] if model else []
    return [*config.image.blocked_hashes, *of_model, *config.decontaminate.embedder_files]
