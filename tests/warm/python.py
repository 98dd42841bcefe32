"""A Python for tests that start trainings: its processes begin with the trainer imported.

Not for a test of how processes start, of their memory, or of which they are: what the test has started is no more than
a client of the process that trains. All forks have one order of sets of strings (PYTHONHASHSEED), as ranks of their own
have not: a test where that could matter takes `sys.executable`.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from altalign.machine.children import ending_with_us
from tests.warm import client

ROOT = Path(__file__).parents[2]


@cache
def warm() -> str:
    """The path of a program that does what `python` does, for as long as this process is there."""
    if sys.platform != "linux":  # elsewhere there are no descriptors of processes, and forks of torch end badly
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    where, program = folder / "socket", folder / "python"
    # a warning that a user would read at every start is an error
    command = [sys.executable, "-W", "error::FutureWarning", "-m", "tests.warm.forks", str(where)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    forks = subprocess.Popen(
        ending_with_us(command),
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for pytest, which ends it
    )
    atexit.register(lambda: (forks.kill(), forks.wait()))
    assert forks.stdout
    assert forks.stdout.readline(), "it did not start; above it says why"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{client.__file__}" "{where}" "$@"\n')
    program.chmod(0o755)
    return str(program)
