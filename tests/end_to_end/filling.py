"""Runs on a disk that is always too small, until it is not.

`unshare -m python -m tests.end_to_end.filling FOLDER SEED POINTS KIND`.

In a mount namespace of its own, so that no mount stays behind. A tmpfs of a few pages (or files, as KIND says) over
what is on it; each time a run fails on it, it grows by a seeded part of what the whole run takes, but never so far that
the next stage could end, too: so that each stage fails at least once, whatever its files take. A line of JSON a
failure, then one of how it ended.
"""

import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from altalign.cli import main
from altalign.data.stages import REPORT, STAGES
from tests.end_to_end.runs import tree

PAGE = os.sysconf("SC_PAGE_SIZE")
COMMAND = ["curate", "config.toml", "--set"]


def mounted(disk: Path, options: str, *, is_new: bool) -> None:
    """A tmpfs with these options; or the one that is there, with these now."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options if is_new else f"remount,{options}", "tmpfs", str(disk)], check=True
    )


def ran(folder: str, *args: str) -> tuple[int, str]:
    """Exit code of the run and the lines in which it failed."""
    return ran_command([*COMMAND, f"run.folder={folder}", *args])


def ran_command(command: Sequence[str]) -> tuple[int, str]:
    """Exit code of a command and the lines in which it failed."""
    said = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        code = main([*command])
    return code, "".join(line for line in said.getvalue().splitlines(keepends=True) if line.startswith("altalign: "))


def used(disk: Path, kind: str) -> int:
    """Pages, or files, in use."""
    status = os.statvfs(disk)
    return (
        status.f_files - status.f_ffree
        if kind == "files"
        else (status.f_blocks - status.f_bfree) * status.f_frsize // PAGE
    )


def option(kind: str, amount: int) -> str:
    """The mount option for this many pages, or files."""
    return f"nr_inodes={amount}" if kind == "files" else f"size={amount * PAGE}"


if __name__ == "__main__":
    base, rng, points, kind = Path(sys.argv[1]), random.Random(int(sys.argv[2])), int(sys.argv[3]), sys.argv[4]
    os.chdir(base)
    disk = base / "disk"
    disk.mkdir()
    mounted(disk, "size=256m", is_new=True)
    empty = used(disk, kind)
    takes = []  # what there is at the end of each stage
    for stage in STAGES:
        code, said = ran("disk/whole", "--until", stage)
        assert code == 0, said
        takes.append(used(disk, kind) - empty)
    # A run without room for its report is a finished run all the same.
    takes[-1] -= sum(1 if kind == "files" else -(-(disk / "whole" / name).stat().st_size // PAGE) for name in REPORT)
    begun, whole, room = 0, takes[-1], used(disk, kind)
    steps = [1, 2, *(rng.randrange(2, 6) for _ in range(3))]  # what is before the stages, and extract, take little
    while True:
        amount = used(disk, kind) + (steps.pop(0) if steps else 1 + rng.randrange(2 * whole // points))
        if begun < len(takes):
            amount = max(min(amount, room + takes[begun] - 1), used(disk, kind) + 1)
        mounted(disk, option(kind, amount), is_new=False)
        code, said = ran("disk/run")
        halves = [str(path) for path in disk.rglob("*partial-*")]
        stages = (
            json.loads(Path("disk/run/run.json").read_text(encoding="utf-8"))["stages"]
            if Path("disk/run/run.json").exists()
            else {}
        )
        begun, stage = len(stages), list(stages)[-1] if stages else ""
        print(  # noqa: T201 - its result
            json.dumps(
                {"code": code, "said": said, "halves": halves, "stage": stage, "free": amount - used(disk, kind)}
            ),
            flush=True,
        )
        if code == 0 or "no space left" not in said:
            break
    mounted(disk, option(kind, used(disk, kind) + whole), is_new=False)
    assert ran("disk/run")[0] == 0  # now its report is there, too
    differs = sorted(set(tree(disk / "run").items()) ^ set(tree(disk / "whole").items()))
    print(json.dumps({"differs": differs}))  # noqa: T201 - its result
