"""Entries of `fetch.allow_addresses`: an address, a network, or an address with a port."""

import ipaddress
import re
from typing import NamedTuple

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_WITH_PORT = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<v4>[^:\[\]/]*)):(?P<port>[0-9]{1,5})")


class Allowed(NamedTuple):
    """What an entry opens: a network, and either one port or, where `port` is None, those of `fetch.ports`."""

    network: Network
    port: int | None


def allowed(entry: str) -> Allowed:
    """Parse `127.0.0.1`, `10.0.0.0/8`, `127.0.0.1:8080`, `::1`, `fd00::/8` or `[::1]:8080`; else ValueError."""
    with_port = _WITH_PORT.fullmatch(entry)
    try:
        if with_port is None:
            return Allowed(ipaddress.ip_network(entry), None)
        v4, v6, port = with_port["v4"], with_port["v6"], int(with_port["port"])
        address = ipaddress.IPv4Address(v4) if v6 is None else ipaddress.IPv6Address(v6)
        if not 1 <= port <= 65_535:
            raise ValueError(f"port {port}")
        return Allowed(ipaddress.ip_network(address), port)
    except ValueError as error:
        raise ValueError(f'{entry!r} is no address ({error}); give one as "10.0.0.0/8" or "127.0.0.1:8080"') from None
