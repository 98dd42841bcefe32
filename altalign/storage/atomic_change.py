"""A change of a finished run, as a whole: whoever is killed leaves the old run or the new one, never one between.

    RUN/.change/PATH          new files, by their paths in the run
    RUN/.change/change.json   the plan: which of them come, which go; sealed, and written once all others are kept
    RUN/.adding               a run that `altalign add` makes of this one, whose files then come; any change deletes it

Until the plan is there, nothing of the run has changed, and what lies in `.change/` is nobody's. From then on the run
is the new one: whoever opens it next moves the files to their places, deletes those that go, and then the plan. Each of
these steps may be done twice. The manifest comes last.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from altalign import storage
from altalign.errors import DamagedError, UsageError
from altalign.storage import Written

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = ".change"
ADDING = ".adding"
_PLAN = "change.json"
_LAST = "manifest.json"  # so that a reader who knows nothing of this finds whole files


class Change:
    """New files and deletions that are being prepared; `files` has size and SHA-256 of each by its path in the run."""

    def __init__(self, run_folder: str, *, durable: bool) -> None:  # the caller holds the run's lock
        self.run_folder, self._durable = run_folder, durable
        self.folder = storage.join(run_folder, FOLDER)
        self.files: dict[str, Written] = {}
        self._at: dict[str, str] = {}  # where new files wait that lie elsewhere in the run, by their paths
        storage.delete(self.folder)  # what an earlier one has left without a plan

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """A new file by its path in the run."""
        with self.noted(), storage.write(self.path(name)) as file:
            yield file

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Around code of this thread that writes new files in `folder`."""
        with storage.noted() as block:
            yield
        for path, written in block.files.items():
            assert written is not None
            self.files[storage.relative(path, self.folder) or path] = written

    def write_table(self, name: str, rows: "pa.Table") -> None:
        """A new Parquet file by its path in the run."""
        from altalign.storage import parquet  # Arrow, which commands that change nothing need not wait for

        with self.noted():
            parquet.write(self.path(name), rows, rows.schema)

    def take(self, name: str, source: str, written: Written) -> None:
        """Have a file that lies whole elsewhere in the run, such as in `.adding`, come as `name`."""
        self._at[name] = storage.relative(source, self.run_folder) or source
        self.files[name] = written

    def path(self, name: str) -> str:
        """Where a new file waits."""
        return storage.join(self.run_folder, self._at.get(name, f"{FOLDER}/{name}"))

    def commit(self, deleted: Iterable[str] = (), *, work: str = "") -> None:
        """Have the run changed: all new files come, and these files and folders go.

        `work` is a folder in the run that becomes its `work/`.
        """
        if self._durable:
            storage.sync(storage.Block({self.path(name): written for name, written in self.files.items()}))
        comes = {name: [*self.files[name]] for name in sorted(self.files, key=lambda name: (name == _LAST, name))}
        goes = sorted(set(deleted) - self.files.keys())
        plan = {"comes": comes, "at": self._at, "goes": goes, "durable": self._durable, "work": work}
        storage.write_sealed(storage.join(self.folder, _PLAN), plan, durable=self._durable)
        _finish(self.run_folder)


def settle(run_folder: str) -> None:
    """Finish a change that was decided and not finished; call it before anything of a run is read.

    UsageError where another command is at work on the run, DamagedError where a new file is gone.
    """
    if storage.exists(storage.join(run_folder, FOLDER, _PLAN)):
        with storage.locked(run_folder):
            _finish(run_folder)


def check_none(run_folder: str) -> None:
    """Refuse to go on where a change was decided since the run was opened."""
    if storage.exists(storage.join(run_folder, FOLDER, _PLAN)):
        raise UsageError(f"{run_folder}: another command has changed it meanwhile; run this one again")


def _finish(run_folder: str) -> None:
    folder = storage.join(run_folder, FOLDER)
    plan = storage.read_sealed(storage.join(folder, _PLAN))
    comes, goes, at, durable = (plan[name] for name in ("comes", "goes", "at", "durable"))

    def place(name: str) -> None:  # unless that was done before
        waiting, target = (storage.join(run_folder, each) for each in (at.get(name, f"{FOLDER}/{name}"), name))
        if storage.exists(waiting):
            storage.move(waiting, target)
        elif not storage.exists(target) or storage.stamp(target).size != comes[name][0]:
            why = "it is not there, and a change of the run needs it"
            raise DamagedError(f"{waiting}: {why}; restore the run from a copy")

    with storage.noted() as block:
        for _ in storage.each(place, [name for name in comes if name != _LAST], place=run_folder):
            pass
        if _LAST in comes:
            place(_LAST)
        for name in goes:
            path = storage.join(run_folder, name)
            storage.delete_units([path]) if name == "work" else storage.delete(path)
    if plan["work"] and storage.kind(moved := storage.join(run_folder, plan["work"])) == "folder":
        storage.move_folder(moved, storage.join(run_folder, "work"))
        # of what is deleted next, a part is no whole work/
        storage.write_sealed(storage.join(folder, _PLAN), {**plan, "work": ""}, durable=durable)
    if durable:
        places = {storage.join(run_folder, name) for name in comes}
        storage.sync(storage.Block(deleted={*places, *block.deleted}))
    storage.delete(storage.join(run_folder, ADDING))  # of the run as it was
    with storage.noted() as block:
        storage.delete(storage.join(folder, _PLAN))
    storage.sync(block)
    storage.delete(folder)
