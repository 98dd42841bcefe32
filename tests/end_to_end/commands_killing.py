"""Ends a command at chosen changes to the file system, and gives it again.

`python -m tests.end_to_end.commands_killing FOLDER POINTS RESULTS COMMAND…`, a line of JSON a point. FOLDER/start is
what the command finds, copied for each point; RESULTS are runs, or single files, with commas between. POINTS may be
NUMBER:SEED, and are drawn then. All are forked from one process, whose clock stands still, so that a second making
gives the same bytes.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from altalign.cli import main
from altalign.data.stages import REPORT
from altalign.storage import atomic_change
from tests.end_to_end.killing import forked, on_changes, preload
from tests.end_to_end.runs import tree

CLOCK = time.gmtime(1_700_000_000)


def started(base: Path, name: str) -> Path:
    """A folder with all that a command finds."""
    new = base / name
    shutil.copytree(base / "start", new, symlinks=True)
    (new / "temp").mkdir()
    return new


def state(folder: Path, results: list[str]) -> dict[str, Any]:
    """The digests of all files of runs, and of single files."""
    found = dict[str, Any]()
    for name in results:
        path = folder / name
        if path.is_dir():
            # what a change that nobody decided has left is nobody's; a report is written after the change
            found[name] = {
                file: digest
                for file, digest in tree(path).items()
                if file.split("/")[0] not in (atomic_change.FOLDER, atomic_change.ADDING) and file not in REPORT
            }
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    return found


def whole(found: dict[str, Any]) -> dict[str, Any]:
    """The same without halves of files, which the next command that writes takes away."""
    return {
        name: {file: digest for file, digest in of.items() if "partial-" not in file} if isinstance(of, dict) else of
        for name, of in found.items()
    }


def counted(new: Path, command: list[str]) -> int:
    """How many changes an unbroken command makes."""

    def work() -> int:
        numbers = [0]
        on_changes(lambda number, *_: numbers.__setitem__(0, number))
        code = main(command)
        (new / "points").write_text(str(numbers[0]), encoding="utf-8")
        return code

    assert forked(new, work, "said") == 0, (new / "said").read_text(encoding="utf-8")
    return int((new / "points").read_text(encoding="utf-8"))


def killed(base: Path, results: list[str], command: list[str], point: int) -> dict[str, Any]:
    """End a command at a change, and give it again."""
    new = started(base, f"killed-{point}")

    def work() -> int:
        on_changes(lambda number, *_: os.kill(os.getpid(), signal.SIGKILL) if number == point else None)
        return main(command)

    report: dict[str, Any] = {"point": point, "ended": forked(new, work, "said")}
    runs = [name for name in results if (new / name / "run.json").exists()]
    report["opened"] = [forked(new, lambda run=run: main(["status", run]), "status") for run in runs]
    after = whole(state(new, results))
    report["is_old"] = after == state(base / "start", results)
    report["is_new"] = after == state(base / "unbroken", results)
    report["continued"] = forked(new, lambda: main(command), "said-again")
    report["said"] = (new / "said-again").read_text(encoding="utf-8")
    is_now = state(new, results)
    report["differs"] = [name for name, of in state(base / "unbroken", results).items() if of != is_now[name]]
    if not report["differs"] and not report["continued"]:
        shutil.rmtree(new)
    return report


if __name__ == "__main__":
    base, results = Path(sys.argv[1]), sys.argv[3].split(",")
    points, _, seed = sys.argv[2].partition(":")
    time.gmtime = lambda *_: CLOCK
    preload()
    of = counted(started(base, "unbroken"), sys.argv[4:])
    evenly = [1 + (2 * turn + 1) * of // (2 * int(points)) for turn in range(int(points))]
    for point in random.Random(int(seed)).sample(range(1, of + 1), min(of, int(points))) if seed else evenly:
        print(json.dumps({**killed(base, results, sys.argv[4:], point), "of": of}), flush=True)  # noqa: T201 - its result
