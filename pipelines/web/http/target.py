"""What is asked: a URL as WHATWG parses it, without credentials and fragment. Pure."""

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote_from_bytes

import ada_url

_ASCII = "".join(map(chr, range(0x80)))
_PORTS = {"http:": 80, "https:": 443}


class TargetError(ValueError):
    """No URL of http or https."""

    def __init__(self, said: str, *, is_of_scheme: bool = False):
        super().__init__(said)
        self.is_of_scheme = is_of_scheme


@dataclass(frozen=True)
class Target:
    """A URL of http or https.

    Attributes:
        url: serialised; what is sent.
        origin: scheme, host and port as a URL without a path.
        host: a name in lower case and Punycode without a final dot, or an address (IPv6 in brackets).
        port: of TCP.
    """

    url: str
    origin: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Read a URL.

        Raises:
            TargetError: it is none, or of another scheme.
        """
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
        return cls(
            parsed.href.partition("#")[0], f"{protocol}//{parsed.host}", host, int(parsed.port or _PORTS[protocol])
        )

    def joined(self, location: str) -> "Target":
        """Where a redirect from here leads. Bytes beyond ASCII are asked for as they came, as browsers do.

        Raises:
            TargetError: no URL, or one of another scheme.
        """
        sent = location.encode("utf-8", "surrogateescape")  # as headers are decoded
        try:
            return Target.parse(ada_url.join_url(self.url, quote_from_bytes(sent, safe=_ASCII)))
        except TargetError:
            raise
        except ValueError:
            raise TargetError("no URL") from None

    @cached_property
    def robots(self) -> "Target":
        """The robots.txt of its origin."""
        return Target(f"{self.origin}/robots.txt", self.origin, self.host, self.port)

    @property
    def address(self) -> str:
        """Its host where that is an address; empty where it is a name, which no number ends."""
        if self.host.startswith("["):
            return self.host[1:-1]
        return self.host if self.host[-1].isdecimal() and self.host.replace(".", "").isdecimal() else ""
