"""Folders that cannot be written, inputs that vanish or change under a run: said so, and the same bytes once that is
put right.
"""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from altalign.pipelines import curate
from tests.support.curations import ROOT, environ, fails, tree
from tests.support.mounts import read_only, skip_where_nothing_can_be_mounted

pytestmark = pytest.mark.faults

ALTALIGN = f'"{sys.executable}" -m altalign.cli'


def test_a_finished_run_on_a_read_only_disk_is_read_as_ever_and_not_written(folder: Path) -> None:
    skip_where_nothing_can_be_mounted(folder)
    assert main(["curate", "config.toml"]) == 0
    commands = (
        "curate config.toml",
        "status run",
        "curate config.toml --restart",
        "curate config.toml --set run.folder=other",
        "clean run",
    )
    script = "; ".join(
        f'{ALTALIGN} {command} >"$T/out" 2>"$T/err"; echo $?; grep pairs "$T/out"; cat "$T/err"' for command in commands
    )
    (folder.parent / "temp").mkdir()
    environment = environ({"T": str(folder.parent / "temp")})
    done = subprocess.run(read_only(folder, script), env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "│" not in line and "┃" not in line]
    refused = (
        "altalign: {}: cannot be written to (Read-only file system: {}); make it writable, or choose another [run] "
        "folder"
    )
    log = refused.format("run", "run/log/lock")
    assert lines[0] == "0", done
    assert lines[1].endswith("in run/shards")
    assert lines[2:] == ["0", "2", log, "2", refused.format("other", "other"), "2", log]


def test_without_a_place_for_compiled_kernels_it_says_so(folder: Path) -> None:
    skip_where_nothing_can_be_mounted(folder)
    environment = environ(
        {"XDG_CACHE_HOME": "/proc/none", "HOME": "/proc/none", "T": str(folder), "TMPDIR": str(folder)}
    )
    environment.pop("NUMBA_CACHE_DIR", None)
    wanted = read_only(ROOT, f'cd "$T"; {ALTALIGN} curate config.toml --dry-run >out')
    done = subprocess.run(wanted, env=environment, capture_output=True, text=True, check=False)
    line = "no folder for compiled kernels can be written; set NUMBA_CACHE_DIR to one that can"
    assert (done.returncode, done.stderr) == (2, f"altalign: {line}\n")


@pytest.fixture
def with_direct(folder: Path) -> Path:
    """The small input, and a table that the text passes read where it is."""
    rows = {
        "url": [f"https://img.example/direct/{i}.png" for i in range(60)],
        "caption": [f"a small red boat number {i % 7}" for i in range(60)],
    }
    pq.write_table(pa.table(rows), folder / "direct.parquet")
    with (folder / "config.toml").open("a", encoding="utf-8") as config:
        config.write('\n[[input]]\nname = "direct"\nkind = "table"\npaths = ["direct.parquet"]\n')
    return folder


@pytest.mark.parametrize(
    ("stage", "name", "is_gone"),
    [
        ("extract", "text/some.csv", True),
        ("tables", "direct.parquet", True),
        ("judge", "direct.parquet", False),
        ("fetch", "input/part-1.parquet", True),
        ("fetch", "input/part-1.parquet", False),
    ],
)
def test_an_input_that_vanishes_or_changes_before_a_stage_stops_it_and_put_back_it_continues(
    with_direct: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    name: str,
    is_gone: bool,  # noqa: FBT001 - of the test
) -> None:
    file, aside, real = with_direct / name, with_direct / "aside", curate.run_stage

    def run_stage(run, now, *rest):
        if now == stage:
            file.rename(aside)
            if not is_gone:
                file.write_bytes(aside.read_bytes())
                os.utime(file, ns=(1, 1))
        real(run, now, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(curate, "run_stage", run_stage)
        said = fails(capsys, 1)
    what = "gone since the run began" if is_gone else "changed since the run began to read it"
    assert said.startswith(f"{name}: {what}; put {'it' if is_gone else 'the old file'} back")
    aside.rename(file)
    assert main(["curate", "config.toml"]) == 0
    assert main(["curate", "config.toml", "--set", "run.folder=whole"]) == 0
    assert tree(with_direct / "run") == tree(with_direct / "whole")
