"""Addresses that may be reached, against the standard library's opinion and by name."""

import ipaddress
from collections.abc import Sequence
from urllib.request import getproxies_environment

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.pipelines.web.addresses import Addresses, special, unused_proxies

FORBIDDEN = {
    "unspecified": ["0.0.0.0", "0.255.255.255", "::"],
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "private": [
        "10.0.0.1",
        "10.255.255.255",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "fc00::1",
        "fdff::1",
        "fec0::1",
    ],
    "link-local": ["169.254.0.1", "169.254.169.254", "fe80::1", "febf::1", "fe80::1%eth0"],
    "metadata": ["168.63.129.16"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": [
        "255.255.255.255",
        "240.0.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "198.18.0.1",
        "198.51.100.7",
        "203.0.113.9",
        "192.88.99.1",
        "2001::1",
        "2001:db8::1",
        "3fff::1",
        "100::1",
        "4000::1",
    ],
}
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "100.128.0.1",
    "172.15.255.255",
    "172.32.0.1",
    "192.167.0.1",
    "223.255.255.255",
    "2606:4700::1111",
    "2a00:1450::1",
    "2001:4860:4860::8888",
]
ALL = [(what, address) for what, addresses in FORBIDDEN.items() for address in addresses]


def is_forbidden(address: str, port: int, allow: Sequence[str], ports: Sequence[int] = (80, 443)) -> bool:
    return bool(Addresses(ports, allow).refusal(address, port))


def embedded(address: str) -> list[str]:
    """An IPv4 address in all forms of IPv6 that are routed to it."""
    number = int(ipaddress.IPv4Address(address))
    bases = {"::ffff:0:0": 0, "::ffff:0:0:0": 0, "64:ff9b::": 0, "2002::": 80}
    return [
        str(ipaddress.IPv6Address(int(ipaddress.IPv6Address(base)) | number << bits)) for base, bits in bases.items()
    ]


@pytest.mark.parametrize(("what", "address"), ALL)
def test_what_is_not_of_the_public_internet_is_forbidden_and_named(what: str, address: str) -> None:
    assert special(ipaddress.ip_address(address)) == what
    assert is_forbidden(address, 80, [])


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_of_the_public_internet_may_be_reached(address: str) -> None:
    assert not is_forbidden(address, 443, [])
    assert is_forbidden(address, 8080, [])
    assert not is_forbidden(address, 8080, [], ports=[8080])


@pytest.mark.parametrize("address", [address for _, address in ALL if ":" not in address])
def test_no_form_of_ipv6_hides_an_address(address: str) -> None:
    assert all(is_forbidden(form, 80, []) for form in embedded(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.2.3.4"])
def test_a_public_address_stays_one_behind_a_translator(address: str) -> None:
    assert not any(is_forbidden(form, 80, []) for form in embedded(address))


@given(address=st.ip_addresses())
def test_whatever_the_standard_library_calls_not_global_is_forbidden(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    is_mapped = address in ipaddress.ip_network("::ffff:0:0/96")  # decided by what is inside
    if (not address.is_global or address.is_multicast) and not is_mapped:
        assert special(address)


@given(address=st.ip_addresses(v=4))
def test_of_ipv4_only_what_both_call_special_is_forbidden(address: ipaddress.IPv4Address) -> None:
    # in part global by the registry, and not to be asked for images
    ours = {"192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32"}
    if special(address) and not any(address in ipaddress.ip_network(network) for network in ours):
        assert not address.is_global or address.is_multicast


@pytest.mark.parametrize(
    "address", ["", "a.test", "127.1", "0x7f000001", "2130706433", "127.0.0.1 ", "[::1]", "::1]", "1.2.3.4.5"]
)
def test_what_is_no_address_is_never_reached(address: str) -> None:
    assert is_forbidden(address, 80, ["0.0.0.0/0", "::/0"])


def test_a_setting_opens_addresses_at_the_ports_of_the_settings() -> None:
    allow = ["127.0.0.1", "10.0.0.0/8", "fd00::/8"]
    assert [
        is_forbidden(address, 80, allow)
        for address in ("127.0.0.1", "10.9.8.7", "fd12::1", "::ffff:127.0.0.1", "127.0.0.2", "11.0.0.1", "fc00::1")
    ] == [False] * 4 + [True, False, True]
    assert is_forbidden("127.0.0.1", 8080, allow)


def test_a_setting_with_a_port_opens_that_alone() -> None:
    allow = ["127.0.0.1:8080", "[::1]:8081"]
    assert not is_forbidden("127.0.0.1", 8080, allow)
    assert not is_forbidden("::1", 8081, allow)
    assert [
        is_forbidden(*place, allow)
        for place in (("127.0.0.1", 80), ("127.0.0.1", 8081), ("::1", 8080), ("127.0.0.2", 8080), ("8.8.8.8", 8080))
    ] == [True] * 5


def test_a_port_that_no_address_may_have_is_known_without_one() -> None:
    addresses = Addresses([80], ["127.0.0.1:8080", "10.0.0.0/8"])
    assert [addresses.refuses_port(port) for port in (80, 8080, 443)] == [False, False, True]
    assert addresses.refusal("8.8.8.8", 8080) == "port 8080"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, ""),
        # altalign sets the first itself, for gRPC; the others are not of the web
        ({"no_grpc_proxy": "localhost", "NO_PROXY": "a.test", "ftp_proxy": "b.test"}, ""),
        ({"https_proxy": "c.test:1"}, "HTTPS_PROXY is set, and is not used for images: "),
        (
            {"ALL_PROXY": "c.test", "http_proxy": "d.test"},
            "ALL_PROXY, HTTP_PROXY are set, and are not used for images: ",
        ),
    ],
)
def test_a_line_names_what_a_client_of_the_web_would_use(
    given: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in getproxies_environment():
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert unused_proxies().startswith(line)
    assert bool(unused_proxies()) == bool(line)
