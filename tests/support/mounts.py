"""Small disks and read-only folders: mounts in a namespace of their own, which ends with the command."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# Root has the right to mount; others have it in a user namespace, where the system lets them have one.
UNSHARE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def skip_where_nothing_can_be_mounted(folder: Path) -> None:
    """Skip the test, with the system's own words, where it mounts nothing for us."""
    if not shutil.which("unshare"):
        pytest.skip("no unshare: nothing can be mounted")
    tried = subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"nothing can be mounted here: {tried.stderr.strip()}")


def read_only(folder: Path, script: str) -> list[str]:
    """The command that runs a shell script with this folder read-only."""
    name = str(folder)
    return [
        *UNSHARE,
        "sh",
        "-ec",
        f'mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; set +e; cd "$1"; {script}',
        name,
        name,
    ]
