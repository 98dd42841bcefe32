"""A fork of the warm Python has what a process has, and ends as one does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import client
from tests.warm.python import ROOT, warm

pytestmark = pytest.mark.trained
SAYS = "import os, sys, torch; print(sys.argv[1:], os.getcwd(), os.environ['MINE'], sys.stdin.read()); sys.exit(3)"
WAITS = """
import sys, time
try:
    print("waits", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit("interrupted")
"""


def test_it_has_what_its_parent_gives_it(tmp_path: Path) -> None:
    environment = {**os.environ, "MINE": "is here"}
    done = subprocess.run(
        [warm(), "-c", SAYS, "a", "b"], cwd=tmp_path, env=environment, input="said", capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, f"['a', 'b'] {tmp_path} is here said\n", "")


def test_an_error_is_a_traceback_and_a_one() -> None:
    done = subprocess.run([warm(), "-c", "1 / 0"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ZeroDivisionError: division by zero" in done.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_ends_it_with_all_that_it_has_open(number: signal.Signals, code: int) -> None:
    process = subprocess.Popen([warm(), "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "waits\n"
    process.send_signal(number)
    _, said = process.communicate()  # until no process can write there any more
    assert process.returncode == code
    assert said == ("interrupted\n" if number == signal.SIGINT else "")


def test_a_server_that_is_killed_takes_its_forks_along(tmp_path: Path) -> None:
    own = "from tests.warm import forks, trainer; trainer.warm = lambda: None; forks.main()"  # nothing but torch
    where = str(tmp_path / "socket")
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen([sys.executable, "-c", own, where], cwd=ROOT, env=one_thread, stdout=subprocess.PIPE)
    assert server.stdout
    assert server.stdout.readline() == b"\n"
    process = subprocess.Popen(
        [sys.executable, "-IS", client.__file__, where, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    assert process.stdout.readline() == b"waits\n"
    server.kill()
    process.communicate()  # until no process can write there any more
    assert process.returncode == -signal.SIGKILL
    server.communicate()
