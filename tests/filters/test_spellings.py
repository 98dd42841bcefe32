"""URLs are compared as they are asked for; the right values are by hand from the WHATWG standard."""

from hashlib import sha256

import pytest

from altalign.filters import one_url
from altalign.filters.blocked import BlockList


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("HTTP://WWW.Example.COM./a.jpg", ["http://www.example.com/a.jpg"]),
        ("http://user:pw@example.com/b.jpg", ["http://example.com/b.jpg"]),
        ("http:\\\\example.com\\c.jpg", ["http://example.com/c.jpg"]),
        ("http://exam%70le.com:80/d%2e.jpg?x#y", ["http://example.com/d%2e.jpg?x"]),
        ("http://ｅxample。com/e.jpg", ["http://example.com/e.jpg"]),
        ("https://example.com.:443/f.jpg", ["https://example.com/f.jpg"]),
        ("https://example.com:8443/f.jpg", ["https://example.com:8443/f.jpg"]),
        ("http:example.com/h.jpg", ["http://example.com/h.jpg"]),
        ("http://exa\tmple.com\t/./x/../i.jpg", ["http://example.com/i.jpg"]),
        ("//Example.com./k.jpg", ["http://example.com/k.jpg", "https://example.com/k.jpg"]),
        (" \\\\example.com:443\\k.jpg", ["http://example.com:443/k.jpg", "https://example.com/k.jpg"]),
        ("http://example.com/ s t.jpg", ["http://example.com/%20s%20t.jpg"]),
        ("http://bücher.example#n", ["http://xn--bcher-kva.example/"]),
        ("http://[::FFFF:1]/", ["http://[::ffff:1]/"]),
        ("http://0x7f.1/", ["http://127.0.0.1/"]),
        ("ftp://example.com/a", []),
        ("pictures/a.jpg", []),
        ("", []),
    ],
)
def test_a_url_is_known_as_it_is_asked_for(url: str, asked: list[str]) -> None:
    assert one_url.request_urls(url) == asked
    assert [each for spelled in asked for each in one_url.request_urls(spelled)] == asked
    host = asked[0].split("/")[2].removesuffix(":8443").removesuffix(":443") if asked else ""
    assert one_url.host_of(url) == (host or ("example.com" if "://" in url else ""))


def test_a_block_list_names_a_url_in_any_spelling() -> None:
    listed = BlockList.parse([("list", sha256(b"http://example.com/a.jpg").hexdigest())], of_urls=True)
    assert listed.names_url("HTTP://Example.com.:80/a.jpg#b")
    assert not listed.names_url("https://example.com/a.jpg")
    as_written = BlockList.parse([("list", sha256(b"HTTP://example.com/a.jpg").hexdigest())], of_urls=True)
    assert as_written.names_url("HTTP://example.com/a.jpg")
