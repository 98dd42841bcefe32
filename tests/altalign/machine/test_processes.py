"""Processes beside a command: work in them and its errors, what is given up, and how they end."""

import os
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from altalign.errors import AltalignError, UnreadableError
from altalign.machine import interrupts, memory, processes
from altalign.machine.memory import MB
from altalign.machine.processes import InProcesses, Processes
from altalign.machine.threads import in_threads

ROOT = Path(__file__).parents[3]
WATCHDOG_S = 300.0  # ends a test that would hang


# Work of other processes, which find it in this module.


def where(number: int) -> tuple[int, int]:
    return number, os.getpid()


def beside(folder: Path, number: int) -> int:
    """Ends when the other number of a pair has begun, too."""
    (folder / str(number)).touch()
    while not (folder / str(number ^ 1)).exists():
        interrupts.check()
    return os.getpid()


def printing(number: int) -> int:
    os.write(1, b"what a library says\n")
    os.write(2, b"and what goes wrong there\n")
    print("and more", flush=True)  # noqa: T201 - it is about prints
    return number


def unreadable(number: int) -> int:
    raise UnreadableError(f"file {number}: no tar")


def missing(number: int) -> int:
    return len(Path(f"/no/such/file-{number}").read_bytes())


class Curious(Exception):  # noqa: N818 - whatever a library may raise
    """Is no more what it was once it was pickled: its pickle has one argument."""

    def __init__(self, what: str, number: int):
        super().__init__(f"{what} {number}")


def curious(number: int) -> int:
    raise Curious("number", number)


def until_given_up(folder: Path, _number: int) -> int:
    (folder / "began").touch()
    try:
        while True:
            interrupts.check()
    finally:
        (folder / "cleaned-up").touch()


def killed(_number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


class Doubled(Exception):  # noqa: N818
    """Makes its message of its argument, and again when it is read of a pickle."""

    def __init__(self, what: str):
        super().__init__(f"file: {what}")


def doubled(_number: int) -> int:
    raise Doubled("bad")


def leaving(number: int) -> int:
    sys.exit(number)


class Unfit:
    """Work that cannot be made of its pickle."""

    def __reduce__(self) -> tuple[object, ...]:
        return unreadable, (1,)

    def __call__(self, number: int) -> int:
        return number


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """Two processes of a command."""
    of_command = Processes()
    monkeypatch.setattr(processes, "OF_COMMAND", of_command)
    try:
        with of_command.used(2):
            yield of_command
    finally:
        of_command.close()


def pids(of_command: Processes) -> list[int]:
    return [each._process.pid for each in of_command._all]


# Where work is done ---------------------------------------------------------------------------------------------------


def test_work_is_done_beside_this_process_and_results_come_in_order(two: Processes) -> None:
    found = in_threads(InProcesses(where), list(range(20)), 2)
    assert [number for number, _ in found] == list(range(20))
    assert {pid for _, pid in found} <= set(pids(two))


def test_two_work_at_a_time(two: Processes, tmp_path: Path) -> None:
    assert sorted(in_threads(InProcesses(partial(beside, tmp_path)), [0, 1], 2)) == sorted(pids(two))


def test_threads_that_find_none_idle_work_here(two: Processes, tmp_path: Path) -> None:
    gates = [tmp_path / name for name in "ab"]
    for gate in gates:
        gate.mkdir()
    work = [InProcesses(partial(beside, gate)) for gate in gates]
    # each waits for another one: four work at a time
    found = in_threads(lambda item: work[item // 2](item % 2), [0, 1, 2, 3], 4)
    assert set(pids(two)) < set(found)
    assert found.count(os.getpid()) == 2


def test_where_none_are_used_work_is_done_here() -> None:
    assert InProcesses(where)(3) == (3, os.getpid())
    assert InProcesses(lambda number: number + 1)(3) == 4  # and need not be pickled


def test_they_stay_for_what_comes_next_and_know_what_they_were_given(two: Processes) -> None:
    before = pids(two)
    first, second = InProcesses(where), InProcesses(partial(divmod, 7))
    for turn in range(4):
        assert first(turn)[1] in before
        assert second(2) == (3, 1)
    with two.used(1):
        assert pids(two) == before


def test_what_libraries_print_is_no_answer(two: Processes) -> None:
    assert in_threads(InProcesses(printing), list(range(6)), 2) == list(range(6))


# Errors ---------------------------------------------------------------------------------------------------------------


def test_an_error_comes_as_it_was_with_where_it_was_raised(two: Processes) -> None:
    with pytest.raises(UnreadableError) as caught:
        InProcesses(unreadable)(7)
    assert str(caught.value) == "file 7: no tar"
    assert "in unreadable" in caught.value.__notes__[0]
    with pytest.raises(FileNotFoundError) as no_file:
        InProcesses(missing)(7)
    assert no_file.value.filename == "/no/such/file-7"
    assert InProcesses(where)(1)[1] in pids(two)  # which goes on


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("work", "said"), [(curious, "Curious: number 7"), (doubled, "Doubled: file: bad"), (leaving, "SystemExit: 7")]
)
def test_an_error_of_which_a_pickle_makes_another_comes_in_words(work: Callable[[int], int], said: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        InProcesses(work)(7)
    assert str(caught.value) == said
    assert f"in {work.__name__}" in caught.value.__notes__[0]


@pytest.mark.usefixtures("two")
def test_work_that_cannot_be_read_is_an_error_each_time_and_no_other_work() -> None:
    before, work, failing = InProcesses(where), InProcesses(Unfit()), InProcesses(missing)
    for number in range(4):
        before(number)
        for _ in range(2):
            with pytest.raises(UnreadableError):
                work(number)
        with pytest.raises(FileNotFoundError):
            failing(number)
        assert before(number)[0] == number


def test_what_is_given_up_cleans_up_and_its_process_goes_on(two: Processes, tmp_path: Path) -> None:
    def fail(item: int) -> int:
        if item:
            while not (tmp_path / "began").exists():
                interrupts.check()
            raise UnreadableError("the other one")
        return InProcesses(partial(until_given_up, tmp_path))(item)

    with pytest.raises(UnreadableError, match="the other one"):
        in_threads(fail, [1, 0], 2)
    assert (tmp_path / "cleaned-up").exists()
    assert {pid for _, pid in in_threads(InProcesses(where), list(range(40)), 2)} == set(pids(two))


def test_a_process_that_is_killed_is_one_line(two: Processes) -> None:
    with pytest.raises(
        AltalignError,
        match=r"^process \d+, one of those .* ended with SIGKILL; .* \[engine\] workers; run the same command again$",
    ):
        InProcesses(killed)(0)
    with two.used(2):
        # one of which is new
        assert {pid for _, pid in in_threads(InProcesses(where), list(range(40)), 2)} == set(pids(two))
    assert len(set(pids(two))) == 2


# How they end ---------------------------------------------------------------------------------------------------------


def ended(pid_files: list[int]) -> bool:
    """Whether these processes are over, waited for."""
    return all(select.select([file], [], [], WATCHDOG_S)[0] for file in pid_files)


def test_closing_ends_them() -> None:
    of_command = Processes()
    with of_command.used(2):
        files = [os.pidfd_open(pid) for pid in pids(of_command)]
    of_command.close()
    assert ended(files)
    of_command.close()  # nothing to do


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("state", ["at work", "idle"])
def test_they_end_with_their_parent_however_that_ends(tmp_path: Path, number: signal.Signals, state: str) -> None:
    script = """
import sys, threading, time
from functools import partial
from pathlib import Path
from altalign.machine import processes
from tests.altalign.machine.test_processes import pids, until_given_up
folder = Path(sys.argv[1])
with processes.OF_COMMAND.used(2):
    if sys.argv[2] == "at work":
        threading.Thread(target=processes.InProcesses(partial(until_given_up, folder)), args=(0,), daemon=True).start()
        while not (folder / "began").exists():
            time.sleep(0.01)
    print(*pids(processes.OF_COMMAND), flush=True)
    time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), state], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        files = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(files) == 2
        parent.send_signal(number)
    assert ended(files)


@pytest.mark.parametrize("size", [1, 60, 200_000])
def test_one_ends_where_its_parent_dies_in_the_middle_of_a_message(two: Processes, size: int) -> None:
    InProcesses(where)(0)
    process = two._all[0]
    os.write(process._connection.fileno(), (struct.pack("!i", 300_000) + b"x" * 300_000)[:size])
    process.close()
    assert process.wait() == 0


def test_nothing_is_imported_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pickle", "struct", "enum"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of data')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    of_command = Processes()
    with of_command.used(1):
        assert of_command.call(InProcesses(where), 1)[1] in pids(of_command)
    of_command.close()


def test_with_closed_streams_what_is_printed_is_no_answer() -> None:
    script = """
import os, sys
from altalign import terminal
from altalign.machine import processes
from tests.altalign.machine.test_processes import printing
terminal.open_streams()
with processes.OF_COMMAND.used(2):
    found = [processes.InProcesses(printing)(number) for number in range(4)]
processes.OF_COMMAND.close()
sys.exit(found != [0, 1, 2, 3])
"""
    for closed in ("2>&-", ">&- 2>&-", "<&- >&- 2>&-"):
        assert (
            subprocess.run(
                ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", script], cwd=ROOT, check=False
            ).returncode
            == 0
        ), closed


def test_signals_are_the_parents_to_answer(two: Processes) -> None:
    InProcesses(where)(0)  # both may still be starting
    for pid in {pid for _, pid in in_threads(InProcesses(where), list(range(8)), 2)}:
        for number in interrupts.ENDING:
            os.kill(pid, number)
    assert {pid for _, pid in in_threads(InProcesses(where), list(range(8)), 2)} <= set(pids(two))


# How many -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "free", "count"),
    [(4.0, 64_000, 0), (9.9, 64_000, 0), (10.0, 64_000, 2), (1e6, 64_000, 4), (1e6, 12_000, 2), (1e6, 11_000, 0)],
)
def test_as_many_as_there_are_work_and_memory_for(
    monkeypatch: pytest.MonkeyPatch, seconds: float, free: int, count: int
) -> None:
    for limit, expected in (("the machine", count), ("nothing", 0)):
        monkeypatch.setattr(memory, "free", lambda limit=limit: memory.Free(free * MB, limit))
        assert processes.worth(seconds, 4) == expected


def test_where_the_system_starts_none_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(processes, "_Process", refuses)
    before = threading.active_count()
    with processes.OF_COMMAND.used(2):
        assert InProcesses(where)(1) == (1, os.getpid())
    assert threading.active_count() <= before + 2
