"""Ends runs that fetch at chosen points and continues them.

`python -m tests.end_to_end.web_killing VERB FOLDER LOG POINTS`, a line of JSON a point.

`curate`: FOLDER holds a run until `judge`; a point is a number of writes to what grows, bytes of images, journals and
log; by turns half of the write is done. `retry`: FOLDER holds a finished run, some of whose images could not be had and
now can; a point is a change to the file system. `rerun`: FOLDER holds a finished run by other rules on texts. LOG
is that of the server. A point before the first write, and one behind the last, are not taken.
"""

import json
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from altalign.cli import main
from altalign.pipelines.web.journal import journal, log
from altalign.storage import local
from tests.end_to_end.killing import forked, listed, on_changes, preload
from tests.end_to_end.runs import tree
from tests.end_to_end.web_inputs import in_journals

CURATE = ["curate", "config.toml", "--set", "engine.workers=2"]
RETRY = ["retry", "run", "--reason", "http_status"]
COMMANDS = {"curate": CURATE, "retry": RETRY, "rerun": [*CURATE, "--rerun"]}


def on_writes(act: Any) -> None:
    """Call `act` before every write to what grows, with its number, the file and the data; for the rest of this
    process's life.
    """
    number, real = 0, local.GrowingFile.write

    def write(self: local.GrowingFile, data: bytes) -> None:
        nonlocal number
        number += 1
        act(number, self, data, real)
        real(self, data)

    local.GrowingFile.write = write  # type: ignore[method-assign]


def kill_at_write(point: int) -> None:
    """SIGKILL before a write, or when half of it is done."""

    def act(number: int, file: local.GrowingFile, data: bytes, real: Any) -> None:
        if number == point:
            if point % 2:
                real(file, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    on_writes(act)


def kill_at_change(point: int) -> None:
    """SIGKILL before a change to the file system."""
    on_changes(lambda number, _event, _path: os.kill(os.getpid(), signal.SIGKILL) if number == point else None)


def copied(folder: Path, name: str) -> Path:
    """A folder with the input of `folder`, the same files of the same times, and its run where there is one."""
    new = folder / name
    (new / "temp").mkdir(parents=True)
    for part in ("input", "config.toml"):
        (new / part).symlink_to(folder / part)
    if (folder / "run").exists():
        shutil.copytree(folder / "run", new / "run")
    return new


def requests(of_server: Path) -> Counter[str]:
    """How often each URL was asked for so far.

    One over a kept connection that ends without a byte of an answer is left out: the client cannot know that it was
    read, and asks over a new one.
    """
    events = [json.loads(line) for line in of_server.read_text(encoding="utf-8").splitlines()]
    unanswered = {event["number"] for event in events if event["event"] == "end" and not event["bytes"]}
    found, used = Counter[str](), set[int]()
    for event in events:
        if event["event"] == "request":
            is_lost = event["connection"] in used and event["number"] in unanswered
            found[f"http://{event['headers']['host']}{event['target']}"] += not is_lost
            used.add(event["connection"])
    return found


def counted(new: Path, arguments: list[str], count: Any, name: str) -> int:
    """Points of an unbroken command."""

    def work() -> int:
        numbers = [0]
        count(numbers)
        code = main(arguments)
        (new / "points").write_text(str(numbers[0]), encoding="utf-8")
        return code

    assert forked(new, work, name) == 0, (new / name).read_text(encoding="utf-8")
    return int((new / "points").read_text(encoding="utf-8"))


def count_writes(numbers: list[int]) -> None:
    """Count the writes to what grows."""
    on_writes(lambda number, *_: numbers.__setitem__(0, number))


def count_changes(numbers: list[int]) -> None:
    """Count the changes to the file system."""
    on_changes(lambda number, *_: numbers.__setitem__(0, number))


def killed(base: Path, of_server: Path, verb: str, point: int) -> dict[str, Any]:
    """End a command at a point, continue it, and say what came of it."""
    new, before = copied(base, f"{verb}-{point}"), requests(of_server)
    had = in_journals(new / "run") if verb == "retry" else set()

    def work() -> int:
        kill_at_write(point) if verb == "curate" else kill_at_change(point)
        return main(COMMANDS[verb])

    code = forked(new, work, "said")
    report: dict[str, Any] = {"point": point, "ended": code, "journaled": sorted(in_journals(new / "run") | had)}
    commands = [CURATE, RETRY] if verb == "retry" and point % 2 else [COMMANDS[verb]]
    report["continued"] = [
        forked(new, lambda c=command: main(c), f"said-{number}") for number, command in enumerate(commands)
    ]
    report["said"] = "".join((new / f"said-{number}").read_text(encoding="utf-8") for number in range(len(commands)))
    report["requests"] = requests(of_server) - before
    report["differs"] = sorted(set(tree(new / "run").items()) ^ set(tree(base / "unbroken" / "run").items()))
    report["surplus"] = sorted(set(listed(new / "run")) ^ set(listed(base / "unbroken" / "run")))
    if not (report["differs"] or report["surplus"] or any(report["continued"])):
        shutil.rmtree(new)
    return report


if __name__ == "__main__":
    journal.GATHERED_S = log.SECONDS_BETWEEN_STATS = 0.0  # a write for each image, so that they can be counted
    verb, base, of_server, points = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    preload()
    of = counted(
        copied(base, "unbroken"),
        COMMANDS[verb],
        count_writes if verb == "curate" else count_changes,
        "said",
    )
    for turn in range(points):
        point = 1 + (2 * turn + 1) * of // (2 * points)
        print(json.dumps({**killed(base, of_server, verb, point), "of": of}), flush=True)  # noqa: T201 - its result
