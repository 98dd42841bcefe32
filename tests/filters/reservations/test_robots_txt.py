"""robots.txt by the examples of RFC 9309 and of the wild, tags, and preferences in headers and lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.filters.reservations import of_headers, opposed, product_token, usage
from altalign.filters.reservations.robots_txt import BYTES_AT_MOST, DELAY_S_AT_MOST, Robots

US = "altalign"


def allows(text: str | bytes, path: str) -> bool:
    return not against(text, path)


def against(text: str | bytes, path: str) -> tuple[str, ...]:
    """The notations by which a robots.txt opposes training with what is at a path."""
    body = text.encode() if isinstance(text, str) else text
    return opposed(Robots.parse(body, US).archived(f"http://a.test{path}", None), "train", US)


def opts_out(**headers: list[str]) -> tuple[str, ...]:
    """The headers that oppose training."""
    said = of_headers({name.replace("_", "-"): values for name, values in headers.items()}, US, "image header", None)
    return opposed(said, "train", US)


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
        # no other line ends a group, and what stands in a group is for all of its names
        *(
            (f"User-agent: *\n{line}\n\nUser-agent: badbot\nDisallow: /a\n", ["/b"], ["/a"])
            for line in (
                "Crawl-delay: 1",
                "Noindex: /b",
                "Request-rate: 1/5",
                "Sitemap: http://a.test/s",
                "Host: a.test",
                "Clean-param: ref /",
                "Content-Signal: search=no",
                "Content-Usage: search=n",
                "anything: at all",
                "no key",
                "Disallow",
                "\x0bfoo\x0cDisallow: /b",
            )
        ),
        ("User-agent: badbot\nCrawl-delay: 1\nUser-agent: *\nDisallow: /a\n", ["/b"], ["/a"]),
        ("User-agent: *\nAllow:\nUser-agent: badbot\nDisallow: /\n", ["/a"], []),
        ("Crawl-delay: 1\nDisallow: /\nUser-agent: badbot\nDisallow: /\n", ["/a"], []),
        # a name is its leading token, and whole
        *(
            (f"User-agent: {name}\nDisallow: /a\n\nUser-agent: *\nDisallow: /b\n", ["/b"], ["/a"])
            for name in (
                "altalign/1.0",
                "altalign bot",
                "altalign (research crawler)",
                "altalign*",
                "ALTALIGN;x",
                "altalign2",
            )
        ),
        *(
            (f"User-agent: {name}\nDisallow: /a\n\nUser-agent: *\nDisallow: /b\n", ["/a"], ["/b"])
            for name in ("alt", "altalign-images", "altalignbot", "the altalign", "x/altalign", "")
        ),
        ("User-agent: * # all\nDisallow: /a\n", ["/b"], ["/a"]),
        ("User-agent: * all\nDisallow: /a\n", ["/b"], ["/a"]),
        ("User-agent: *bot\nDisallow: /a\n", ["/a"], []),
        # lines as Google's parser takes them
        ("User-agent *\rDisallow /a\r", ["/b"], ["/a"]),
        ("User-agent\t*\r\n\r\nDissallow:/a\r\n", ["/b"], ["/a"]),
        ("User-agent: *\nDisallow /a and more\n", ["/a"], []),
        ("User-agent: *\nDisallow\nAllow\nCrawl-delay\nNonsense\nUser-agent\nDisallow: /a\n", ["/b"], ["/a"]),
        ("User-agent: *\nDisallow\nUser-agent: other\nDisallow: /a\n", ["/b"], ["/a"]),
        ("User-agent other robot\nDisallow: /a\n", ["/a"], []),
        ("User-agent: *\nDisallow\t \t/a # b\n", ["/b"], ["/a"]),
        ("User-agent: *\x85Disallow: /\u2028Disallow: /\n", ["/a"], []),
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
    assert Robots.parse(f"User-agent: *\nCrawl-delay: {delay}\n".encode(), US).delay_s == seconds


TAGS = {
    "noai": True,
    "a, NoImageAI": True,
    "none": True,
    "all": False,
    "": False,
    "noarchive, nofollow": False,
    "max-image-preview:none": False,
    "max-image-preview: none": False,
    "noai, max-image-preview:none": True,
    "max-snippet:20, noai": True,
    "max-snippet: -1, max-video-preview: 3, noimageindex": True,
    "noindex, unavailable_after: 25 Jun 2030 15:00:00 GMT": True,
    "unavailable_after: 25 Jun 2010 15:00:00 PST, noai": True,
    "unavailable_after: Friday, 25-Jun-10 15:00:00 UTC, noai": True,
    "unavailable_after: Fri, Jun 25 2010 15:00:00 UTC, noai": True,
    "unavailable_after: 2030-06-25T15:00:00+00:00": False,
    "altalign:noindex": True,
    "AltAlign : x , NoAI": True,
    "altalign/1.0: noai": True,
    "altalign bot: noai": True,
    "*: noai": True,
    "altalign: unavailable_after: 25 Jun 2030 15:00:00 GMT, noai": True,
    "otherbot: nofollow, altalign: noai": True,
    "altalign: nofollow, otherbot: noai": False,
    "other: noai": False,
    "other: noindex, noai": False,
    "altalignbot: noai": False,
    "other: max-snippet: 2, noai": False,
    "noai, other: index": True,
}


@pytest.mark.parametrize("value", TAGS)
def test_what_a_tag_says_to_us(value: str) -> None:
    """By https://developers.google.com/search/docs/crawling-indexing/robots-meta-tag, and noai as img2dataset does."""
    assert opts_out(x_robots_tag=[value]) == (("x-robots-tag",) if TAGS[value] else ())


@given(values=st.lists(st.sampled_from([*TAGS])))
def test_one_header_of_several_is_enough(values: list[str]) -> None:
    assert bool(opts_out(x_robots_tag=values)) == any(TAGS[value] for value in values)


@given(value=st.text("noaimgedx ,:/*AltalignN-_;1\t"))
def test_any_tag_is_read(value: str) -> None:
    assert opts_out(x_robots_tag=[value]) in ((), ("x-robots-tag",))


@pytest.mark.parametrize(
    ("value", "reserved"),
    [("1", True), (" 1 ", True), ("0", False), ("true", False), ("", False), ("11", False), ("0, 1", True)],
)
def test_rights_are_reserved_by_a_one(value: str, *, reserved: bool) -> None:
    assert opts_out(tdm_reservation=[value]) == (("tdmrep",) if reserved else ())
    assert opts_out(tdm_reservation=["0", value]) == (("tdmrep",) if reserved else ())


@pytest.mark.parametrize(
    ("name", "value", "allows"),
    [
        ("Content-Usage", "train-ai=n", False),
        ("Content-Usage", "train-ai=y, search=n", True),
        ("Content-Usage", "search=n, ai-use=n", None),
        ("Content-Usage", "", None),
        # older drafts: every use, and generative training
        ("Content-Usage", "bots=n", False),
        ("Content-Usage", "bots=n, train-ai=y", True),
        ("Content-Usage", "bots=n, train-ai=perhaps", False),
        ("Content-Usage", "train-ai=y, train-genai=n", False),
        ("Content-Usage", "train-genai=y", None),
        # parameters say nothing, and the last of a key counts
        ("Content-Usage", "train-ai=n;until=2030", False),
        ("Content-Usage", "train-ai;allow=n, train-ai=y", True),
        ("Content-Usage", "train-ai=n, train-ai=y", True),
        ("Content-Usage", "train-ai=n, train-ai", None),
        # malformed
        ("Content-Usage", 'train-ai="n"', None),
        ("Content-Usage", "train-ai=no", None),
        ("Content-Usage", "train-ai: n", None),
        ("Content-Usage", "=n", None),
        ("Content-Usage", "?!, train-ai=n", False),
        ("Content-Usage", " TRAIN-AI = N ", False),
        ("Content-Signal", "search=yes, ai-train=no", False),
        ("Content-Signal", "search=no,ai-input=no,ai-train=yes", True),
        ("Content-Signal", "search=yes, ai-input=no", None),
        ("Content-Signal", "ai-train=n", None),
        ("Content-Signal", "train-ai=no", None),
    ],
)
def test_what_a_preference_says_of_training(name: str, value: str, *, allows: bool | None) -> None:
    notation = name.lower()
    assert usage.says(notation, value, "train") is allows
    assert opts_out(**{notation.replace("-", "_"): [value]}) == ((notation,) if allows is False else ())


def test_values_of_several_headers_are_one_dictionary() -> None:
    assert opts_out(content_usage=["search=y", "train-ai=n"]) == ("content-usage",)
    assert opts_out(content_usage=["train-ai=n", "train-ai=y"]) == ()
    assert opts_out(content_usage=["train-ai=y"], content_signal=["ai-train=no"]) == ("content-signal",)


@pytest.mark.parametrize(
    ("text", "opposed"),
    [
        ("User-agent: *\nContent-Usage: train-ai=n\n", {"/", "/a", "/a/b", "/c"}),
        ("User-agent: *\nAllow: /\nContent-Usage: /a train-ai=n\n", {"/a", "/a/b"}),
        ("User-agent: *\nContent-Usage: / train-ai=n\nContent-Usage: /a/ train-ai=y\n", {"/", "/a", "/c"}),
        ("User-agent: *\nContent-Usage: /a/ train-ai=y\nContent-Usage: / train-ai=n\n", {"/", "/a", "/c"}),
        ("User-agent: *\nContent-Usage: / train-ai=n\nContent-Usage: /a search=y\n", {"/", "/a", "/a/b", "/c"}),
        ("User-agent: *\nContent-Usage: /a train-ai=y\nContent-Usage: /a train-ai=n\n", {"/a", "/a/b"}),
        ("User-agent: *\nContent-Usage: /*b$ train-ai=n\n", {"/a/b"}),
        ("User-agent: *\n content-usage\t:\t/a\t train-ai=n # ours\n", {"/a", "/a/b"}),
        ("User-agent: *\nContent-Signal: search=yes,ai-train=no\nAllow: /\n", {"/", "/a", "/a/b", "/c"}),
        ("User-agent: *\nContent-Signal: /a ai-train=no\n", {"/a", "/a/b"}),
        # each is asked for itself
        ("User-agent: *\nContent-Signal: ai-train=no\nContent-Usage: train-ai=y\n", {"/", "/a", "/a/b", "/c"}),
        ("User-agent: *\nDisallow: /a\nContent-Usage: /a train-ai=y\n", {"/a", "/a/b"}),
        # they are rules of a group
        ("User-agent: altalign\nAllow: /\n\nUser-agent: *\nContent-Usage: train-ai=n\n", set()),
        ("User-agent: other\nContent-Usage: train-ai=n\n", set()),
        ("User-agent: other\nContent-Signal: ai-train=no\nUser-agent: *\nAllow: /\n", {"/", "/a", "/a/b", "/c"}),
        ("Content-Usage: train-ai=n\nUser-agent: *\nAllow: /\n", set()),
        # malformed
        ("User-agent: *\nContent-Usage: a train-ai=n\nContent-Usage: /a\nContent-Usage:\n", set()),
        ("User-agent: *\nContent-Usage train-ai=n\nContent-Usages: train-ai=n\n", set()),
    ],
)
def test_preferences_of_a_robots_txt_are_rules_of_paths(text: str, opposed: set[str]) -> None:
    assert {path for path in ("/", "/a", "/a/b", "/c") if not allows(text, path)} == opposed


def test_the_rule_that_forbids_is_named() -> None:
    lines = "User-agent: *\nDisallow: /a\nContent-Usage: /b train-ai=n\nContent-Signal: ai-train=no\n"
    assert [against(lines, path) for path in ("/a", "/b", "/c")] == [
        ("content-signal", "robots.txt"),
        ("content-usage", "content-signal"),
        ("content-signal",),
    ]


@given(text=st.text('cContent-UsageiglUser-agent: */\tryain=,;"\n', max_size=200))
def test_any_preferences_are_read(text: str) -> None:
    assert allows(f"User-agent: *\n{text}", "/a") in (True, False)
    assert usage.says("content-usage", text, "train") in (True, False, None)


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
