"""robots.txt by the examples of RFC 9309 and of the wild, and opt-out headers as img2dataset reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.pipelines.web.allowed.robots import (
    BYTES_AT_MOST,
    DELAY_S_AT_MOST,
    OPPOSED,
    OPT_OUTS,
    Rules,
    allows_training,
    opt_out,
    product_token,
)

US = "altalign"


def allows(text: str | bytes, path: str) -> bool:
    return not against(text, path)


def against(text: str | bytes, path: str) -> str:
    return Rules.parse(text.encode() if isinstance(text, str) else text, US).against(f"http://a.test{path}")


def opts_out(**headers: list[str]) -> str:
    return opt_out({name: headers.get(name.replace("-", "_"), []) for name in OPT_OUTS}, US)


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
    assert bool(opts_out(x_robots_tag=values)) == is_disallowed(values, US)


@pytest.mark.parametrize(
    ("value", "reserved"), [("1", True), (" 1 ", True), ("0", False), ("true", False), ("", False), ("11", False)]
)
def test_rights_are_reserved_by_a_one(value: str, *, reserved: bool) -> None:
    assert opts_out(tdm_reservation=[value]) == ("tdm-reservation: 1" if reserved else "")


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
    assert allows_training(name, [value]) is allows
    opts = f"{name}: {value.strip()}" if allows is False else ""
    assert opts_out(**{name.lower().replace("-", "_"): [value]}) == opts


def test_values_of_several_headers_are_one_dictionary() -> None:
    assert opts_out(content_usage=["search=y", "train-ai=n"]) == "Content-Usage: search=y, train-ai=n"
    assert opts_out(content_usage=["train-ai=n", "train-ai=y"]) == ""
    assert opts_out(content_usage=["train-ai=y"], content_signal=["ai-train=no"]) == "Content-Signal: ai-train=no"


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
    assert [against(lines, path) for path in ("/a", "/b", "/c")] == ["Disallow", "Content-Usage", "Content-Signal"]


@given(text=st.text('cContent-UsageiglUser-agent: */\tryain=,;"\n', max_size=200))
def test_any_preferences_are_read(text: str) -> None:
    assert allows(f"User-agent: *\n{text}", "/a") in (True, False)
    assert allows_training("Content-Usage", [text]) in (True, False, None)


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
