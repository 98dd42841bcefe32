"""Pace, patience and politeness on a clock that jumps: hosts that hang, refuse, vanish or ask to be left alone."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from email.utils import formatdate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.data.reasons import DropReason
from altalign.pipelines.web import hosts
from altalign.pipelines.web.calls import Answer, Request, Trouble
from altalign.pipelines.web.fetching import EXTENDED_S
from altalign.pipelines.web.hosts import Network
from tests.pipelines.web.virtual import EPOCH_S, VirtualLoop, Web, answer, play, settings_of

Site = Callable[[Request], Awaitable[Answer]]
NOT_ASKED = DropReason.HTTP_NOT_ASKED
TIMEOUT, UNREACHABLE, STATUS = DropReason.HTTP_TIMEOUT, DropReason.HTTP_UNREACHABLE, DropReason.HTTP_STATUS


def good(seconds: float = 0.1, body: bytes = b"image") -> Site:
    async def site(_: Request) -> Answer:
        await asyncio.sleep(seconds)
        return answer(body=body)

    return site


async def hanging(_: Request) -> Answer:
    await asyncio.sleep(1e12)
    raise AssertionError


async def refusing(_: Request) -> Answer:
    await asyncio.sleep(0.001)
    raise Trouble(UNREACHABLE, "Connection refused")


async def breaking(_: Request) -> Answer:
    await asyncio.sleep(0.01)
    raise Trouble(DropReason.HTTP_BROKEN, "the connection was closed without an answer")


def saying(*answers: Answer) -> Site:
    """One after the other; the last one for ever."""
    left = list(answers)

    async def site(_: Request) -> Answer:
        await asyncio.sleep(0.01)
        return left.pop(0) if len(left) > 1 else left[0]

    return site


def web_of(**sites: Site) -> Web:
    return Web(lambda host: sites[host.split(".")[0]])


def urls_of(host: str, count: int) -> list[str]:
    return [f"http://{host}/{number}" for number in range(count)]


# Pace -----------------------------------------------------------------------------------------------------------------


def test_a_host_is_asked_at_its_pace() -> None:
    web = web_of(a=good(0.01))
    play(web, urls_of("a", 200), settings_of(requests_per_host_s=10, connections_per_host=4))
    times = web.times("a")
    assert len(times) == 200
    for first, last in [(0, 199), (0, 20), (50, 60), (100, 150)]:
        assert last - first <= 10 * (times[last] - times[first]) + 4 + 1e-6  # a few may come at once
    assert times[-1] == pytest.approx((200 - 4) / 10, abs=0.1)  # and no slower
    assert web.most["a"] <= 4


def test_a_host_has_no_more_requests_at_a_time_than_it_may() -> None:
    web = web_of(a=good(), b=good())
    played = play(web, urls_of("a", 100) + urls_of("b", 100), settings_of(connections_per_host=5))
    assert web.most == {"a": 5, "b": 5}
    assert played.times[-1] < 2.2


def test_two_ports_of_a_host_share_its_pace() -> None:
    web = web_of(a=good(0.01))
    urls = [f"{scheme}://a/{number}" for number in range(50) for scheme in ("http", "https")]
    play(web, urls, settings_of(requests_per_host_s=10, connections_per_host=1))
    assert web.times("a")[-1] == pytest.approx(9.9, abs=0.2)


def test_a_crawl_delay_is_a_pace() -> None:
    async def site(request: Request) -> Answer:
        is_robots = request.target.url.endswith("/robots.txt")
        return answer(body=b"User-agent: *\nCrawl-delay: 2\n" if is_robots else b"image")

    web = web_of(a=site)
    play(web, urls_of("a", 5), settings_of(honour_robots=True))
    times = [web.robots_log[0][0], *web.times("a")]
    assert all(later - earlier >= 2 - 1e-6 for earlier, later in itertools.pairwise(times[1:]))
    assert times[-1] <= 10.1


def test_slots_bound_what_is_being_answered() -> None:
    under_way, most = 0, 0

    async def site(_: Request) -> Answer:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.1)
        under_way -= 1
        return answer()

    web = Web(lambda _: site)
    played = play(web, [f"http://h{n}/" for n in range(100)], settings_of(threads=7))
    assert most == 7
    assert played.times[-1] == pytest.approx(0.1 * 15, abs=0.1)


def test_a_host_that_breaks_off_its_first_answer_is_asked_on() -> None:
    """It is neither known nor failing, and nothing else happens that would remind anybody of it."""
    web = web_of(a=breaking)
    played = play(web, urls_of("a", 3), settings_of(connections_per_host=2, threads=1, retries=0))
    assert [response.reason for response in played.responses] == [DropReason.HTTP_BROKEN] * 3
    assert played.ended_s < 5


def test_hosts_have_their_turns() -> None:
    """A host with many images holds up none with few."""
    web = web_of(many=good(), few=good())
    play(web, urls_of("many", 300) + urls_of("few", 3), settings_of(threads=4, connections_per_host=8))
    assert web.times("few")[-1] < 0.5


# Hosts that do not answer ---------------------------------------------------------------------------------------------


def test_hanging_hosts_hold_up_no_other() -> None:
    """1,000 hosts with four images each; a fifth of them hang."""
    web = Web(lambda host: hanging if int(host[1:]) % 5 == 0 else good())
    urls = [f"http://h{n % 1000}/{n}" for n in range(4000)]
    played = play(web, urls, settings_of(timeout_s=10, retries=2))
    good_s = [when for when, response in zip(played.times, played.responses, strict=True) if response.reason is None]
    assert len(good_s) == 3200
    assert max(good_s) < 4 * 3200 * 0.1 / 64  # alone, the good ones take a quarter of that
    assert played.ended_s < 90
    assert {response.reason for response in played.responses} == {None, TIMEOUT}


def test_one_hanging_host_with_a_fifth_of_the_images_costs_little_more_than_one_timeout() -> None:
    web = web_of(a=good(), b=good(), hang=hanging)
    played = play(web, urls_of("a", 400) + urls_of("b", 400) + urls_of("hang", 200), settings_of(timeout_s=10))
    assert played.ended_s < 12
    assert len(web.times("hang")) <= 8
    unasked = [response for response in played.responses if response.reason == NOT_ASKED]
    assert len(unasked) >= 190
    assert not any(response.tries for response in unasked)
    assert unasked[0].detail.startswith("hang was given up after ")


@pytest.mark.parametrize("honour_robots", [True, False])
@pytest.mark.parametrize("images", [1, 3, 300])
def test_a_host_that_has_never_answered_gets_one_more_try(*, images: int, honour_robots: bool) -> None:
    """After a second's pause at most, or two where three have failed together."""
    web = web_of(hang=hanging)
    played = play(web, urls_of("hang", images), settings_of(honour_robots=honour_robots, timeout_s=5, retries=4))
    assert played.ended_s < 5 + 2 + 5 + 0.3
    assert max(Counter(url for _, url in web.robots_log + web.log).values()) <= 2
    assert {response.reason for response in played.responses if response.tries or honour_robots} == {TIMEOUT}
    assert {response.reason for response in played.responses} <= {TIMEOUT, NOT_ASKED}
    assert [round(each.seconds, 1) for each in played.responses[0].tries] == (
        [] if honour_robots else [5.0] if images == 300 else [5.0, 5.0]
    )
    if honour_robots:
        assert played.responses[0].detail == "robots.txt: no answer of 192.0.2.4 within 5 s"


@pytest.mark.parametrize("connections", [2, 8, 16])
@pytest.mark.parametrize("share", [0.02, 0.05, 0.2])
def test_a_host_that_answers_is_not_given_up_for_urls_that_hang(share: float, connections: int) -> None:
    """Every good image comes, in at most one and a half times the time that the hanging tries take together."""
    count, seconds, timeout_s = 3_000, 0.01, 2.0
    hang = set(random.Random(3).sample(range(count), round(count * share)))

    async def site(request: Request) -> Answer:
        number = int(request.target.url.rpartition("/")[2])
        return await (hanging if number in hang else good(seconds))(request)

    web = web_of(a=site)
    settings = settings_of(connections_per_host=connections, timeout_s=timeout_s, retries=1)
    played = play(web, urls_of("a", count), settings)
    assert {response.number for response in played.responses if response.reason is None} == set(range(count)) - hang
    tries = sum(int(url.rpartition("/")[2]) in hang for _, url in web.log)
    without_s = seconds * (count - len(hang)) / connections
    assert played.ended_s <= 1.5 * tries * timeout_s / connections + without_s
    assert all(response.tries for response in played.responses)  # each was asked


def later_hanging(answers: int) -> Site:
    """Answers so many requests."""
    left = itertools.count(answers, -1)

    async def site(request: Request) -> Answer:
        return await (good() if next(left) > 0 else hanging)(request)

    return site


async def dripping(request: Request) -> Answer:
    request.status = 200
    return await hanging(request)


@pytest.mark.parametrize("site", [later_hanging(1), dripping])
def test_a_host_that_has_answered_or_begun_to_has_all_its_tries(site: Site) -> None:
    web = Web(lambda _: site)
    played = play(web, ["http://a/0", "http://a/1"], settings_of(timeout_s=5, retries=2, connections_per_host=1))
    failed = [response for response in played.responses if response.reason]
    assert [round(each.seconds) for each in failed[0].tries] == [5, 5, 5]


def test_a_try_whose_time_ends_as_it_waits_for_the_budget_costs_no_other_its_request() -> None:
    """The loop is late at the end of a try whose body waits: it is cut off or comes; the next request is unharmed."""

    async def site(request: Request) -> Answer:
        await asyncio.sleep(0.5)
        if request.target.url.endswith("/0"):
            await asyncio.sleep(9.4)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.now += 0.2
            with request.held_up():
                await asyncio.sleep(3)
        return answer()

    played = play(web_of(a=site), urls_of("a", 4), settings_of(connections_per_host=1, timeout_s=10, retries=0))
    reasons = {response.number: response.reason for response in played.responses}
    assert [reasons[number] for number in (1, 2, 3)] == [None] * 3
    assert played.ended_s < 20


def test_a_request_that_is_cut_off_before_it_has_begun_is_under_way_no_longer() -> None:
    """The loop comes late, so that in one turn of it a request is to be made and the time of its call is over."""

    async def late(_: Request) -> Answer:
        await asyncio.sleep(4.9)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.now += 0.2
        return answer()

    web = web_of(a=late, b=good())
    played = play(
        web,
        ["http://a/0", *urls_of("b", 2)],
        settings_of(connections_per_host=1, requests_per_host_s=0.2),
        deadline_s=5.05,
    )
    assert [response.reason for response in played.responses] == [None, None, TIMEOUT]
    assert (len(played.fetching.schedule.under_way), played.fetching.schedule.slots) == (0, 0)


def test_a_port_where_nobody_listens_is_given_up_and_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "GIVEN_UP_S", 5.0)
    web = web_of(a=good(1.0), dead=refusing)
    played = play(web, urls_of("dead", 500) + urls_of("a", 400), settings_of(timeout_s=4, connections_per_host=8))
    assert {response.reason for response in played.responses if response.number < 500} == {UNREACHABLE, NOT_ASKED}
    assert len(web.times("dead")) < 40


def test_a_host_that_comes_back_is_asked_on() -> None:
    """It refused, but not for so long that it was given up: nothing is lost."""
    begun: list[float] = []

    async def site(request: Request) -> Answer:
        now = asyncio.get_running_loop().time()
        begun.append(now)
        return await (refusing if 1 <= now < 5 else good(0.05))(request)

    web = web_of(a=site, b=good())
    played = play(web, urls_of("a", 600) + urls_of("b", 900), settings_of(timeout_s=10, retries=2, threads=8))
    assert Counter(response.reason for response in played.responses) == {None: 1500}


def test_a_name_that_is_not_there_is_looked_up_a_few_times_only() -> None:
    async def site(_: Request) -> Answer:
        raise Trouble(UNREACHABLE, "no such name", is_certain=True)

    web = web_of(lost=site, a=good())
    played = play(web, urls_of("lost", 300) + urls_of("a", 10), settings_of())
    assert {response.reason for response in played.responses if response.number < 300} == {UNREACHABLE, NOT_ASKED}
    assert all(response.reason is None for response in played.responses if response.number >= 300)
    assert len(web.times("lost")) <= 16
    assert played.ended_s < 5


# A network that is gone -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [hanging, refusing])
@pytest.mark.parametrize("retries", [0, 2])
def test_a_network_that_is_gone_for_a_while_costs_no_image(failing: Site, retries: int) -> None:
    begin_s, end_s = 1.0, 21.0 if failing is hanging else 11.0

    def is_there() -> bool:
        return not begin_s <= asyncio.get_running_loop().time() < end_s

    async def site(request: Request) -> Answer:
        made = await (good(0.1) if is_there() else failing)(request)
        return made if is_there() else await failing(request)

    web = Web(lambda _: site, is_there)
    urls = [f"http://h{n % 97}/{n}" for n in range(2000)]
    played = play(web, urls, settings_of(timeout_s=10, retries=retries, threads=16))
    assert Counter(response.reason for response in played.responses) == {None: 2000}
    assert Counter(url for _, url in web.log).most_common(1)[0][1] <= 3


def test_a_network_that_stays_away_stops_the_command() -> None:
    def is_there() -> bool:
        return asyncio.get_running_loop().time() < 1.0

    async def site(request: Request) -> Answer:
        return await (good(0.1) if is_there() else refusing)(request)

    web = Web(lambda _: site, is_there)
    with pytest.raises(AssertionError) as error:
        play(web, [f"http://h{n % 97}/{n}" for n in range(1000)], settings_of(timeout_s=10, threads=16))
    assert str(error.value.__cause__) == (
        "the network is gone: Connection refused, and hosts that answered before cannot be connected to; "
        "run the same command again when it is back, it goes on where it stopped"
    )
    assert max(when for when, _ in web.log) < 10


def test_hosts_that_hang_at_the_end_are_no_outage() -> None:
    """Nobody answers any more, for nobody else is left to be asked; that one who did can still be reached says it."""
    web = web_of(a=good(), x=hanging, y=hanging)
    played = play(web, urls_of("a", 50) + urls_of("x", 3) + urls_of("y", 3), settings_of(timeout_s=5, retries=1))
    assert played.ended_s < 30
    assert Counter(response.reason for response in played.responses) == {None: 50, TIMEOUT: 6}


def test_one_host_that_refuses_us_now_is_no_gone_network() -> None:
    """It has many ports, and was the last to answer; another host can still be connected to."""

    async def connects(endpoint: tuple[str, int]) -> bool:
        return endpoint == ("192.0.2.1", 80)

    async def main() -> bool:
        network = Network(connects, lambda *, is_paused: None)  # noqa: ARG005
        network.answered("a.test", ("192.0.2.1", 80))
        for port in range(100):
            network.answered("z.test", ("192.0.2.9", port))
        return await network.was_gone("Connection refused")

    loop = VirtualLoop()
    assert not loop.run_until_complete(main())
    loop.close()


# A machine with too little --------------------------------------------------------------------------------------------


def too_many(open_files: int) -> Callable[[str], Site]:
    """Sites behind a machine that may have so many connections."""
    under_way = 0

    async def site(_: Request) -> Answer:
        nonlocal under_way
        if under_way >= open_files:
            raise Trouble(UNREACHABLE, "this machine: too many open files", is_ours=True)
        under_way += 1
        await asyncio.sleep(0.1)
        under_way -= 1
        return answer()

    return lambda _: site


def test_too_few_open_files_cost_no_image() -> None:
    played = play(Web(too_many(10)), [f"http://h{n}/" for n in range(1000)], settings_of(threads=64, retries=0))
    assert Counter(response.reason for response in played.responses) == {None: 1000}
    assert played.ended_s < 120


def test_a_machine_that_can_open_nothing_says_so() -> None:
    with pytest.raises(AssertionError) as error:
        play(Web(too_many(0)), ["http://a/"], settings_of())
    assert str(error.value.__cause__).startswith(
        "too many open files, or too little memory for connections: raise `ulimit -n`"
    )


# Hosts that ask to be left alone --------------------------------------------------------------------------------------


@pytest.mark.parametrize("retry_after", ["30", formatdate(EPOCH_S + 30.01, usegmt=True)])
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured_by_the_whole_host(status: int, retry_after: str) -> None:
    web = web_of(a=saying(answer(status, retry_after=retry_after), answer()), b=good())
    played = play(web, urls_of("a", 20) + urls_of("b", 20), settings_of(connections_per_host=1))
    assert {response.reason for response in played.responses} == {None}
    times = web.times("a")
    assert len(times) == 21
    assert times[1] - times[0] == pytest.approx(30, abs=1.1)
    assert max(when for when, response in zip(played.times, played.responses, strict=True) if response.number >= 20) < 3


def test_a_date_is_read_beside_the_date_of_its_answer() -> None:
    web = web_of(
        a=saying(answer(503, retry_after=formatdate(90, usegmt=True), date=formatdate(60, usegmt=True)), answer())
    )
    play(web, urls_of("a", 1), settings_of())
    assert web.times("a")[1] == pytest.approx(30, abs=0.1)


def test_who_asks_for_more_time_than_a_unit_has_is_not_waited_for() -> None:
    web = web_of(a=saying(answer(429, retry_after="86400")), b=good())
    played = play(web, urls_of("a", 100) + urls_of("b", 100), settings_of(connections_per_host=2), deadline_s=600)
    assert played.ended_s < 20
    assert len(web.times("a")) <= 2
    failed = [response for response in played.responses if response.number < 100]
    assert {(response.reason, response.http_code) for response in failed} == {(STATUS, 429), (NOT_ASKED, 429)}
    assert all((response.reason == STATUS) == bool(response.tries) for response in failed)
    assert (
        sum("asks to be left alone (status 429, Retry-After 86,400 s)" in response.detail for response in failed) >= 98
    )


def test_too_many_requests_without_a_time_pause_the_host_too() -> None:
    web = web_of(a=saying(*[answer(429)] * 3, answer()))
    played = play(web, urls_of("a", 30), settings_of(connections_per_host=1, retries=3))
    assert {response.reason for response in played.responses} == {None}
    times = web.times("a")
    assert times[1] - times[0] >= 0.4  # half of a second, on average, which is what the draw of this test is


def test_pauses_between_tries_grow() -> None:
    web = web_of(a=saying(answer(500)))
    played = play(web, urls_of("a", 1), settings_of(retries=5))
    gaps = [later - earlier for earlier, later in itertools.pairwise(web.times("a"))]
    assert gaps == pytest.approx([0.5, 1, 2, 4, 8], rel=0.05)
    assert (played.responses[0].http_code, len(played.responses[0].tries)) == (500, 6)


def test_a_slow_network_costs_no_image() -> None:
    """Images take their time through the slots that there are, longer than was thought."""

    async def site(request: Request) -> Answer:
        request.status = 200
        for _ in range(90):
            await asyncio.sleep(0.1)
            request.bytes += 10_000
        return answer()

    web = Web(lambda _: site)
    urls = [f"http://h{n % 50}/{n}" for n in range(100)]
    played = play(web, urls, settings_of(threads=4), open_at_most=4, deadline_s=50)
    assert Counter(response.reason for response in played.responses) == {None: 100}
    assert played.ended_s == pytest.approx(9 * 100 / 4, rel=0.1)


@pytest.mark.parametrize(("images", "come"), [(60, 60), (1000, 120)])
def test_a_crawl_delay_is_waited_for_up_to_an_hour(images: int, come: int) -> None:
    async def site(request: Request) -> Answer:
        is_robots = request.target.url.endswith("/robots.txt")
        return answer(body=b"User-agent: *\nCrawl-delay: 30\n" if is_robots else b"image")

    played = play(web_of(a=site), urls_of("a", images), settings_of(honour_robots=True))
    counts = Counter(response.reason for response in played.responses)
    assert counts[None] == pytest.approx(come, rel=0.2)
    assert counts[None] + counts[NOT_ASKED] == images


# Robots ---------------------------------------------------------------------------------------------------------------


def test_a_hanging_robots_txt_is_asked_for_a_few_times_whatever_waits_for_it() -> None:
    web = web_of(a=good(), hang=hanging)
    played = play(
        web, urls_of("a", 100) + urls_of("hang", 300), settings_of(honour_robots=True, timeout_s=5, retries=2)
    )
    assert len(web.robots_log) == 1 + 2
    assert not web.times("hang")
    assert Counter(response.reason for response in played.responses) == {None: 100, TIMEOUT: 300}
    assert all(response.detail.startswith("robots.txt: ") for response in played.responses if response.reason)


def test_a_robots_txt_that_could_not_be_read_is_asked_for_again_after_five_minutes() -> None:
    async def moved(request: Request) -> Answer:
        if request.target.url.endswith(("/robots.txt", "/tdmrep.json")):
            return answer(404)
        await asyncio.sleep(30 * int(request.target.url.rpartition("/")[2]))
        return answer(302, location="http://ill/x")

    web = web_of(a=moved, ill=saying(answer(500)))
    settings = settings_of(honour_robots=True, retries=0, connections_per_host=20, timeout_s=1000)
    played = play(web, urls_of("a", 20), settings)
    assert {(response.reason, response.detail) for response in played.responses} == {(STATUS, "robots.txt: status 500")}
    assert [round(when) for when, url in web.robots_log if "ill" in url] == [0, 330]


# All together ---------------------------------------------------------------------------------------------------------


def scripted(kind: str, number: int) -> Site:
    return {
        "good": good(0.05 * (number % 7)),
        "hang": hanging,
        "refuse": refusing,
        "status": saying(answer(404)),
        "error": saying(answer(503), answer(500), answer()),
        "later": saying(answer(429, retry_after=str(number * 7)), answer()),
        "there": saying(answer(302, location="http://h0/x")),
        "loop": saying(answer(302, location="/x")),
        "break": breaking,
    }[kind]


@given(
    kinds=st.lists(
        st.sampled_from(["good", "hang", "refuse", "status", "error", "later", "there", "loop", "break"]),
        min_size=1,
        max_size=12,
    ),
    count=st.integers(1, 60),
    threads=st.integers(1, 5),
    connections=st.integers(1, 4),
    retries=st.integers(0, 3),
    deadline_s=st.sampled_from([0.3, 20.0, 500.0]),
    has_robots=st.booleans(),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_each_url_has_one_response_whatever_hosts_do(
    *,
    kinds: list[str],
    count: int,
    threads: int,
    connections: int,
    retries: int,
    deadline_s: float,
    has_robots: bool,
    data: st.DataObject,
) -> None:
    sites = [scripted(kind, number) for number, kind in enumerate(kinds)]
    web = Web(lambda host: sites[int(host[1:])])
    urls = [f"http://h{data.draw(st.integers(0, len(kinds) - 1))}/{n}" for n in range(count)]
    given_settings = settings_of(
        threads=threads,
        connections_per_host=connections,
        retries=retries,
        timeout_s=3,
        honour_robots=has_robots,
    )
    played = play(web, urls, given_settings, deadline_s=deadline_s)
    assert sorted(response.number for response in played.responses) == list(range(count))
    assert played.ended_s <= deadline_s + EXTENDED_S * (retries + 1)
    assert all(most <= connections for most in web.most.values())
    for response in played.responses:
        assert (response.body is None) == (response.reason is not None)
        counted = [each for each in response.tries if "not counted" not in each.detail]
        assert len(counted) <= retries + 1
        assert not response.tries or response.tries[-1].reason in (response.reason, STATUS, TIMEOUT, UNREACHABLE)
