"""Entries of `fetch.allow_addresses`."""

import ipaddress

import pytest

from altalign.settings.allowed_addresses import allowed

# the network and the port of each
ALLOWED = {
    "127.0.0.1": ("127.0.0.1/32", None),
    "::1": ("::1/128", None),
    "2001:db8::a:1": ("2001:db8::a:1/128", None),
    "10.0.0.0/8": ("10.0.0.0/8", None),
    "127.0.0.1/32": ("127.0.0.1/32", None),
    "fd00::/8": ("fd00::/8", None),
    "::/0": ("::/0", None),
    "127.0.0.1:1": ("127.0.0.1/32", 1),
    "10.1.2.3:65535": ("10.1.2.3/32", 65_535),
    "[::1]:8080": ("::1/128", 8080),
    "[fd00::12]:65535": ("fd00::12/128", 65_535),
}
REFUSED = ["", " ", "localhost", "localhost:80", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:", ":80", "[::1]"]
REFUSED += ["[::1]:0", "127.1", "1", "0177.0.0.1", "10.0.0.0/8:80", "10.0.0.0/33", "127.0.0.1\n"]


@pytest.mark.parametrize("entry", ALLOWED)
def test_an_entry_is_a_network_and_perhaps_a_port(entry: str) -> None:
    network, port = ALLOWED[entry]
    assert allowed(entry) == (ipaddress.ip_network(network), port)


@pytest.mark.parametrize("entry", REFUSED)
def test_what_is_no_address_says_what_to_write(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is no address \(.*\); give ") as error:
        allowed(entry)
    assert "\n" not in str(error.value)


def test_a_network_that_begins_within_is_shown_as_it_should_be() -> None:
    with pytest.raises(ValueError, match=r"10\.1\.2\.3/8 has host bits set"):
        allowed("10.1.2.3/8")
