"""Strikes a process at a step of a run, whichever process of which engine it is.

When it is about to give a unit's file its name.

A test writes what it wants as empty files in a folder: `SIGKILL@tables+merged` sends the first process that comes so
far in step "tables/merged" this signal, once; `HOLD@…` lets it wait there until the file `go` appears; `DEFECT@…`
raises what nobody expects; `FULL@…` says that the disk is full. What was struck lies in `struck/`, and has the
process id and its arguments in it. Half a unit is written then: the file is there under its temporary name.
"""

import errno
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "ALTALIGN_TEST_BLOWS"
HOLD, DEFECT, FULL = "HOLD", "DEFECT", "FULL"

# Python runs a module of this name when it starts; it is found before any other one.
_AT_START = "from tests.end_to_end import blows\n\nblows.install()\n"


def environ(folder: Path) -> dict[str, str]:
    """What the environment of a process needs to be struck by what is wanted in this folder."""
    from tests.support.curations import ROOT

    at_start = folder / "at-start"
    at_start.mkdir(parents=True, exist_ok=True)
    (folder / "struck").mkdir(exist_ok=True)
    (at_start / "sitecustomize.py").write_text(_AT_START, encoding="utf-8")
    return {VARIABLE: str(folder), "PYTHONPATH": f"{at_start}{os.pathsep}{ROOT}"}


def want(folder: Path, acts: Mapping[str, str]) -> None:
    """Want these acts (a signal's name, HOLD, DEFECT or FULL) by step; whatever was wanted before is not any more."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*@*"), *folder.glob("struck/*"), folder / "go"):
        old.unlink(missing_ok=True)
    for step, act in acts.items():
        (folder / f"{act}@{step.replace('/', '+')}").touch()


def wanted(folder: Path) -> list[str]:
    """What has not come yet."""
    return sorted(path.name for path in folder.glob("*@*"))


def struck(folder: Path, step: str) -> list[str]:
    """Process id and arguments of the process that was struck at this step; empty before."""
    return next(
        (
            path.read_text(encoding="utf-8").split("\0")
            for path in folder.glob(f"struck/*@{step.replace('/', '+')}.said")
        ),
        [],
    )


def release(folder: Path) -> None:
    """Let those go on that are held."""
    (folder / "go").touch()


def install() -> None:
    """Look at every file that this process renames, to its end."""
    folder = Path(os.environ[VARIABLE])

    def hook(event: str, args: tuple[Any, ...]) -> None:
        # that one is no unit's
        if event == "os.rename" and "run/work/" in str(args[0]) and not str(args[1]).endswith("done.json"):
            _strike(folder, Path(str(args[0])).parent.as_posix().removesuffix("/marks"))

    sys.addaudithook(hook)


def _strike(folder: Path, of_file: str) -> None:
    for path in folder.glob("*@*"):
        act, step = path.name.split("@")
        if not of_file.endswith("run/work/" + step.replace("+", "/")):
            continue
        at = folder / "struck" / path.name
        try:
            path.rename(at)  # of two that come here at once one succeeds
        except FileNotFoundError:
            continue
        at.with_suffix(".part").write_text("\0".join([str(os.getpid()), *sys.argv]), encoding="utf-8")
        at.with_suffix(".part").rename(at.with_suffix(".said"))
        if act == DEFECT:
            raise ZeroDivisionError("a defect that a test has made")
        if act == FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if act != HOLD:
            os.kill(os.getpid(), signal.Signals[act])
        while act == HOLD and not (folder / "go").exists():
            time.sleep(0.05)
