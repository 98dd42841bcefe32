"""Entries of `fetch.allow_addresses`: an address, a network, or an address with a port."""

import ipaddress
import re
from typing import NamedTuple

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_WITH_PORT = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<v4>[^:\[\]/]*)):(?P<port>[0-9]{1,5})")


class Allowed(NamedTuple):
    """What an entry opens: a network, and one port of it, or those of `fetch.ports` (None)."""

    network: Network
    port: int | None


def allowed(entry: str) -> Allowed:
    """`127.0.0.1`, `10.0.0.0/8`, `127.0.0.1:8080`, `::1`, `fd00::/8` or `[::1]:8080`.

    Raises:
        ValueError: it is none of these.
    """
    with_port = _WITH_PORT.fullmatch(entry)
    try:
        if with_port is None:
            return Allowed(ipaddress.ip_network(entry), None)
        address = (
            ipaddress.IPv4Address(with_port["v4"])
            if with_port["v6"] is None
            else ipaddress.IPv6Address(with_port["v6"])
        )
        if not 1 <= int(with_port["port"]) <= 65_535:
            raise ValueError(f"port {with_port['port']}")
        return Allowed(ipaddress.ip_network(address), int(with_port["port"]))
    except ValueError:
        raise ValueError(f"{entry!r} is no address; give {_hint(entry)}") from None


def _hint(entry: str) -> str:
    try:
        return f'the network as "{ipaddress.ip_network(entry, strict=False)}"'
    except ValueError:
        return '"127.0.0.1", "10.0.0.0/8", "127.0.0.1:8080", "::1", "fd00::/8" or "[::1]:8080"'
