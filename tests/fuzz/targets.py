"""All that is fuzzed, by name."""

import ctypes
from pathlib import Path
from random import Random

from tests.fuzz import of_archives, of_images, of_pages, of_runs, of_tables
from tests.fuzz.target import MB, Target

TARGETS: dict[str, Target] = {
    **of_tables.TARGETS,
    **of_archives.TARGETS,
    **of_pages.TARGETS,
    **of_images.TARGETS,
    **of_runs.TARGETS,
}


def _make(_rng: Random) -> tuple[bytes, bytes]:
    return b"sound", b"bad"


def _dies(path: Path, _original: bytes) -> str:
    return "" if path.read_bytes() == b"sound" else str(ctypes.string_at(0))


def _hangs(path: Path, _original: bytes) -> str:
    while path.read_bytes() == b"bad":
        pass
    return ""


def _raises(path: Path, _original: bytes) -> str:
    assert path.read_bytes() == b"sound", "it is not sound"
    return ""


def _grows(path: Path, _original: bytes) -> str:
    return str(len(b"1" * (1 if path.read_bytes() == b"sound" else 64 * MB)))


# Defects planted to see that a worker finds such.
PLANTED = {
    "dies": Target(".bin", _make, _dies),
    "hangs": Target(".bin", _make, _hangs),
    "raises": Target(".bin", _make, _raises),
    "grows": Target(".bin", _make, _grows, memory=16 * MB),
}
