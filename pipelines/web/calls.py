"""What is asked for and what comes of it: URLs, requests, tries, calls. Data alone; `fetching` carries it out."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import NamedTuple
from urllib.parse import quote_from_bytes

import ada_url

from altalign.data.reasons import DropReason
from altalign.filters.reservations import HEADERS, Listener, Said

HEADERS_READ = ("location", "retry-after", "date", *HEADERS)

_ASCII = "".join(map(chr, range(0x80)))
_PORTS = {"http:": 80, "https:": 443}


def utc_now() -> str:
    """The time as statements have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class TargetError(ValueError):
    """No URL of http or https."""

    def __init__(self, message: str, *, is_of_scheme: bool = False):
        super().__init__(message)
        self.is_of_scheme = is_of_scheme


@dataclass(frozen=True)
class Target:
    """A URL of http or https as WHATWG parses it, without credentials and fragment."""

    url: str  # serialised; what is sent
    origin: str  # scheme, host and port as a URL without a path
    host: str  # a name in lower case and Punycode without a final dot, or an address (IPv6 in brackets)
    port: int

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Reads a URL; a TargetError where it is none, or of another scheme."""
        try:
            parsed = ada_url.URL(url.encode("utf-8", "replace").decode())
        except ValueError:
            raise TargetError("no URL") from None
        protocol = parsed.protocol
        if protocol not in _PORTS:
            raise TargetError(f"scheme {protocol}", is_of_scheme=True)
        if "@" in url:
            parsed.username = parsed.password = ""
        host = parsed.hostname.rstrip(".")
        if not host:
            raise TargetError("no host")
        port = int(parsed.port or _PORTS[protocol])
        return cls(parsed.href.partition("#")[0], f"{protocol}//{parsed.host}", host, port)

    def joined(self, location: str) -> "Target":
        """Where a redirect from here leads. Bytes beyond ASCII are asked for as they came, as browsers do."""
        sent = location.encode("utf-8", "surrogateescape")  # as headers are decoded
        try:
            url = ada_url.join_url(self.url, quote_from_bytes(sent, safe=_ASCII))
        except ValueError:
            raise TargetError("no URL") from None
        return Target.parse(url)

    def file(self, path: str) -> "Target":
        """Another file of its origin."""
        return Target(f"{self.origin}{path}", self.origin, self.host, self.port)

    @property
    def robots(self) -> "Target":
        """The robots.txt of its origin."""
        return self.file("/robots.txt")

    @property
    def address(self) -> str:
        """Its host where that is an address; empty where it is a name, which no number ends."""
        if self.host.startswith("["):
            return self.host[1:-1]
        return self.host if self.host[-1].isdecimal() and self.host.replace(".", "").isdecimal() else ""


@dataclass(eq=False)
class Trouble(Exception):  # noqa: N818
    """Why a request or a try brought nothing, or why a host is not asked."""

    reason: DropReason  # the drop reason, unless another try brings an answer
    detail: str  # one printable line of at most 300 characters; a server may have written it
    http_code: int | None = None
    is_final: bool = False  # another try would bring the same
    wait_s: float | None = None  # until the next try; None: a random pause
    is_counted: bool = True  # as one of `fetch.retries`
    leads_nowhere: bool = False  # a redirect is at fault, to what may not or cannot be asked for
    is_certain: bool = False  # there is no such name, so that asking again soon is of no use
    is_ours: bool = False  # this machine is to blame (no more files or memory), not the host

    def __post_init__(self) -> None:
        line = " ".join(self.detail[:1_000].split())[:300]
        self.detail = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)


class Answer(NamedTuple):
    """Status, decoded body (empty unless the status is 200), and the values of each header in `HEADERS_READ`."""

    status: int
    body: bytes
    headers: dict[str, list[str]]

    def header(self, name: str) -> str:
        """The first value of a header; empty if there is none."""
        return next(iter(self.headers[name]), "")


@dataclass(slots=True, eq=False)
class Request:
    """One request, and how far it has come."""

    target: Target
    bytes_at_most: int  # of the decoded body
    keeps_alive: bool  # whether it may be made on a kept connection, which is kept again; False: on one of its own
    is_robots: bool = False  # a larger body is cut, an empty one is whole; otherwise it is `http_too_large`, or broken
    listener: Listener | None = None  # where headers may oppose its purpose
    said: list[Said] | None = None  # of the image so far; None: nobody looked
    address: str | None = None  # that was connected to, or tried last
    status: int | None = None  # None before the answer
    bytes: int = 0  # of the body that have arrived, before decoding
    waits: bool = False  # for this machine: for room for its body, or for a lookup's turn
    waits_with: Callable[[], bool] = lambda: False  # whether another request waits for the turn of a lookup they share
    share: int = 0  # bytes of the budget that its body holds
    # for the schedule
    begin_s: float = 0.0  # when it was made
    held_s: float = 0.0  # how long it waited for this machine
    holds_slot: bool = True  # one of `fetch.threads`
    seen: int = 0  # its progress when it last made some
    seen_s: float = 0.0  # and when that was
    is_overdue: bool = False  # it is being ended because its time is over

    @property
    def is_held_up(self) -> bool:
        """Whether it waits for this machine."""
        return self.waits or (self.address is None and self.waits_with())

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """While this machine is to blame for a wait."""
        self.waits = True
        try:
            yield
        finally:
            self.waits = False


@dataclass(frozen=True, slots=True)
class Try:
    """One try of a URL, including its redirects and body; a line of `log/fetch/`."""

    url: str  # that was asked for last: the target of redirects, or the URL itself
    address: str | None  # that was connected to, or would have been; None if it was never known
    started_s: float  # since 1970
    seconds: float  # without waiting for the turn of a host between redirects
    status: int | None  # of the last answer; None if there was none
    reason: DropReason | None  # None if it brought the image
    detail: str  # one line for people; empty if it brought the image
    bytes: int  # of the body that arrived


@dataclass(frozen=True, slots=True)
class Response:
    """What came of a URL."""

    number: int  # the position of the URL in the call
    body: bytes | None  # the decoded image; None if it failed
    reason: DropReason | None  # why it failed; None if it did not
    http_code: int | None  # the status of the last answer; None if there was none
    detail: str  # one line about the failure: what the last try says, or why there was none
    tries: tuple[Try, ...]  # empty if nothing was asked (refused, opted out, host given up, deadline of the unit)
    said: tuple[Said, ...] | None = None  # what headers, robots.txt and tdmrep.json say of it; None: nobody looked


class Call:
    """One call of `Client.fetch`: what it asks for, and where the responses go.

    Attributes:
        targets: one for each URL; a text that says why if the URL cannot be asked for.
        lasts_s, ends_s: how long the call may take, and when the loop ends what is left of it.
        left: the fetches of images without a response, by number; only the loop uses it.
        deliveries: lists of responses, read by the caller; an error says that no other response comes.
    """

    def __init__(self, urls: Sequence[str], lasts_s: float):
        self.targets = list[Target | str]()
        for url in urls:
            try:
                self.targets.append(Target.parse(url))
            except TargetError as error:
                self.targets.append(f"{error}: nothing that can be asked over HTTP")
        self.lasts_s, self.ends_s = lasts_s, float("inf")
        self.timer: asyncio.TimerHandle | None = None
        self.left: dict[int, Fetch] = {}
        self.deliveries: SimpleQueue[list[Response | BaseException]] = SimpleQueue()
        self._outgoing: list[Response | BaseException] = []

    def deliver(self, response: Response | BaseException) -> None:
        """Hands over a response. Those of one turn go together, for waking a thread stops the loop each time."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(response)

    def _flush(self) -> None:
        self.deliveries.put(self._outgoing)
        self._outgoing = []


@dataclass(slots=True, eq=False)
class Fetch:
    """The URL of an image or a robots.txt on its way, in one try or several."""

    call: Call  # that waits for it; of a robots.txt, one of its own
    start: Target
    number: int = -1  # of the image in the call
    is_robots: bool = False  # or another file of the site
    worker: "asyncio.Task[object] | None" = None  # that fetches it
    is_ended: bool = False  # its response is delivered, or not waited for any more
    tries: list[Try] = field(default_factory=list)  # that ended
    counted: int = 0  # how many of them count
    # of the current try
    target: Target = field(init=False)  # what to ask for next; redirects change it
    redirects: int = 0  # that it has followed
    redirect_code: int | None = None  # the status of the last
    request: Request | None = None  # the last one since a redirect; None before it is made
    said: list[Said] | None = None  # of its targets; kept after the last try
    began_s: float = 0.0  # since 1970
    spent_s: float = 0.0  # that its requests took

    def __post_init__(self) -> None:
        self.target = self.start

    def reason(self, reason: DropReason) -> DropReason:
        """A reason why it is not asked for; `http_not_asked` where no request for it was ever made."""
        return reason if self.tries or self.began_s else DropReason.HTTP_NOT_ASKED

    def cancel(self) -> None:
        """Ends it: nobody waits for it any more."""
        self.is_ended = True
        if self.worker is not None:
            self.worker.cancel()

    def end_try(self, trouble: Trouble | None) -> None:
        """Records the end of the current try, if it was begun; the trouble has the status that it ends with."""
        if self.began_s:
            request = self.request
            address, count = (request.address, request.bytes) if request else (None, 0)
            reason, detail, status = (trouble.reason, trouble.detail, trouble.http_code) if trouble else (None, "", 200)
            if not request:
                status = self.redirect_code
                if trouble:
                    trouble.http_code = status
            url = self.target.url
            self.tries.append(Try(url, address, self.began_s, self.spent_s, status, reason, detail, count))
        self.target, self.redirects, self.redirect_code, self.request = self.start, 0, None, None
        self.spent_s = self.began_s = 0.0
