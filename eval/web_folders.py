"""CLIP_benchmark's folders of WebDataset tars: `test/nshards.txt` says how many, `test/0.tar` is the first."""

from altalign import storage
from altalign.errors import UnreadableError


def shards_of(folder: str, split: str) -> list[str] | None:
    """The tars of a split; None: the folder is none of these.

    Raises:
        UnreadableError: nshards.txt says no number, or a tar is not there.
    """
    mark = storage.join(folder, split, "nshards.txt")
    if not storage.exists(mark):
        return None
    said = storage.read_bytes(mark).decode("utf-8", "replace").strip()
    if not said.isdecimal() or not int(said):
        raise UnreadableError(f"{mark}: {said[:40]!r} is no number of tars; bring the file back")
    paths = [storage.join(folder, split, f"{number}.tar") for number in range(int(said))]
    if lost := [path for path in paths if not storage.exists(path)]:
        raise UnreadableError(f"{lost[0]}: not there, of {len(paths):,} tars that {mark} names; bring it back")
    return paths


def beside(folder: str, name: str) -> str:
    """The path of a file in such a folder; empty where there is none."""
    path = storage.join(folder, name)
    return path if storage.kind(folder) == "folder" and storage.exists(path) else ""
