"""What an addition takes over from `work/` of the run before: units whose results cannot differ, as links.

A unit is a function of its input, of settings, and of what earlier stages have left. Hashes of old rows are the same
however many rows come, as long as they are cut into as many partitions. With frozen tables so are verdicts. Fetch units
are not the same, but the bytes of their images are (`images/borrowed.py`).
"""

from collections.abc import Set

from altalign import storage
from altalign.pipelines.figures import judge_figures
from altalign.pipelines.images import borrowed
from altalign.pipelines.run import marks as vouched
from altalign.pipelines.run.sampled import Grown, has_work
from altalign.pipelines.run.tables.counted import COUNTED
from altalign.pipelines.run.tables.decontaminated import LEARNED
from altalign.pipelines.run.tables.judged import JUDGED
from altalign.pipelines.run.units import Facts, Marks, Run
from altalign.pipelines.stages import judge, tables


def of_stage(run: Grown, stage: str) -> None:
    """Take over what a stage need not do anew; the stages before it are done."""
    before = Run(run.before, run.config, run.files)  # new files come behind all others
    if run.more or not has_work(before):
        return
    marks: Marks[Facts]
    match stage:
        case "tables" if tables.buckets_of(before) == tables.buckets_of(run):
            marks = COUNTED
        case "judge" if run.is_frozen and _are_judged_alike(before, run):
            marks = JUDGED
        case "fetch":
            borrowed.borrow(before, run)
            return
        case "decontaminate" if run.is_frozen:
            marks = LEARNED
        case _:
            return
    take_over(before, run, marks)
    for damage in vouched.look(run, (marks,)):
        if damage.mark.stage == stage:  # it is done anew
            storage.delete(damage.mark.path)


def _are_judged_alike(before: Run, run: Run) -> bool:
    """Whether rows are cut into as many partitions, and the audit draws the same share of them."""
    return judge.buckets_of(before) == judge.buckets_of(run) and judge_figures.one_in(before) == judge_figures.one_in(
        run
    )


def take_over(before: Run, run: Run, marks: Marks[Facts], wanted: Set[str] | None = None) -> None:
    """Link the files of units of a step, all or those that are wanted, that are not there yet, then their marks."""
    there = set(run.finished(marks.step))

    def link(name: str) -> None:
        mark = before.mark(marks.step, name)
        for path in vouched.named(storage.read_sealed(mark)):
            if storage.exists(source := before.path(*path.split("/"))):  # what is missing, is made anew
                storage.link(source, run.path(*path.split("/")))
        storage.link(mark, run.mark(marks.step, name))

    names = (name for name in before.finished(marks.step) if wanted is None or name in wanted)
    for _ in storage.each(link, [name for name in names if name not in there], of=run.folder):
        pass
