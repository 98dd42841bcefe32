"""URLs as they are sent_url for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.pipelines.web.calls import Target, TargetError


@pytest.mark.parametrize(
    ("url", "sent_url", "origin", "host", "port"),
    [
        ("HTTP://EXAMPLE.org", "http://example.org/", "http://example.org", "example.org", 80),
        (
            "https://example.org:443/a b?c=d e#f",
            "https://example.org/a%20b?c=d%20e",
            "https://example.org",
            "example.org",
            443,
        ),
        (
            "http://example.org.:8080/%7Ea/../b",
            "http://example.org.:8080/b",
            "http://example.org.:8080",
            "example.org",
            8080,
        ),
        ("http://user:secret@example.org/", "http://example.org/", "http://example.org", "example.org", 80),
        ("http://user@example.org/@", "http://example.org/@", "http://example.org", "example.org", 80),
        (
            "http://bücher.example/ü",
            "http://xn--bcher-kva.example/%C3%BC",
            "http://xn--bcher-kva.example",
            "xn--bcher-kva.example",
            80,
        ),
        ("http://0x7f.1/", "http://127.0.0.1/", "http://127.0.0.1", "127.0.0.1", 80),
        (
            "http://[::FFFF:127.0.0.1]:81/",
            "http://[::ffff:7f00:1]:81/",
            "http://[::ffff:7f00:1]:81",
            "[::ffff:7f00:1]",
            81,
        ),
        ("http://example.org/?#", "http://example.org/?", "http://example.org", "example.org", 80),
        ("http://example.org/\ud800", "http://example.org/?", "http://example.org", "example.org", 80),
    ],
)
def test_a_url_is_read_as_browsers_do(url: str, sent_url: str, origin: str, host: str, port: int) -> None:
    target = Target.parse(url)
    assert (target.url, target.origin, target.host, target.port) == (sent_url, origin, host, port)
    assert target.robots == Target(f"{origin}/robots.txt", origin, host, port)


@pytest.mark.parametrize(
    ("url", "is_of_scheme"),
    [
        ("ftp://a/b", True),
        ("data:,x", True),
        ("javascript:1", True),
        ("/a", False),
        ("", False),
        ("http://", False),
        ("http://./", False),
        ("http://a:99999/", False),
    ],
)
def test_what_cannot_be_asked_over_http(url: str, *, is_of_scheme: bool) -> None:
    with pytest.raises(TargetError) as error:
        Target.parse(url)
    assert error.value.is_of_scheme == is_of_scheme


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("a.test", ""),
        ("1.2.3.4", "1.2.3.4"),
        ("[::1]", "::1"),
        ("a1", ""),
        ("1.2.3.a4", ""),
        ("4chan.org", ""),
        ("a.0xg", ""),
    ],
)
def test_a_host_may_be_an_address(host: str, address: str) -> None:
    assert Target.parse(f"http://{host}/").address == address


@given(host=st.from_regex(r"[0-9a-z.x]{1,12}", fullmatch=True))
def test_a_host_that_a_number_ends_is_an_address_in_its_one_spelling(host: str) -> None:
    try:
        target = Target.parse(f"http://{host}/")
    except TargetError:
        return
    assert bool(target.address) == (
        target.host.count(".") == 3 and all(label.isdecimal() for label in target.host.split("."))
    )


def test_a_location_is_joined_to_where_it_was_said() -> None:
    here = Target.parse("https://a.test/b/c?d")
    joined = {
        location: here.joined(location).url for location in ("e", "../e", "//f.test/", "?g", "#h", "", "http://i.test")
    }
    assert joined == {
        "e": "https://a.test/b/e",
        "../e": "https://a.test/e",
        "//f.test/": "https://f.test/",
        "?g": "https://a.test/b/c?g",
        "#h": "https://a.test/b/c?d",
        "": "https://a.test/b/c?d",
        "http://i.test": "http://i.test/",
    }


@pytest.mark.parametrize(
    ("sent", "sent_url"),
    [
        (b"/caf\xe9.jpg", "/caf%E9.jpg"),
        (b"/q.jpg?n=caf\xe9#\xe9", "/q.jpg?n=caf%E9"),
        ("/кот.jpg".encode("cp1251"), "/%EA%EE%F2.jpg"),
        ("/кот.jpg?ü".encode(), "/%D0%BA%D0%BE%D1%82.jpg?%C3%BC"),
        (b"/%e9\xe9 %zz", "/%e9%E9%20%zz"),
        ("/写真".encode("shift_jis"), "/%8E%CA%90%5E"),
        (b"/\xc3\xa9\xe9", "/%C3%A9%E9"),
        (b"/a|b[1]", "/a|b[1]"),
    ],
)
def test_bytes_of_a_location_are_asked_for_as_they_came(sent: bytes, sent_url: str) -> None:
    location = sent.decode("utf-8", "surrogateescape")
    assert Target.parse("http://a.test/x").joined(location).url == f"http://a.test{sent_url}"


def test_a_host_in_a_location_is_a_name() -> None:
    assert Target.parse("http://a.test/x").joined("//bücher.test/").host == "xn--bcher-kva.test"


@pytest.mark.parametrize("location", ["http://[", "http:///", "//:80"])
def test_a_location_that_is_none_is_no_target(location: str) -> None:
    with pytest.raises(TargetError):
        Target.parse("http://a.test/").joined(location)
