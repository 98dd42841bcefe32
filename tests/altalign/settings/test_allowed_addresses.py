"""Entries of `fetch.allow_addresses`."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.settings.allowed_addresses import allowed

PORTS = st.integers(1, 65_535)


@given(address=st.ip_addresses())
def test_an_address_is_a_network_of_one(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert allowed(str(address)) == (ipaddress.ip_network(address), None)


@given(address=st.ip_addresses(v=4), port=PORTS)
def test_an_address_may_have_a_port(address: ipaddress.IPv4Address, port: int) -> None:
    assert allowed(f"{address}:{port}") == (ipaddress.ip_network(address), port)


@given(address=st.ip_addresses(v=6), port=PORTS)
def test_one_of_ipv6_has_it_behind_brackets(address: ipaddress.IPv6Address, port: int) -> None:
    assert allowed(f"[{address}]:{port}") == (ipaddress.ip_network(address), port)


@pytest.mark.parametrize("entry", ["10.0.0.0/8", "127.0.0.1/32", "fd00::/8", "::/0"])
def test_a_network_is_itself(entry: str) -> None:
    assert allowed(entry) == (ipaddress.ip_network(entry), None)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        " ",
        "localhost",
        "localhost:80",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "127.0.0.1:",
        ":80",
        "[::1]",
        "[::1]:0",
        "127.1",
        "1",
        "0177.0.0.1",
        "10.0.0.0/8:80",
        "10.0.0.0/33",
        "127.0.0.1\n",
    ],
)
def test_what_is_no_address_says_what_to_write(entry: str) -> None:
    with pytest.raises(ValueError, match="is no address; give ") as error:
        allowed(entry)
    assert "\n" not in str(error.value)


def test_a_network_that_begins_within_is_shown_as_it_should_be() -> None:
    with pytest.raises(ValueError, match=r'10\.1\.2\.3/8.* give the network as "10\.0\.0\.0/8"'):
        allowed("10.1.2.3/8")
