"""Pairs whose image cannot be decoded: what took their place, and the file of a training that names them."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from altalign import storage

_FILE = "undecodable.jsonl"


@dataclass(frozen=True)
class Undecodable:
    """A pair whose image cannot be decoded, its position, and the pair that replaced it."""

    batch: int
    place: int  # in the global batch
    key: str
    shard: str
    error: str
    spare: str  # its key

    def to_json(self) -> dict[str, int | str]:
        """One line of undecodable.jsonl."""
        return asdict(self)


def log(folder: str) -> Callable[[Undecodable], None]:
    """Adds a line to undecodable.jsonl of a local folder for each pair that has none there.

    After a resume some batches come again.
    """
    path, known = storage.join(folder, _FILE), set(_lines(folder))

    def add(found: Undecodable) -> None:
        line = json.dumps(found.to_json(), ensure_ascii=False)
        if line not in known:
            known.add(line)
            with storage.growing(path) as file:
                file.write(f"{line}\n".encode())

    return add


def so_far(folder: str) -> int:
    """How many lines the `log` of all processes has written there."""
    return len(_lines(folder))


def _lines(folder: str) -> list[str]:
    path = storage.join(folder, _FILE)
    return storage.read_bytes(path).decode().splitlines() if storage.exists(path) else []
