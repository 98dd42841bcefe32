"""Power cuts, simulated: what a disk may hold when the power goes, of all that a run has asked it to keep so far.

The changes of a run are recorded: names that came and went, and what was synced. After a cut each name is what it was
when its folder was synced last, or anything that it became since, each by itself; what is in a folder that moved away
goes or stays with it; a file that was not synced is whole,
empty, cut off, or ends in zeros; what lies in a folder that was lost is lost. No file system is that bad, and all are
allowed to be.
"""

import os
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

_NOT_RESTED_ON = ("log", "work/temporary", "work/discarded")


@dataclass
class Content:
    """The bytes of a file, and since which change the disk keeps them."""

    data: bytes
    synced_at: int | None = None


Thing = Content | Literal["folder"] | None  # at a name; None: nothing


class Change(NamedTuple):
    """A name becomes something, or, of a synced folder, what its names are now is kept; or a folder moves away."""

    path: str
    thing: Thing
    is_sync: bool = False
    is_move: bool = False


@dataclass
class Recording:
    """The changes of a run in its folder, by paths in there."""

    folder: Path
    changes: list[Change] = field(default_factory=list)
    _now: dict[str, Content] = field(default_factory=dict)

    def name_of(self, path: Any) -> str | None:
        """The path in the run; None of what is elsewhere, or what nothing rests on."""
        found = os.path.relpath(os.fsdecode(path), self.folder)
        return None if found.startswith((".", *_NOT_RESTED_ON)) and found != "." else found

    def became(self, path: Any, thing: Thing) -> None:
        """Something is at a name."""
        if (name := self.name_of(path)) not in (None, "."):
            self.changes.append(Change(name, thing))
            self._now.pop(name, None)
            if isinstance(thing, Content):
                self._now[name] = thing

    def moved_away(self, path: Any) -> None:
        """A folder has gone to where nothing rests on it."""
        if (name := self.name_of(path)) is not None:
            self.changes.append(Change(name, None, is_move=True))
            self._now = {each: thing for each, thing in self._now.items() if not each.startswith(f"{name}/")}

    def at(self, path: Any) -> Content:
        """What is at a name; a file that was just written is new."""
        name = self.name_of(path)
        if name is None:
            return Content(b"")
        if name not in self._now:
            self.became(path, Content(Path(path).read_bytes()))
        return self._now[name]

    def synced(self, path: str) -> None:
        """The disk keeps the bytes of a file, or the names of a folder."""
        if os.path.isdir(path):  # noqa: PTH112
            if (name := self.name_of(path)) is not None:
                self.changes.append(Change(name, "folder", is_sync=True))
        elif self.name_of(path) is not None and (content := self.at(path)).synced_at is None:
            content.synced_at = len(self.changes)


@contextmanager
def recorded(folder: Path) -> Iterator[Recording]:
    """Record what this block changes below a folder."""
    found, lock = Recording(folder.absolute()), threading.RLock()
    real = {name: getattr(os, name) for name in ("replace", "unlink", "mkdir", "fsync")}
    rmtree = shutil.rmtree

    def replace(source: Any, target: Any) -> None:
        with lock:
            if os.path.isdir(source):  # noqa: PTH112
                real["replace"](source, target)
                found.moved_away(source)
                return
            content = found.at(source)
            real["replace"](source, target)
            found.became(source, None)
            found.became(target, content)

    def unlink(path: Any, **more: Any) -> None:
        with lock:
            real["unlink"](path, **more)
            if not more:
                found.became(path, None)

    def mkdir(path: Any, *more: Any, **others: Any) -> None:
        with lock:
            real["mkdir"](path, *more, **others)
            found.became(path, "folder")

    def fsync(file: int) -> None:
        with lock:
            real["fsync"](file)
            found.synced(str(Path(f"/proc/self/fd/{file}").readlink()))

    def whole_folder(path: Any, **more: Any) -> None:
        with lock:
            below = [*Path(path).rglob("*"), Path(path)]
            rmtree(path, **more)
            for each in below:
                found.became(each, None)

    with pytest.MonkeyPatch.context() as patch:
        for name, how in (("replace", replace), ("unlink", unlink), ("mkdir", mkdir), ("fsync", fsync)):
            patch.setattr(os, name, how)
        patch.setattr(shutil, "rmtree", whole_folder)
        yield found


def after_cut(
    recording: Recording, cut: int, rng: random.Random, folder: Path, *, share: float, before: Path | None = None
) -> None:
    """Make a folder as a disk may have it when the power goes after so many changes.

    `share` of what need not be kept is forgotten. `before` is the folder as it was at first.
    """
    names: dict[str, list[Thing]] = {}  # what a name may be, the last one first kept
    for each in sorted(before.rglob("*")) if before is not None else ():
        thing: Thing = "folder" if each.is_dir() else Content(each.read_bytes(), 0)
        if recording.name_of(recording.folder / each.relative_to(before or each)) is not None:
            names[str(each.relative_to(before or each))] = [thing]
    moved: dict[str, dict[str, list[Thing]]] = {}  # what was in folders that moved away, until the disk keeps that
    for path, thing, is_sync, is_move in recording.changes[:cut]:
        if is_move:
            moved[path] = {name: names.pop(name) for name in list(names) if name.startswith(f"{path}/")}
        if not is_sync:
            names.setdefault(path, [None]).append(thing)
            continue
        for name in names:
            if os.path.dirname(name) == ("" if path == "." else path):  # noqa: PTH120
                names[name] = names[name][-1:]
                moved.pop(name, None)
    for path, before_it in moved.items():
        if rng.random() < share:  # it is still there
            names = {name: may_be for name, may_be in names.items() if not name.startswith(f"{path}/")} | before_it
            names[path] = ["folder"]
    folder.mkdir()
    for name, may_be in sorted(names.items()):
        thing, place = rng.choice(may_be) if rng.random() < share else may_be[-1], folder / name
        if thing is None or not place.parent.is_dir():
            continue
        if thing == "folder":
            place.mkdir()
        else:
            is_kept = thing.synced_at is not None and thing.synced_at <= cut
            place.write_bytes(_forgotten(thing.data, rng) if not is_kept and rng.random() < share else thing.data)


def _forgotten(data: bytes, rng: random.Random) -> bytes:
    end = rng.randrange(len(data) + 1)
    return rng.choice([b"", data[:end], data[:end] + bytes(len(data) - end)])
