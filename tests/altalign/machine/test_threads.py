"""Work begun ahead: results in order, bounded, cancelled when nobody wants them; and threads that are shared."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.machine import interrupts
from altalign.machine.threads import Threads, done, in_order, in_shared_threads

WATCHDOG_S = 300.0  # ends a test that would hang
AT_ONCE = 3


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(0, 100), st.integers(1, 4))
@settings(derandomize=True, deadline=None, max_examples=80)
def test_results_come_in_order_and_no_more_is_begun_than_may_be_held(
    sizes: list[int], bytes_at_most: int, threads: int
) -> None:
    begun: list[int] = []
    given_out: list[int] = []

    def begin() -> Iterator[tuple[int, Future[int], int]]:
        for number, size in enumerate(sizes):
            # before it is ahead of what was given out by more
            assert sum(sizes[len(given_out) : number]) <= bytes_at_most
            begun.append(number)
            yield number, pool.submit(lambda each=number: each * each), size

    with ThreadPoolExecutor(threads) as pool:
        for number, result in in_order(begin(), bytes_at_most=bytes_at_most):
            assert result == number * number
            given_out.append(number)
    assert given_out == begun == list(range(len(sizes)))


def test_with_nothing_to_hold_each_ends_before_the_next_begins() -> None:
    order: list[str] = []

    def begin() -> Iterator[tuple[str, Future[int], int]]:
        for name in "abc":
            order.append(f"begin {name}")
            yield name, done(1), 1

    for name, _ in in_order(begin(), bytes_at_most=0):
        order.append(f"end {name}")
    assert order == ["begin a", "end a", "begin b", "end b", "begin c", "end c"]


def test_an_error_comes_where_its_result_would_have_and_the_rest_is_not_begun() -> None:
    done: list[int] = []
    told = threading.Event()

    def work(number: int) -> int:
        if number == 2:
            raise ValueError("two")
        if number == 3:
            told.wait(WATCHDOG_S)
        done.append(number)
        return number

    with ThreadPoolExecutor(1) as pool:
        futures = [pool.submit(work, number) for number in range(6)]
        results = in_order(((number, future, 1) for number, future in enumerate(futures)), bytes_at_most=100)
        assert [next(results), next(results)] == [(0, 0), (1, 1)]
        with pytest.raises(ValueError, match="two"):
            next(results)
        told.set()
    assert set(done) <= {0, 1, 3}  # 3 may have begun before it could be cancelled
    assert [future.cancelled() for future in futures[4:]] == [True, True]


def test_whoever_leaves_cancels_what_has_not_begun() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(WATCHDOG_S)

    with ThreadPoolExecutor(1) as pool:
        futures = [pool.submit(lambda: None), pool.submit(work), *(pool.submit(lambda: None) for _ in range(5))]
        with closing(in_order(((None, future, 1) for future in futures), bytes_at_most=100)) as results:
            next(results)
            assert begun.wait(WATCHDOG_S)
        assert [future.cancelled() for future in futures] == [False, False, *[True] * 5]
        go_on.set()


def test_threads_are_shared_until_the_last_has_left() -> None:
    threads = Threads()
    with ExitStack() as first, ExitStack() as second:
        pool = first.enter_context(threads.shared(2))
        assert second.enter_context(threads.shared(2)) is pool
        first.close()
        assert pool.submit(lambda: 7).result() == 7
        second.close()
        with pytest.raises(RuntimeError, match="shutdown"):
            pool.submit(lambda: 7)
        with threads.shared(2) as another:
            assert another is not pool


def test_the_last_to_leave_waits_for_what_runs_and_drops_what_has_not_begun() -> None:
    threads = Threads()
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(WATCHDOG_S)
        ended.set()

    with threads.shared(1) as pool:
        pool.submit(work)
        late = pool.submit(lambda: None)
        assert begun.wait(WATCHDOG_S)
        late.add_done_callback(lambda _: go_on.set())  # it is dropped first, then the running one is waited for
    assert ended.is_set()
    assert late.cancelled()


# Several callers ------------------------------------------------------------------------------------------------------


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
