"""Carries out calls: robots.txt, opt-outs, redirects and retries, until every URL of a call has its response."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from altalign.data.reasons import DropReason
from altalign.errors import AltalignError
from altalign.filters.blocked import BlockList
from altalign.pipelines.run.domains import Domains
from altalign.pipelines.web.http.request import Answer, Request, RequestError
from altalign.pipelines.web.http.target import Target, TargetError
from altalign.pipelines.web.journal.outcomes import Response
from altalign.pipelines.web.policy import robots
from altalign.pipelines.web.policy.addresses import Addresses
from altalign.pipelines.web.policy.robots import KeptRules, Rules
from altalign.pipelines.web.schedule import reachability
from altalign.pipelines.web.schedule.budget import Budget
from altalign.pipelines.web.schedule.hosts import Host, Hosts, Trouble, backoff_s, retry_after_s
from altalign.pipelines.web.schedule.reachability import Network, Reach
from altalign.pipelines.web.schedule.schedule import Outcome, Schedule
from altalign.pipelines.web.schedule.tasks import Call, Delivery, ImageTask, RobotsTask, Task
from altalign.settings.curate import FetchSettings

REDIRECTS = frozenset({301, 302, 303, 307, 308})
REDIRECTS_AT_MOST = 10
AT_ONCE = 256  # tasks admitted in one turn of the loop
EXTENDED_S = 60.0  # how much longer a call may take while the network or this machine is the bottleneck

_NO_ANSWER = frozenset({DropReason.HTTP_TIMEOUT, DropReason.HTTP_UNREACHABLE})
_AGAIN = _NO_ANSWER | {DropReason.HTTP_BROKEN}


@dataclass(frozen=True)
class Environment:
    """What is outside the loop; tests replace it.

    Attributes:
        ask: makes a request.
        connects: whether a connection to an address and port can be made.
        wall: returns the seconds since 1970.
        random: returns a number from 0 to 1.
    """

    ask: Callable[[Request], Awaitable[Answer]]
    connects: Callable[[reachability.Endpoint], Awaitable[bool]] = reachability.connects
    wall: Callable[[], float] = time.time
    random: Callable[[], float] = random.random


class Fetching:
    """Keeps the calls under way, the hosts, and the rules of robots.txt files; belongs to one loop."""

    def __init__(
        self,
        settings: FetchSettings,
        *,
        blocked_urls: BlockList,
        domains: Domains,
        addresses: Addresses,
        budget: Budget,
        environment: Environment,
        open_at_most: int,
    ):
        """Must be called in the loop.

        No redirect to one of `blocked_urls` is followed; `open_at_most` limits the requests that are under way.
        """
        self._settings, self._domains, self._addresses, self._environment = settings, domains, addresses, environment
        self._blocked_urls, self._loop = blocked_urls, asyncio.get_running_loop()
        self._token = robots.product_token(settings.user_agent_sent)
        self._hosts = Hosts(settings.connections_per_host, settings.requests_per_host_s)
        self._rules, self._robots_tasks = KeptRules(), dict[str, RobotsTask]()
        self._calls = set[Call]()
        self._network = Network(environment.connects)
        self.schedule = Schedule(
            self, budget=budget, slots=settings.threads, open_at_most=open_at_most, timeout_s=settings.timeout_s
        )

    # Calls ------------------------------------------------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        """Begins a call."""
        self._calls.add(call)
        call.ends_s = self._loop.time() + call.lasts_s
        call.timer = self._loop.call_at(call.ends_s, self._cut, call)
        for number, target in enumerate(call.targets):
            if isinstance(target, Target):
                call.left[number] = ImageTask(call, number, target)
            else:
                response = Response(number, None, DropReason.HTTP_REFUSED, None, target, ())
                call.deliver(Delivery(response), self._loop.call_soon)
        self._admit_all(call, list(call.left.values()), 0)

    def drop(self, call: Call) -> None:
        """Drops the rest of a call, which no caller waits for."""
        self._calls.discard(call)
        if call.timer is not None:
            call.timer.cancel()
        for task in list(call.left.values()):
            task.is_ended = True
            if task.worker is not None:
                task.worker.cancel()
        call.left.clear()

    def defect(self, error: BaseException) -> None:
        """Tells all callers that no response will come."""
        for call in list(self._calls):
            self.drop(call)
            call.deliver(Delivery(None, error=error), self._loop.call_soon)

    @property
    def unfinished(self) -> int:
        """How many images have no response yet."""
        return sum(len(call.left) for call in list(self._calls))

    def given_up(self) -> tuple[str, ...]:
        """The hosts that are given up at the moment."""
        return self._hosts.given_up(self._loop.time())

    async def close(self) -> None:
        """Ends everything that is under way."""
        await self.schedule.close()
        await self._network.close()

    def _admit_all(self, call: Call, tasks: list[ImageTask], begin: int) -> None:
        try:
            for task in tasks[begin : begin + AT_ONCE]:
                if not task.is_ended:
                    self._admit(task)
        except Exception as error:
            self.defect(error)
        if begin + AT_ONCE < len(tasks) and call in self._calls:
            self._loop.call_soon(self._admit_all, call, tasks, begin + AT_ONCE)

    def _cut(self, call: Call) -> None:
        """Ends the rest of a call whose time is over, unless the network or this machine is the bottleneck."""
        now = self._loop.time()
        if self.schedule.is_busy:
            call.lasts_s += EXTENDED_S
            call.ends_s = now + EXTENDED_S
            call.timer = self._loop.call_at(call.ends_s, self._cut, call)
            return
        detail = f"not come within the unit's {call.lasts_s:,.{0 if call.lasts_s >= 10 else 1}f} s"
        for task in list(call.left.values()):
            code = None
            if task.request is not None:
                task.spent_s += now - task.asked_s - task.held_s
                code = task.request.status
            if task.worker is not None:
                task.worker.cancel()
            self._end(task, Trouble(_or_not_asked(task, DropReason.HTTP_TIMEOUT), detail, code))

    # Who may be asked -------------------------------------------------------------------------------------------------

    def _admit(self, task: Task, *, first: bool = False) -> None:
        """Queues a task at its host if the host may be asked; ends it otherwise."""
        target = task.target
        if refusal := self._refusal(target):
            self._end(task, Trouble(DropReason.HTTP_REFUSED, refusal))
            return
        now = self._loop.time()
        host = self._hosts.of(target, now)
        if trouble := _left_alone(host, task, now):
            self._end(task, trouble)
            return
        if isinstance(task, ImageTask) and self._settings.honour_robots:
            rules = self._rules.of(target.origin, now)
            if rules is None:
                self._wait_for_rules(task, first=first)
                return
            if rules.delay_s:
                host.slow_down(rules.delay_s)
            if rule := rules.against(target.url):
                self._end(task, Trouble(DropReason.HTTP_OPT_OUT, f"{target.robots.url} forbids it ({rule})"))
                return
        self.schedule.put(host, task, first=first)

    def _refusal(self, target: Target) -> str:
        """Why a target may not be asked, as far as its URL tells; empty if it may."""
        if self._domains.blocks(target.host):
            return f"{target.host} is of a blocked domain (fetch.blocked_domains)"
        if self._addresses.refuses_port(target.port):
            return f"port {target.port} of {target.host} may not be reached (fetch.ports, fetch.allow_addresses)"
        if target.address and (refusal := self._addresses.refusal(target.address, target.port)):
            return f"{target.address}:{target.port} ({refusal}) may not be reached (fetch.allow_addresses)"
        return ""

    def _wait_for_rules(self, task: ImageTask, *, first: bool) -> None:
        origin = task.target.origin
        robots_task = self._robots_tasks.get(origin)
        if robots_task is None:
            robots_task = self._robots_tasks[origin] = RobotsTask(task.target.robots)
            robots_task.waiting.append(task)
            self._admit(robots_task, first=True)
        elif first:
            robots_task.waiting.insert(0, task)
        else:
            robots_task.waiting.append(task)

    # What requests bring ----------------------------------------------------------------------------------------------

    @property
    def may_ask(self) -> bool:
        """Whether the network seems to be there, as `Requester` says."""
        return not self._network.is_in_doubt

    def request(self, task: Task, *, keeps_alive: bool) -> Request:
        """The next request of a task, as `Requester` says."""
        task.began_s = task.began_s or self._environment.wall()
        # a kept connection may be gone, and each request counts: the last try does not rest on one
        retries = self._settings.retries
        make = partial(Request, task.target, needs_new_connection=task.counted >= retries)
        if isinstance(task, RobotsTask):
            return make(bytes_at_most=robots.BYTES_AT_MOST, keeps_alive=retries > 0, is_cut=True)
        keeps_alive &= retries > 0
        return make(bytes_at_most=self._settings.bytes_at_most, keeps_alive=keeps_alive, check=self._check)

    def _check(self, answer: Answer) -> None:
        """Refuses an image whose headers opt out."""
        if self._settings.honour_opt_out and (header := robots.opt_out(answer.headers, self._token)):
            raise RequestError(DropReason.HTTP_OPT_OUT, header)

    def ask(self, request: Request) -> Awaitable[Answer]:
        """Makes a request, as `Requester` says."""
        return self._environment.ask(request)

    async def ended(self, host: Host, task: Task, request: Request, outcome: Outcome) -> None:
        """Handles the end of a request, as `Requester` says."""
        now = self._loop.time()
        if request.status is not None:
            self._network.answered((request.address or "", request.target.port))
            host.is_known = True
        if isinstance(outcome, Answer):
            host.answered(now)
            self._answered(host, task, request, outcome)
            return
        trouble = Trouble(outcome.reason, outcome.detail, request.status)
        if outcome.is_ours:
            self.schedule.ask_less()
            self._failed(host, task, request, trouble, is_counted=False)
            return
        if outcome.reason not in _NO_ANSWER:
            if request.status is not None:
                host.answered(now)
            self._failed(host, task, request, trouble)
            return
        reach = Reach.THERE if outcome.is_certain else await self._reach(host)
        if reach is Reach.GONE:
            self.defect(
                AltalignError(
                    f"the network is gone: {trouble.detail}, and hosts that answered before cannot be connected to; "
                    "run the same command again when it is back, it goes on where it stopped"
                )
            )
        if task.is_ended:
            return
        if reach is Reach.BACK:
            trouble = replace(trouble, detail=f"{trouble.detail}; not counted, for the network was gone")
            self._failed(host, task, request, trouble, is_counted=False)
            return
        patience_s = 0.9 * self._settings.timeout_s
        is_given_up = host.failed(now, task.asked_s, trouble, patience_s=patience_s, is_certain=outcome.is_certain)
        self._failed(host, task, request, trouble)
        if is_given_up:
            self._clear(host)

    async def _reach(self, host: Host) -> Reach:
        """Whether the network is there, so the host is to blame. Until that is known, it gets fewer requests."""
        host.unsettled += 1
        try:
            return await self._network.reach()
        finally:
            host.unsettled -= 1
            self.schedule.wake()

    def _answered(self, host: Host, task: Task, request: Request, answer: Answer) -> None:
        status, location = answer.status, answer.header("location")
        if status in REDIRECTS and location:
            self._redirected(host, task, request, answer, location)
        elif isinstance(task, RobotsTask) and status != 429 and status < 500:
            self._keep_rules(task, Rules.parse(answer.body, self._token) if status == 200 else Rules())
        elif status == 200:
            self.schedule.body_came(len(answer.body))
            self._end(task, None, answer.body, request)
        else:
            trouble = Trouble(DropReason.HTTP_STATUS, f"status {status}", status)
            wait_s = self._pause(host, task, answer, trouble) if status in (429, 503) else None
            self._failed(host, task, request, trouble, wait_s=wait_s)

    def _redirected(self, host: Host, task: Task, request: Request, answer: Answer, location: str) -> None:
        """Follows a redirect in the same try; another host is asked when its turn comes."""
        is_robots = isinstance(task, RobotsTask)
        trouble = None
        if task.redirects >= (robots.REDIRECTS_AT_MOST if is_robots else REDIRECTS_AT_MOST):
            trouble = Trouble(DropReason.HTTP_STATUS, f"more than {task.redirects} redirects", answer.status)
        else:
            try:
                task.target = task.target.joined(location)
            except TargetError as error:
                reason = DropReason.HTTP_REFUSED if error.is_of_scheme else DropReason.HTTP_STATUS
                trouble = Trouble(reason, f"redirect to {location[:200]!r}: {error}", answer.status)
        if self._blocked_urls.names_url(task.target.url):
            trouble = Trouble(DropReason.URL_BLOCKED, "redirect to a URL that a block list names", answer.status)
        if trouble is None:
            task.redirects += 1
            task.redirect_code = answer.status
            self._admit(task, first=True)
        elif isinstance(task, RobotsTask):
            self._keep_rules(task, Rules())
        else:
            self._failed(host, task, request, trouble)

    def _pause(self, host: Host, task: Task, answer: Answer, trouble: Trouble) -> float:
        """Pauses a host that asks for it; returns the seconds until the next try."""
        asked_s = retry_after_s(answer.header("retry-after"), answer.header("date"), self._environment.wall())
        wait_s = backoff_s(task.counted + 1, self._environment.random) if asked_s is None else asked_s
        detail = trouble.detail if asked_s is None else f"{trouble.detail}, Retry-After {asked_s:,.0f} s"
        host.pace.leave_alone(self._loop.time() + wait_s, Trouble(trouble.reason, detail, trouble.http_code))
        self._clear(host)
        return wait_s

    def _failed(
        self,
        host: Host,
        task: Task,
        request: Request,
        trouble: Trouble,
        *,
        wait_s: float | None = None,
        is_counted: bool = True,
    ) -> None:
        """Handles a try that ended without an image: schedules another one, or ends the task."""
        task.end_try(trouble.http_code, trouble.reason, trouble.detail, request)
        task.counted += is_counted
        now = self._loop.time()
        at_s = now + (backoff_s(max(1, task.counted), self._environment.random) if wait_s is None else wait_s)
        is_again = trouble.reason in _AGAIN or trouble.http_code == 429 or 500 <= (trouble.http_code or 0) < 600
        if not is_counted or (
            is_again and task.counted <= self._settings.retries and not host.is_given_up(now) and at_s < task.ends_s
        ):
            task.begin_again()
            self.schedule.later(at_s, partial(self._again, task))
        else:
            self._end(task, trouble)

    def _again(self, task: Task) -> None:
        if not task.is_ended:
            self._admit(task)

    def _clear(self, host: Host) -> None:
        """Ends the tasks that wait for a host in vain."""
        now = self._loop.time()
        for waiting in (host.waiting, host.waiting_again):
            tasks = [(task, _left_alone(host, task, now)) for task in waiting]
            waiting.clear()
            waiting.extend(task for task, trouble in tasks if trouble is None)
            for task, trouble in tasks:
                if trouble is not None:
                    self._end(task, trouble)

    def _end(
        self, task: Task, trouble: Trouble | None, body: bytes | None = None, request: Request | None = None
    ) -> None:
        """Ends a task: hands over what it brought, or the reason why it brought nothing."""
        if task.is_ended:
            return
        task.is_ended = True
        request = request or task.request
        reason, detail, code = (trouble.reason, trouble.detail, trouble.http_code) if trouble else (None, "", 200)
        if task.began_s:
            code = task.redirect_code if request is None else code
            task.end_try(code, reason, detail, request)
        if isinstance(task, ImageTask):
            call = task.call
            del call.left[task.number]
            response = Response(task.number, body, reason, code, detail, tuple(task.tries))
            call.deliver(Delivery(response, len(body or b"")), self._loop.call_soon)
            if not call.left:
                self.drop(call)
        elif isinstance(task, RobotsTask) and trouble is not None:
            if trouble.reason is DropReason.HTTP_REFUSED and task.redirects:
                self._keep_rules(task, Rules())
                return
            self._robots_tasks.pop(task.start.origin, None)
            for waiting in task.waiting:
                self._end(waiting, Trouble(trouble.reason, f"robots.txt: {detail}", code))

    def _keep_rules(self, task: RobotsTask, rules: Rules) -> None:
        """Keeps the rules of a site and admits the tasks that waited for them."""
        task.is_ended = True
        origin = task.start.origin
        self._rules.keep(origin, rules, self._loop.time())
        del self._robots_tasks[origin]
        for waiting in task.waiting:
            if not waiting.is_ended:
                self._admit(waiting)


def _left_alone(host: Host, task: Task, now: float) -> Trouble | None:
    """Why a host cannot be asked in time for a task; None if it can."""
    if host.is_given_up(now) and host.trouble is not None:
        detail = f"{host.name} was given up after {host.failures} failures in a row, the last: {host.trouble.detail}"
        return Trouble(_or_not_asked(task, host.trouble.reason), detail)
    pause = host.pace.pause
    if pause is not None and host.pace.paused_until_s >= task.ends_s:
        detail = f"{host.name} asks to be left alone ({pause.detail})"
        return Trouble(_or_not_asked(task, pause.reason), detail, pause.http_code)
    return None


def _or_not_asked(task: Task, reason: DropReason) -> DropReason:
    """This reason; but `http_not_asked` of a task that has not been asked for once."""
    return reason if task.tries or task.began_s else DropReason.HTTP_NOT_ASKED
