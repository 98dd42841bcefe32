"""Ends runs at chosen points and continues them.

`python -m tests.end_to_end.killing FOLDER SEED SIGNAL[,SIGNAL…]:POINTS …`, a line of JSON a point.

A point is a number of changes to the file system (open to write, rename, delete, make or remove a folder), so that the
same points come on any machine, whatever its speed. Just before such a change the process sends itself the signal; of a
file about to be renamed half is cut off by turns, as if a kill had come while it was written. All runs are forked from
one process, which has imported all.
"""

import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from altalign.cli import main
from altalign.data.stages import STAGES
from tests.end_to_end.runs import tree

CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
COMMAND = ["curate", "config.toml", "--set", "engine.workers=2"]


def on_changes(act: Callable[[int, str, str], None]) -> None:
    """Call `act` before every change to a file with its number, what it is and the path; for the rest of this process's
    life.
    """
    number = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal number
        if event not in CHANGES or (
            event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR))
        ):
            return
        path = str(args[0])
        # not the run's; no change
        if "__pycache__" in path or path.startswith("/dev") or (event == "os.mkdir" and Path(path).exists()):
            return
        number += 1
        act(number, event, path)

    sys.addaudithook(hook)


def forked(folder: Path, work: Callable[[], int], log: str) -> int:
    """Do work in a child with `folder` as its working directory and temp files in `folder/temp`; its exit code,
    negative for a signal.
    """
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.chdir(folder)
            os.environ["TMPDIR"] = str(folder / "temp")
            said = os.open(folder / log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fresh(folder: Path, name: str) -> Path:
    """A folder with the input of `folder`: the same files of the same times."""
    new = folder / name
    (new / "temp").mkdir(parents=True)
    for part in ("input", "text", "tests", "config.toml"):
        (new / part).symlink_to(folder / part)
    return new


def listed(folder: Path) -> list[str]:
    """All that there is under a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def of_stage(path: str) -> str:
    """The stage whose files these are; empty before the first and after the last."""
    parts = Path(path).parts
    elsewhere = {"test_images": "fetch", "near_duplicates": "decontaminate", "shards": "write"}
    return next((elsewhere.get(part, part) for part in parts if part in STAGES or part in elsewhere), "")


def unbroken(folder: Path) -> list[str]:
    """A whole run in `folder/unbroken`; the stage at each of its changes."""
    new = fresh(folder, "unbroken")

    def work() -> int:
        changes: list[str] = []
        on_changes(lambda _number, _event, path: changes.append(path))
        code = main(COMMAND)
        found = list(changes)
        (new / "changes.json").write_text(json.dumps(found), encoding="utf-8")
        return code

    assert forked(new, work, "said") == 0, (new / "said").read_text(encoding="utf-8")
    return [of_stage(path) for path in json.loads((new / "changes.json").read_text(encoding="utf-8"))]


def chosen(stages: list[str], points: int, seed: int) -> list[int]:
    """Numbers of changes: as many of each stage, of what is before and of what is after, as there are."""
    begin = next(i for i, stage in enumerate(stages) if stage)
    cuts = [
        0,
        begin,
        *(next(i for i, stage in enumerate(stages) if stage == name and i >= begin) for name in STAGES[1:]),
    ]
    last = max(i for i, stage in enumerate(stages) if stage == "write")
    cuts += [last, len(stages)]
    rng, groups = random.Random(seed), [list(range(a + 1, b + 1)) for a, b in pairwise(sorted(cuts))]
    drawn: list[int] = []
    while len(drawn) < min(points, len(stages)):
        for group in groups:
            if group and len(drawn) < points:
                drawn.append(group.pop(rng.randrange(len(group))))
    return sorted(drawn)


def ended(new: Path, point: int, number: signal.Signals, log: str) -> int:
    """Run in a folder and send the run a signal at a change; the exit code.

    `point` there says where it was, `stage` how far, and `children` what it had.
    """
    stage = ""

    def act(change: int, event: str, path: str) -> None:
        nonlocal stage
        stage = of_stage(path) or stage  # of what is no stage's, such as temporary files: that which has begun
        if change == point:
            (new / "stage").write_text(stage, encoding="utf-8")
            (new / "point").write_text(f"{event} {path}", encoding="utf-8")
            (new / "children").write_text(
                " ".join(children.read_text() for children in Path("/proc/self/task").glob("*/children")),
                encoding="utf-8",
            )
            if event == "os.rename" and point % 2 and number == signal.SIGKILL:
                os.truncate(path, Path(path).stat().st_size // 2)
            os.kill(os.getpid(), number)

    def work() -> int:
        on_changes(act)
        return main(COMMAND)

    (new / "children").write_text("", encoding="utf-8")  # should the point never be reached
    return forked(new, work, log)


def continued(folder: Path, point: int, number: signal.Signals, *, of: int) -> dict[str, Any]:
    """End a fresh run at a point, every third a second time, continue it, and say what came of it."""
    new = fresh(folder, f"{number.name}-{point}")
    code = ended(new, point, number, "said")
    at, stage = (
        (new / name).read_text(encoding="utf-8") if (new / name).exists() else other
        for name, other in (("point", "never reached"), ("stage", ""))
    )
    left = [name for name in listed(new) if "partial-" in name or "/temporary/" in name]
    orphans = [
        process for process in (new / "children").read_text(encoding="utf-8").split() if Path("/proc", process).exists()
    ]
    if point % 3 == 0:
        ended(new, random.Random(point).randrange(1, of), number, "said-again")
    after = forked(new, lambda: main(COMMAND), "said-after")
    report = {
        "signal": number.name,
        "point": point,
        "at": at.replace(str(new), ""),
        "stage": stage,
        "ended": code,
        "said": (new / "said").read_text(encoding="utf-8"),
        "left": left,
        "orphans": orphans,
        "continued": after,
        "said_after": (new / "said-after").read_text(encoding="utf-8") if after else "",
        "differs": sorted(set(tree(new / "run").items()) ^ set(tree(folder / "unbroken" / "run").items())),
        "surplus": sorted(set(listed(new / "run")) ^ set(listed(folder / "unbroken" / "run"))),
        "temp": listed(new / "temp"),
    }
    if not (report["differs"] or report["surplus"] or report["temp"] or after):
        shutil.rmtree(new)
    return report


def preload() -> None:
    """Import what a run imports, so that no child has to."""
    import altalign.pipelines.curate
    import altalign.pipelines.engine.jobs  # noqa: F401


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had this ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    base, seed = Path(sys.argv[1]), int(sys.argv[2])
    preload()
    stages = unbroken(base)
    for signals, points in (wanted.split(":") for wanted in sys.argv[3:]):
        for turn, point in enumerate(chosen(stages, int(points), seed)):
            names = signals.split(",")
            number = signal.Signals[names[turn % len(names)]]
            print(json.dumps({**continued(base, point, number, of=len(stages)), "of": len(stages)}), flush=True)  # noqa: T201 - its result
