"""A training run whose folder is in an object store: what this machine works on, and what it publishes when.

What is mapped into memory, or grows, is in a local folder that stands for the run's: the index, checkpoints while they
are written, metrics, curves. Metrics are published with each checkpoint and at the end; so is the checkpoint itself,
its manifest last, without which it is not there. The local folder may be lost at any time.
"""

from collections.abc import Collection, Mapping, Sequence
from hashlib import file_digest
from pathlib import Path

from altalign import storage

MANIFEST = "manifest.json"
_GROWING = ("metrics.jsonl", "undecodable.jsonl", "tensorboard", "wandb")


def sha256_of(path: Path) -> str:
    """SHA-256 of a local file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def files_of(place: Path) -> list[Path]:
    """The file itself, or all below a folder, but for those that are being written."""
    paths = [place, *sorted(place.rglob("*"))]
    return [path for path in paths if path.is_file() and not storage.is_partial(path.name)]


def publish_growing(run_folder: str, sent: dict[str, storage.Stamp]) -> None:
    """Publish files that grow on this machine and are not as they were `sent` before, which is noted there."""
    if not storage.is_remote(run_folder):
        return
    local = Path(storage.local_folder(run_folder))
    for file in (file for name in _GROWING for file in files_of(local / name)):
        path, stamp = str(file), storage.stamp(str(file))
        if sent.get(path) != stamp:
            storage.put_file(path, storage.join(run_folder, file.relative_to(local).as_posix()))
            sent[path] = stamp


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
    names = [path.relative_to(local).as_posix() for path in files_of(local)]
    _put(local, remote, names)
    return {name: sha256_of(local / name) for name in names}


def publish_checkpoint(local: Path, remote: str, digests: Mapping[str, str], published: Collection[str]) -> None:
    """Publish a whole checkpoint, of which machines have published some files before: the manifest goes last."""
    storage.delete(storage.join(remote, MANIFEST))
    for path in set(storage.files_below(remote)) - {storage.join(remote, name) for name in digests}:
        storage.delete(path)
    _put(local, remote, [*(name for name in digests if name not in published), MANIFEST])


def _put(local: Path, remote: str, names: Sequence[str]) -> None:
    """Many at a time, but for the last, which goes when they are stored."""

    def put(name: str) -> None:
        storage.put_file(str(local / name), storage.join(remote, name))

    for _ in storage.each(put, names[:-1], place=remote):
        pass
    for name in names[-1:]:
        put(name)
