"""Names of classes and templates of prompts: those of ImageNet, which ship with altalign, and files of the user's."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from altalign import storage
from altalign.errors import UsageError

SHIPPED = "imagenet"  # as a name in a settings file
_NUMBERED = re.compile(r"(\D*)([0-9]+)")  # the name of a folder: 7, 007, class_7


@dataclass(frozen=True)
class Classes:
    """Classes by number."""

    names: tuple[str, ...]  # what prompts say
    ids: tuple[str, ...] = ()  # what labels and folders are called, where that is something else: ImageNet's n01440764

    @classmethod
    def named(cls, name: str) -> "Classes":
        """Those of a file, or the shipped ones."""
        if name != SHIPPED:
            return cls.of_file(name)
        of = _shipped()
        return cls(tuple(of["names"]), tuple(of["ids"]))

    @classmethod
    def of_file(cls, path: str) -> "Classes":
        """A class a line, also of an empty one: its name, or its id, a tab and its name.

        Raises UsageError: there is no such file, or it says nothing.
        """
        rows = [line.split("\t") for line in _lines(path, with_blank=True)]
        names = tuple(row[-1].strip() for row in rows)
        has_ids = all(len(row) == 2 or not row[0].strip() for row in rows)
        return cls(names, tuple(row[0].strip() for row in rows) if has_ids else ())

    @classmethod
    def of_folders(cls, folders: Sequence[str]) -> "Classes":
        """Folders are called like their classes, with _ for a space."""
        return cls(tuple(name.replace("_", " ") for name in folders), tuple(folders))

    @classmethod
    def of_labels(cls, labels: Sequence[int | str]) -> "Classes":
        """Of labels that nothing names: numbers are called by themselves."""
        if all(isinstance(label, int) for label in labels):
            return cls(tuple(str(number) for number in range(1 + max(map(int, labels)))))
        return cls(tuple(sorted({str(label) for label in labels})))

    def in_folders(self, folders: Sequence[str], where: str) -> "Classes":
        """These classes, with the names of their folders as ids.

        Folders are called by ids or names, also with _ for a space, or by numbers, from 0 or from 1; or else they are
        as many others, in the order of their names, as ImageNet's. Raises UsageError: the folders have numbers that do
        not tell which class is which.
        """
        if any(name in self._by_id or name in self._by_name for name in folders):
            return self
        named = {name: self._by_name.get(name.replace("_", " ")) for name in folders}
        if not any(number is not None for number in named.values()):
            parts = [_NUMBERED.fullmatch(name) for name in folders]
            numbers = [int(part[2]) for part in parts if part]
            of_ids = {int(each): number for number, each in enumerate(self.ids) if each.isdecimal()}
            is_numbered = len(numbers) == len(folders) and len({part[1] for part in parts if part}) == 1
            if not is_numbered or not (folders[0].isdecimal() or of_ids or max(numbers) <= len(self.names)):
                is_order = len(folders) == len(self.names) and not self.ids
                return Classes(self.names, tuple(folders)) if is_order else self
            found = list(map(of_ids.get, numbers)) if of_ids else self._from_0(numbers, where)
            named = dict(zip(folders, found, strict=True))
        ids = {number: name for name, number in named.items() if number is not None}
        return Classes(self.names, tuple(ids.get(number, "") for number in range(len(self.names))))

    def _from_0(self, numbers: Sequence[int], where: str) -> list[int]:
        """Numbers of folders as those of classes."""
        classes = len(self.names)
        begin = 1 if classes in numbers and 0 not in numbers else 0
        is_told = begin or 0 in numbers or self.ids  # ImageNet's, which have ids, are known to begin with 0
        if len(set(numbers)) < len(numbers) or max(numbers) > classes - 1 + begin or not is_told:
            raise UsageError(
                f"{where}: folders of the numbers {min(numbers)} to {max(numbers)}, {len(numbers):,} in all, for "
                f"{classes:,} classes, so that nothing tells whether they begin with 0 or 1, or which is which; call "
                "the folders by the names of classes, or give a file with id, tab and name in classes"
            )
        return [number - begin for number in numbers]

    def only(self, numbers: Sequence[int]) -> "Classes":
        """Some of them, with new numbers."""
        ids = tuple(self.ids[number] for number in numbers) if self.ids else ()
        return Classes(tuple(self.names[number] for number in numbers), ids)

    def number(self, label: int | str, where: str) -> int:
        """The number of a class by its id, its name or its number. Raises UsageError: there is no such class."""
        if isinstance(label, str):
            found = self._by_id.get(label, self._by_name.get(label))
            if found is not None:
                return found
            label = int(label) if label.isdecimal() and not any(map(str.isdecimal, self.ids)) else -1
        if not 0 <= label < len(self.names):
            raise UsageError(
                f"{where}: its label is none of {len(self.names):,} classes ({self.names[0]}, …); give a file of all "
                "in classes"
            )
        return label

    @cached_property
    def _by_id(self) -> dict[str, int]:
        return {each: number for number, each in enumerate(self.ids)}

    @cached_property
    def _by_name(self) -> dict[str, int]:
        return {each: number for number, each in enumerate(self.names)}


def templates(given: Sequence[str]) -> list[str]:
    """Templates of prompts, with `{}` for a class: each as it is given, those of a file, or ImageNet's.

    Raises UsageError: there is no such file, or a line has no place for a class.
    """
    found = list[str]()
    for each in given:
        lines = [each] if _has_place(each) else _shipped()["templates"] if each == SHIPPED else _lines(each)
        if wrong := [line for line in lines if not _has_place(line)]:
            raise UsageError(f"{each}: {wrong[0]!r} has no {{}} or {{c}} for a class; write one in each line")
        found += [line.replace("{c}", "{}") for line in lines]
    return found


def _has_place(template: str) -> bool:
    return "{}" in template or "{c}" in template


def _lines(path: str, *, with_blank: bool = False) -> list[str]:
    try:
        lines = storage.read_bytes(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: no text in UTF-8 ({error}); give a file with one a line") from None
    found = [line for line in lines if line.strip()]
    if not found:
        raise UsageError(f"{path}: empty; give a file with one a line")
    return lines if with_blank else found


def _shipped() -> dict[str, list[str]]:
    return json.loads(Path(__file__).with_name("imagenet.json").read_bytes())
