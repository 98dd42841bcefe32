"""Carries out calls: robots.txt, opt-outs, redirects and retries, until every URL of a call has its response."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from altalign.data.reasons import DropReason
from altalign.filters.blocked import BlockList
from altalign.filters.reservations import Listener, tdmrep
from altalign.filters.reservations.robots_txt import BYTES_AT_MOST, Robots
from altalign.filters.reservations.tdmrep import Reservations
from altalign.pipelines.run.domains import Domains
from altalign.pipelines.web import robots
from altalign.pipelines.web.addresses import Addresses
from altalign.pipelines.web.calls import Answer, Call, Fetch, Request, Response, Target, TargetError, Trouble, utc_now
from altalign.pipelines.web.hosts import Host, Hosts, Network, backoff_s, connects, retry_after_s
from altalign.pipelines.web.robots import KeptRules, Rules
from altalign.pipelines.web.schedule import Budget, Schedule
from altalign.settings.curate import FetchSettings

REDIRECTS = frozenset({301, 302, 303, 307, 308})
REDIRECTS_AT_MOST = 10
EXTENDED_S = 60.0  # how much longer a call may take while the network or this machine is the bottleneck
RULES_LAST_S = 60.0  # how long a robots.txt is waited for at least, whoever asked first
NO_RULES_S = 300.0  # how long a site is not asked again for a robots.txt that it did not give

_NO_ANSWER = frozenset({DropReason.HTTP_TIMEOUT, DropReason.HTTP_UNREACHABLE})
_AGAIN = _NO_ANSWER | {DropReason.HTTP_BROKEN}


class Fetching:
    """Keeps the calls under way, the hosts, and the rules of robots.txt files; belongs to one loop."""

    def __init__(
        self,
        settings: FetchSettings,
        ask: Callable[[Request], Awaitable[Answer]],
        *,
        blocked_urls: BlockList,
        domains: Domains,
        addresses: Addresses,
        budget: Budget,
        open_at_most: int,
    ):
        """Must be called in the loop. `ask` makes a request; at most `open_at_most` are under way."""
        self._settings, self._domains, self._addresses = settings, domains, addresses
        self._wall, self._draw = time.time, random.random
        self._blocked_urls, self._loop = blocked_urls, asyncio.get_running_loop()
        self._listener = Listener.of(settings)
        self._hosts = Hosts(settings.connections_per_host, settings.requests_per_host_s)
        self._rules, self._robots = KeptRules(), dict[str, asyncio.Task[Rules]]()
        self._no_rules = dict[str, tuple[float, Trouble]]()  # by origin: until when, and why
        self._calls, self._workers = set[Call](), set[asyncio.Task[None]]()
        self.schedule = Schedule(settings, ask, budget, open_at_most)
        self._network = Network(connects, self.schedule.pause)

    # Calls ------------------------------------------------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        """Begins a call."""
        self._calls.add(call)
        call.ends_s = self._loop.time() + call.lasts_s
        call.timer = self._loop.call_at(call.ends_s, self._cut, call)
        for number, target in enumerate(call.targets):
            if isinstance(target, Target):
                call.left[number] = Fetch(call, target, number)
            else:
                call.deliver(Response(number, None, DropReason.HTTP_REFUSED, None, target, ()))
        for fetch in call.left.values():
            fetch.worker = self._loop.create_task(self._fetch(fetch))
            self._workers.add(fetch.worker)
            fetch.worker.add_done_callback(self._workers.discard)

    def drop(self, call: Call) -> None:
        """Drops the rest of a call, which no caller waits for."""
        self._calls.discard(call)
        if call.timer is not None:
            call.timer.cancel()
        for fetch in call.left.values():
            fetch.cancel()
        call.left.clear()

    def defect(self, error: BaseException) -> None:
        """Tells all callers that no response will come."""
        for call in list(self._calls):
            self.drop(call)
            call.deliver(error)

    async def close(self) -> None:
        """Ends everything that is under way."""
        self.schedule.close()
        while workers := [*self._workers, *self._robots.values()]:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await asyncio.sleep(0)  # what takes them off the list runs in the next turn
        await self._network.close()

    def _cut(self, call: Call) -> None:
        """Ends the rest of a call whose time is over, unless the network or this machine is the bottleneck."""
        if self.schedule.is_busy:
            call.lasts_s += EXTENDED_S
            call.ends_s += EXTENDED_S
            call.timer = self._loop.call_at(call.ends_s, self._cut, call)
            return
        detail = f"not come within the unit's {call.lasts_s:,.{0 if call.lasts_s >= 10 else 1}f} s"
        for fetch in list(call.left.values()):
            if request := self.schedule.under_way.get(fetch):
                fetch.spent_s += self._loop.time() - request.begin_s - request.held_s
            status = fetch.request.status if fetch.request else None
            trouble = Trouble(fetch.reason(DropReason.HTTP_TIMEOUT), detail, status)
            fetch.end_try(trouble)
            self._respond(fetch, trouble)
            fetch.cancel()

    async def _fetch(self, fetch: Fetch) -> None:
        try:
            self._respond(fetch, None, (await self._tries(fetch)).body)
        except Trouble as trouble:
            self._respond(fetch, trouble)
        except Exception as error:
            self.defect(error)

    def _respond(self, fetch: Fetch, trouble: Trouble | None, body: bytes | None = None) -> None:
        call = fetch.call
        if call.left.pop(fetch.number, None) is None:
            return
        reason, detail, code = (trouble.reason, trouble.detail, trouble.http_code) if trouble else (None, "", 200)
        said = None if fetch.said is None else tuple(dict.fromkeys(fetch.said))
        call.deliver(Response(fetch.number, body, reason, code, detail, tuple(fetch.tries), said))
        if not call.left:
            self.drop(call)

    # Tries ------------------------------------------------------------------------------------------------------------

    async def _tries(self, fetch: Fetch) -> Answer:
        """Tries until an answer comes; the trouble of the last try where none is left."""
        while True:
            try:
                answer = await self._try(fetch)
            except Trouble as trouble:
                fetch.end_try(trouble)
                fetch.counted += trouble.is_counted
                wait_s = trouble.wait_s
                if wait_s is None:
                    wait_s = backoff_s(max(1, fetch.counted), self._draw)
                is_last = trouble.is_final or fetch.counted > self._settings.retries
                if trouble.is_counted and (is_last or self._loop.time() + wait_s >= fetch.call.ends_s):
                    raise
            else:
                fetch.end_try(None)
                return answer
            await asyncio.sleep(wait_s)

    async def _try(self, fetch: Fetch) -> Answer:
        """One try, with its redirects."""
        fetch.said = None
        while True:
            host = await self._admitted(fetch)
            answer = await self._ask(host, fetch)
            status, location, now = answer.status, answer.header("location"), self._loop.time()
            if status in REDIRECTS and location:
                self._follow(fetch, status, location)
                continue
            if status == 200 or (fetch.is_robots and status != 429 and status < 500):
                return answer
            is_final = status != 429 and not 500 <= status < 600
            trouble = Trouble(DropReason.HTTP_STATUS, f"status {status}", status, is_final=is_final)
            if status in (429, 503):  # the host asks for a pause
                asked_s = retry_after_s(answer.header("retry-after"), answer.header("date"), self._wall())
                trouble.wait_s = backoff_s(fetch.counted + 1, self._draw) if asked_s is None else asked_s
                after = "" if asked_s is None else f", Retry-After {asked_s:,.0f} s"
                host.pace.leave_alone(now + trouble.wait_s, replace(trouble, detail=f"{trouble.detail}{after}"))
                host.turn_away(now)
            raise trouble

    async def _admitted(self, fetch: Fetch) -> Host:
        """The host of the target, once it is known that it may be asked."""
        target, refusal = fetch.target, ""
        if self._domains.blocks(target.host):
            refusal = f"{target.host} is of a blocked domain (fetch.blocked_domains)"
        elif self._addresses.refuses_port(target.port):
            refusal = f"port {target.port} of {target.host} may not be reached (fetch.ports, fetch.allow_addresses)"
        elif target.address and (why := self._addresses.refusal(target.address, target.port)):
            refusal = f"{target.address}:{target.port} ({why}) may not be reached (fetch.allow_addresses)"
        if refusal:
            raise Trouble(DropReason.HTTP_REFUSED, refusal, is_final=True, leads_nowhere=fetch.redirects > 0)
        host = self._hosts.get(target, self._loop.time())
        if trouble := host.left_alone(fetch, self._loop.time()):
            raise trouble
        if self._settings.honour_robots and not fetch.is_robots:
            rules = self._rules.get(target.origin, self._loop.time()) or await self._rules_of(fetch)
            host = self._hosts.get(target, self._loop.time())  # it may have been forgotten meanwhile
            if rules.robots.delay_s > host.pace.interval_s:  # a Crawl-delay: one request at a time
                host.pace.interval_s = rules.robots.delay_s
                host.pace.at_once = host.connections_at_most = 1
            self._check(fetch, rules)
            if trouble := host.left_alone(fetch, self._loop.time()):
                raise trouble
        return host

    def _check(self, fetch: Fetch, rules: Rules) -> None:
        """Notes what the files of a site say of the target; a Trouble where robots.txt is against it."""
        target, said = fetch.target, rules.said(fetch.target.url)
        fetch.said = [*(fetch.said or ()), *said]
        if not rules.robots.allows(target.url):
            raise Trouble(DropReason.OPT_OUT_ROBOTS_TXT, f"{target.robots.url} forbids it", is_final=True)
        # a header of the image may supersede tdmrep.json
        final = [each for each in said if each.where != "tdmrep.json"]
        if trouble := robots.objection(final, self._listener):
            raise trouble

    def _follow(self, fetch: Fetch, status: int, location: str) -> None:
        """Goes on with the target of a redirect, unless it leads nowhere or is one too many."""
        reason, detail, target = DropReason.HTTP_STATUS, "", fetch.target
        if fetch.redirects >= (robots.REDIRECTS_AT_MOST if fetch.is_robots else REDIRECTS_AT_MOST):
            detail = f"more than {fetch.redirects} redirects"
        else:
            try:
                target = target.joined(location)
            except TargetError as error:
                reason = DropReason.HTTP_REFUSED if error.is_of_scheme else reason
                detail = f"redirect to {location[:200]!r}: {error}"
        if not detail and self._blocked_urls.names_url(target.url):
            reason, detail = DropReason.URL_BLOCKED, "redirect to a URL that a block list names"
        if detail:
            raise Trouble(reason, detail, status, is_final=True, leads_nowhere=True)
        fetch.target, fetch.redirects, fetch.redirect_code, fetch.request = target, fetch.redirects + 1, status, None

    # robots.txt and tdmrep.json ---------------------------------------------------------------------------------------

    async def _rules_of(self, fetch: Fetch) -> Rules:
        """The rules of the target's origin, asked for once for all that wait for them."""
        origin = fetch.target.origin
        until_s, trouble = self._no_rules.get(origin, (0.0, None))
        if trouble is not None and self._loop.time() < until_s:
            raise replace(trouble)

        def end(task: asyncio.Task[Rules]) -> None:
            del self._robots[origin]
            if not task.cancelled():
                task.exception()  # otherwise asyncio would complain if all that waited have left

        if (task := self._robots.get(origin)) is None:
            task = self._robots[origin] = self._loop.create_task(self._fetch_rules(fetch.target, fetch.call))
            task.add_done_callback(end)
        try:
            return await asyncio.shield(task)
        except Trouble as trouble:
            raise replace(trouble) from None

    async def _fetch_rules(self, site: Target, first: Call) -> Rules:
        call = Call((), first.lasts_s)  # of its own: whoever asked first may leave before others
        call.ends_s = max(first.ends_s, self._loop.time() + RULES_LAST_S)
        fetch, lines = Fetch(call, site.robots, is_robots=True, worker=asyncio.current_task()), Robots()
        try:
            answer = await self._tries(fetch)
            lines = Robots.parse(answer.body, self._listener.token) if answer.status == 200 else lines
        except Trouble as trouble:
            if not trouble.leads_nowhere:
                of_all = Trouble(trouble.reason, f"robots.txt: {trouble.detail}", trouble.http_code, is_final=True)
                if fetch.tries:
                    self._no_rules[site.origin] = self._loop.time() + NO_RULES_S, replace(of_all)
                if len(self._no_rules) > robots.RULES_KEPT:
                    del self._no_rules[next(iter(self._no_rules))]
                raise of_all from None
        rules = Rules(lines, await self._reservations(call, site, lines), utc_now())
        self._rules.keep(site.origin, rules, self._loop.time())
        return rules

    async def _reservations(self, call: Call, site: Target, lines: Robots) -> Reservations:
        """The tdmrep.json of a site. One that cannot be had is none: so the protocol has it, which few sites know."""
        target = site.file(tdmrep.PATH)
        if not lines.allows(target.url):
            return Reservations()
        # at most two tries, for the connection of the first may be gone
        counted = self._settings.retries - 1
        fetch = Fetch(call, target, is_robots=True, worker=asyncio.current_task(), counted=counted)
        try:
            answer = await self._tries(fetch)
        except Trouble:
            return Reservations()
        return Reservations.parse(answer.body) if answer.status == 200 else Reservations()

    # Requests ---------------------------------------------------------------------------------------------------------

    async def _ask(self, host: Host, fetch: Fetch) -> Answer:
        """Makes a request, and notes what it says of its host."""
        settings, answer, error = self._settings, None, None
        request = Request(
            fetch.target,
            bytes_at_most=BYTES_AT_MOST if fetch.is_robots else settings.bytes_at_most,
            is_robots=fetch.is_robots,
            # a kept connection may be gone, and each request counts: the last try does not rest on one
            keeps_alive=fetch.counted < settings.retries,
            listener=None if fetch.is_robots else self._listener,
            said=fetch.said,
        )
        try:
            answer = await self.schedule.ask(host, fetch, request)
        except Trouble as trouble:
            if fetch.request is not request:  # it was never made: the host turned it away
                raise
            error = trouble
        fetch.said = request.said
        if request.status is not None:
            host.is_known = True
            if error is None or error.reason not in _NO_ANSWER:  # headers alone may be old news
                self._network.answered(request.target.host, (request.address or "", request.target.port))
                host.answered(self._loop.time())
                self.schedule.list_host(host)  # perhaps it may be asked earlier now
        if answer is not None:
            return answer
        assert error is not None
        error.http_code = request.status
        if error.is_ours:
            self.schedule.note_shortage()
            raise replace(error, detail=f"{error.detail}; not counted", is_counted=False)
        is_given_up = error.reason in _NO_ANSWER and await self._is_given_up(host, request, error)
        error.is_final = is_given_up or error.reason not in _AGAIN
        error.leads_nowhere = error.reason is DropReason.HTTP_REFUSED and fetch.redirects > 0
        raise error

    async def _is_given_up(self, host: Host, request: Request, trouble: Trouble) -> bool:
        """Notes that a host has not answered, unless the network was gone; returns whether it is given up."""
        now = self._loop.time()
        if not trouble.is_certain:
            host.unsettled += 1  # until it is known whether the host is to blame, it gets fewer requests
            try:
                was_gone = await self._network.was_gone(trouble.detail)
            finally:
                host.unsettled -= 1
                self.schedule.list_host(host)
            if was_gone:
                detail = f"{trouble.detail}; not counted, for the network was gone"
                raise replace(trouble, detail=detail, is_counted=False)
        patience_s = 0.9 * self._settings.timeout_s
        return host.failed(now, request.begin_s, replace(trouble), patience_s=patience_s)  # without its traceback
