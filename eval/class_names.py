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
        shipped = _shipped()
        return cls(tuple(shipped["names"]), tuple(shipped["ids"])) if name == SHIPPED else cls.of_file(name)

    @classmethod
    def of_file(cls, path: str) -> "Classes":
        """A class a line, also of an empty one: its name, or its id, a tab and its name. Raises UsageError."""
        rows = [line.split("\t") for line in _lines(path)]
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
        as many others, in the order of their names, as ImageNet's.
        """
        if any(name in self._by_id or name in self._by_name for name in folders):
            return self
        numbers = [self._by_name.get(name.replace("_", " ")) for name in folders]
        if all(number is None for number in numbers):
            parts = [part for part in map(_NUMBERED.fullmatch, folders) if part]
            given, classes = [int(part[2]) for part in parts], len(self.names)
            of_ids = {int(each): number for number, each in enumerate(self.ids) if each.isdecimal()}
            is_numbered = len(parts) == len(folders) and len({part[1] for part in parts}) == 1
            if not is_numbered or not (folders[0].isdecimal() or of_ids or max(given) <= classes):
                is_order = len(folders) == classes and not self.ids
                return Classes(self.names, tuple(folders)) if is_order else self
            begin = 1 if classes in given and 0 not in given else 0
            is_clear = begin or 0 in given or self.ids  # ImageNet's, which have ids, are known to begin with 0
            if not of_ids and (len(set(given)) < len(given) or max(given) > classes - 1 + begin or not is_clear):
                raise UsageError(
                    f"{where}: folders of the numbers {min(given)} to {max(given)}, {len(given):,} in all, for "
                    f"{classes:,} classes, so that nothing tells whether they begin with 0 or 1, or which is which; "
                    "call the folders by the names of classes, or give a file with id, tab and name in classes"
                )
            numbers = [of_ids.get(number) if of_ids else number - begin for number in given]
        ids = dict(zip(numbers, folders, strict=True))
        return Classes(self.names, tuple(ids.get(number, "") for number in range(len(self.names))))

    def only(self, numbers: Sequence[int]) -> "Classes":
        """Some of them, with new numbers."""
        ids = tuple(self.ids[number] for number in numbers) if self.ids else ()
        return Classes(tuple(self.names[number] for number in numbers), ids)

    def number(self, label: int | str, where: str) -> int:
        """The number of a class by its id, its name or its number. Raises UsageError: there is no such class."""
        if isinstance(label, str):
            number = self._by_id.get(label, self._by_name.get(label))
            if number is not None:
                return number
            label = int(label) if label.isdecimal() and not any(map(str.isdecimal, self.ids)) else -1
        if not 0 <= label < len(self.names):
            why = f"its label is none of {len(self.names):,} classes ({self.names[0]}, …)"
            raise UsageError(f"{where}: {why}; give a file of all in classes")
        return label

    @cached_property
    def _by_id(self) -> dict[str, int]:
        return {each: number for number, each in enumerate(self.ids)}

    @cached_property
    def _by_name(self) -> dict[str, int]:
        return {each: number for number, each in enumerate(self.names)}


def templates(given: Sequence[str]) -> list[str]:
    """Templates of prompts, with `{}` for a class: each as it is given, those of a file, or ImageNet's."""
    prompts = list[str]()
    for each in given:
        is_file = "{}" not in each and "{c}" not in each
        lines = _shipped()["templates"] if each == SHIPPED else _lines(each) if is_file else [each]
        for line in (line.replace("{c}", "{}") for line in lines if line.strip()):
            if "{}" not in line:
                raise UsageError(f"{each}: {line!r} has no {{}} or {{c}} for a class; write one in each line")
            prompts.append(line)
    return prompts


def _lines(path: str) -> list[str]:
    try:
        lines = storage.read_bytes(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: no text in UTF-8 ({error}); give a file with one a line") from None
    if not any(map(str.strip, lines)):
        raise UsageError(f"{path}: empty; give a file with one a line")
    return lines


def _shipped() -> dict[str, list[str]]:
    return json.loads(Path(__file__).with_name("imagenet.json").read_bytes())
