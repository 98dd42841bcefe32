"""A real disk that is too small, in bytes or in files, until it is not: one line each time, no half file, and the same
bytes once there is room. test_faults.py fills it at every change.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from altalign.cli import main
from altalign.data.stages import REPORT
from tests.support.curations import environ, tree
from tests.support.mounts import UNSHARE, skip_where_nothing_can_be_mounted

pytestmark = pytest.mark.faults

PAGE = os.sysconf("SC_PAGE_SIZE")
PARTS = (0.05, 0.4, 0.8)  # of what a whole run takes
# Gives the command on a tmpfs of each of these sizes, and keeps what is there at last.
SCRIPT = """
mount -t tmpfs tmpfs disk
for options in "$@"; do
  mount -o "remount,$options" disk
  "$PYTHON" -m altalign.cli curate config.toml --set run.folder=disk/run >/dev/null 2>error && echo 0 || echo $?
  grep "^altalign: " error || true
  find disk -name "*partial-*"
done
cp -a disk/run run
"""


@pytest.mark.parametrize(
    ("option", "left"), [("size", r"[\d,]+ bytes free"), ("nr_inodes", "it holds as many files as it can")]
)
def test_on_a_disk_that_grows_the_run_continues_to_the_same_bytes(folder: Path, option: str, left: str) -> None:
    (folder / "disk").mkdir()
    skip_where_nothing_can_be_mounted(folder / "disk")
    assert main(["curate", "config.toml", "--set", "run.folder=whole"]) == 0
    report = [folder / "whole" / name for name in REPORT]  # without it a run is finished all the same
    paths = [path for path in (folder / "whole").rglob("*") if path not in report]
    takes = sum(-(-path.stat().st_size // PAGE) * PAGE for path in paths) if option == "size" else len(paths)
    sizes = [f"{option}={int(part * takes)}" for part in PARTS] + ["size=256m,nr_inodes=0"]
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", SCRIPT, "sh", *sizes],
        cwd=folder,
        env=environ({"PYTHON": sys.executable}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *failed, last = done.stdout.splitlines()
    assert last == "0", done.stdout
    assert failed[::2] == ["1"] * len(PARTS), done.stdout
    line = rf"altalign: disk/run.*: no space left on the device.* \({left}\); make room and run the same command again"
    assert all(re.match(line, each) for each in failed[1::2]), done.stdout
    assert len(failed) == 2 * len(PARTS), done.stdout
    assert tree(folder / "run") == tree(folder / "whole")
