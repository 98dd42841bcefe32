"""robots.txt by the examples of RFC 9309 and of the wild, and opt-out headers as img2dataset reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.pipelines.web.allowed.robots import BYTES_AT_MOST, DELAY_S_AT_MOST, OPPOSED, Rules, opt_out, product_token

US = "altalign"


def allows(text: str | bytes, path: str) -> bool:
    return Rules.parse(text.encode() if isinstance(text, str) else text, US).allow(f"http://a.test{path}")


@pytest.mark.parametrize(
    ("text", "allowed", "forbidden"),
    [
        ("", ["/", "/a"], []),
        ("User-agent: *\nDisallow:\n", ["/", "/a"], []),
        ("User-agent: *\nDisallow: /\n", ["/robots.txt"], ["/", "/a"]),
        ("User-agent: other\nDisallow: /\n", ["/a"], []),
        ("User-agent: AltAlign\nDisallow: /a\n\nUser-agent: *\nDisallow: /\n", ["/b"], ["/a", "/ab"]),
        ("User-agent: altalign/2.0\nDisallow: /a\n", ["/b"], ["/a"]),
        ("User-agent: *\nUser-agent: x\nDisallow: /a\nUser-agent: y\nDisallow: /b\n", ["/b"], ["/a"]),
        ("User-agent: altalign\nDisallow: /a\n\nUser-agent: altalign\nDisallow: /b\n", ["/c"], ["/a", "/b"]),
        ("User-agent: *\nDisallow: /a\nAllow: /a/b\n", ["/a/b", "/a/b/c"], ["/a", "/a/c"]),
        ("User-agent: *\nDisallow: /*.png$\n", ["/a.png?x", "/a.jpg"], ["/a.png", "/b/c.png"]),
        ("User-agent: *\nDisallow: /a\nAllow: /a\n", ["/a"], []),
        ("User-agent: *\nSitemap: http://a.test/s\nDisallow: /a\n", ["/b"], ["/a"]),
        ("Disallow: /\n", ["/a"], []),
        ("\ufeffUser-agent: *\r\nDisallow: /a # not this\r\n", ["/b"], ["/a"]),
        ("useragent : *\ndisallow : /a\n", ["/b"], ["/a"]),
        ("User-agent: *\nDisallow: /caf%C3%A9\n", ["/cafe"], ["/caf%C3%A9"]),
        # names that follow each other are of one group
        ("User-agent: altalign\n\nUser-agent: *\nDisallow: /\n", [], ["/b"]),
    ],
)
def test_what_a_robots_txt_forbids(text: str, allowed: list[str], forbidden: list[str]) -> None:
    assert [path for path in allowed + forbidden if allows(text, path)] == allowed


@given(text=st.binary(max_size=400))
def test_any_bytes_are_a_robots_txt(text: bytes) -> None:
    assert allows(text, "/a") in (True, False)


@given(text=st.text("uUser-agent: *\naltalgn/Dsow#\r$", max_size=200))
def test_any_lines_are_a_robots_txt(text: str) -> None:
    assert allows(text, "/a") in (True, False)


def test_a_file_of_many_names_and_rules_is_read_at_once() -> None:
    """Each rule goes to each name of its group: without a look at who is meant, these would be 200 million."""
    names = "".join(f"user-agent:{number}\n" for number in range(14_000))
    rules = "".join(f"disallow:/{number}\n" for number in range(14_000))
    assert not allows(f"{names}user-agent:*\n{rules}", "/77")
    assert allows(f"{names}{rules}", "/77")


@pytest.mark.parametrize("pattern", ["/" + "*a" * 30 + "b", "/" + "*a" * 30 + "b$", "/*" + "a*" * 10_000 + "$x"])
def test_rules_of_many_wildcards_are_looked_at_at_once(pattern: str) -> None:
    """An expression of them would be tried in more ways than there is time for, on the loop of all hosts."""
    text = f"User-agent: *\nDisallow: {pattern}\n"
    assert allows(text, "/" + "a" * 2_000)


def test_what_is_beyond_the_limit_is_left_out() -> None:
    filler = b"#" * (BYTES_AT_MOST - 40) + b"\n"
    assert allows(filler + b"#" * 40 + b"\nUser-agent: *\nDisallow: /\n", "/a")
    assert not allows(b"User-agent: *\nDisallow: /\n" + filler, "/a")


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [("5", 5.0), ("0.5", 0.5), ("86400", DELAY_S_AT_MOST), ("-1", 0.0), ("soon", 0.0), ("nan", 0.0), ("inf", 0.0)],
)
def test_a_crawl_delay_is_seconds_up_to_a_limit(delay: str, seconds: float) -> None:
    assert Rules.parse(f"User-agent: *\nCrawl-delay: {delay}\n".encode(), US).delay_s == seconds


def is_disallowed(values: list[str], token: str) -> bool:
    """X-Robots-Tag as img2dataset 1.47 documents it: an optional name before the first colon, directives after it."""
    for value in values:
        name, directives = value.split(":", 1) if ":" in value else (None, value)
        if (name is None or name.lower() == token) and any(
            word.strip().lower() in OPPOSED for word in directives.split(",")
        ):
            return True
    return False


@given(
    values=st.lists(
        st.text("noaimgedx ,:AltalignN-_;", max_size=30)
        | st.sampled_from(
            ["noai", "altalign:noindex", "Altalign: x, NoImageAI", "other: noai", "a, noai", "max-snippet: 1, noai"]
        )
    )
)
def test_a_tag_is_read_as_img2dataset_reads_it(values: list[str]) -> None:
    assert bool(opt_out(values, [], US)) == is_disallowed(values, US)


@pytest.mark.parametrize(
    ("value", "reserved"), [("1", True), (" 1 ", True), ("0", False), ("true", False), ("", False), ("11", False)]
)
def test_rights_are_reserved_by_a_one(value: str, *, reserved: bool) -> None:
    assert opt_out([], [value], US) == ("tdm-reservation: 1" if reserved else "")


@pytest.mark.parametrize(
    ("agent", "token"),
    [
        ("altalign/0.1 (+https://a.test)", "altalign"),
        ("Me", "me"),
        ("Mozilla/5.0 (compatible; x)", "mozilla"),
        ("  a b ", "a"),
    ],
)
def test_a_robot_is_called_by_its_first_word(agent: str, token: str) -> None:
    assert product_token(agent) == token
