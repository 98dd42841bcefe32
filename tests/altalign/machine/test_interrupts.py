"""Signals that end a command."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from altalign.machine import interrupts

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("number", interrupts.ENDING)
def test_the_first_signal_is_raised_and_threads_meet_it_too(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    met: list[int] = []

    def work() -> None:
        try:
            interrupts.check()
        except interrupts.Interrupted as error:
            met.append(error.exit_code)

    with interrupts.handled():
        interrupts.check()
        with pytest.raises(interrupts.Interrupted) as caught:
            signal.raise_signal(number)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert (caught.value.exit_code, met) == (128 + number, [128 + number])
    assert signal.getsignal(number) is before
    interrupts.check()  # that was of the block


def test_the_second_ends_the_process_at_once() -> None:
    script = """
import signal
from altalign.machine import interrupts
with interrupts.handled():
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.raise_signal(signal.SIGINT)
        print("never")
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 130
    assert (ended.stdout, ended.stderr) == ("", "altalign: ended at once; run the same command again, it continues\n")


def test_what_the_caller_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with interrupts.handled():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_part_of_what_is_given_up_ends_where_it_asks_and_others_go_on() -> None:
    given_up, met = threading.Event(), []

    def work(event: threading.Event) -> None:
        with interrupts.part_of(event):
            try:
                interrupts.check()
            except interrupts.GivenUpError:
                met.append(event)
        interrupts.check()

    given_up.set()
    for event in (given_up, threading.Event()):
        thread = threading.Thread(target=work, args=(event,))
        thread.start()
        thread.join()
    assert met == [given_up]
    interrupts.check()


def test_other_threads_handle_no_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work() -> None:
        with interrupts.handled():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_deferred_work_is_told_of_the_first_signal_and_of_its_echo_and_ended_by_a_later_one() -> None:
    script = """
import signal
from altalign.machine import interrupts
with interrupts.handled():
    with interrupts.deferred() as asked:
        print(asked())
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)  # a launcher passes on what the terminal has sent already
        print(asked(), flush=True)
        interrupts._ASKED_AT[0] -= 1  # a second later
        signal.raise_signal(signal.SIGINT)
        print("never")
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (130, f"0\n{int(signal.SIGTERM)}\n")
    assert ended.stderr == "altalign: ended at once; run the same command again, it continues\n"
