"""What is fuzzed: how its inputs are made, and what must hold of each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from altalign.curation import InputSettings
from altalign.errors import AltalignError, UnreadableError, UsageError
from altalign.pipelines import read
from altalign.schema import BROKEN, EXTRACTED, IMAGE_PLACE

MB = 1 << 20


@dataclass(frozen=True)
class Target:
    """A reader or decoder under attack.

    `make` gives an input as it was and as it is after mutation; `check` takes the file of the latter and the former,
    says in a word what came of it, and raises AssertionError where something does not hold that has to.
    """

    suffix: str  # of the input's file
    make: Callable[[Random], tuple[bytes, bytes]]
    check: Callable[[Path, bytes], str]
    memory: int = 256 * MB  # one input may take at most so much more than is in use before it
    wall_s: float = 120.0  # for one input, whatever else the machine does
    watches: bool = False  # a command in a process of its own, whose CPU time is limited there: watching takes some too


@dataclass(frozen=True)
class Everything:
    """All that came out of a file; or the error that its reading ended with."""

    rows: list[dict[str, Any]]
    broken: list[dict[str, Any]]
    places: list[dict[str, Any]]
    error: str = ""

    @property
    def outcome(self) -> str:
        return self.error.split(":")[0] or ("read with broken records" if self.broken else "read")


def everything(path: Path, settings: InputSettings) -> Everything:
    """Read a file as a run does.

    What a user may see of it is an UnreadableError or a UsageError; all else is a defect of ours.
    """
    rows, broken, places = [], [], []
    try:
        read.check([str(path)], settings)
        for found in read.read(str(path), settings):
            assert (found.rows.schema, found.broken.schema, found.places.schema) == (EXTRACTED, BROKEN, IMAGE_PLACE)
            for part in (found.rows, found.broken, found.places):
                part.validate(full=True)
            rows += found.rows.to_pylist()
            broken += found.broken.to_pylist()
            places += found.places.to_pylist()
    except (UnreadableError, UsageError) as error:
        check_message(error, path)
        return Everything(rows, broken, places, f"{type(error).__name__}: {error}")
    assert all(entry["file"] == str(path) and entry["error"] and entry["offset"] >= 0 for entry in broken)
    return Everything(rows, broken, places)


def check_message(error: AltalignError, path: Path) -> None:
    """The message names the file and has one line."""
    assert str(path) in str(error), f"message does not name the file: {error}"
    assert "\n" not in str(error), f"message of several lines: {error}"


def read_in_two_ways(path: Path, settings: InputSettings) -> Everything:
    """Read a file twice: as it is, and in stretches of three rows.

    Both must give the same, and so must the same once more.
    """
    whole = everything(path, settings)
    with small_stretches():
        parts = everything(path, settings)
    assert whole.error.split(":")[0] == parts.error.split(":")[0], (
        f"read whole: {whole.error!r}; in small stretches: {parts.error!r}"
    )
    if not whole.error:
        assert (whole.rows, whole.broken, whole.places) == (parts.rows, parts.broken, parts.places), (
            "small stretches give something else"
        )
    return whole


@contextmanager
def small_stretches(rows: int = 3) -> Iterator[None]:
    """Readers hand on what they have after every few rows."""
    with (
        patch("altalign.pipelines.read.stretches.STRETCH_ROWS", rows),
        patch("altalign.pipelines.read.tables.table.STRETCH_ROWS", rows),
        patch("altalign.pipelines.read.tables.arrow.STRETCH_ROWS", rows),
        patch("altalign.pipelines.read.tables.caption_lists._AT_ONCE", rows),
        patch("altalign.pipelines.read.tars.webdataset.STRETCH_ROWS", rows),
    ):
        yield
