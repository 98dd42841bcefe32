"""Pace, pauses and health of a host, by the numbers."""

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.data.reasons import DropReason
from altalign.pipelines.web.http.target import Target
from altalign.pipelines.web.schedule import hosts
from altalign.pipelines.web.schedule.hosts import Host, Pace, Trouble, backoff_s, retry_after_s
from altalign.pipelines.web.schedule.tasks import Task

GONE = Trouble(DropReason.HTTP_UNREACHABLE, "Connection refused")


def host_of(per_s: float = 10.0, at_once: int = 2) -> Host:
    return Host("a.test", Pace(1 / per_s, at_once), at_once)


@given(per_s=st.floats(0.1, 1000), at_once=st.integers(1, 8), waits=st.lists(st.floats(0, 1), max_size=60))
def test_no_stretch_of_time_has_more_requests_than_the_pace_allows(
    per_s: float, at_once: int, waits: list[float]
) -> None:
    pace, now, times = Pace(1 / per_s, at_once), 1000.0, []
    for wait in waits:
        now = max(now + wait, pace.ready_s())
        pace.begin(now)
        times.append(now)
    for first in range(len(times)):
        for last in range(first, len(times)):
            assert last - first + 1 <= at_once + per_s * (times[last] - times[first]) + 1e-3


def test_a_host_that_was_idle_may_be_asked_a_few_times_at_once() -> None:
    host = host_of(per_s=10, at_once=2)
    begun = []
    for _ in range(4):
        begun.append(max(5.0, host.ready_s()))
        host.begin(begun[-1])
        host.running = 0
    assert begun == pytest.approx([5.0, 5.0, 5.1, 5.2])


def test_a_crawl_delay_slows_down_and_never_speeds_up() -> None:
    host = host_of(per_s=1, at_once=4)
    host.slow_down(0.5)
    assert (host.pace.interval_s, host.connections_at_most) == (1.0, 4)
    host.slow_down(5)
    assert (host.pace.interval_s, host.pace.at_once, host.connections_at_most) == (5.0, 1, 1)


def test_the_longest_pause_holds() -> None:
    pace = Pace(0.1, 1)
    pace.leave_alone(50.0, GONE)
    pace.leave_alone(20.0, Trouble(DropReason.HTTP_STATUS, "shorter"))
    assert (pace.ready_s(), pace.pause) == (50.0, GONE)


def test_a_host_is_given_up_after_enough_failures_over_enough_time() -> None:
    host = host_of()
    given_up = [
        host.failed(now, now - 1, GONE, patience_s=10, is_certain=False) for now in (1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 10.0)
    ]
    assert given_up == [False] * 6 + [True]
    assert host.is_given_up(10.0 + hosts.GIVEN_UP_S - 1)
    assert not host.is_given_up(10.0 + hosts.GIVEN_UP_S)
    assert host.failed(10.1, 9.0, GONE, patience_s=10, is_certain=False) is False  # of those under way, nothing new


def test_a_host_that_is_given_up_again_is_so_for_longer_until_it_answers() -> None:
    host, now = host_of(), 0.0
    lasted = []
    for _ in range(8):
        while not host.failed(now, now - 20, GONE, patience_s=10, is_certain=False):
            now += 1
        lasted.append(host.given_up_until_s - now)
        now = host.given_up_until_s
    assert lasted == [60, 120, 240, 480, 960, 960, 960, 960]
    host.answered(now)
    assert not host.is_doubtful
    while not host.failed(now, now - 20, GONE, patience_s=10, is_certain=False):
        now += 1
    assert host.given_up_until_s - now == 60


def test_one_failure_after_it_was_given_up_is_enough() -> None:
    host, now = host_of(), 0.0
    while not host.failed(now, now - 20, GONE, patience_s=10, is_certain=False):
        now += 1
    now = host.given_up_until_s
    assert host.has_room
    assert host.failed(now + 1, now, GONE, patience_s=10, is_certain=False)


def test_a_host_that_never_answered_is_given_up_when_a_try_after_a_failure_fails() -> None:
    host = host_of()
    begun_before = [host.failed(now, 0.0, GONE, patience_s=9, is_certain=False) for now in (10.0, 10.1, 10.2)]
    assert (begun_before, host.is_silent) == ([False] * 3, True)
    assert host.failed(16.0, 11.0, GONE, patience_s=9, is_certain=False)
    refuses_at_once = host_of()
    assert [
        refuses_at_once.failed(now, now, GONE, patience_s=9, is_certain=False) for now in (1.0, 2.0, 9.9, 10.0)
    ] == [False] * 3 + [True]
    known = host_of()
    for _ in range(100):
        known.answered(0.0)
    assert [
        known.failed(now, now - 9, GONE, patience_s=9, is_certain=False) for now in (10.0, 20.0, 30.0, 40.0, 50.0)
    ] == [False] * 4 + [True]
    assert not known.is_silent


def test_a_name_that_is_certainly_not_there_is_given_up_at_its_second_failure() -> None:
    host = host_of()
    assert [host.failed(0.1, 0.0, GONE, patience_s=10, is_certain=True) for _ in range(2)] == [False, True]


def test_a_host_that_fails_is_asked_once_at_a_time_after_growing_pauses() -> None:
    host, pauses = host_of(at_once=8), []
    for _ in range(9):
        host.failed(100.0, 100.0, GONE, patience_s=1e9, is_certain=False)
        pauses.append(max(0.0, host.probe_s - 100.0))
    assert pauses == [0, 0.5, 1, 2, 4, 8, 10, 10, 10]
    host.running = 1
    assert not host.has_room
    host.answered(100.0)
    assert host.has_room
    assert host.ready_s() < 100


def test_what_would_be_lost_is_not_forgotten() -> None:
    host = host_of()
    assert host.is_forgettable(0.0)
    host.begin(0.0)
    assert not host.is_forgettable(1.0)
    host.running = 0
    assert host.is_forgettable(1.0)
    host.pace.leave_alone(9.0, GONE)
    assert [host.is_forgettable(now) for now in (8.0, 9.0)] == [False, True]
    host.failed(9.0, 9.0, GONE, patience_s=10, is_certain=False)
    assert [host.is_forgettable(9.0 + seconds) for seconds in (hosts.REMEMBERED_S - 1, hosts.REMEMBERED_S)] == [
        False,
        True,
    ]


@given(tries=st.integers(1, 200), drawn=st.floats(0, 1))
def test_pauses_between_tries_have_full_jitter_and_an_end(tries: int, drawn: float) -> None:
    assert 0 <= backoff_s(tries, lambda: drawn) <= min(2.0 ** (tries - 1), hosts.BACKOFF_S_AT_MOST)
    assert backoff_s(tries, lambda: 1.0) == min(2.0 ** min(tries - 1, 20), hosts.BACKOFF_S_AT_MOST)


@pytest.mark.parametrize(
    ("said", "date", "seconds"),
    [
        ("0", "", 0.0),
        (" 120 ", "", 120.0),
        ("9" * 400, "", hosts.RETRY_AFTER_S_AT_MOST),
        ("", "", None),
        ("soon", "", None),
        ("-5", "", None),
        ("1.5", "", None),
        ("²", "", None),
        (formatdate(1_000_060, usegmt=True), "", 60.0),
        (formatdate(1_000_060, usegmt=True), formatdate(1_000_050, usegmt=True), 10.0),
        (formatdate(1_000_060, usegmt=True), "yesterday", 60.0),
        (formatdate(999_000, usegmt=True), "", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", "", hosts.RETRY_AFTER_S_AT_MOST),
        ("Thu, 99 Foo 2026 99:99:99 GMT", "", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(said: str, date: str, seconds: float | None) -> None:
    assert retry_after_s(said, date, 1_000_000.0) == seconds


@given(said=st.text(max_size=40), date=st.text(max_size=40))
def test_any_text_may_be_a_retry_after(said: str, date: str) -> None:
    found = retry_after_s(said, date, 1_000_000.0)
    assert found is None or 0 <= found <= hosts.RETRY_AFTER_S_AT_MOST


def test_failures_of_requests_made_before_the_last_answer_say_nothing_of_the_host() -> None:
    """Of many under way, those that hang are the ones that are left."""
    host = host_of(at_once=16)
    host.answered(5.0)
    assert not any(host.failed(20.0, 4.9, GONE, patience_s=1, is_certain=False) for _ in range(50))
    assert (host.failures, host.lost, host.is_doubtful) == (0, 50, False)


def test_requests_that_were_under_way_together_do_not_give_up_a_host_that_has_answered() -> None:
    host = host_of(at_once=16)
    for _ in range(100):
        host.answered(5.0)
    assert not any(host.failed(20.0, 10.0, GONE, patience_s=1, is_certain=False) for _ in range(16))
    assert host.has_room
    assert host.failed(31.0, 21.0, GONE, patience_s=1, is_certain=False)


def test_a_host_of_which_many_urls_hang_is_given_more_failures() -> None:
    allowed = []
    for lost_of_a_hundred in (0, 2, 20, 90):
        host = host_of()
        for number in range(100):
            host.answered(float(number)) if number >= lost_of_a_hundred else host.failed(
                0.0, 0.0, GONE, patience_s=1e9, is_certain=False
            )
        allowed.append(host.failures_at_most)
    assert allowed == [5, 5, 10, 20]


def test_urls_that_were_asked_in_vain_wait_for_those_that_were_not() -> None:
    host, tasks = host_of(), [Task(Target.parse(f"http://a.test/{number}")) for number in range(4)]
    tasks[0].counted = 1
    for task in tasks:
        host.put(task)
    tasks[2].is_ended = True
    assert [host.take() for _ in range(4)] == [tasks[1], tasks[3], tasks[0], None]


def test_only_first_tries_give_up_a_host_while_urls_wait_that_were_never_asked() -> None:
    host = host_of()
    for _ in range(100):
        host.answered(0.0)
    host.put(Task(Target.parse("http://a.test/new")))
    fails = {"patience_s": 1, "is_certain": False}
    assert not any(
        host.failed(now, now - 9, GONE, is_first_try=False, **fails) for now in (10.0, 20.0, 30.0, 40.0, 50.0)
    )
    assert [host.failed(now, now - 9, GONE, **fails) for now in (60.0, 70.0, 80.0, 90.0, 100.0)] == [False] * 4 + [True]
