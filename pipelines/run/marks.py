"""What marks vouch for: the files of each finished unit and of each stage's end, by size and digest.

A run that goes on compares them once with what is there. What a power cut, a disk or a hand has changed loses its mark,
and its unit is done anew: the same bytes, because a unit is a function of its input.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from altalign import storage
from altalign.data import listing
from altalign.data.stages import STAGES
from altalign.errors import UnreadableError
from altalign.pipelines.run import image_tables, shard_tables, text_tables
from altalign.pipelines.run.image_tables import TESTS
from altalign.pipelines.run.units import Marks, Run
from altalign.storage import Written

STEPS: tuple[Marks[Any], ...] = (*text_tables.STEPS, *image_tables.STEPS, *shard_tables.STEPS)
_STAGE_OF = {TESTS.step: "fetch"}
FROM_THE_WEB = (".images", ".journal")  # endings of the files of a fetch unit


class Mark(NamedTuple):
    """A mark that is there: of a unit, or of the end of a stage."""

    stage: str
    path: str


class Damage(NamedTuple):
    """A file that is not as it was written, what is wrong with it, and the mark that vouches for it."""

    path: str
    why: str
    mark: Mark


def steps_of(stage: str) -> list[str]:
    """The steps whose units are of a stage, whatever is added to a later one."""
    return [step.step for step in STEPS if step.step.split("/")[0] == stage]


def marks(run: Run, steps: Sequence[Marks[Any]] = STEPS) -> Iterator[Mark]:
    """All marks of a run, in the order of steps; those of stages after them."""
    for marks_of in steps:
        step = marks_of.step
        for name in run.finished(step):
            yield Mark(_STAGE_OF.get(step, step.split("/")[0]), run.mark(step, name))
    for stage in STAGES[:-1]:
        if run.is_done(stage):
            yield Mark(stage, run.mark(stage, "done"))


def named(content: Mapping[str, Any]) -> dict[str, Written]:
    """The files that the content of a mark names, by their paths in the run."""
    return {path: Written(*written) for path, written in content.get("files", {}).items()}


def outputs(run: Run) -> dict[str, Written]:
    """The files outside `work/` that marks vouch for."""
    of_marks = storage.each(storage.read_sealed, [mark.path for mark in marks(run)], place=run.folder)
    return {path: file for content in of_marks for path, file in named(content).items() if not path.startswith("work/")}


def look(run: Run, steps: Sequence[Marks[Any]] = STEPS) -> list[Damage]:
    """Compare all files that marks vouch for with what is there; in a store, which keeps what it took, sizes alone."""
    damages, by_file, files = list[Damage](), dict[str, Mark](), dict[str, Written]()
    for mark in marks(run, steps):
        try:
            content = storage.read_sealed(mark.path)
        except UnreadableError as error:
            path = storage.relative(mark.path, run.folder) or mark.path
            damages.append(Damage(path, str(error).removeprefix(f"{mark.path}: "), mark))
            continue
        of_mark = named(content)
        files |= of_mark
        by_file |= dict.fromkeys(of_mark, mark)
        for step, units in content.get("units", {}).items():
            if (marked := len(run.finished(step))) < units:
                damages.append(Damage(f"work/{step}", f"{marked:,} marks of units, where {units:,} were written", mark))
    wrong = listing.differences(run.folder, files, sizes_alone=storage.is_remote(run.folder))
    return damages + [Damage(path, why, by_file[path]) for path, why in wrong.items()]


def is_from_the_web(run: Run, damage: Damage) -> bool:
    """Whether a file cannot be made anew from the input, because it came from the web."""
    is_of_fetch = damage.mark.stage == "fetch" and run.config.fetch.source == "web"
    return is_of_fetch and damage.path.endswith(FROM_THE_WEB)


def unmark(run: Run, damages: Sequence[Damage]) -> None:
    """Have the units of damaged files, and the ends of their stages, done anew: the manifest is deleted first."""
    delete_files([run.path("manifest.json")])
    delete_files([run.mark(damage.mark.stage, "done") for damage in damages])
    delete_files([damage.mark.path for damage in damages])


def delete_files(paths: Sequence[str]) -> None:
    """Delete files or folders, and wait until the disk has that."""
    with storage.noted() as block:
        for path in dict.fromkeys(paths):
            storage.delete(path)
    storage.sync(block)
