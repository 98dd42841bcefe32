"""What takes long to make and is only read: made once for all workers of a test session, by the first that asks."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

State = dict[str, list[int]]  # size and time of every file
SHARED: dict[str, tuple[Path, State]] = {}  # by the name of the fixture that hands it out: the folder as it is to be


def made_once(name: str, factory: pytest.TempPathFactory, make: Callable[[Path], object]) -> Path:
    """The folder that `make` has filled, here or in another worker; nobody may write into it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each worker has a folder of its own in it
    folder, record = base / "made-once" / name, base / "made-once" / f"{name}.json"
    record.parent.mkdir(exist_ok=True)
    with record.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed in the middle
            folder.mkdir()
            make(folder)
            record.write_text(json.dumps(_files(folder)), encoding="utf-8")
    SHARED[name] = folder, json.loads(record.read_text(encoding="utf-8"))
    return folder


def changed(fixtures: Iterable[str]) -> list[str]:
    """Files of these fixtures' folders that are not as they were made, or when this last told of them."""
    found = []
    for name in SHARED.keys() & set(fixtures):
        folder, made = SHARED[name]
        now = _files(folder)
        SHARED[name] = folder, now
        found += [f"{name}/{path}" for path in sorted({*made, *now}) if made.get(path) != now.get(path)]
    return found


def linked(folder: Path, to: Path) -> Path:
    """A copy of links, for a test that lets altalign write there: it changes no file but its lock, it puts another in
    its place.
    """
    shutil.copytree(folder, to, copy_function=os.link, ignore=shutil.ignore_patterns("lock"))
    return to


def _files(folder: Path) -> State:
    found = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): [stat.st_size, stat.st_mtime_ns] for path, stat in found}
