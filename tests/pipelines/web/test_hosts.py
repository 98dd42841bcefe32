"""Pace, pauses and health of a host, by the numbers."""

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.data.reasons import DropReason
from altalign.pipelines.web import hosts
from altalign.pipelines.web.calls import Trouble
from altalign.pipelines.web.hosts import Host, Pace, backoff_s, retry_after_s

GONE = Trouble(DropReason.HTTP_UNREACHABLE, "Connection refused")


def host_of(at_once: int = 2) -> Host:
    return Host("a.test", Pace(0.1, at_once), at_once)


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


def test_the_longest_pause_holds() -> None:
    pace = Pace(0.1, 1)
    pace.leave_alone(50.0, GONE)
    pace.leave_alone(20.0, Trouble(DropReason.HTTP_STATUS, "shorter"))
    assert (pace.ready_s(), pace.pause) == (50.0, GONE)


def test_a_host_that_is_given_up_again_is_so_for_longer_until_it_answers() -> None:
    host, now = host_of(), 0.0
    lasted = []
    for _ in range(8):
        while not host.failed(now, now - 20, GONE, patience_s=10):
            now += 1
        lasted.append(host.given_up_until_s - now)
        now = host.given_up_until_s
    assert lasted == [60, 120, 240, 480, 960, 960, 960, 960]
    host.answered(now)
    while not host.failed(now, now - 20, GONE, patience_s=10):
        now += 1
    assert host.given_up_until_s - now == 60


def test_a_host_that_fails_is_asked_once_at_a_time_after_growing_pauses() -> None:
    host, pauses = host_of(at_once=8), []
    for _ in range(9):
        host.failed(100.0, 100.0, GONE, patience_s=1e9)
        pauses.append(max(0.0, host.probe_s - 100.0))
    assert pauses == [0, 0.5, 1, 2, 4, 8, 10, 10, 10]
    host.running = 1
    assert not host.has_room
    host.answered(100.0)
    assert host.has_room
    assert host.ready_s() < 100


def test_a_host_with_a_pause_or_a_failure_to_remember_is_not_forgotten() -> None:
    host = host_of()
    assert host.is_forgettable(0.0)
    host.pace.leave_alone(9.0, GONE)
    assert [host.is_forgettable(now) for now in (8.0, 9.0)] == [False, True]
    host.failed(9.0, 9.0, GONE, patience_s=10)
    assert [host.is_forgettable(9.0 + seconds) for seconds in (hosts.REMEMBERED_S - 1, hosts.REMEMBERED_S)] == [
        False,
        True,
    ]


@given(tries=st.integers(1, 200), drawn=st.floats(0, 1))
def test_pauses_between_tries_have_full_jitter_and_an_end(tries: int, drawn: float) -> None:
    assert 0 <= backoff_s(tries, lambda: drawn) <= min(2.0 ** (tries - 1), hosts.BACKOFF_S_AT_MOST)
    assert backoff_s(tries, lambda: 1.0) == min(2.0 ** min(tries - 1, 20), hosts.BACKOFF_S_AT_MOST)


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        ("0", "", 0.0),
        (" 120 ", "", 120.0),
        ("9" * 400, "", hosts.RETRY_AFTER_S_AT_MOST),
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
def test_retry_after_is_seconds_or_a_date(value: str, date: str, seconds: float | None) -> None:
    assert retry_after_s(value, date, 1_000_000.0) == seconds


@given(value=st.text(max_size=40), date=st.text(max_size=40))
def test_any_text_may_be_a_retry_after(value: str, date: str) -> None:
    seconds = retry_after_s(value, date, 1_000_000.0)
    assert seconds is None or 0 <= seconds <= hosts.RETRY_AFTER_S_AT_MOST


def test_requests_that_were_under_way_together_do_not_give_up_a_host_that_has_answered() -> None:
    host = host_of(at_once=16)
    for _ in range(100):
        host.answered(5.0)
    assert not any(host.failed(20.0, 4.9, GONE, patience_s=1) for _ in range(50))
    assert (host.failures, host.lost) == (0, 50)
    assert not any(host.failed(20.0, 10.0, GONE, patience_s=1) for _ in range(16))
    assert host.failed(31.0, 21.0, GONE, patience_s=1)


def test_a_host_of_which_many_urls_hang_is_given_more_failures() -> None:
    allowed = []
    for lost_of_a_hundred in (0, 2, 20, 50, 90):
        host = host_of()
        for number in range(100):
            if number >= lost_of_a_hundred:
                host.answered(float(number))
            else:
                host.failed(0.0, 0.0, GONE, patience_s=1e9)
        allowed.append(host.failures_at_most)
    assert allowed == [5, 5, 10, 20, 20]
