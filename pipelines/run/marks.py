"""What marks vouch for: the files of each finished unit and of each stage's end, by size and digest.

A run that goes on compares them once with what is there. What a power cut, a disk or a hand has changed loses its mark,
and its unit is done anew: the same bytes, because a unit is a function of its input.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple

from altalign import storage
from altalign.data import listing
from altalign.data.stages import STAGES
from altalign.errors import UnreadableError
from altalign.pipelines.run import image_tables, shard_tables, text_tables
from altalign.pipelines.run.image_tables import IMAGES, TESTS
from altalign.pipelines.run.units import Marks, Run
from altalign.storage import Written

STEPS: tuple[Marks[Any], ...] = (*text_tables.STEPS, *image_tables.STEPS, *shard_tables.STEPS)
_STAGE_OF = {TESTS.step: "fetch"}
FROM_THE_WEB = (".images", ".journal")  # endings of the files of a fetch unit
MARKS_AT_ONCE = 10_000  # whose files are compared together


class Mark(NamedTuple):
    """A mark that is there: of a unit of a step, a bundle of them; or, without a name, of the end of a stage."""

    stage: str
    step: str
    name: str = ""

    def path(self, run: Run) -> str:
        """Its file."""
        return run.mark(self.step, self.name) if self.name else run.end(self.stage)


class Damage(NamedTuple):
    """A file that is not as it was written, what is wrong with it, and the mark that vouches for it."""

    path: str
    why: str
    mark: Mark


def steps_of(stage: str) -> list[str]:
    """The steps whose units are of a stage, whatever is added to a later one."""
    return [step.step for step in STEPS if step.step.split("/")[0] == stage]


def _ends(run: Run) -> Iterator[Mark]:
    """The marks of the stages that are done."""
    yield from (Mark(stage, stage) for stage in STAGES[:-1] if run.is_done(stage))


def named(content: Mapping[str, Any]) -> dict[str, Written]:
    """The files that the content of a mark names, by their paths in the run."""
    return {path: Written(*written) for path, written in content.get("files", {}).items()}


def outputs(run: Run) -> dict[str, Written]:
    """The files outside `work/` that marks vouch for."""
    of_units = (mark for step in STEPS for _, mark in run.marks(step.step).items(run.finished(step.step)))
    of_marks = chain(of_units, (storage.read_sealed(mark.path(run)) for mark in _ends(run)))
    return {path: file for content in of_marks for path, file in named(content).items() if not path.startswith("work/")}


def look(run: Run, steps: Sequence[Marks[Any]] = STEPS) -> list[Damage]:
    """Compare all files that marks vouch for with what is there; in a store, which keeps what it took, sizes alone."""
    damages, sizes = list[Damage](), cache(storage.sizes) if storage.is_remote(run.folder) else None
    read = _read(run, steps, damages)
    while some := list(islice(read, MARKS_AT_ONCE)):
        by_file = {path: (mark, file) for mark, content in some for path, file in named(content).items()}
        wrong = listing.differences(run.folder, {path: file for path, (_, file) in by_file.items()}, sizes)
        damages += [Damage(path, why, by_file[path][0]) for path, why in wrong.items() if not _is_spare(run, path, why)]
    return damages


def _read(run: Run, steps: Sequence[Marks[Any]], damages: list[Damage]) -> Iterator[tuple[Mark, dict[str, Any]]]:
    """Yields each mark and its content, in the order of steps, those of stages last; notes those that are damaged."""

    def note(mark: Mark, why: object) -> None:
        path = mark.path(run)
        damages.append(Damage(storage.relative(path, run.folder) or path, str(why).removeprefix(f"{path}: "), mark))

    marked = dict[str, int]()
    for step in (each.step for each in steps):
        stage, of_step, bundles = _STAGE_OF.get(step, step.split("/")[0]), run.marks(step), dict[str, str]()
        names = of_step.names(bundles)
        for bundle, why in bundles.items():
            note(Mark(stage, step, bundle), why)
        marked[step] = len(names)
        for name, content in of_step.items(names, damaged := dict[str, UnreadableError]()):
            yield Mark(stage, step, name), content
        for name, error in damaged.items():
            note(Mark(stage, step, name), error)
    for mark in _ends(run):
        try:
            content = storage.read_sealed(mark.path(run))
        except UnreadableError as error:
            note(mark, error)
            continue
        yield mark, content
        for step, units in content.get("units", {}).items():
            if (there := marked[step] if step in marked else len(run.finished(step))) < units:
                damages.append(Damage(f"work/{step}", f"{there:,} marks of units, where {units:,} were written", mark))


def _is_spare(run: Run, path: str, why: str) -> bool:
    """Whether a missing file is a blob of images of the input: `write` deletes it, or makes them once more."""
    return why == listing.MISSING and fnmatch(path, IMAGES.where) and run.config.fetch.source == "archive"


def is_from_the_web(run: Run, damage: Damage) -> bool:
    """Whether a file cannot be made anew from the input, because it came from the web."""
    is_of_fetch = damage.mark.stage == "fetch" and run.config.fetch.source == "web"
    return is_of_fetch and damage.path.endswith(FROM_THE_WEB)


def unmark(run: Run, damages: Sequence[Damage]) -> None:
    """Have the units of damaged files, and the ends of their stages, done anew: the manifest is deleted first."""
    delete_files([run.path("manifest.json")])
    delete_files([run.end(damage.mark.stage) for damage in damages])
    unmark_units(run, damages)


def unmark_units(run: Run, damages: Sequence[Damage]) -> None:
    """Have the units of damaged files done anew."""
    for step in dict.fromkeys(damage.mark.step for damage in damages if damage.mark.name):
        run.marks(step).drop([damage.mark.name for damage in damages if damage.mark.step == step])


def delete_files(paths: Sequence[str]) -> None:
    """Delete files or folders, and wait until the disk has that."""
    with storage.noted() as block:
        for path in dict.fromkeys(paths):
            storage.delete(path)
    storage.sync(block)
