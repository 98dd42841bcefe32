"""What becomes of a URL: its tries, and the response or the reason why there is none."""

from dataclasses import dataclass

from altalign.reasons import DropReason


@dataclass(frozen=True, slots=True)
class Try:
    """One try of a URL, its redirects and body included; a line of `log/fetch/`.

    Attributes:
        url: what was asked for last: after redirects the target, else the URL itself.
        address: the address that was connected to, or would have been; None where it never came to that.
        started_s: when it began, seconds since 1970.
        seconds: how long it took, without the waiting for the host's turn between redirects.
        status: of the last answer; None where there was none.
        reason: None: it brought the image.
        detail: one line for people; empty where it brought the image.
        bytes: of the body, as far as it came.
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
    """What a URL brought in the end.

    Attributes:
        number: which of the URLs asked for.
        body: the image's bytes, content encodings taken off; None where it failed.
        reason: why it failed; None where it did not.
        http_code: status of the last answer; None where there was none.
        detail: of the failure, one line; what the last try says, or why there was none.
        tries: in order; none where nothing was asked (refused, opted out, a host that was given up, the unit's
        deadline).
    """

    number: int
    body: bytes | None
    reason: DropReason | None
    http_code: int | None
    detail: str
    tries: tuple[Try, ...]
