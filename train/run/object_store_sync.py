"""A training run whose folder is in an object store: what this machine works on, and what it publishes when.

What is mapped into memory, or grows, is in a local folder that stands for the run's: the index, checkpoints while they
are written, metrics, curves. Metrics are published with each checkpoint and at the end; so is the checkpoint itself,
its manifest last, without which it is not there. The local folder may be lost at any time.
"""

from collections.abc import Collection, Mapping, Sequence
from hashlib import file_digest
from pathlib import Path

from altalign import storage
from altalign.errors import DamagedError, UnreadableError

MANIFEST = "manifest.json"
_GROWING = ("metrics.jsonl", "undecodable.jsonl", "tensorboard", "wandb")


def sha256_of(path: Path) -> str:
    """SHA-256 of a local file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


class Published:
    """Publishes the files of a run that grow on this machine; of a run on a disk there is nothing to do."""

    def __init__(self, run_folder: str) -> None:
        self._run, self._sent = run_folder, dict[str, storage.Stamp]()

    def files(self) -> None:
        """Publish those that have grown since the last time."""
        if not storage.is_remote(self._run):
            return
        local = Path(storage.local_folder(self._run))
        for path in map(str, (path for name in _GROWING for path in _files(local / name))):
            stamp = storage.stamp(path)
            if self._sent.get(path) != stamp:
                storage.put_file(path, storage.join(self._run, Path(path).relative_to(local).as_posix()))
                self._sent[path] = stamp


def take_growing(run_folder: str) -> None:
    """Before a command goes on: of files that grow this machine has what was published, and nothing else."""
    if not storage.is_remote(run_folder):
        return
    local = storage.local_folder(run_folder)
    for name in _GROWING:
        storage.delete(storage.join(local, name))
        if storage.exists(storage.join(run_folder, name)):  # folders are added to, and nobody reads them here
            storage.take_file(storage.join(run_folder, name), storage.join(local, name))


def put_index(run_folder: str) -> None:
    """Publish the index of the pairs, by which `altalign status --lineage` tells who saw a pair."""
    if not storage.is_remote(run_folder):
        return
    local, remote = (storage.join(folder, "index") for folder in (storage.local_folder(run_folder), run_folder))
    mark = "index.json"
    if storage.read_json(storage.join(remote, mark)) != storage.read_json(storage.join(local, mark)):
        storage.delete(storage.join(remote, mark))
        _put(Path(local), remote, sorted(storage.names(local), key=lambda file: file == mark))


def put_files(local: Path, remote: str) -> dict[str, str]:
    """Publish all files below a local folder; gives SHA-256 of each by its name in the folder."""
    names = [path.relative_to(local).as_posix() for path in _files(local)]
    _put(local, remote, names)
    return {name: sha256_of(local / name) for name in names}


def publish_checkpoint(local: Path, remote: str, digests: Mapping[str, str], published: Collection[str]) -> None:
    """Publish a whole checkpoint, of which machines have published some files before: the manifest goes last."""
    storage.delete(storage.join(remote, MANIFEST))
    known = {storage.join(remote, name) for name in digests}
    for path in set(storage.files_below(remote)) - known:
        storage.delete(path)
    _put(local, remote, [*(name for name in digests if name not in published), MANIFEST])


def bring_checkpoint(remote: str, local: Path, *, needs: Collection[str], but: tuple[str, ...] = ()) -> None:
    """Have a published checkpoint, with these files at least, on this machine, but for names that begin with `but`."""
    try:
        digests = storage.read_json(storage.join(remote, MANIFEST))
    except UnreadableError:
        digests = {}
    if not digests.keys() >= {*needs}:
        raise _damaged(remote, MANIFEST)
    for path in _files(local):
        if digests.get(path.relative_to(local).as_posix()) != sha256_of(path):
            path.unlink()
    missing = [name for name in digests if not name.startswith(but) and not (local / name).is_file()]
    for name in (*missing, MANIFEST):
        try:
            storage.take_file(storage.join(remote, name), str(local / name))
        except FileNotFoundError:
            raise _damaged(remote, name) from None
        if name != MANIFEST and sha256_of(local / name) != digests[name]:
            raise _damaged(remote, name)


def _damaged(remote: str, name: str) -> DamagedError:
    return DamagedError(f"{remote}/{name}: not as it was written; delete the folder {remote}, or bring it back")


def _put(local: Path, remote: str, names: Sequence[str]) -> None:
    """Many at a time, but for the last, which goes when they are stored."""

    def put(name: str) -> None:
        storage.put_file(str(local / name), storage.join(remote, name))

    for _ in storage.each(put, names[:-1], place=remote):
        pass
    for name in names[-1:]:
        put(name)


def _files(place: Path) -> list[Path]:
    """The file itself, or all below a folder, but for those that are being written."""
    paths = [place, *sorted(place.rglob("*"))]
    return [path for path in paths if path.is_file() and not storage.is_partial(path.name)]
