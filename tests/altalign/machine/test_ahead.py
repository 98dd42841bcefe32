"""Work begun ahead: results in order, bounded, cancelled when nobody wants them; and threads that are shared."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.machine import ahead

WATCHDOG_S = 300.0  # ends a test that would hang


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
        for number, result in ahead.in_order(begin(), bytes_at_most=bytes_at_most):
            assert result == number * number
            given_out.append(number)
    assert given_out == begun == list(range(len(sizes)))


def test_with_nothing_to_hold_each_ends_before_the_next_begins() -> None:
    order: list[str] = []

    def begin() -> Iterator[tuple[str, ahead.Done[int], int]]:
        for name in "abc":
            order.append(f"begin {name}")
            yield name, ahead.Done(1), 1

    for name, _ in ahead.in_order(begin(), bytes_at_most=0):
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
        results = ahead.in_order(((number, future, 1) for number, future in enumerate(futures)), bytes_at_most=100)
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
        with closing(ahead.in_order(((None, future, 1) for future in futures), bytes_at_most=100)) as results:
            next(results)
            assert begun.wait(WATCHDOG_S)
        assert [future.cancelled() for future in futures] == [False, False, *[True] * 5]
        go_on.set()


def test_threads_are_shared_until_the_last_has_left() -> None:
    threads = ahead.Threads()
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
    threads = ahead.Threads()
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
