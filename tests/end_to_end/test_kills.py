"""Signals while the command starts, and while Prism works for it; faults.py breaks it off at all other places."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.curations import Finished, altalign, environ, listed, tree, write_input

pytestmark = pytest.mark.faults

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
