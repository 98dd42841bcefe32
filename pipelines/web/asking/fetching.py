"""What is asked, and what becomes of it: opt-outs, redirects, tries and tries again, until every URL of a call has its response."""

import asyncio
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from altalign.curation import FetchSettings
from altalign.pipelines.web.allowed import robots
from altalign.pipelines.web.allowed.addresses import Addresses
from altalign.pipelines.web.allowed.domains import Domains
from altalign.pipelines.web.allowed.robots import Rules
from altalign.pipelines.web.asking import reachability
from altalign.pipelines.web.asking.budget import Budget
from altalign.pipelines.web.asking.errands import Call, Delivery, Errand, ImageErrand, RobotsErrand
from altalign.pipelines.web.asking.hosts import Host, Pace, Trouble, backoff_s, retry_after_s
from altalign.pipelines.web.asking.reachability import Network
from altalign.pipelines.web.asking.schedule import Brought, Schedule
from altalign.pipelines.web.http.request import Answer, Request, RequestError
from altalign.pipelines.web.http.target import Target, TargetError
from altalign.pipelines.web.kept.outcomes import Response
from altalign.reasons import DropReason

REDIRECTS = frozenset({301, 302, 303, 307, 308})
REDIRECTS_AT_MOST = 10
HOSTS_KEPT = 20_000  # beyond so many, those are forgotten that nothing is known of but that they answer
RULES_KEPT = 20_000
RULES_BYTES_KEPT = 64_000_000
FUSE_S = 60.0
POLITE_S_AT_MOST = 3_600.0
AT_ONCE = 256  # errands taken in before others of the loop have their turn
OUTAGE_TIMEOUTS = 6  # an outage may last as long as so many tries before failures count

_NO_ANSWER = frozenset({DropReason.HTTP_TIMEOUT, DropReason.HTTP_UNREACHABLE})
_AGAIN = _NO_ANSWER | {DropReason.HTTP_BROKEN}


@dataclass(frozen=True)
class World:
    """What is outside of the loop, as tests may have it otherwise.

    Attributes:
        ask: makes a request.
        connects: whether a connection to an address and port can be made.
        wall: seconds since 1970.
        random: 0 to 1.
    """

    ask: Callable[[Request], Awaitable[Answer]]
    connects: Callable[[reachability.Endpoint], Awaitable[bool]] = reachability.connects
    wall: Callable[[], float] = time.time
    random: Callable[[], float] = random.random


class Fetching:
    """Calls under way, hosts, and what robots.txt files say; belongs to one loop."""

    def __init__(
        self,
        settings: FetchSettings,
        *,
        domains: Domains,
        addresses: Addresses,
        budget: Budget,
        world: World,
        open_at_most: int,
    ):
        """To be called in the loop. `open_at_most`: requests under way at a time."""
        self._settings, self._domains, self._addresses, self._world = settings, domains, addresses, world
        self._loop = asyncio.get_running_loop()
        self._token = robots.product_token(settings.user_agent_sent)
        self._hosts: dict[tuple[str, int], Host] = {}
        self._paces: dict[str, Pace] = {}
        self._hosts_at_most = HOSTS_KEPT
        self._rules: OrderedDict[str, tuple[float, Rules]] = OrderedDict()
        self._rules_bytes = 0
        self._asking_robots: dict[str, RobotsErrand] = {}
        self._calls = set[Call]()
        self._network = Network(OUTAGE_TIMEOUTS * settings.timeout_s, world.connects, lambda: self.schedule.wake())
        self.schedule = Schedule(
            self,
            budget=budget,
            network=self._network,
            slots=settings.threads,
            open_at_most=open_at_most,
            timeout_s=settings.timeout_s,
        )

    # Calls ------------------------------------------------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        """Take a call in."""
        self._calls.add(call)
        call.ends_s = self._loop.time() + call.lasts_s
        call.ends_s_at_most = call.ends_s + POLITE_S_AT_MOST
        call.timer = self._loop.call_at(call.ends_s, self._cut, call)
        for number, target in enumerate(call.targets):
            if isinstance(target, Target):
                call.left[number] = ImageErrand(call, number, target)
        for number, target in enumerate(call.targets):
            if not isinstance(target, Target):
                call.deliver(
                    Delivery(Response(number, None, DropReason.HTTP_REFUSED, None, target, ())), self._loop.call_soon
                )
        self._take_in(call, list(call.left.values()), 0)

    def drop(self, call: Call) -> None:
        """Nobody waits for the rest of a call."""
        self._calls.discard(call)
        if call.timer is not None:
            call.timer.cancel()
        for errand in list(call.left.values()):
            errand.is_ended = True
            if errand.task is not None:
                errand.task.cancel()
        call.left.clear()

    def defect(self, error: BaseException) -> None:
        """Tell everybody who waits for a response that none will come."""
        for call in list(self._calls):
            self.drop(call)
            call.deliver(Delivery(None, error=error), self._loop.call_soon)

    @property
    def unfinished(self) -> int:
        """Images that have no response yet."""
        return sum(len(call.left) for call in list(self._calls))

    def given_up(self) -> tuple[str, ...]:
        """Hosts that are not asked at the moment."""
        return tuple(host.name for host in list(self._hosts.values()) if host.is_given_up(self._loop.time()))

    async def close(self) -> None:
        """End everything that is under way."""
        await self.schedule.close()
        await self._network.close()

    def _take_in(self, call: Call, errands: list[ImageErrand], begin: int) -> None:
        try:
            for errand in errands[begin : begin + AT_ONCE]:
                if not errand.is_ended:
                    self._admit(errand)
        except Exception as error:
            self.defect(error)
        if begin + AT_ONCE < len(errands) and call in self._calls:
            self._loop.call_soon(self._take_in, call, errands, begin + AT_ONCE)

    def _cut(self, call: Call) -> None:
        """The time of a call is over."""
        now = self._loop.time()
        if call.is_fuse and self.schedule.is_busy:
            call.ends_s = now + FUSE_S
        if now < call.ends_s:
            call.timer = self._loop.call_at(call.ends_s, self._cut, call)
            return
        lasted_s = now - call.ends_s_at_most + POLITE_S_AT_MOST + call.lasts_s
        detail = f"not come within the unit's {lasted_s:,.{0 if lasted_s >= 10 else 1}f} s"
        for errand in list(call.left.values()):
            code = None
            if errand.request is not None:
                errand.spent_s += now - errand.asked_s
                code = errand.request.status
            if errand.task is not None:
                errand.task.cancel()
            self._end(errand, Trouble(DropReason.HTTP_TIMEOUT, detail, code))

    # Who may be asked -------------------------------------------------------------------------------------------------

    def _admit(self, errand: Errand, *, first: bool = False) -> None:
        """Let an errand wait for its host, if that may be asked."""
        target = errand.target
        if refusal := self._refusal(target):
            self._end(errand, Trouble(DropReason.HTTP_REFUSED, refusal))
            return
        host, now = self._host(target), self._loop.time()
        if trouble := _left_alone(host, errand, now):
            self._end(errand, trouble)
            return
        if isinstance(errand, ImageErrand) and self._settings.honour_robots:
            rules = self._rules_of(target, now)
            if rules is None:
                self._wait_for_rules(errand, first=first)
                return
            if rules.delay_s:
                host.slow_down(rules.delay_s)
                errand.call.wait_for(now + FUSE_S + len(host.waiting) * rules.delay_s)
            if not rules.allow(target.url):
                self._end(errand, Trouble(DropReason.HTTP_OPT_OUT, f"{target.robots.url} disallows it"))
                return
        self.schedule.put(host, errand, first=first)

    def _refusal(self, target: Target) -> str:
        """Why nothing may be asked of a target, as far as its URL says; empty where it may."""
        if self._domains.blocks(target.host):
            return f"{target.host} is of a blocked domain"
        if self._addresses.refuses_port(target.port):
            return f"port {target.port} of {target.host} may not be reached"
        if target.address and (refusal := self._addresses.refusal(target.address, target.port)):
            return f"{target.address}:{target.port} ({refusal}) may not be reached"
        return ""

    def _host(self, target: Target) -> Host:
        key = target.host, target.port
        host = self._hosts.get(key)
        if host is None:
            if len(self._hosts) >= self._hosts_at_most:
                now = self._loop.time()
                self._hosts = {key: host for key, host in self._hosts.items() if not host.is_forgettable(now)}
                self._paces = {key[0]: host.pace for key, host in self._hosts.items()}
                self._hosts_at_most = max(HOSTS_KEPT, 2 * len(self._hosts))
            at_once = self._settings.connections_per_host
            pace = self._paces.setdefault(target.host, Pace(1 / self._settings.requests_per_host_s, at_once))
            host = self._hosts[key] = Host(target.origin.partition("//")[2], pace, at_once)
        return host

    def _rules_of(self, target: Target, now: float) -> Rules | None:
        kept_until_s, rules = self._rules.get(target.origin, (0.0, None))
        if rules is None or now >= kept_until_s:
            return None
        self._rules.move_to_end(target.origin)
        return rules

    def _wait_for_rules(self, errand: ImageErrand, *, first: bool) -> None:
        origin = errand.target.origin
        asking = self._asking_robots.get(origin)
        if asking is None:
            asking = self._asking_robots[origin] = RobotsErrand(errand.target.robots)
            asking.waiting.append(errand)
            self._admit(asking, first=True)
        elif first:
            asking.waiting.insert(0, errand)
        else:
            asking.waiting.append(errand)

    # What requests bring ----------------------------------------------------------------------------------------------

    def request(self, errand: Errand, *, keeps_alive: bool) -> Request:
        """As the schedule asks."""
        errand.asked_s = self._loop.time()
        errand.began_s = errand.began_s or self._world.wall()
        if isinstance(errand, RobotsErrand):
            return Request(errand.target, bytes_at_most=robots.BYTES_AT_MOST, keeps_alive=True, is_cut=True)
        return Request(
            errand.target, bytes_at_most=self._settings.bytes_at_most, keeps_alive=keeps_alive, check=self._check
        )

    def _check(self, answer: Answer) -> None:
        """Refuse an image whose headers opt out."""
        if self._settings.honour_opt_out:
            header = robots.opt_out(answer.headers["x-robots-tag"], answer.headers["tdm-reservation"], self._token)
            if header:
                raise RequestError(DropReason.HTTP_OPT_OUT, header)

    def ask(self, request: Request) -> Awaitable[Answer]:
        """As the schedule asks."""
        return self._world.ask(request)

    async def ended(self, host: Host, errand: Errand, request: Request, brought: Brought) -> None:
        """As the schedule asks."""
        now = self._loop.time()
        if request.status is not None:
            host.is_known = True
            self._network.answered((request.address or "", request.target.port))
        if isinstance(brought, Answer):
            host.answered()
            self._answered(host, errand, request, brought)
            return
        trouble = Trouble(brought.reason, brought.detail, request.status)
        if brought.is_ours:
            self.schedule.ask_less()
            self._failed(host, errand, request, trouble, is_counted=False)
        elif brought.reason not in _NO_ANSWER:
            if request.status is not None:
                host.answered()
            self._failed(host, errand, request, trouble)
        elif errand.is_probe or not (brought.is_certain or await self._is_there(host)):
            if not errand.is_ended:
                trouble = Trouble(
                    trouble.reason, f"{trouble.detail}; not counted, for nobody could be reached", trouble.http_code
                )
                self._failed(host, errand, request, trouble, is_counted=False)
        elif not errand.is_ended:
            self._no_answer(host, errand, request, trouble, is_certain=brought.is_certain, now=now)

    async def _is_there(self, host: Host) -> bool:
        """Whether a host is to blame; as long as that is not known, it is not asked more than before."""
        host.unsettled += 1
        try:
            return await self._network.is_there()
        finally:
            host.unsettled -= 1
            self.schedule.again(host)

    def _no_answer(
        self, host: Host, errand: Errand, request: Request, trouble: Trouble, *, is_certain: bool, now: float
    ) -> None:
        is_given_up = host.failed(
            now, errand.asked_s, trouble, patience_s=0.9 * self._settings.timeout_s, is_certain=is_certain
        )
        self._failed(host, errand, request, trouble)
        if is_given_up:
            self._clear(host)

    def _answered(self, host: Host, errand: Errand, request: Request, answer: Answer) -> None:
        status, location = answer.status, answer.header("location")
        if status in REDIRECTS and location:
            self._redirected(host, errand, request, answer, location)
        elif isinstance(errand, RobotsErrand) and status != 429 and status < 500:
            self._came(errand, Rules.parse(answer.body, self._token) if status == 200 else Rules())
        elif status == 200:
            self.schedule.came(len(answer.body))
            self._end(errand, None, answer.body, request)
        else:
            trouble = Trouble(DropReason.HTTP_STATUS, f"status {status}", status)
            wait_s = self._pause(host, errand, answer, trouble) if status in (429, 503) else None
            self._failed(host, errand, request, trouble, wait_s=wait_s)

    def _redirected(self, host: Host, errand: Errand, request: Request, answer: Answer, location: str) -> None:
        """Go where an answer points, in the same try; to another host when that has its turn."""
        is_robots = isinstance(errand, RobotsErrand)
        trouble = None
        if errand.redirects >= (robots.REDIRECTS_AT_MOST if is_robots else REDIRECTS_AT_MOST):
            trouble = Trouble(DropReason.HTTP_STATUS, f"more than {errand.redirects} redirects", answer.status)
        else:
            try:
                errand.target = errand.target.joined(location)
            except TargetError as error:
                reason = DropReason.HTTP_REFUSED if error.is_of_scheme else DropReason.HTTP_STATUS
                trouble = Trouble(reason, f"redirect to {location[:200]!r}: {error}", answer.status)
        if trouble is None:
            errand.redirects += 1
            errand.redirect_code = answer.status
            self._admit(errand, first=True)
        elif isinstance(errand, RobotsErrand):
            self._came(errand, Rules())
        else:
            self._failed(host, errand, request, trouble)

    def _pause(self, host: Host, errand: Errand, answer: Answer, trouble: Trouble) -> float:
        """Leave a host alone that asks for it; seconds until the next try."""
        asked_s = retry_after_s(answer.header("retry-after"), answer.header("date"), self._world.wall())
        wait_s = backoff_s(errand.counted + 1, self._world.random) if asked_s is None else asked_s
        said = trouble.detail if asked_s is None else f"{trouble.detail}, Retry-After {asked_s:,.0f} s"
        host.pace.leave_alone(self._loop.time() + wait_s, Trouble(trouble.reason, said, trouble.http_code))
        self._clear(host)
        return wait_s

    def _failed(
        self,
        host: Host,
        errand: Errand,
        request: Request,
        trouble: Trouble,
        *,
        wait_s: float | None = None,
        is_counted: bool = True,
    ) -> None:
        """A try has ended without an image: another one later, or none."""
        errand.end_try(trouble.http_code, trouble.reason, trouble.detail, request)
        errand.counted += is_counted
        now = self._loop.time()
        at_s = now + (backoff_s(max(1, errand.counted), self._world.random) if wait_s is None else wait_s)
        is_again = trouble.reason in _AGAIN or trouble.http_code == 429 or 500 <= (trouble.http_code or 0) < 600
        if not is_counted or (
            is_again and errand.counted <= self._settings.retries and not host.is_given_up(now) and at_s < errand.ends_s
        ):
            errand.begin_anew()
            self.schedule.later(at_s, partial(self._again, errand))
        else:
            self._end(errand, trouble)

    def _again(self, errand: Errand) -> None:
        if not errand.is_ended:
            self._admit(errand)

    def _clear(self, host: Host) -> None:
        """End what waits for a host in vain."""
        now, waiting = self._loop.time(), list(host.waiting)
        host.waiting.clear()
        ending = [(errand, _left_alone(host, errand, now)) for errand in waiting]
        host.waiting.extend(errand for errand, trouble in ending if trouble is None)
        for errand, trouble in ending:
            if trouble is not None:
                self._end(errand, trouble)

    def _end(
        self, errand: Errand, trouble: Trouble | None, body: bytes | None = None, request: Request | None = None
    ) -> None:
        """Nothing more is to be done for an errand: hand over what it brought, or why it brought nothing."""
        if errand.is_ended:
            return
        errand.is_ended = True
        request = request or errand.request
        reason, detail, code = (trouble.reason, trouble.detail, trouble.http_code) if trouble else (None, "", 200)
        if errand.began_s:
            code = errand.redirect_code if request is None else code
            errand.end_try(code, reason, detail, request)
        if isinstance(errand, ImageErrand):
            call = errand.call
            del call.left[errand.number]
            call.deliver(
                Delivery(Response(errand.number, body, reason, code, detail, tuple(errand.tries)), len(body or b"")),
                self._loop.call_soon,
            )
            if not call.left:
                self.drop(call)
        elif (
            isinstance(errand, RobotsErrand)
            and trouble is not None
            and trouble.reason == DropReason.HTTP_REFUSED
            and errand.redirects
        ):
            self._came(errand, Rules())
        elif isinstance(errand, RobotsErrand) and trouble is not None:
            self._asking_robots.pop(errand.start.origin, None)
            for waiting in errand.waiting:
                self._end(waiting, Trouble(reason or trouble.reason, f"robots.txt: {detail}", code))

    def _came(self, errand: RobotsErrand, rules: Rules) -> None:
        """What a site forbids is known: those that have waited for it go on."""
        errand.is_ended = True
        origin = errand.start.origin
        _, before = self._rules.pop(origin, (0.0, Rules()))
        self._rules[origin] = self._loop.time() + robots.KEPT_S, rules
        self._rules_bytes += len(rules.text) - len(before.text)
        while len(self._rules) > 1 and (len(self._rules) > RULES_KEPT or self._rules_bytes > RULES_BYTES_KEPT):
            self._rules_bytes -= len(self._rules.popitem(last=False)[1][1].text)
        del self._asking_robots[origin]
        for waiting in errand.waiting:
            if not waiting.is_ended:
                self._admit(waiting)


def _left_alone(host: Host, errand: Errand, now: float) -> Trouble | None:
    """Why a host is not asked in time for an errand; None where it may be."""
    if host.is_given_up(now) and host.trouble is not None:
        return Trouble(
            host.trouble.reason,
            f"not asked: {host.name} was given up after {host.failures} failures in a row, the last: {host.trouble.detail}",
        )
    pause = host.pace.pause
    if pause is not None and host.pace.paused_until_s >= errand.ends_s:
        return Trouble(pause.reason, f"not asked: {host.name} wants to be left alone ({pause.detail})", pause.http_code)
    return None


def unit_deadline_s(settings: FetchSettings, hosts: list[str]) -> float:
    """Seconds that a call for these hosts (one a URL) may take, where `fetch.unit_deadline_s` does not say.

    It is no estimate but a fuse: all tries of all URLs run into their time, through as many slots as there are, and
    after that the largest host has its turn at half its pace. It does not blow while all slots are busy, as they are
    for hours where the network is slow.
    """
    tries, largest = settings.retries + 1, max(Counter(hosts).values(), default=0)
    return (
        FUSE_S
        + tries * settings.timeout_s * (3 + len(hosts) / settings.threads)
        + 2 * largest / settings.requests_per_host_s
    )
