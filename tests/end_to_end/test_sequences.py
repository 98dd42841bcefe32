"""`add`, `remove`, `select` and `merge` where they are killed, where the disk is full, and two at once.

`make test-kills` ends each command at some 30 points, which a seed draws; here it is one each.
"""

import json
import os
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from altalign import storage
from altalign.cli import main
from tests.altalign.audit.runs import rows_of
from tests.end_to_end.mounts import UNSHARE, skip_where_nothing_can_be_mounted
from tests.end_to_end.runs import CONFIG, ROOT, environ, write_input

pytestmark = pytest.mark.runs

KILLS = int(os.environ.get("ALTALIGN_KILLS_OF_COMMANDS", "7"))  # over all commands
SEED = int(os.environ.get("ALTALIGN_KILLS_SEED", "11"))
COMMANDS = {
    "add": (["add", "one", "--input", "input/part-1.parquet"], "one"),
    "frozen": (["add", "live", "--input", "input/part-1.parquet", "--mode", "frozen"], "live"),
    "compact": (["merge", "grown"], "grown"),
    "remove": (["remove", "one", "--keys", "keys"], "one"),
    "subset": (["select", "one", "made", "--list", "keys"], "made,one"),
    "split": (["select", "one", "half", "rest", "--share", "0.5/0.5"], "half,rest,one"),
    "merge": (["merge", "one", "other", "--to", "made"], "made,one,other"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two inputs, and one of both, whose rules decide each row by itself."""
    folder = tmp_path_factory.mktemp("made")
    write_input(folder, rows=240)
    rows = pq.read_table(folder / "input" / "part-1.parquet")
    for part, (begin, end) in {1: (0, 80), 2: (80, 120)}.items():
        pq.write_table(rows.slice(begin, end - begin), folder / "input" / f"part-{part}.parquet", row_group_size=50)
    text = CONFIG.replace("vocabulary_size = 380\n", "").replace('[decontaminate]\ntest_sets = ["tests"]\n', "")
    text = text.replace("per_text_at_most = 3", "per_text_at_most = 1000").replace("at_most = 17", "at_most = 1000")
    text = text[: text.index('[[input]]\nname = "words"')] + text[text.index("[text]") :]
    with chdir(folder):
        for run, part in {"both": "*", "one": "part-0", "other": "part-1", "more": "part-2"}.items():
            config = text.replace("input/*", f"input/{part}").replace('folder = "run"', f'folder = "{run}"')
            Path("config.toml").write_text(config, encoding="utf-8")
            assert main(["curate", "config.toml"]) == 0
            if run == "one":
                shutil.copytree("one", "grown")
                shutil.copytree("one", "live")
                assert main(["add", "grown", "--input", "input/part-1.parquet"]) == 0
            shutil.rmtree(Path(run, "work"))
    return folder


@pytest.fixture
def start(made: Path, tmp_path: Path) -> Path:
    """A folder whose `start` has two runs, one with its `work/`, one that has grown, their input and a list of keys."""
    (tmp_path / "start").mkdir()
    for run in ("one", "other", "live", "grown", "input"):
        shutil.copytree(made / run, tmp_path / "start" / run)
    keys = [row["key"] for row in rows_of(made / "one")[:20]]
    (tmp_path / "start" / "keys").write_text("\n".join(keys[::2]), encoding="utf-8")
    return tmp_path


def reports(program: list[str], *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run([*program, *arguments], cwd=ROOT, env=environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.faults
@pytest.mark.parametrize("verb", COMMANDS)
def test_whoever_is_killed_leaves_the_old_run_or_the_new_one_and_goes_on(verb: str, start: Path) -> None:
    command, results = COMMANDS[verb]
    points = f"{-(-KILLS // len(COMMANDS))}:{SEED}"
    program = [sys.executable, "-m", "tests.end_to_end.commands_killing", str(start), points]
    for report in reports(program, results, *command):
        assert report["is_old"] or report["is_new"] or verb in ("subset", "split", "merge"), report
        assert report["continued"] == 0, report
        assert report["differs"] == [], report


@pytest.mark.faults
@pytest.mark.parametrize("verb", ["add", "frozen", "remove", "merge", "compact"])
def test_a_disk_that_is_full_in_the_middle_leaves_the_old_runs_and_one_line(verb: str, start: Path) -> None:
    skip_where_nothing_can_be_mounted(start)
    command, results = COMMANDS[verb]
    program = [*UNSHARE, sys.executable, "-m", "tests.end_to_end.commands_filling", str(start)]
    *failed, end = reports(program, results, *command)
    assert failed
    for report in failed:
        assert report["code"] == 1, report
        assert report["said"].count("\n") == 1, report
        assert "no space left on the device" in report["said"], report
        assert report["is_old"], report
    assert end == {"code": 0, "said": "", "differs": []}


def test_of_two_commands_at_once_one_is_refused(
    start: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(start / "start")
    for verb, (command, results) in reversed(COMMANDS.items()):
        folder = results.split(",")[0]
        (Path(folder) / "log").mkdir(parents=True, exist_ok=True)
        with storage.locked(folder):
            assert main(command) == 2, verb
        assert "another command is at work on this run" in capsys.readouterr().err
        assert main(command) == 0
        for name in ("made", "half", "rest"):
            shutil.rmtree(name, ignore_errors=True)
