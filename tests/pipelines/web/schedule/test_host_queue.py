"""Hosts in turn, against a list that is looked through each time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.data.reasons import DropReason
from altalign.pipelines.web.schedule.host_queue import HostQueue
from altalign.pipelines.web.schedule.hosts import Host, Pace, Trouble
from altalign.pipelines.web.schedule.tasks import ImageTask

TASK: Any = object.__new__(ImageTask)
GONE = Trouble(DropReason.HTTP_TIMEOUT, "no answer")


def host_of(name: str = "a", waiting: int = 1, interval_s: float = 0.0, at_once: int = 2) -> Host:
    host = Host(name, Pace(interval_s, at_once), at_once)
    host.waiting.extend([TASK] * waiting)
    return host


def take(queue: HostQueue, now: float) -> str | None:
    host = queue.sure(now) or queue.doubtful(now) or queue.sure(now)  # one that was doubtful may be so no longer
    if host is None:
        return None
    host.waiting.popleft()
    host.begin(now)
    queue.add(host, now)
    return host.name


def test_hosts_take_turns() -> None:
    queue = HostQueue()
    for name in "abc":
        host = host_of(name, waiting=2)
        host.is_known = True
        queue.add(host, 0.0)
        queue.add(host, 0.0)  # a host has one place, however often it is added
    assert [take(queue, 0.0) for _ in range(7)] == ["a", "b", "c", "a", "b", "c", None]


def test_a_host_that_was_never_heard_of_is_doubtful_after_its_first_request() -> None:
    queue, host = HostQueue(), host_of(waiting=3)
    queue.add(host, 0.0)
    assert queue.doubtful(0.0) is None
    assert take(queue, 0.0) == "a"
    assert queue.sure(0.0) is None
    assert queue.doubtful(0.0) is host


def test_a_host_whose_time_comes_later_has_its_turn_then() -> None:
    queue, host = HostQueue(), host_of(waiting=5, interval_s=1.0, at_once=1)
    host.is_known = True
    queue.add(host, 0.0)
    assert take(queue, 0.0) == "a"
    host.running = 0
    queue.add(host, 0.0)
    assert (queue.due(0.5), take(queue, 0.5)) == (1.0, None)
    assert (queue.due(1.0), take(queue, 1.0)) == (float("inf"), "a")


def test_a_host_that_answers_again_does_not_wait_for_the_end_of_its_pause() -> None:
    queue, host = HostQueue(), host_of(waiting=2)
    for _ in range(6):
        host.failed(0.0, 0.0, GONE, patience_s=1e9, is_certain=False)
    queue.add(host, 0.0)
    assert queue.due(0.0) == pytest.approx(8.0)
    host.answered(0.5)
    queue.add(host, 0.5)
    assert take(queue, 0.5) == "a"
    assert queue.due(9.0) == float("inf")


@given(
    hosts=st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 3), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    moves=st.lists(
        st.tuples(st.sampled_from(["take", "end", "fail", "answer", "more", "wait"]), st.integers(0, 5)), max_size=80
    ),
)
def test_whoever_may_be_asked_is_found_and_nobody_else(
    hosts: list[tuple[int, float, int, bool]], moves: list[tuple[str, int]]
) -> None:
    queue, now = HostQueue(), 0.0
    known = [
        host_of(str(number), waiting, interval, at_once) for number, (waiting, interval, at_once, _) in enumerate(hosts)
    ]
    for host, (_, _, _, is_known) in zip(known, hosts, strict=True):
        host.is_known = is_known
        queue.add(host, now)
    for move, number in moves:
        host = known[number % len(known)]
        if move == "take":
            queue.due(now)
            may = {each.name for each in known if each.waiting and each.has_room and each.ready_s() <= now}
            found = take(queue, now)
            assert found in may if may else found is None
        elif move == "end" and host.running:
            host.running -= 1
        elif move == "fail" and host.running:
            host.running -= 1
            host.failed(now, now, GONE, patience_s=1e9, is_certain=False)
        elif move == "answer":
            host.answered(now)
        elif move == "more":
            host.waiting.append(TASK)
        elif move == "wait":
            now += number / 4
        queue.add(host, now)
