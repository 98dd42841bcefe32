"""A run that is ended by a signal, at points drawn by a seed over all stages, continues to the same bytes and leaves
nothing behind.

`make test-kills` takes 100 points of SIGKILL and 30 of the others; here it is a sample of them.
"""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from altalign.data.stages import STAGES
from tests.end_to_end.runs import ROOT, Finished, altalign, environ, listed, tree, write_input

pytestmark = pytest.mark.faults

KILLS = int(os.environ.get("ALTALIGN_KILLS", str(len(STAGES) + 2)))  # in each stage one, one before and one after all
SEED = int(os.environ.get("ALTALIGN_KILLS_SEED", "11"))
ENDS = max(3, KILLS * 3 // 10)

# Sends the command a signal when it imports for the n-th time.
AT_AN_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had this ignored
number, name, seen = int(sys.argv[1]), sys.argv[2], 0
def hook(event, args):
    global seen
    seen += event == "import"
    if event == "import" and seen == number:
        os.kill(os.getpid(), getattr(signal, name))
from altalign.cli import main
sys.argv[1:] = ["curate", "config.toml", *sys.argv[3:]]
sys.addaudithook(hook)
sys.exit(main())
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came of every point."""
    folder = tmp_path_factory.mktemp("kills")
    write_input(folder, rows=120)
    wanted = [
        sys.executable,
        "-m",
        "tests.end_to_end.killing",
        str(folder),
        str(SEED),
        f"SIGKILL:{KILLS}",
        f"SIGINT,SIGTERM,SIGHUP:{ENDS}",
    ]
    done = subprocess.run(wanted, cwd=ROOT, env=environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == KILLS + ENDS
    return found


@pytest.mark.everyday
def test_points_lie_in_every_stage_and_are_reached(reports: list[dict[str, Any]]) -> None:
    assert {report["stage"] for report in reports} == {"", *STAGES}
    # threads change their order a little
    assert sum(report["at"] == "never reached" for report in reports) <= len(reports) // 10


@pytest.mark.everyday
def test_whatever_ended_it_a_run_continues_to_the_same_bytes_and_leaves_nothing(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert report["continued"] == 0, report
        assert not report["differs"], report
        assert not report["surplus"], report
        assert not report["temp"], report
        assert not report["orphans"], report


@pytest.mark.everyday
def test_a_signal_that_can_be_handled_ends_in_one_line_with_its_code_and_without_halves(
    reports: list[dict[str, Any]],
) -> None:
    codes = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
    for report in (report for report in reports if report["signal"] != "SIGKILL" and report["at"] != "never reached"):
        assert report["ended"] == codes[report["signal"]], report
        ours = [line for line in report["said"].splitlines() if line.startswith("altalign: ")]
        name = "" if report["signal"] == "SIGINT" else f" ({report['signal']})"
        assert ours == [f"altalign: interrupted{name}; run the same command again, it continues"], report
        assert "Traceback" not in report["said"]
        assert "Exception ignored" not in report["said"]
        assert not report["left"], report


@pytest.mark.parametrize(("number", "name", "code"), [(40, "SIGINT", 130), (700, "SIGTERM", 143)])
def test_a_signal_while_it_still_starts_is_a_line_too(tmp_path: Path, number: int, name: str, code: int) -> None:
    write_input(tmp_path, rows=120)
    wanted = [sys.executable, "-c", AT_AN_IMPORT, str(number), name]
    done = subprocess.run(wanted, cwd=tmp_path, env=environ(), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr == (
        f"altalign: interrupted{'' if name == 'SIGINT' else f' ({name})'}; run the same command again, it continues\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_prism_ends_with_the_run_however_that_ends_and_the_next_continues_to_the_same_bytes(
    embedded: Finished, tmp_path: Path, prism: str, number: signal.Signals
) -> None:
    embedded.input_in(tmp_path)
    (tmp_path / "temp").mkdir()
    environment = environ({"ALTALIGN_PRISM": prism, "TMPDIR": str(tmp_path / "temp")})
    wanted = [sys.executable, "-c", AT_AN_IMPORT, "0", "SIGKILL", "--set", "engine.runner=prism"]
    with subprocess.Popen(
        wanted, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        first = run.stderr.readline()  # a line of progress: a stage is done, and Prism is there
        server = os.pidfd_open(int(Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()[0]))
        assert "units" in first
        run.send_signal(number)
        run.wait(60)
    assert select.select([server], [], [], 60)[0], "Prism stays"
    os.close(server)
    assert not list((tmp_path / "temp").iterdir())
    assert not (tmp_path / "run" / "manifest.json").exists()
    done = altalign(tmp_path, "curate", "config.toml", "--set", "engine.runner=prism", environment=environment)
    assert done.returncode == 0, done.stderr
    assert "made anew" not in done.stderr
    assert tree(tmp_path / "run") == embedded.tree
    assert listed(tmp_path / "run") == embedded.listed
