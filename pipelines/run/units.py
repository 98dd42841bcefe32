"""A run and its units: where its files are, and what is finished.

A unit is the granule of retry, of naming and of determinism. Its mark, `work/STEP/NAME.json`, is written last: a unit
with a mark is finished, one without is done again from its start. The mark holds the unit's facts: counts, histograms,
sizes. A stage reads what it needs to know of the stage before it from marks; `tables` declares them all.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Generic, Self, TypedDict, TypeVar

from altalign import storage
from altalign.data import listing
from altalign.data.stages import STAGES, damaged, finished_units
from altalign.machine import interrupts
from altalign.pipelines.read.folder import FolderPart
from altalign.rules.own import Module
from altalign.settings.curate import CurateConfig

WORK_VERSION = 9  # of the layout of work/: a run that another version began is refused

ROWS_PER_UNIT = 500_000
IMAGES_PER_UNIT = 4_096


class Unit(TypedDict):
    """A unit of a plan, as JSON. Each step has a type of its own with more in it (`tables`)."""

    name: str


@dataclass(frozen=True)
class Facts:
    """The content of a finished unit's mark. A field that is None is not in the mark."""

    def to_json(self) -> dict[str, object]:
        """The fields in their order."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if value is not None}

    @classmethod
    def from_json(cls, said: Mapping[str, object]) -> Self:
        """The inverse of `to_json`; other entries of the mark are ignored."""
        return cls(**{field.name: said.get(field.name) for field in fields(cls)})


U = TypeVar("U", bound=Unit)
F = TypeVar("F", bound=Facts)
F_co = TypeVar("F_co", bound=Facts, covariant=True)


@dataclass(frozen=True)
class Marks(Generic[F_co]):
    """The marks of a step: their folder in `work/`, and the class of their facts."""

    step: str
    facts: type[F_co]


@dataclass(frozen=True, slots=True)  # there may be hundreds of thousands
class InputFile:
    """One input file, or part of a folder: its number in input order, and which [[input]] names it.

    `named` stands for it in the names of its rows: its path below the folder that all files of its input are in.
    """

    number: int
    path: str
    of: int
    part: FolderPart | None = None
    named: str = ""

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
        return self.config.input[self.files[file].of].source

    def stamps(self) -> Iterator[storage.Stamp]:
        """The stamps of the input files, in order: as they are now, of a folder as it was when it was found."""
        first = next((file.path for file in self.files if storage.is_remote(file.path)), "")
        return storage.each(
            lambda file: file.part.stamp if file.part else storage.stamp(file.path), self.files, of=first
        )

    # Marks ------------------------------------------------------------------------------------------------------------

    def mark(self, step: str, name: str) -> str:
        """Path of a unit's mark."""
        return self.work(step, f"{name}.json")

    def facts(self, marks: Marks[F], name: str) -> F | None:
        """The facts of a unit; None where it is not finished."""
        said = storage.read_sealed(self.mark(marks.step, name))
        return marks.facts.from_json(said) if said else None

    def facts_of(self, marks: Marks[F], name: str) -> F:
        """The facts of a unit that is finished.

        Raises:
            DamagedError: its mark is not there.
        """
        if (facts := self.facts(marks, name)) is None:
            raise damaged(self.folder, self.mark(marks.step, name), "it is not there")
        return facts

    def finished(self, step: str) -> list[str]:
        """Names of the finished units of a step, in the order of their numbers."""
        return finished_units(self.work(step))

    def all_facts(self, marks: Marks[F]) -> Iterator[tuple[str, F]]:
        """Yields name and facts of every finished unit of a step, in the order of `finished`."""
        names = self.finished(marks.step)
        yield from zip(names, storage.each(lambda name: self.facts_of(marks, name), names, of=self.folder), strict=True)

    def write_mark(self, step: str, name: str, facts: Mapping[str, object], block: storage.Block) -> None:
        """Write a mark that names what a block has written, by size and digest, once the disk keeps all of that."""
        if self.config.run.durable:
            storage.sync(block)
        noted = ((path, of) for path, of in block.files.items() if not path.startswith(self.path("log/")))
        files = {path: of or listing.grown(path, block.kind(path)) for path, of in noted}
        said = {storage.relative(path, self.folder) or path: [*of] for path, of in sorted(files.items())}
        storage.write_sealed(self.mark(step, name), {**facts, "files": said}, durable=self.config.run.durable)

    def is_done(self, stage: str) -> bool:
        """Whether a stage is done; for the last stage the manifest says so."""
        return storage.exists(self.path("manifest.json") if stage == STAGES[-1] else self.mark(stage, "done"))


def map_unit(run: Run, marks: Marks[F], unit: U, work: Callable[[Run, U], F]) -> F:
    """Do a unit that is not finished, and write its mark; returns its facts.

    The mark vouches for the files of the unit: the disk keeps these before it is written.
    """
    if (found := run.facts(marks, unit["name"])) is not None:
        return found
    interrupts.check()
    with storage.noted(run.work()) as block:
        facts = work(run, unit)
    run.write_mark(marks.step, unit["name"], {"unit": unit["name"], **facts.to_json()}, block)
    return facts
