"""Requests and answers: what scheduler and transport exchange. Data that does not depend on the HTTP library."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from altalign.data.reasons import DropReason
from altalign.pipelines.web.http.target import Target
from altalign.pipelines.web.policy.robots import OPT_OUTS
from altalign.pipelines.web.schedule.budget import Share

HEADERS_READ = ("location", "retry-after", "date", *OPT_OUTS)


class RequestError(Exception):
    """A request that brought nothing.

    Attributes:
        reason: the drop reason, unless another try brings an answer.
        detail: one line for people.
        is_certain: whether there is no such name, so that asking again soon is of no use.
        is_ours: whether this machine is to blame (no more files or memory), not the host.
    """

    def __init__(self, reason: DropReason, detail: str, *, is_certain: bool = False, is_ours: bool = False):
        super().__init__(detail)
        self.reason, self.detail, self.is_certain, self.is_ours = reason, one_line(detail), is_certain, is_ours


def one_line(text: str) -> str:
    """Makes one printable line of at most 300 characters from text that may come from a server."""
    line = " ".join(text[:1_000].split())[:300]
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)


class Answer(NamedTuple):
    """What a server answered.

    Attributes:
        status: the status code.
        body: the decoded body; empty unless the status is 200.
        headers: the values of each header in `HEADERS_READ`.
    """

    status: int
    body: bytes
    headers: dict[str, list[str]]

    def header(self, name: str) -> str:
        """The first value of a header; empty if there is none."""
        return next(iter(self.headers[name]), "")


@dataclass(slots=True, eq=False)
class Request:
    """One request, and how far it has come.

    Attributes:
        target: the URL.
        bytes_at_most: the largest decoded body.
        keeps_alive: whether it may be made on a kept connection, which is kept again; False: on one of its own.
        is_cut: whether a larger body is cut; otherwise it is `http_too_large`.
        check: inspects an answer of status 200 before its body is read; may raise `RequestError`.
        address: the address that was connected to, or tried last.
        status: the status code; None before the answer.
        bytes: how many bytes of the body have arrived, before decoding.
        is_held_up: whether it waits for this machine: for room for its body, or for a lookup that has not begun.
        share: its share of the budget; the schedule ends it.
    """

    target: Target
    bytes_at_most: int
    keeps_alive: bool
    is_cut: bool = False
    check: Callable[[Answer], None] = lambda _: None
    address: str | None = None
    status: int | None = None
    bytes: int = 0
    is_held_up: bool = False
    share: Share = field(default_factory=Share)

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """While this machine is to blame for a wait."""
        self.is_held_up = True
        try:
            yield
        finally:
            self.is_held_up = False
