"""A run and its units: where things stand, what is done, and what the results rest on.

A unit is the granule of retry, of naming and of determinism. Its mark, `work/STAGE/NAME.json`, is written last: a unit
with a mark is finished, one without is done again from its start. The mark holds the unit's facts: counts, histograms,
sizes. Whatever a stage needs to know of the one before it, it reads from marks.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from altalign import storage
from altalign.counts import Counts
from altalign.curation import CurateConfig
from altalign.machine import interrupts
from altalign.pipelines.images import calibration_files
from altalign.pipelines.read import test_sets
from altalign.schema import RULES_VERSION, SCHEMA_VERSION
from altalign.settings import dump, flatten, stage_of
from altalign.stages import STAGES, finished_units

OF_TEST_SET = "files of test set "  # what is read of one, in what a stage rests on
WORK_VERSION = 5  # of the layout of work/: a run that another version began is refused

ROWS_PER_UNIT = 500_000
IMAGES_PER_UNIT = 4_096
ROWS_PER_ROW_GROUP = 65_536

Facts = dict[str, Any]
Unit = dict[str, Any]  # JSON; always with "name"


@dataclass(frozen=True, slots=True)  # there may be hundreds of thousands
class InputFile:
    """One input file: its number in input order, and which [[input]] names it."""

    number: int
    path: str
    of: int

    @property
    def name(self) -> str:
        """Name of its unit and of what is extracted from it."""
        return f"{self.number:06d}"


@dataclass(frozen=True)
class Run:
    """A run folder, its settings and its input files."""

    folder: str
    config: CurateConfig
    files: tuple[InputFile, ...]

    def path(self, *parts: str) -> str:
        """A path inside the run."""
        return storage.join(self.folder, *parts)

    def work(self, *parts: str) -> str:
        """A path inside what stages hand on."""
        return storage.join(self.folder, "work", *parts)

    def source_of(self, file: int) -> str:
        """The `source` of candidates from this input file."""
        return self.config.input[self.files[file].of].source

    # Marks -------------------------------------------------------------------------------------------------------

    def mark(self, stage: str, name: str) -> str:
        """Path of a unit's mark."""
        return self.work(stage, f"{name}.json")

    def facts(self, stage: str, name: str) -> Facts:
        """The facts of a finished unit; empty where it is not finished."""
        return storage.read_json(self.mark(stage, name))

    def finished(self, stage: str) -> list[str]:
        """Names of the finished units of a stage (or of a step of one: "tables/units"), in the order of their numbers."""
        return finished_units(self.work(stage))

    def all_facts(self, stage: str) -> Iterator[tuple[str, Facts]]:
        """Name and facts of every finished unit, in order of names."""
        names = self.finished(stage)
        yield from zip(names, storage.each(lambda name: self.facts(stage, name), names, of=self.folder), strict=True)

    def counts(self, stage: str) -> Counts:
        """Counts of all finished units of a stage."""
        return Counts.total(
            Counts.from_json(facts["counts"]) for _, facts in self.all_facts(stage) if "counts" in facts
        )

    def is_done(self, stage: str) -> bool:
        """Whether all of a stage is done; the manifest is what says so of the last one."""
        return storage.exists(self.path("manifest.json") if stage == STAGES[-1] else self.mark(stage, "done"))


def map_unit(run: Run, stage: str, unit: Unit, work: Callable[[Run, Unit], Facts]) -> Facts:
    """The facts of a unit: its mark's where it is finished, else those of doing it now, marked."""
    facts = run.facts(stage, unit["name"])
    if not facts:
        interrupts.check()
        facts = work(run, unit)
        storage.write_json(run.mark(stage, unit["name"]), {"unit": unit["name"], **facts})
    return facts


# What results rest on --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grounds:
    """What a stage's result rests on beside the stages before it, and a digest of that and of all before it."""

    reads: Mapping[str, Any]
    digest: str


def files_named(config: CurateConfig) -> list[str]:
    """The files that settings name and the measuring of images rests on: block lists, the NSFW model and its TOML, those of an embedder."""
    model = config.image.nsfw.model
    return [
        *config.image.blocked_hashes,
        *([model, str(Path(model).with_suffix(".toml"))] if model else []),
        *config.decontaminate.embedder_files,
    ]


def digest(value: Any) -> str:
    """SHA-256 of a value as JSON, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def content(path: str) -> str:
    """SHA-256 of a file, in hex; "missing" where there is none."""
    return hashlib.sha256(storage.read_bytes(path)).hexdigest() if storage.exists(path) else "missing"


class Basis:
    """The grounds of every stage: settings that it reads first, files that those name, versions."""

    def __init__(self, config: CurateConfig, files: tuple[InputFile, ...]):
        self._config, self._files = config, files

    @cached_property
    def of(self) -> dict[str, Grounds]:
        """Grounds by stage, in order."""
        reads: dict[str, dict[str, Any]] = {stage: {} for stage in STAGES}
        reads["extract"] = {
            "schema_version": SCHEMA_VERSION,
            "rules_version": RULES_VERSION,
            "work_version": WORK_VERSION,
        }
        for name, value in flatten(self._config.model_dump(mode="json")):
            stage = stage_of(CurateConfig, name)
            if stage is not None:
                reads[stage if stage in STAGES else "write"][name] = value
        reads["extract"]["files"] = [file.path for file in self._files]
        for name in [*files_named(self._config), *self._config.fetch.blocked_domains]:
            reads["fetch"][f"file {name}"] = content(name)
        for test_set in self._config.decontaminate.named_sets:
            reads["decontaminate"][f"{OF_TEST_SET}{test_set.name}"] = digest(
                list(test_sets.stamps(test_sets.parts(test_set)))
            )
        for name in calibration_files.files_of(self._config.decontaminate.calibration):
            reads["decontaminate"][f"file {name}"] = content(name)
        grounds, before = {}, ""
        for stage in STAGES:
            before = hashlib.sha256((before + json.dumps(reads[stage], sort_keys=True)).encode()).hexdigest()
            grounds[stage] = Grounds(reads[stage], before)
        return grounds


def resolved(config: CurateConfig) -> str:
    """`config.toml`: the settings as resolved, defaults included, without [engine] and run.folder."""
    values = config.model_dump(mode="json", exclude={"engine": True, "run": {"folder"}})
    return dump(values)
