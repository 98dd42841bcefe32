"""A request and what it brings: what the scheduler and the transport say to each other. Data, without the HTTP library."""

from collections.abc import Callable
from typing import NamedTuple

from altalign.pipelines.web.asking.budget import Share
from altalign.pipelines.web.http.target import Target
from altalign.reasons import DropReason

HEADERS_READ = ("location", "retry-after", "date", "x-robots-tag", "tdm-reservation")


class RequestError(Exception):
    """A request that brought nothing.

    Attributes:
        reason: the drop reason, if it stays so.
        detail: one line for people.
        is_certain: there is no such name; asking again soon would bring the same.
        is_ours: this machine has no more files or memory; the host is not to blame.
    """

    def __init__(self, reason: DropReason, detail: str, *, is_certain: bool = False, is_ours: bool = False):
        super().__init__(detail)
        self.reason, self.detail, self.is_certain, self.is_ours = reason, one_line(detail), is_certain, is_ours


def one_line(text: str) -> str:
    """Text that may hold what a server said, as one printable line of a bearable length."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in " ".join(text[:1_000].split())
    )[:300]


class Answer(NamedTuple):
    """What a server answered.

    Attributes:
        body: without content encodings; empty where the status is not 200.
        headers: those that are read, in lower case; each with its values.
    """

    status: int
    body: bytes
    headers: dict[str, list[str]]

    def header(self, name: str) -> str:
        """The first value of a header; empty where there is none."""
        return next(iter(self.headers[name]), "")


class Request:
    """One request, and how far it has come.

    Attributes:
        address: connected to, or last tried.
        status: None before the answer.
        bytes: of the body, as sent.
        is_fresh: over a connection of its own making.
        wants_fresh: it is to be, for one that was kept has lost it.
        share: of the budget; who made the request ends it.
    """

    __slots__ = (
        "address",
        "bytes",
        "bytes_at_most",
        "check",
        "is_cut",
        "is_fresh",
        "keeps_alive",
        "on_wait",
        "share",
        "status",
        "target",
        "wants_fresh",
    )

    def __init__(
        self,
        target: Target,
        *,
        bytes_at_most: int,
        keeps_alive: bool,
        is_cut: bool = False,
        check: Callable[[Answer], None] = lambda _: None,
        on_wait: Callable[..., None] = lambda **_: None,
    ):
        """What is asked for, and how.

        Args:
            target: the URL.
            bytes_at_most: of the body, decoded.
            keeps_alive: the connection will be used again.
            is_cut: what is beyond `bytes_at_most` is left out; else it is `http_too_large`.
            check: looks at an answer of status 200 before its body is read; may raise `RequestError`.
            on_wait: told when waiting for the budget begins (`begins=True`) and ends.
        """
        self.target, self.bytes_at_most, self.keeps_alive, self.is_cut, self.check, self.on_wait = (
            target,
            bytes_at_most,
            keeps_alive,
            is_cut,
            check,
            on_wait,
        )
        self.address: str | None = None
        self.status: int | None = None
        self.bytes, self.is_fresh, self.wants_fresh, self.share = 0, False, False, Share()
