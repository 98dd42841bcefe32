"""A run whose images are worked on by processes: the same bytes as with threads, one readable line for trouble, nothing
left behind by signals.
"""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from altalign.cli import main
from altalign.machine.cores import cores
from tests.end_to_end import blows
from tests.end_to_end.clusters import of_environment, wait_for
from tests.support.curations import ROOT, Finished, altalign, command, environ, listed, tree

pytestmark = pytest.mark.runs

WATCHDOG_S = 800.0

# In every Python that starts: however little there is to do, and however much memory other programs have at the moment,
# processes do the work; and each says that it was there.
_AT_START = """
import altalign.machine.memory, altalign.machine.processes
altalign.machine.memory.processes_beside = lambda: 8
altalign.machine.processes.SECONDS_OF_WORK = 1e-9
if sys.argv[:1] == ["-c"] and len(sys.argv) == 2:
    pathlib.Path(os.environ["ALTALIGN_TEST_BLOWS"], f"process-{os.getpid()}").touch()
"""


@pytest.fixture
def wanted(tmp_path: Path) -> Path:
    """A folder of blows."""
    folder = tmp_path / "blows"
    blows.environ(folder)
    at_start = folder / "at-start" / "sitecustomize.py"
    at_start.write_text(f"import os, pathlib, sys\n{at_start.read_text(encoding='utf-8')}{_AT_START}", encoding="utf-8")
    return folder


def environment(wanted: Path) -> dict[str, str]:
    """What makes a command use processes, and strikes them as is wanted in a folder."""
    folder = wanted / "at-start"
    return environ(
        {blows.VARIABLE: str(wanted), "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "TMPDIR": str(wanted / "temp")}
    )


def curate(folder: Path, wanted: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Curate in a folder with processes, two at a time."""
    (wanted / "temp").mkdir(exist_ok=True)
    config = [] if args else ["config.toml"]
    line = command("curate", *config, *args, "--set", "engine.workers=2")
    return subprocess.run(
        line, cwd=folder, env=environment(wanted), capture_output=True, text=True, timeout=WATCHDOG_S, check=False
    )


def line_of(said: str) -> str:
    """The one line of an error."""
    ours = [line for line in said.splitlines() if line.startswith("altalign: ")]
    assert len(ours) == 1, said
    assert "Traceback" not in said
    return ours[0]


def check_nothing_left(folder: Path, wanted: Path, *, halves: bool = False) -> None:
    """No process of the run's is there any more, and no temporary file; nor, but after a kill, half a file."""
    wait_for(
        "the end of all processes", lambda: not of_environment(f"{blows.VARIABLE}={wanted}"), [], within_s=WATCHDOG_S
    )
    assert list((wanted / "temp").iterdir()) == []
    if not halves:
        assert [name for name in listed(folder / "run") if "partial-" in name] == []
        assert not (folder / "run" / "work" / "temporary").exists()


def check_continues(folder: Path, wanted: Path, embedded: Finished) -> None:
    done = curate(folder, wanted)
    assert done.returncode == 0, done.stderr
    assert tree(folder / "run") == embedded.tree
    assert listed(folder / "run") == embedded.listed
    check_nothing_left(folder, wanted)


def test_processes_change_no_byte(embedded: Finished, tmp_path: Path, wanted: Path) -> None:
    folder = embedded.input_in(tmp_path / "here")
    check_continues(folder, wanted, embedded)
    assert len(list(wanted.glob("process-*"))) == 2
    audited = subprocess.run(
        command("audit", "run"),
        cwd=folder,
        env=environment(wanted),
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )
    assert audited.returncode == 0, audited.stderr
    of_audit = min(cores(), len(list((folder / "run" / "shards").glob("*.tar"))))
    assert len(list(wanted.glob("process-*"))) == 2 + (of_audit if of_audit > 1 else 0)
    check_nothing_left(folder, wanted)


def _files_without_times(run: Path) -> list[str]:
    """Files of a run but its record, and what a slow machine notes of how far it has read."""
    names = (name for name in listed(run) if (run / name).is_file())
    return [name for name in names if name != "run.json"]


def test_archives_are_read_by_processes_too(tmp_path: Path, wanted: Path) -> None:
    for part in ("examples", "configs"):
        (tmp_path / part).symlink_to(ROOT / part)
    done = curate(tmp_path, wanted, "configs/handbook.toml", "--until", "extract", "--set", "run.folder=run")
    assert done.returncode == 0, done.stderr
    assert len(list(wanted.glob("process-*"))) == 2
    plain = altalign(tmp_path, "curate", "configs/handbook.toml", "--until", "extract", "--set", "run.folder=plain")
    assert plain.returncode == 0, plain.stderr
    files = _files_without_times(tmp_path / "plain")
    assert files == _files_without_times(tmp_path / "run")
    assert [
        name for name in files if (tmp_path / "plain" / name).read_bytes() != (tmp_path / "run" / name).read_bytes()
    ] == []


def test_a_process_that_is_killed_is_one_line_and_the_run_continues(
    embedded: Finished, tmp_path: Path, wanted: Path
) -> None:
    folder, step = embedded.input_in(tmp_path / "here"), "write"
    blows.want(wanted, {step: "SIGKILL"})
    done = curate(folder, wanted)
    assert done.returncode == 1, done.stderr
    struck = int(blows.struck(wanted, step)[0])
    assert (wanted / f"process-{struck}").exists()
    assert line_of(done.stderr).startswith(
        f"altalign: process {struck}, one of those that this command works with, ended with SIGKILL; "
    )
    check_nothing_left(folder, wanted, halves=True)
    check_continues(folder, wanted, embedded)


@pytest.mark.parametrize(
    ("step", "number"), [("fetch/units", signal.SIGKILL), ("fetch/units", signal.SIGINT), ("write", signal.SIGTERM)]
)
def test_a_command_that_is_ended_takes_them_with_it_and_continues(
    embedded: Finished, tmp_path: Path, wanted: Path, step: str, number: signal.Signals
) -> None:
    folder = embedded.input_in(tmp_path / "here")
    blows.want(wanted, {step: blows.HOLD})
    (wanted / "temp").mkdir()
    line = command("curate", "config.toml", "--set", "engine.workers=2")
    with subprocess.Popen(
        line,
        cwd=folder,
        env=environment(wanted),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        process_group=0,
    ) as run:
        wait_for("a unit that is held", lambda: blows.struck(wanted, step), [], within_s=WATCHDOG_S)
        os.killpg(run.pid, number)  # as a terminal does
        if number != signal.SIGKILL:
            blows.release(wanted)
        _, said = run.communicate(timeout=WATCHDOG_S)
    if number == signal.SIGKILL:
        assert run.returncode == -number
    else:
        assert run.returncode == 128 + number, said
        name = "" if number == signal.SIGINT else f" ({number.name})"
        assert line_of(said) == f"altalign: interrupted{name}; run the same command again, it continues"
    check_nothing_left(folder, wanted, halves=number == signal.SIGKILL)
    check_continues(folder, wanted, embedded)


def test_trouble_in_a_process_is_said_as_in_a_thread(
    embedded: Finished, tmp_path: Path, wanted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = embedded.input_in(tmp_path / "here")
    monkeypatch.chdir(folder)
    assert main(["curate", "config.toml", "--until", "judge"]) == 0
    blows.want(wanted, {"write": blows.FULL})
    done = curate(folder, wanted)
    assert done.returncode == 1, done.stderr
    what = (
        r"altalign: run/work/write/marks: no space left on the device while writing \d+\.json \([\d,]+ bytes free\); "
        r"make room and run the same command again, it continues"
    )
    assert re.fullmatch(what, line_of(done.stderr)), done.stderr
    blows.want(wanted, {"write": blows.DEFECT})
    done = curate(folder, wanted)
    assert done.returncode == 1, done.stderr
    what = (
        r"altalign: run: write failed: unit \d+: ZeroDivisionError: a defect that a test has made; run/log/trace.txt "
        r"has the rest"
    )
    assert re.fullmatch(what, line_of(done.stderr)), done.stderr
    # where it was, in that process
    assert "in write_sealed" in (folder / "run" / "log" / "trace.txt").read_text(encoding="utf-8")
    check_nothing_left(folder, wanted)
    check_continues(folder, wanted, embedded)
