"""The marks of a step's units in a folder: a file for each that is newly finished, and bundles of many.

    FOLDER/NAME.json             the mark of a unit, sealed
    FOLDER/bundled/DIGEST.json   those of many, sealed: an object of a line a unit; named by its content, never changed

A unit is finished once the disk keeps a file or a bundle that has its mark. The command alone makes bundles; a file
goes once the disk keeps its bundle.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

from altalign import storage
from altalign.errors import UnreadableError

BUNDLED = 4_096  # marks of a bundle
_BUNDLES = "bundled"
_BUNDLES_HELD = 4  # in memory: units finish about in their order
_UNIT = re.compile(r"\d+(-\d+)*")  # names of units; what a file system or an editor leaves is none

Mark = dict[str, Any]


class UnitMarks:
    """The marks of a folder. Where those in bundles lie is looked up once, and again whenever `names` is asked."""

    def __init__(self, folder: str):
        self._folder, self._lock, self._reading, self._is_known = folder, Lock(), Lock(), False
        self._body = lru_cache(_BUNDLES_HELD)(storage.read_bytes)
        self._bundles, self._places = set[str](), dict[str, tuple[str, int, int]]()  # by name: bundle, offset, length

    def path(self, name: str) -> str:
        """The file of a unit's mark, while it has its own."""
        return storage.join(self._folder, f"{name}.json")

    def look(self, damaged: dict[str, str] | None = None) -> None:
        """Look up which bundles there are.

        UnreadableError where one is not as it was written; with `damaged`, it is noted there by its name, with why.
        """
        with self._lock:
            names = {name.removesuffix(".json") for name in storage.names(self._folder_of_bundles, ".json")}
            if self._bundles - names:
                self._body.cache_clear()
                self._places = {unit: place for unit, place in self._places.items() if self._name(place[0]) in names}
            self._bundles &= names
            self._is_known = True
            for name in sorted(names - self._bundles):
                try:
                    self._know(name, storage.read_sealed_bytes(self._bundle(name)))
                except FileNotFoundError:  # another has taken its place meanwhile
                    continue
                except UnreadableError as error:
                    if damaged is None:
                        raise
                    damaged[f"{_BUNDLES}/{name}"] = str(error).removeprefix(f"{self._bundle(name)}: ")

    @property
    def _folder_of_bundles(self) -> str:
        return storage.join(self._folder, _BUNDLES)

    def _bundle(self, name: str) -> str:
        return storage.join(self._folder_of_bundles, f"{name}.json")

    def _name(self, path: str) -> str:
        return storage.name(path).removesuffix(".json")

    def _know(self, name: str, body: bytes) -> None:
        offset, path, places = 0, self._bundle(name), dict[str, tuple[str, int, int]]()
        for line in body.splitlines(keepends=True):
            unit, is_mark, mark = line.partition(b": ")
            if is_mark:
                places[unit[1:-1].decode()] = path, offset + len(unit) + 2, len(mark.rstrip(b",\n"))
            offset += len(line)
        self._places |= places
        self._bundles.add(name)

    def names(self, damaged: dict[str, str] | None = None) -> list[str]:
        """Names of the finished units, in the order of their numbers; `damaged` as of `look`."""
        return sorted(self.found(damaged), key=lambda name: [int(number) for number in name.split("-")])

    def found(self, damaged: dict[str, str] | None = None) -> set[str]:
        """The same in no order."""
        own = self._own()  # before the bundles, for marks move into them
        self.look(damaged)
        return {*own, *self._places}

    def _own(self) -> Iterator[str]:
        names = [name.removesuffix(".json") for name in storage.names(self._folder, ".json")]
        return filter(_UNIT.fullmatch, names)

    def read(self, name: str, *, again: bool = False) -> Mark:
        """The mark of a unit; empty where it is not finished. `again`: bundles may have come since they were looked up.

        UnreadableError where the mark is not as it was written.
        """
        if not self._is_known:
            self.look()
        mark = self._bundled(name) or storage.read_sealed(self.path(name)) or self._bundled(name)
        if not mark and again:
            self.look()
            mark = self._bundled(name)
        return mark

    def _bundled(self, name: str) -> Mark:
        if (place := self._places.get(name)) is not None:
            try:
                return json.loads(self._line(*place))
            except FileNotFoundError:
                self.look()
        return json.loads(self._line(*place)) if (place := self._places.get(name)) else {}

    def _line(self, path: str, offset: int, length: int) -> bytes:
        """A mark in a bundle; a store, in which each request takes its time, is asked for the whole bundle."""
        read = self._of_body if storage.is_remote(path) else storage.read_range
        return read(path, offset, length)

    def _of_body(self, path: str, offset: int, length: int) -> bytes:
        with self._reading:
            return self._body(path)[offset : offset + length]

    def items(
        self, names: Sequence[str], damaged: dict[str, UnreadableError] | None = None
    ) -> Iterator[tuple[str, Mark]]:
        """Yields names and marks of these units; a bundle is read as a whole.

        UnreadableError as of `read`; with `damaged`, it is noted there by name, and the unit left out.
        """

        def mark(name: str) -> Mark | UnreadableError:
            if (place := self._places.get(name)) is not None:
                return json.loads(self._of_body(*place))
            try:
                return self.read(name, again=True)
            except UnreadableError as error:
                if damaged is None:
                    raise
                return error

        for name, read_mark in zip(names, storage.each(mark, names, place=self._folder), strict=True):
            if not isinstance(read_mark, UnreadableError):
                yield name, read_mark
            elif damaged is not None:
                damaged[name] = read_mark

    def bundle(self) -> None:
        """Put marks that have files of their own into bundles; those that are too few for one stay.

        UnreadableError where one is not as it was written.
        """
        self.look()
        own = sorted(self._own())
        # whoever was killed between a bundle and this
        known = [self.path(name) for name in own if name in self._places]
        for _ in storage.each(storage.delete_file, known, place=self._folder):
            pass
        names = [name for name in own if name not in self._places]
        for end in range(BUNDLED, len(names) + 1, BUNDLED):
            some = names[end - BUNDLED : end]
            paths = [self.path(name) for name in some]
            marks = storage.each(storage.read_sealed, paths, place=self._folder)
            self._write(dict(zip(some, marks, strict=True)))
            for _ in storage.each(storage.delete_file, paths, place=self._folder):
                pass

    def _write(self, marks: Mapping[str, Mark]) -> None:
        lines = (json.dumps({name: mark}, ensure_ascii=False)[1:-1].encode() for name, mark in marks.items())
        body = b"{\n" + b",\n".join(lines)
        name = hashlib.sha256(body).hexdigest()[:32]
        storage.write_sealed_bytes(self._bundle(name), body + b"\n}", durable=True)
        with self._lock:
            self._know(name, body)

    def drop(self, names: Sequence[str]) -> None:
        """Delete marks, and bundles by their names as `look` gives them; a bundle goes once one without them is there.

        The disk has that when it returns.
        """
        with storage.noted() as block:
            for name in names:
                storage.delete(self.path(name))
            # again while one has them: a mark is in two where somebody was killed between one bundle and the next
            while of_bundles := self._bundles_of(names):
                for path, dropped in of_bundles.items():
                    body = storage.read_sealed_bytes(path)
                    if left := {name: mark for name, mark in json.loads(body + b"}").items() if name not in dropped}:
                        self._write(left)
                    storage.delete(path)
        storage.sync(block)

    def _bundles_of(self, names: Sequence[str]) -> dict[str, set[str]]:
        """Which of these units are in which bundle, by its path."""
        with self._lock:
            self._bundles, self._places = set(), {}
        self.look({})
        found = dict[str, set[str]]()
        for name in names:
            if place := self._places.get(name):
                found.setdefault(place[0], set()).add(name)
        return found


@lru_cache(1_024)
def _opened(folder: str, _working_folder: str) -> UnitMarks:
    return UnitMarks(folder)


def opened(folder: str) -> UnitMarks:
    """The marks in a folder; the same object whenever a process asks."""
    return _opened(folder, os.getcwd())  # noqa: PTH109 - asked for each unit; a process may work elsewhere later
