"""Spark and Flink inside one process of Java: the same bytes as the embedded run, one readable line for trouble,
nothing left behind by signals.
"""

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path

import pytest

from altalign import storage
from tests.end_to_end import blows
from tests.end_to_end.clusters import need_job_server, of_environment, wait_for
from tests.end_to_end.scored import prepared, scores_of
from tests.end_to_end.test_add import config, write_parts
from tests.support.curations import ROOT, Finished, altalign, command, environ, listed, tree
from tests.support.mounts import UNSHARE

pytestmark = pytest.mark.java

DONE = r"(, [\d,]+ rows)?(, [\d,]+ rows/s)?(, [\d.]+ of [\d.]+ [kMG]?B)?"  # of a step, beside its units
PROGRESS = re.compile(rf"[a-z_/]+: [\d,]+ of [\d,]+ units{DONE}, [a-z\d. ]+")
TAKES_AT_MOST_S = 300  # a watchdog


@pytest.fixture(scope="module", params=["spark", "flink"])
def runner(request: pytest.FixtureRequest) -> str:
    need_job_server(request.param)
    return request.param


@pytest.fixture(scope="session")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo web and the handbooks, each curated inside one process."""
    folder = tmp_path_factory.mktemp("larger")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "configs").symlink_to(ROOT / "configs")
    for args in (["demo", "demo-web"], ["curate", "configs/demo.toml"], ["curate", "configs/handbook.toml"]):
        done = altalign(folder, *args)
        assert done.returncode == 0, done.stderr
    return folder


def curate(
    folder: Path, runner: str, *args: str, config: str = "config.toml", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Curate in a folder, with temporary files in `temp` there."""
    (folder / "temp").mkdir(exist_ok=True)
    wanted = command("curate", config, "--set", f"engine.runner={runner}", *args)
    more = environ({"TMPDIR": str(folder / "temp"), **(environment or {})})
    return subprocess.run(
        wanted, cwd=folder, env=more, capture_output=True, text=True, timeout=TAKES_AT_MOST_S, check=False
    )


def line_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error; beside it there is progress alone."""
    lines = done.stderr.splitlines()
    ours = [line for line in lines if line.startswith("altalign: ")]
    assert len(ours) == 1, done.stderr
    assert [line for line in lines if line not in ours and not PROGRESS.fullmatch(line)] == []
    return ours[0]


def check_nothing_left(folder: Path) -> None:
    """No process of the run's is there any more, and no temporary file; an interrupted run's own may be."""
    wait_for("the end of all processes", lambda: not of_environment(f"TMPDIR={folder / 'temp'}"), [], within_s=60)
    assert list((folder / "temp").iterdir()) == []


# The same bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["demo", "handbook"])
def test_the_demo_and_the_handbooks_give_the_same_bytes_and_leave_no_temporary_file(
    larger: Path, tmp_path: Path, runner: str, name: str
) -> None:
    for part in ("demo-web", "examples", "configs"):
        (tmp_path / part).symlink_to(larger / part)
    done = _with_a_folder_for_temporary_files_of_its_own(tmp_path, runner, f"configs/{name}.toml")
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "runs" / name) == tree(larger / "runs" / name)
    assert listed(tmp_path / "runs" / name) == listed(larger / "runs" / name)
    assert [line for line in done.stderr.splitlines() if not PROGRESS.fullmatch(line)] == []
    assert "pairs of" in done.stdout
    check_nothing_left(tmp_path)


def _with_a_folder_for_temporary_files_of_its_own(
    folder: Path, runner: str, config: str
) -> subprocess.CompletedProcess[str]:
    """Curate with an empty /tmp, which Java uses whatever TMPDIR says, and fail where something stays in it; where
    nothing can be mounted, with the usual one.

    The folder is /mnt then, for it may lie in /tmp itself.
    """
    script = (
        'mount --bind "$0" /mnt; mount -t tmpfs tmpfs /tmp; cd /mnt; TMPDIR=/tmp "$@"; code=$?; ls -A /tmp >left; exit '
        "$code"
    )
    outside = not any(
        path.resolve().is_relative_to("/tmp")
        for path in (ROOT, Path(os.environ.get("ALTALIGN_JARS", "/")), Path.home())
    )
    if (
        not outside
        or subprocess.run([*UNSHARE, "mount", "--bind", "/mnt", "/mnt"], capture_output=True, check=False).returncode
    ):
        return curate(folder, runner, config=config)
    for path in [path for path in folder.iterdir() if path.is_symlink()]:  # to what lies in /tmp too
        target = path.resolve()
        path.unlink()
        subprocess.run(["cp", "-a", str(target), str(path)], check=True)
    (folder / "temp").mkdir()
    wanted = [*UNSHARE, "sh", "-c", script, str(folder), *command("curate", config, "--set", f"engine.runner={runner}")]
    done = subprocess.run(wanted, env=environ(), capture_output=True, text=True, timeout=TAKES_AT_MOST_S, check=False)
    assert (folder / "left").read_text(encoding="utf-8") == ""
    return done


def test_scores_and_what_is_selected_by_them_have_the_same_bytes(
    embedded: Finished, scored: Path, tmp_path: Path, runner: str
) -> None:
    folder = prepared(tmp_path, embedded)
    where = ["--where", "similarity >= -0.2 AND text_characters > 12", "--top", "picture_entropy=0.7"]
    whole = altalign(scored, "select", "run", str(folder / "whole"), *where)
    assert whole.returncode == 0, whole.stderr
    for args in (["score", "run", "--with", "scores.toml"], ["select", "run", "out", *where]):
        done = altalign(folder, *args, "--set", f"engine.runner={runner}")
        assert done.returncode == 0, done.stderr
    assert scores_of(folder / "run" / "scores") == scores_of(scored / "run" / "scores")
    assert scores_of(folder / "out" / "scores") == scores_of(folder / "whole" / "scores")
    assert tree(folder / "out") == tree(folder / "whole")


def added(folder: Path, *flags: str) -> Path:
    """A run of all tables but one, to which that one was added, by processes of their own."""
    folder.mkdir()
    with chdir(folder):
        *first, later = write_parts(Path(), seed=5, rows=240)
        config("run", first)
    for args in (["curate", "run.toml", *flags], ["add", "run", "--input", later, "--like", "pictures"]):
        done = altalign(folder, *args)
        assert done.returncode == 0, done.stderr
    return folder / "run"


def test_an_addition_leaves_the_same_bytes(tmp_path: Path, runner: str) -> None:
    run = added(tmp_path / runner, "--set", f"engine.runner={runner}")
    assert storage.read_json(str(run / "run.json"))["engine"]["runner"] == runner
    assert tree(run) == tree(added(tmp_path / "embedded"))


# Signals --------------------------------------------------------------------------------------------------------------


def test_ended_by_signals_in_the_middle_of_units_it_continues_to_the_same_bytes(
    embedded: Finished, tmp_path: Path, runner: str
) -> None:
    folder, wanted = embedded.input_in(tmp_path / "here"), tmp_path / "blows"
    environment = blows.environ(wanted)
    for step, number in (
        ("tables/merged", signal.SIGKILL),
        ("judge/units", signal.SIGINT),
        ("fetch/units", signal.SIGTERM),
    ):
        blows.want(wanted, {step: number.name})
        done = curate(folder, runner, environment=environment)
        assert blows.struck(wanted, step), done.stderr
        if number == signal.SIGKILL:
            assert done.returncode == -number, done.stderr
        else:
            assert done.returncode == 128 + number, done.stderr
            name = "" if number == signal.SIGINT else f" ({number.name})"
            assert line_of(done) == f"altalign: interrupted{name}; run the same command again, it continues"
            assert not (folder / "run" / "work" / "temporary").exists()
            assert [name for name in listed(folder / "run") if "partial-" in name] == []
        check_nothing_left(folder)
    done = curate(folder, runner)
    assert done.returncode == 0, done.stderr
    assert tree(folder / "run") == embedded.tree
    assert listed(folder / "run") == embedded.listed
    check_nothing_left(folder)


# Trouble --------------------------------------------------------------------------------------------------------------


def test_trouble_of_a_unit_is_a_line_that_names_the_file_and_a_defect_one_that_names_the_unit(
    embedded: Finished, tmp_path: Path, runner: str
) -> None:
    folder, wanted = embedded.input_in(tmp_path / "here"), tmp_path / "blows"
    blows.want(wanted, {"tables/merged": blows.FULL})
    done = curate(folder, runner, environment=blows.environ(wanted))
    assert done.returncode == 1, done.stderr
    assert line_of(done).startswith("altalign: run/work/tables/merged: no space left on the device while writing ")
    _check_readable(done)
    blows.want(wanted, {"tables/merged": blows.DEFECT})
    done = curate(folder, runner, environment=blows.environ(wanted))
    assert done.returncode == 1, done.stderr
    assert re.fullmatch(
        (
            r"altalign: run: tables/units failed: unit \d+: ZeroDivisionError: a defect that a test has made; "
            r"run/log/trace.txt has the rest"
        ),
        line_of(done),
    )
    assert "in _strike" in (folder / "run" / "log" / "trace.txt").read_text(encoding="utf-8")
    _check_readable(done)
    check_nothing_left(folder)


def _check_readable(done: subprocess.CompletedProcess[str]) -> None:
    assert len(line_of(done)) < 600
    assert not re.search(r"java|org\.apache|\bat [a-z]+\.|Traceback|grpc", done.stderr), done.stderr
