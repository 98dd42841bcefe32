"""Progress of a step: lines elsewhere than on a terminal, a bar there."""

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from altalign import storage
from altalign.errors import StoreError
from altalign.machine.interrupts import Interrupted
from altalign.pipelines.run import progress
from altalign.pipelines.run.units import Run, Unit
from altalign.pipelines.web import log as web_progress
from altalign.settings.curate import CurateConfig

PATIENCE_S = 300  # a test that waits longer has failed
UNITS: list[Unit] = [{"name": f"{number:05d}", "rows": 1_000} for number in range(3)]


class Written(io.StringIO):
    """Text that tells when so many lines are in it."""

    def __init__(self, lines: int):
        super().__init__()
        self._lines, self.is_there = lines, threading.Event()

    def write(self, text: str) -> int:
        n = super().write(text)
        if self.getvalue().count("\n") >= self._lines:
            self.is_there.set()
        return n


def run_of(folder: Path) -> Run:
    return Run(str(folder), CurateConfig.from_values({"input": {"paths": ["none"]}}, where="test"), ())


def finish(run: Run, *numbers: int) -> None:
    for number in numbers:
        storage.write_json(run.mark("judge/units", f"{number:05d}"), {"rows": 1_000})


def test_elsewhere_than_on_a_terminal_there_is_one_plain_line_at_the_end(tmp_path: Path) -> None:
    run, file = run_of(tmp_path), io.StringIO()
    with progress.watched(run, "judge/units", UNITS, Console(file=file, width=20)):
        finish(run, 0, 1, 2)
    (line,) = file.getvalue().splitlines()  # not folded at the width
    assert line.startswith("judge: 3 of 3 units, 3,000 rows")
    assert line.endswith(" s")
    assert "\x1b" not in line


def test_lines_come_while_a_step_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    monkeypatch.setattr(progress, "LOOK_EVERY_S", 0.001)
    run, file = run_of(tmp_path), Written(2)
    finish(run, 0)
    with progress.watched(run, "judge/units", UNITS, Console(file=file)):
        assert file.is_there.wait(PATIENCE_S)
        finish(run, 1)
    first, *_, last = file.getvalue().splitlines()
    assert first.startswith("judge: 1 of 3 units, 1,000 rows, ")
    assert "rows/s" not in first  # of an earlier attempt
    assert first.endswith(" s left")
    assert last.startswith("judge: 2 of 3 units, 2,000 rows, ")
    assert "rows/s" in last


def test_units_of_no_rows_and_marks_of_other_units_are_not_counted_as_rows(tmp_path: Path) -> None:
    run, file = run_of(tmp_path), io.StringIO()
    finish(run, 0, 77)
    with progress.watched(run, "judge/units", [{"name": "00000"}, {"name": "00001"}], Console(file=file)):
        pass
    assert file.getvalue().startswith("judge: 1 of 2 units, ")
    assert "rows" not in file.getvalue()


@pytest.mark.parametrize("units", [UNITS, UNITS[:1], [{"name": "00000"}]])
def test_a_terminal_has_a_bar(tmp_path: Path, units: list[Unit]) -> None:
    run, file = run_of(tmp_path), io.StringIO()
    with progress.watched(run, "judge/units", units, Console(file=file, force_terminal=True, width=120)):
        finish(run, 0)
    text = file.getvalue()
    assert "judge " in text
    assert f"1/{len(units)}" in text


@pytest.mark.parametrize("is_terminal", [False, True])
def test_an_error_of_the_step_is_handed_on_and_the_watch_ends(tmp_path: Path, is_terminal: bool) -> None:  # noqa: FBT001 - a parameter of the test
    run, before = run_of(tmp_path), set(threading.enumerate())
    with (
        pytest.raises(ZeroDivisionError),
        progress.watched(run, "judge/units", UNITS, Console(file=io.StringIO(), force_terminal=is_terminal)),
    ):
        raise ZeroDivisionError
    for thread in set(threading.enumerate()) - before:  # Rich tells its own to end and does not wait
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("started", [1, 2])
def test_a_signal_that_comes_while_the_watch_begins_ends_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    """A thread that lived on would be killed with the process, in the middle of a file."""
    run, begun, real = run_of(tmp_path), list[threading.Thread](), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        real(thread)
        begun.append(thread)
        if len(begun) == started:
            raise Interrupted

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(Interrupted), progress.watched(run, "judge/units", UNITS, lambda _: None):
        pass
    assert [thread.is_alive() for thread in begun] == [False] * started


@pytest.mark.parametrize(("kind", "is_terminal"), [("progress", False), ("progress", True), ("web", False)])
def test_a_store_that_does_not_answer_for_a_while_does_not_end_the_watch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    is_terminal: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.001)
    monkeypatch.setattr(progress, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(web_progress, "SECONDS_BETWEEN_LOOKS", 0.001)
    run, file, asked, names = run_of(tmp_path), io.StringIO(), threading.Event(), storage.names
    units: list[Unit] = [{**unit, "images": 1_000} for unit in UNITS]
    watch = web_progress.WebWatch if kind == "web" else progress.Watch
    with progress.watched(run, "judge/units", units, Console(file=file, force_terminal=is_terminal, width=150), watch):
        for _ in range(3):
            asked.clear()
            monkeypatch.setattr(storage, "names", lambda *_: (asked.set(), _refuse()))
            assert asked.wait(PATIENCE_S)
        monkeypatch.setattr(storage, "names", names)
        finish(run, 0, 1)
    assert ("2/3" if is_terminal else "2 of 3 units") in file.getvalue()


def _refuse() -> None:
    raise StoreError("s3://bucket/run: the store does not answer")


def test_the_plan_of_a_step_is_kept_and_is_no_unit(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    with progress.watched(run, "judge/units", UNITS, Console(file=io.StringIO())):
        finish(run, 1)
    assert storage.read_json(run.work("judge/units", "plan", "plan.json")) == {"units": 3, "rows": 3_000}
    assert run.finished("judge/units") == ["00001"]
