"""Two processes of a training, one of which stops, is told to end, or fails: the other says so, or ends with it."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.train.run_folders import pairs, write_run
from tests.train.test_training_run import TORCHRUN, WATCHDOG_S, lines, reached, started, written

TWO = ["torch.distributed.run", "--nproc-per-node", "2", *TORCHRUN]


@pytest.fixture
def running(tmp_path: Path) -> "tuple[Path, subprocess.Popen[str], int]":
    """A run of two ranks that has taken a step, and the process of the second."""
    write_run(tmp_path / "curated", pairs(60, images=30))
    loop = {"log_every": 1, "checkpoint_every": 100_000, "timeout_s": 4}
    process = started([*TWO, written(tmp_path, schedule={"steps": 100_000}, loop=loop)])
    reached(tmp_path, 2, process)
    return tmp_path, process, _pid_of_rank(process.pid, 1)


def _pid_of_rank(launcher: int, rank: int) -> int:
    tasks = Path(f"/proc/{launcher}/task")
    for task in tasks.iterdir():
        for number in (task / "children").read_text().split():
            if f"RANK={rank}" in Path(f"/proc/{number}/environ").read_text().split("\0"):
                return int(number)
    raise AssertionError(f"no rank {rank}")


@pytest.mark.trained
def test_a_rank_that_hangs_is_named_by_the_others_once_the_time_is_up(
    running: "tuple[Path, subprocess.Popen[str], int]",
) -> None:
    _, process, second = running
    os.kill(second, signal.SIGSTOP)
    try:
        said = ""
        assert process.stderr
        for line in process.stderr:  # the launcher gives the stopped process half a minute
            said += line
            if "run it again, it continues" in line:
                break
        assert "another process of this training has ended, or is not heard any more" in said
        assert f"rank 1 ({os.uname().nodename}, process {second}, step " in said
        assert "): it says nothing; look at what it said" in said
    finally:
        os.kill(second, signal.SIGKILL)
        process.communicate(timeout=WATCHDOG_S)


@pytest.mark.trained
def test_a_rank_that_is_told_to_end_takes_the_others_along_after_a_checkpoint(
    running: "tuple[Path, subprocess.Popen[str], int]",
) -> None:
    folder, process, second = running
    os.kill(second, signal.SIGTERM)
    process.communicate(timeout=WATCHDOG_S)
    (kept,) = (folder / "trained" / "checkpoints").iterdir()
    assert (kept / "manifest.json").is_file()
    assert json.loads((kept / "state.json").read_text())["step"] == lines(folder)[-1]["step"]
