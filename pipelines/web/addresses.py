"""Which addresses may be reached: those of the public internet, and those that a setting names; and no proxy.

It is always given the address that a connection is made to, so no spelling of a URL and no answer of a name server gets
around it.
"""

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from urllib.request import getproxies_environment

from altalign.settings import allowed_addresses

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# The special-purpose registry of IPv4 (https://www.iana.org/assignments/iana-ipv4-special-registry), multicast, and the
# clouds' metadata services.
_SPECIAL_V4 = (
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "private"),  # shared address space; Alibaba's metadata service too
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "metadata"),  # Azure's, a public address otherwise
    ("169.254.0.0/16", "link-local"),  # metadata services of nearly all clouds
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),  # protocol assignments; Oracle's metadata service too
    ("192.0.2.0/24", "reserved"),
    ("192.88.99.0/24", "reserved"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "reserved"),
    ("198.51.100.0/24", "reserved"),
    ("203.0.113.0/24", "reserved"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),  # broadcast too
)
# All of IPv6 except 2000::/3, the global unicast range in use, and the special-purpose ranges inside it.
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL_V6 = (
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("2001::/23", "reserved"),  # protocol assignments; Teredo too, which is an IPv4 address behind a relay
    ("2001:db8::/32", "reserved"),
    ("3fff::/20", "reserved"),
    ("fc00::/7", "private"),  # metadata services of AWS and Google too
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private"),
    ("ff00::/8", "multicast"),
)
# IPv6 ranges that embed an IPv4 address, to which packets go, and how many bits follow it.
_EMBEDDED = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (ipaddress.IPv6Network("::ffff:0:0:0/96"), 0),  # IPv4-translated
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4
)
_V4 = tuple((ipaddress.IPv4Network(network), what) for network, what in _SPECIAL_V4)
_V6 = tuple((ipaddress.IPv6Network(network), what) for network, what in _SPECIAL_V6)


class Addresses:
    """The addresses that may be reached by `fetch.ports` and `fetch.allow_addresses`.

    `refusal(address, port)` says why an address (not a name) may not be reached, in a word or two; empty if it may.
    """

    def __init__(self, ports: Sequence[int], allow: Sequence[str]):
        """Takes the values of the settings."""
        self._ports = frozenset(ports)
        self._allow = tuple(allowed_addresses.allowed(entry) for entry in allow)
        self.refusal = lru_cache(maxsize=20_000)(self._refusal)

    def refuses_port(self, port: int) -> bool:
        """Whether no address may be reached at this port."""
        return port not in self._ports and port not in {entry.port for entry in self._allow}

    def _refusal(self, address: str, port: int) -> str:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return "no address"
        for entry in self._allow:
            is_port = port == entry.port if entry.port else port in self._ports
            if is_port and any(each in entry.network for each in (parsed, _reached(parsed))):
                return ""
        return special(parsed) or ("" if port in self._ports else f"port {port}")


def special(address: Address) -> str:
    """What kind of special address this is; empty if it belongs to the public internet."""
    reached = _reached(address)
    networks: Sequence[tuple[allowed_addresses.Network, str]] = _V4 if reached.version == 4 else _V6
    kind = next((kind for network, kind in networks if reached in network), "")
    return kind or ("reserved" if reached.version == 6 and reached not in _GLOBAL_V6 else "")


def _reached(address: Address) -> Address:
    """The IPv4 address that an IPv6 address embeds, or the address itself."""
    if address.version == 4:
        return address
    bare = ipaddress.IPv6Address(int(address))  # without a zone
    for network, bits in _EMBEDDED:
        if bare in network:
            return ipaddress.IPv4Address(int(bare) >> bits & 0xFFFFFFFF)
    return bare


def unused_proxies() -> str:
    """One line on the environment's variables that name proxies, without what they hold; empty if there are none.

    Images are fetched through none: it looks names up itself, and the addresses that it connects to cannot be checked.
    """
    # not `no`, nor gRPC's `no_grpc`, which an engine's client sets
    named = sorted(f"{scheme.upper()}_PROXY" for scheme in getproxies_environment().keys() & {"http", "https", "all"})
    if not named:
        return ""
    are = "is set, and is" if len(named) == 1 else "are set, and are"
    return f"{', '.join(named)} {are} not used for images: behind a proxy no address could be checked"
