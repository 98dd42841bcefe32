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


@dataclass(frozen=True)
class Classes:
    """Classes by number."""

    names: tuple[str, ...]  # what prompts say
    ids: tuple[str, ...] = ()  # what labels and folders are called, where that is something else: ImageNet's n01440764

    @classmethod
    def named(cls, name: str) -> "Classes":
        """The shipped ones, or those of a file, a class a line, also of an empty one. Raises UsageError.

        A line is a name, or an id, a tab and a name.
        """
        if name == SHIPPED:
            return cls(tuple(_shipped()["names"]), tuple(_shipped()["ids"]))
        rows = [line.split("\t") for line in _lines(name)]
        has_ids = all(len(row) == 2 or not row[0].strip() for row in rows)
        return cls(tuple(row[-1].strip() for row in rows), tuple(row[0].strip() for row in rows) if has_ids else ())

    @classmethod
    def of_labels(cls, labels: Sequence[int | str]) -> "Classes":
        """Of labels that nothing names: numbers are called by themselves."""
        if all(isinstance(label, int) for label in labels):
            return cls(tuple(str(number) for number in range(1 + max(map(int, labels)))))
        return cls(tuple(sorted({str(label) for label in labels})))

    def in_folders(self, folders: Sequence[str], where: str) -> "Classes":
        """These classes, with ids by which folders find theirs.

        Folders are called by ids, by names, also with _ for a space, or by numbers from 0; or they are as many as the
        classes, in the order of their names and of numbers in these, as ImageNet's.
        """
        if any(name in self._by_id for name in folders):
            return self
        if any(name in self._by_name or name.replace("_", " ") in self._by_name for name in folders):
            return Classes(self.names, tuple(name.replace(" ", "_") for name in self.names))
        are_numbers = all(map(str.isdecimal, folders))
        if are_numbers and (self.ids or 0 in map(int, folders)):  # ImageNet-V2's begin with 0
            if len(set(map(int, folders))) < len(folders):
                raise UsageError(f"{where}: two folders of one number; call folders by the names of classes")
            return self
        if len(folders) == len(self.names) and not self.ids:
            parts = {name: re.split("([0-9]+)", name) for name in folders}
            ordered = sorted(folders, key=lambda name: [int(one) if one.isdecimal() else one for one in parts[name]])
            return Classes(self.names, tuple(ordered))
        if are_numbers:
            raise UsageError(f"{where}: numbers of folders, and no 0; call folders by the names of classes")
        return self

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
