"""Classes in the place of a tokenizer: the caption of a packed image is the number of its class."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Self

from altalign import storage
from altalign.errors import UnreadableError
from altalign.eval.class_names import Classes


class ClassNumbers:
    """What encodes the captions of packed classes."""

    WHAT = "classes"
    tokens_at_most = 1

    def __init__(self, classes: Classes) -> None:
        self.classes = classes

    @classmethod
    def read(cls, path: str) -> Self:
        """Those that `write` has written.

        Raises:
            UnreadableError: it has written none there.
        """
        values = storage.read_json(path)
        if not isinstance(values.get("names"), list):
            raise UnreadableError(f"{path}: no names of classes; delete the folder it is in, and it is made again")
        return cls(Classes(tuple(values["names"]), tuple(values["ids"])))

    @property
    def vocabulary(self) -> int:
        """How many classes there are."""
        return len(self.classes.names)

    @property
    def digest(self) -> str:
        """SHA-256 of the names."""
        return sha256(json.dumps(self._values()).encode()).hexdigest()

    def encode(self, captions: Sequence[str]) -> list[list[int]]:
        """The number of each caption's class."""
        return [[int(caption)] for caption in captions]

    def write(self, path: str) -> None:
        """Write names and ids as JSON."""
        storage.write_json(path, self._values())

    def _values(self) -> dict[str, object]:
        return {"names": list(self.classes.names), "ids": list(self.classes.ids)}
