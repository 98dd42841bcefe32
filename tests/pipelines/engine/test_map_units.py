"""The pool of threads inside a stage."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.pipelines.engine.map_units import Pooled

PATIENCE_S = 300  # a test that waits longer has failed


def waited(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


def in_order(pool: Pooled, elements: Iterator[Any]) -> Iterator[Any]:
    """What a bundle brings, as a runner works it; the windows are taken off."""
    pool.setup()
    try:
        pool.start_bundle()
        for element in elements:
            yield from pool.process(element)
        yield from (windowed.value for windowed in pool.finish_bundle() or ())
    finally:
        pool.teardown()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_pool_keeps_the_order_of_elements_and_of_what_each_brings(count: int) -> None:
    results = list(in_order(Pooled(lambda x: [(x, i) for i in range(x % 4)], count), iter(range(50))))
    assert results == [(x, i) for x in range(50) for i in range(x % 4)]


def test_an_element_that_ends_first_waits_for_those_before_it() -> None:
    second_is_over = threading.Event()

    def work(x: int) -> list[int]:
        if x == 0:
            waited(second_is_over)
        else:
            second_is_over.set()
        return [x]

    assert list(in_order(Pooled(work, 2), iter([0, 1]))) == [0, 1]


def test_as_many_elements_as_threads_are_worked_on_at_once() -> None:
    together = threading.Barrier(3, timeout=PATIENCE_S)  # breaks, and so raises, unless three are there at once
    assert list(in_order(Pooled(lambda x: [(together.wait(), x)[1]], 3), iter(range(9)))) == list(range(9))


def test_at_most_twice_the_threads_are_in_flight() -> None:
    taken = []

    def elements() -> Iterator[int]:
        for x in range(20):
            taken.append(x)
            yield x

    for out, value in enumerate(in_order(Pooled(lambda x: [x], 2), elements()), start=1):
        assert value == out - 1
        assert len(taken) - out < 4
    assert len(taken) == 20


def test_a_full_pool_holds_the_next_element_back_until_the_oldest_is_done() -> None:
    gates = [threading.Event() for _ in range(4)]

    def work(x: int) -> list[int]:
        waited(gates[x])
        return [x]

    pool = Pooled(work, 2)
    pool.setup()
    pool.start_bundle()
    try:
        # two wait at their gates, one in the queue; nothing is held back
        assert [list(pool.process(x)) for x in range(3)] == [[], [], []]
        gates[0].set()
        assert list(pool.process(3)) == [0]  # the fourth: comes back with the oldest, and with no other
        for gate in gates:
            gate.set()
        assert [windowed.value for windowed in pool.finish_bundle()] == [1, 2, 3]
    finally:
        for gate in gates:
            gate.set()
        pool.teardown()


def test_a_failing_element_raises_and_those_that_have_not_begun_never_do() -> None:
    begun, may_fail, gate = [], threading.Event(), threading.Event()

    def work(x: int) -> list[int]:
        begun.append(x)
        waited(may_fail if x == 0 else gate)
        if x == 0:
            raise UnreadableError("page 0 of the file")
        return [x]

    pool = Pooled(work, 3)
    pool.setup()
    pool.start_bundle()
    try:
        for x in range(5):  # 0, 1 and 2 are worked on; the thread of 0 takes 3 when 0 has failed; none is left for 4
            assert list(pool.process(x)) == []
        may_fail.set()
        with pytest.raises(UnreadableError, match="page 0"):
            list(pool.finish_bundle())
        gate.set()
        pool.start_bundle()
        list(pool.process(5))  # would come after 4
        assert [windowed.value for windowed in pool.finish_bundle()] == [5]
    finally:
        gate.set()
        pool.teardown()
    assert sorted(begun) == [0, 1, 2, 3, 5]


def test_a_failing_element_raises_while_elements_still_come() -> None:
    def work(x: int) -> list[int]:
        if x == 2:
            raise UnreadableError("page 2 of the file")
        return [x]

    done = []
    with pytest.raises(UnreadableError, match="page 2"):  # noqa: PT012 - what was found before it counts
        for x in in_order(Pooled(work, 2), iter(range(1_000_000_000))):  # whoever went on to the end would never end
            done.append(x)
    assert done == [0, 1]


def test_what_is_held_is_held_as_long_as_there_may_be_work() -> None:
    events = []

    @contextmanager
    def held() -> Iterator[None]:
        events.append("opened")
        yield
        events.append("closed")

    pool = Pooled(lambda x: events.append(x) or [x], 2, held)
    assert list(in_order(pool, iter("ab"))) == ["a", "b"]
    assert (events[0], sorted(events[1:3]), events[3:]) == ("opened", ["a", "b"], ["closed"])


@pytest.mark.parametrize("failing", [0, 1])
def test_what_works_while_another_element_fails_is_told_to_end(failing: int) -> None:
    """Also where the failing one is not the oldest, for whose results everybody waits."""
    begun, met = threading.Event(), []

    def work(x: int) -> list[int]:
        if x == failing:
            waited(begun)
            raise UnreadableError("page 0 of the file")
        begun.set()
        for _ in range(1_000 * PATIENCE_S):
            time.sleep(0.001)
            try:
                interrupts.check()
            except interrupts.GivenUpError:
                met.append(x)
                raise
        return [x]

    with pytest.raises(UnreadableError, match="page 0"):
        list(in_order(Pooled(work, 2), iter(range(2))))
    assert met == [1 - failing]
