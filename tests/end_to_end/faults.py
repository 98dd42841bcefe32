"""Commands that break off at a chosen change to the file system, each in a process of its own.

A point is the number of a change: a file opened for writing, renamed or deleted, a folder made or removed, a write to a
file that grows. So the same points come on any machine, whatever its speed. All processes are forked from one that has
imported the commands, and their clock stands still, so that a second making gives the same bytes.
"""

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from altalign.cli import main
from altalign.data.stages import STAGES
from altalign.pipelines.web import journal, log
from altalign.storage import local
from tests.support.curations import ROOT

CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
TAKE_SPACE = ("open", "os.mkdir", "write")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PRELOADED = (
    *(f"altalign.commands.{name}" for name in ("change", "curate", "look")),
    "altalign.pipelines.curate",
    "altalign.pipelines.engine.jobs",
    "tests.end_to_end.faults",
)
_CLOCK = time.gmtime(1_700_000_000)
_OURS = ("output", "broken.json", "changes")  # in the folder where a command is given


class Change(NamedTuple):
    """A change that is about to come.

    Attributes:
        number: counted from 1.
        event: the name of the audit event, or `write`.
        path: what changes.
        tear: does half of a write, or cuts off half of the file that is to be renamed.
    """

    number: int
    event: str
    path: str
    tear: Callable[[], Any]


class Ended(NamedTuple):
    """How a command ended.

    Attributes:
        code: its exit code, negative for a signal that killed it.
        output: stdout and stderr.
        at: the change at which it was broken off; empty if that was never reached.
        orphans: its child processes that are still there.
    """

    code: int
    output: str
    at: str
    orphans: list[str]

    @property
    def errors(self) -> list[str]:
        """The lines of its errors."""
        return [line for line in self.output.splitlines() if line.startswith("altalign: ")]


def on_changes(act: Callable[[Change], None]) -> None:
    """Call `act` before every change to a file, for the rest of this process's life."""
    number, write = 0, local.GrowingFile.write

    def comes(event: str, path: str, tear: Callable[[], Any]) -> None:
        nonlocal number
        number += 1
        act(Change(number, event, path, tear))

    def hook(event: str, args: tuple[Any, ...]) -> None:
        is_reading = event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR))
        if event not in CHANGES or is_reading or isinstance(args[0], int):  # a descriptor is of a file that is open
            return
        path = str(args[0])
        is_no_change = event == "os.mkdir" and Path(path).exists()
        if "__pycache__" in path or path.startswith("/dev") or Path(path).name in _OURS or is_no_change:
            return
        is_torn = event == "os.rename" and Path(path).is_file()
        comes(event, path, lambda: is_torn and os.truncate(path, Path(path).stat().st_size // 2))

    def write_growing(self: local.GrowingFile, data: bytes) -> None:
        target = vars(self)["_target"]
        with local.naming_a_full_disk(str(target.parent), target.name):
            comes("write", str(target), lambda: write(self, data[: len(data) // 2]))
        write(self, data)

    sys.addaudithook(hook)
    local.GrowingFile.write = write_growing  # type: ignore[method-assign]


def killed(change: Change, point: int) -> None:
    """SIGKILL, by turns when half of the change is done."""
    if change.number == point:
        if point % 2:
            change.tear()
        os.kill(os.getpid(), signal.SIGKILL)


def interrupted(change: Change, point: int) -> None:
    """A signal that a terminal or a scheduler sends."""
    if change.number == point:
        os.kill(os.getpid(), SIGNALS[point % len(SIGNALS)])


def full_disk(change: Change, point: int) -> None:
    """No space is left from here on."""
    if change.number >= point and change.event in TAKE_SPACE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), change.path)


def read_only(change: Change, point: int) -> None:
    """The disk takes no change from here on, as after an error of the disk."""
    if change.number >= point:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), change.path)


Fault = Callable[[Change, int], None]
FAULTS: Mapping[str, Fault] = {
    "killed": killed,
    "interrupted": interrupted,
    "disk full": full_disk,
    "read only": read_only,
}


@cache
def _process() -> Any:
    """What makes a process, forked from one that has imported all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("PYTHONPATH", str(ROOT))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOADED])
        forkserver.ensure_running()
    return context.Process


def give(folder: Path, arguments: Sequence[str], fault: Fault | None = None, point: int = 0) -> Ended:
    """Give a command in a folder, where it writes temporary files to `temp`."""
    (folder / "temp").mkdir(exist_ok=True)
    (folder / "broken.json").unlink(missing_ok=True)
    process = _process()(target=_command, args=(folder, list(arguments), fault, point))
    process.start()
    process.join()
    output, broken = folder / "output", {"at": "", "children": []}
    if (folder / "broken.json").exists():
        broken = json.loads((folder / "broken.json").read_text(encoding="utf-8"))
    orphans = [number for number in broken["children"] if Path("/proc", number).exists()]
    return Ended(process.exitcode, output.read_text(encoding="utf-8"), broken["at"], orphans)


def changes(folder: Path, arguments: Sequence[str]) -> list[str]:
    """Give a command in a folder, and return the paths of its changes in order."""
    done = give(folder, arguments, _recorded)
    assert done.code == 0, done.output
    return (folder / "changes").read_text(encoding="utf-8").splitlines()


def copied(start: Path, name: str) -> Path:
    """A folder beside `start` with all that a command finds there: the same files of the same times."""
    return Path(shutil.copytree(start, start.parent / name, symlinks=True))


def drawn(paths: Sequence[str], count: int, seed: str, stage: str = "") -> list[int]:
    """Numbers of changes: as many of each stage, of what comes before the first and after the last, as there are.

    With a stage only of that one.
    """
    rng, groups = random.Random(seed), dict[str, list[int]]()
    for number, name in enumerate(stages_of(paths), 1):
        if stage in ("", name):
            groups.setdefault(name, []).append(number)
    shuffled = [rng.sample(numbers, len(numbers)) for numbers in rng.sample([*groups.values()], len(groups))]
    dealt = [number for turn in zip_longest(*shuffled) for number in turn if number is not None]
    return sorted(dealt[:count])


def stages_of(paths: Sequence[str]) -> list[str]:
    """The stage at each change: empty before the first one, `end` after the last one."""
    elsewhere = {"test_images": "fetch", "near_duplicates": "decontaminate", "shards": "write"}
    found, stage, last = list[str](), "", 0
    for number, path in enumerate(paths, 1):
        named = (elsewhere.get(part, part) for part in Path(path).parts if part in STAGES or part in elsewhere)
        if name := next(named, ""):
            stage, last = name, number
        found.append(stage)
    return [*found[:last], *["end"] * (len(found) - last)]


def _recorded(_change: Change, _point: int) -> None:
    """Nothing breaks; `_command` writes down every change."""


def _command(folder: Path, arguments: list[str], fault: Fault | None, point: int) -> None:
    code, paths = 99, list[str]()

    def act(change: Change) -> None:
        paths.append(change.path)
        if change.number == point:
            children = " ".join(each.read_text() for each in Path("/proc/self/task").glob("*/children")).split()
            broken = {"at": f"{change.event} {change.path}", "children": children}
            (folder / "broken.json").write_text(json.dumps(broken), encoding="utf-8")
        if fault is not None:
            fault(change, point)

    try:
        _settle(folder)
        if fault is not None:
            on_changes(act)
        code = main(arguments)
        if fault is _recorded:
            (folder / "changes").write_text("\n".join(paths), encoding="utf-8")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _settle(folder: Path) -> None:
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "temp")
    output = os.open("output", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    time.gmtime = lambda *_: _CLOCK
    journal.GATHERED_S = log.SECONDS_BETWEEN_STATS = 0.0  # each image is a write
