"""Children that end with us, and how they are reaped."""

import multiprocessing
import subprocess
import sys

import pytest

from altalign.machine import children

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def fork_server():
    return multiprocessing.get_context("forkserver")


def sleep() -> None:
    import time

    time.sleep(600)


def test_a_program_that_does_not_end_is_killed_and_reaped():
    program = subprocess.Popen(SLEEPS)
    children.end([program])
    assert program.returncode == -9


def test_a_program_that_ends_by_itself_is_waited_for():
    program = subprocess.Popen([sys.executable, "-c", ""])
    children.end([program], within_s=60)
    assert program.returncode == 0


def test_a_process_that_does_not_end_is_killed_and_reaped(fork_server):
    process = fork_server.Process(target=sleep)
    process.start()
    children.end([process])
    assert process.exitcode == -9


def test_a_program_of_a_killed_parent_dies_with_it():
    start = (
        "import subprocess, sys, time; from altalign.machine import children;"
        f"child = subprocess.Popen(children.ending_with_us({SLEEPS!r}));"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as said:
        said.readline()
        parent.kill()
        parent.wait()
        # The child holds the other end of the pipe: it is read to its end once the child is gone.
        assert said.read() == ""
