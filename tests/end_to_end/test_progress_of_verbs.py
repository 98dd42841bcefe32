"""Long work of verbs on a terminal: a bar with how much of all is done, a rate and the time left, in 80 columns."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.finished_runs import copied, curated, rows_of
from tests.support.terminals import check_bars, lines_of, terminal

pytestmark = [pytest.mark.runs, pytest.mark.everyday]

# What is asked of a run, and what is done while a bar shows it. KEYS: two keys of the run.
VERBS: dict[str, tuple[list[str], list[str]]] = {
    "audit": (["audit", "run"], ["checks"]),
    "audit --digest": (["audit", "run", "--digest"], ["comparing"]),
    "audit of two": (["audit", "run", "other"], ["reading verdicts"]),
    "explain": (["explain", "run", "--text", "nobody wrote this"], ["searching"]),
    "score --clusters": (["score", "other", "--clusters", "2"], ["learning from", "sampling", "sorting"]),
    "select --share": (["select", "run", "most", "few", "--share", "0.9/0.1"], ["describing", "comparing", "copying"]),
    "remove": (["remove", "other", "--keys", "KEYS", "--near", "0.99"], ["looking", "comparing", "writing anew"]),
    "audit --full": (["audit", "other", "--full"], ["checks", "searching"]),  # of what was removed just now
    "merge": (["merge", "run", "--to", "merged"], ["copying"]),
    "search": (["search", "run", "--text", "a"], ["reading"]),
    "demo": (["demo", "web"], ["drawing"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and another of the same."""
    made = tmp_path_factory.mktemp("progress")
    copied(curated(made), made / "other")
    (made / "KEYS").write_text("".join(f"{row['key']}\n" for row in rows_of(made / "run")[:2]), encoding="utf-8")
    return made


@pytest.mark.parametrize("verb", VERBS)
def test_long_work_has_a_bar_with_a_rate_and_the_time_left(verb: str, folder: Path) -> None:
    argv, named = VERBS[verb]
    lines = lines_of(folder, *argv)
    assert not [line for line in lines if line.startswith("altalign: ") and verb != "explain"], lines
    check_bars(lines, *named)


def test_a_python_program_is_shown_what_it_asked_for(folder: Path) -> None:
    program = "import altalign; altalign.open('run').explain(text='a'); print(altalign.audit('run', 'run').runs)"
    with terminal([sys.executable, "-c", program], folder, {**os.environ, "TERM": "xterm"}) as shown:
        assert shown.rest() == "['run', 'run']\r\n"


def test_what_is_loaded_for_seconds_is_named(folder: Path) -> None:
    lines = lines_of(folder, "encode", "nowhere", "run", "out")
    assert [line for line in lines if line.endswith(" loading PyTorch")]
    assert "altalign: nowhere: no such training run; give the [run] folder of a training" in lines
