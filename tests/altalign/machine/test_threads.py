"""Threads that several callers share."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from altalign.machine import interrupts
from altalign.machine.threads import in_shared_threads

AT_ONCE = 3


def test_results_come_in_the_order_of_items_for_each_caller() -> None:
    def caller(number: int) -> list[int]:
        return in_shared_threads(lambda item: item * number, range(50), AT_ONCE)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(caller, range(8))) == [[item * number for item in range(50)] for number in range(8)]
    assert in_shared_threads(lambda item: item, [], AT_ONCE) == []


def test_no_more_work_is_done_at_a_time_than_there_are_threads_and_the_last_caller_has_all_of_them() -> None:
    together, lock, at_work, most = threading.Barrier(AT_ONCE), threading.Lock(), [0], [0]

    def work(_: int) -> None:
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        together.wait(30)  # nobody goes on before all threads are at work
        with lock:
            at_work[0] -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: in_shared_threads(work, range(AT_ONCE), AT_ONCE), range(4)))
    assert most[0] == AT_ONCE


def until_given_up(began: threading.Event, ended: threading.Event) -> None:
    began.set()
    try:
        while not ended.wait(0.001):
            interrupts.check()
    except interrupts.GivenUpError:
        ended.set()
        raise


def test_the_first_error_gives_up_the_callers_own_work_alone() -> None:
    ended, began, others = threading.Event(), threading.Event(), threading.Event()

    def fails(item: int) -> None:
        if item:
            until_given_up(began, ended)
        assert began.wait(30)
        raise ValueError("of the first")

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(in_shared_threads, lambda item: (others.wait(30), item)[1], [7], AT_ONCE)
        with pytest.raises(ValueError, match="of the first"):
            in_shared_threads(fails, [0, 1], AT_ONCE)
        assert ended.is_set()
        others.set()
        assert other.result(30) == [7]


def test_a_caller_whose_own_work_is_given_up_gives_up_its_parts() -> None:
    given_up, began, ended = threading.Event(), threading.Event(), threading.Event()

    def caller() -> None:
        with interrupts.part_of(given_up):
            in_shared_threads(lambda _: until_given_up(began, ended), [0], AT_ONCE)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(caller)
        assert began.wait(30)
        given_up.set()
        with pytest.raises(interrupts.GivenUpError):
            waiting.result(30)
    assert ended.is_set()
