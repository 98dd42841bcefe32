"""A run of some images of another one, in that one's `work/`: a trial. Input and what was extracted are the other's.

RUN/work/trial/DIGEST has the form of a run folder, so that the stages work on it as on any other. The digest is of what
the sample was drawn from, and how: another sample lies beside it, and may take from it what was fetched.

A run that has grown by more input takes what the smaller one has fetched in the same way; a run whose earlier stages
run anew, what it has fetched itself: `reopen.forget` sets that aside in RUN/work/fetched/NUMBER.
"""

from dataclasses import dataclass

from altalign import storage
from altalign.data.stages import STAGES
from altalign.pipelines.run.units import WORK_VERSION, Run

FOLDER = "trial"  # in work/
SET_ASIDE = "fetched"  # likewise


@dataclass(frozen=True)
class Sampled(Run):
    """A run of some of the images of the run `of`."""

    of: Run | None = None

    def work(self, *parts: str) -> str:
        """A path inside `work/`; what `extract` left is that of the whole run."""
        return self.of.work(*parts) if self.of and parts[:1] == ("extract",) else super().work(*parts)


@dataclass(frozen=True)
class Grown(Run):
    """A run over the input of a finished one and more.

    Attributes:
        before: the folder of that one.
        more: folders of its input that hold other files now, and are read anew.
        untouched: shards of that one that stay as they are, and whose tars are there.
    """

    before: str = ""
    more: tuple[str, ...] = ()
    untouched: frozenset[str] = frozenset()

    def path(self, *parts: str) -> str:
        """A path inside the run, or of a shard, without an ending, that stays as it is."""
        is_before = parts[:1] == ("shards",) and parts[-1] in self.untouched
        return storage.join(self.before, *parts) if is_before else super().path(*parts)


def has_work(before: Run) -> bool:
    """Whether there is a `work/`, in the layout of this version."""
    stages = storage.read_json(before.path("run.json")).get("stages", {})
    is_ours = stages.get(STAGES[0], {}).get("reads", {}).get("work_version") == WORK_VERSION
    return is_ours and before.is_done(STAGES[0])


def fetched_before(run: Run) -> list[str]:
    """The folders of runs that have fetched images of this one, the newest first.

    What it has set aside itself, samples of it, and the run that it has grown from.
    """
    aside = run.work(SET_ASIDE)
    names = sorted(storage.entries(aside) if storage.kind(aside) == "folder" else [], reverse=True)
    before = [run.before] if isinstance(run, Grown) else []
    return [*(storage.join(aside, name) for name in names), *trials(run), *before]


def trials(run: Run) -> list[str]:
    """The folders of all samples that were drawn of a run, or of the run that it is a sample of."""
    folder = (run.of if isinstance(run, Sampled) and run.of else run).work(FOLDER)
    names = storage.entries(folder) if storage.kind(folder) == "folder" else []
    return [storage.join(folder, name) for name in sorted(names) if not storage.is_partial(name)]
