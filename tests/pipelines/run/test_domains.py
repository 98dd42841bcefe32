"""Block lists of domains."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.errors import UsageError
from altalign.pipelines.run.domains import Domains
from altalign.pipelines.web.calls import Target

TEXT = (
    "\ufeff# of others\n\nexample.org\nSub.Example.COM. # and why\nbücher.example\r\n[2606:4700::1]\n192.0.2.7\nco.uk\n"
)
LIST = Domains.parse([("list", TEXT), ("other", "xn--mnchen-3ya.example")])


@pytest.mark.parametrize(
    "host",
    [
        "example.org",
        "a.example.org",
        "a.b.example.org.",
        "EXAMPLE.org",
        "sub.example.com",
        "x.sub.example.com",
        "bücher.example",
        "www.xn--bcher-kva.example",
        "münchen.example",
        "[2606:4700:0::1]",
        "192.0.2.7",
        "0xc0000207",
        "www.bbc.co.uk",
    ],
)
def test_a_domain_covers_what_is_below_it_however_it_is_written(host: str) -> None:
    assert LIST.blocks(Target.parse(f"http://{host}/image").host)


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "notexample.org",
        "example.org.evil.test",
        "org",
        "bucher.example",
        "192.0.2.70",
        "[2606:4700::2]",
        "uk",
    ],
)
def test_nothing_else_is_covered(host: str) -> None:
    assert not LIST.blocks(Target.parse(f"http://{host}/image").host)


def test_without_lists_nothing_is_blocked() -> None:
    assert not Domains().blocks("example.org")
    assert Domains.parse([("empty", "# nothing\n\n")]) == Domains()


@given(
    labels=st.lists(
        st.text("abcxyz-", min_size=1, max_size=4).filter(lambda label: not label.startswith("-")),
        min_size=1,
        max_size=5,
    ),
    blocked=st.lists(st.integers(1, 5), max_size=3),
)
def test_it_is_the_same_as_looking_at_every_ending(labels: list[str], blocked: list[int]) -> None:
    host = ".".join(labels)
    names = frozenset(".".join(labels[-count:]) for count in blocked) | {"other.test"}
    assert Domains(names).blocks(host) == any(host == name or host.endswith("." + name) for name in names)


@pytest.mark.parametrize(
    "line",
    [
        "http://example.org",
        "example.org/path",
        "*.example.org",
        ".example.org",
        "exa mple.org",
        "example.org:80",
        "me@example.org",
        "a.test b.test",
        "?",
        "::1",
        ".",
    ],
)
def test_a_line_that_is_no_domain_is_a_wrong_setting(line: str) -> None:
    with pytest.raises(
        UsageError, match=rf"lists/bad line 2: {re.escape(repr(line))} is no domain; write one such as example.org"
    ):
        Domains.parse([("lists/bad", f"good.test\n{line}\n")])


def test_a_file_that_cannot_be_read_is_a_wrong_setting(tmp_path: Path) -> None:
    lost, folder, latin = tmp_path / "lost", tmp_path, tmp_path / "latin"
    latin.write_bytes(b"b\xfccher.example\n")
    for path, words in (
        (lost, "cannot be read (No such file or directory); give paths relative"),
        (folder, "cannot be read (Is a directory)"),
        (latin, "not text (byte 1)"),
    ):
        with pytest.raises(UsageError) as error:
            Domains.load([str(path)])
        assert str(error.value).startswith(f"[fetch] blocked_domains: {path}: {words}")
