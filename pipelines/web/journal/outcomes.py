"""The outcome of a URL: its tries, and the response or the reason why there is none."""

from dataclasses import dataclass

from altalign.data.reasons import DropReason


@dataclass(frozen=True, slots=True)
class Try:
    """One try of a URL, including its redirects and body; a line of `log/fetch/`.

    Attributes:
        url: the URL asked for last: the target of redirects, or the URL itself.
        address: the address that was connected to, or would have been; None if it was never known.
        started_s: when it began, seconds since 1970.
        seconds: how long it took, without waiting for the turn of a host between redirects.
        status: the status of the last answer; None if there was none.
        reason: why it failed; None if it brought the image.
        detail: one line for people; empty if it brought the image.
        bytes: how many bytes of the body arrived.
    """

    url: str
    address: str | None
    started_s: float
    seconds: float
    status: int | None
    reason: DropReason | None
    detail: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Response:
    """The final result of a URL.

    Attributes:
        number: the position of the URL in the call.
        body: the decoded bytes of the image; None if it failed.
        reason: why it failed; None if it did not.
        http_code: the status of the last answer; None if there was none.
        detail: one line about the failure: what the last try says, or why there was none.
        tries: all tries in order; empty if nothing was asked (refused, opted out, host given up, deadline of the unit).
    """

    number: int
    body: bytes | None
    reason: DropReason | None
    http_code: int | None
    detail: str
    tries: tuple[Try, ...]
