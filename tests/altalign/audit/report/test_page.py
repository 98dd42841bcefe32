"""The page itself: its size, its policy, its colours, what it is made of, and strings as they are shown."""

import base64
import hashlib
import json
import re
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.audit.checks import Check
from altalign.audit.report import galleries, page
from altalign.audit.report.page import Numbers
from altalign.audit.run_folder import RunFolder
from altalign.pages import frame, page_text
from tests.altalign.audit.report import report_run
from tests.altalign.audit.report.report_run import PASSED, picture, sample

STATIC = Path(page.__file__).parent / "static"
RELEASED = {  # of the npm package uplot 1.6.32
    "uPlot-1.6.32.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot-LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_run.write(tmp_path_factory.mktemp("page"), report_run.candidates(400))


@pytest.fixture(scope="module")
def found(run: Path) -> Numbers:
    return gathered(run)


def gathered(run: Path) -> Numbers:
    return page.gather(RunFolder.open(str(run)), PASSED)


def test_what_is_not_ours_is_as_it_was_released():
    assert {name: hashlib.sha256((STATIC / name).read_bytes()).hexdigest() for name in RELEASED} == RELEASED


def test_the_policy_has_the_hashes_of_what_is_in_the_page(found: Numbers):
    said = page.html(found).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', said)
    assert policy is not None
    blocks = {kind: re.findall(rf"<{kind}>(.*?)</{kind}>", said, re.DOTALL) for kind in ("script", "style")}
    assert {kind: len(found) for kind, found in blocks.items()} == {"script": 1, "style": 1}
    hashes = {
        kind: base64.b64encode(hashlib.sha256(block[0].encode()).digest()).decode() for kind, block in blocks.items()
    }
    assert policy[1].replace("&#39;", "'") == (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'; img-src "
        "data:; base-uri 'none'; form-action 'none'"
    )
    assert " style=" not in re.sub(r"<(script|style).*?</\1>", "", said, flags=re.DOTALL)


def test_the_same_run_gives_the_same_page(run: Path, found: Numbers):
    again = gathered(run)
    assert page.html(again) == page.html(found)
    assert json.dumps(again.to_json()) == json.dumps(found.to_json())


def test_sources_have_a_table_of_pairs_of_images_and_of_bytes(found: Numbers):
    said = page.html(found).decode()
    tables = dict(re.findall(r'<caption id="sources-(\w+)">.*?</caption>(.*?)</table>', said, re.DOTALL))
    assert tables.keys() == {"rows", "images", "bytes"}
    for measure, table in tables.items():
        shown = page_text.size if measure == "bytes" else page_text.number
        rows = re.findall(r'<bdi dir="auto">(\w+)</bdi>(.*?)</tr>', table, re.DOTALL)
        assert [source for source, _ in rows] == list(found.funnel[0].by_source)
        for source, cells in rows:
            amounts = {step.name: getattr(step.by_source[source], measure) for step in found.counting(measure)}
            told = dict(re.findall(r'data-label="(\w+)">([^<]*)<', cells))
            assert {name: told[name] for name in amounts} == {name: shown(amount) for name, amount in amounts.items()}


def test_a_run_that_did_not_count_images_of_sources_says_so(tmp_path: Path):
    said = page.html(
        gathered(report_run.write(tmp_path, report_run.candidates(100), but=("audit/funnel.parquet",)))
    ).decode()
    assert re.findall(r'<caption id="sources-(\w+)">', said) == ["rows"]
    assert said.count("has no <code>audit/funnel.parquet</code>") == 2


# Size ----------------------------------------------------------------------------------------------------------------


def test_a_page_of_many_large_pictures_has_those_that_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = report_run.write(tmp_path, report_run.candidates(100))
    large = picture(0, 192)
    report_run.write_samples(run, [sample("kept", "kept", number, picture=large) for number in range(72)])
    monkeypatch.setattr(galleries, "PICTURES_AT_MOST", 24 * 4 * -(-len(large) // 3))
    said = page.html(gathered(run))
    shown = said.count(b"data:image/")
    near = 6  # small pictures of near-duplicates, which come first
    assert 20 <= shown - near < 24
    assert said.count(b"left out to keep the report under 25 MB") == 72 + near - shown


def test_what_is_no_picture_is_not_shown():
    shown = galleries.within(10**6)
    assert shown(b"<svg onload=alert(1)>") is None
    assert shown(b"") is None
    assert str(shown(picture(1))).startswith("data:image/webp;base64,")


# Colours -------------------------------------------------------------------------------------------------------------


def schemes() -> dict[str, dict[str, str]]:
    """The colours of light, dark and print."""
    blocks = re.findall(
        r":root \{(.*?)\}", (Path(frame.__file__).parent / "static" / "page.css").read_text(encoding="utf-8"), re.DOTALL
    )
    return {
        name: dict(re.findall(r"--([a-z-]+): (#[0-9a-f]+)", block))
        for name, block in zip(("light", "dark", "print"), blocks, strict=True)
    }


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_words_and_bars_stand_out_from_what_is_behind_them(scheme: str):
    """WCAG 2.2: 4.5 for text, 3 for what has to be seen."""
    colours = schemes()[scheme]
    for name in ("text", "soft", "accent", "bad", "good"):
        assert contrast(colours[name], colours["bg"]) >= 4.5, name
    for name in ("text", "soft"):
        assert contrast(colours[name], colours["panel"]) >= 4.5, name
    assert contrast(colours["bad"], colours["bad-bg"]) >= 4.5
    for name in ("kept", "gone"):
        assert contrast(colours[name], colours["bg"]) >= 3, name


# Strings -------------------------------------------------------------------------------------------------------------


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_no_string_hides_anything_or_is_longer_than_it_may_be(value: str, at_most: int):
    shown = page_text.shown(value, at_most)
    assert len(shown.text) <= at_most
    assert not set(shown.text) & {
        chr(code) for code in (*range(32), 0x7F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029, 0xFEFF)
    }
    shown.text.encode()
    assert shown.left_out <= len(value)
    if value.isprintable() and not any(unicodedata.category(character).startswith("M") for character in value):
        assert shown == page_text.Shown(value[:at_most], max(0, len(value) - at_most))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\u0301bc\u0323\u0302", "a\u0301bc\u0323\u0302"),
        ("Z" + "\u0300\u0316" * 3, "Z\u0300\u0316\u0300\u0316\\u0300\\u0316"),
        ("\u0e01\u0e34\u0e48", "\u0e01\u0e34\u0e48"),
        ("a\u202eb", "a\\u202eb"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_what_scripts_need_stays_and_what_hides_or_heaps_up_is_written_out(value: str, shown: str):
    assert page_text.shown(value) == page_text.Shown(shown, 0)


@pytest.mark.parametrize(
    ("url", "is_link"),
    [
        ("https://img.example/a.jpg?b=c&d=e#f", True),
        ("HTTP://img.example/", True),
        ("javascript:alert(1)", False),
        (" https://img.example/", False),
        ("https://img.example/\u202e", False),
        ("https://img.example/ a", False),
        ("https://img.example/\"'", False),
        ("https://bücher.example/", False),
        ("//img.example/a.jpg", False),
        ("data:image/png;base64,AA", False),
        ("https://img.example/" + "a" * 500, False),
        ("", False),
        (None, False),
    ],
)
def test_links_lead_to_the_web_alone(url: str | None, is_link: bool):  # noqa: FBT001 - of the test
    assert page_text.link(url) == (url if is_link else None)


def test_shares_that_are_not_nothing_and_not_all_do_not_look_so():
    parts = (0, 1, 1_000, 50_000, 5_000_000, 9_999_999, 10_000_000)
    shares = ["0.0 %", "< 0.01 %", "0.01 %", "0.50 %", "50.0 %", "> 99.9 %", "100.0 %"]
    assert [page_text.share(part, 10_000_000).replace("\u2009", " ") for part in parts] == shares
    assert page_text.share(0, 0) == ""


def test_sizes_are_for_people():
    assert [page_text.size(value) for value in (0, 999, 1_000, 12_345, 999_000, 48_826_880, 5e9, 7e14)] == [
        "0 B", "999 B", "1 kB", "12.3 kB", "999 kB", "48.8 MB", "5 GB", "700 TB",
    ]  # fmt: skip


def test_a_check_that_could_not_be_asked_is_neither_passed_nor_failed(found: Numbers):
    unasked, failed = Check("image_blocked", None, "the list is gone", 3), Check("a", False, "b", 1)  # noqa: FBT003

    def said(*checks: Check) -> str:
        return page.html(replace(found, checks=checks)).decode()

    assert "Nothing was checked" in said()
    assert '1 <a href="#checks">check</a> passed' in said(PASSED[0])
    assert "1 of 1 check failed" in said(failed)
    of_three = said(*PASSED, unasked)
    assert '<b>2 checks passed, 1 could not be asked:</b> <a href="#checks">image_blocked</a>.' in of_three
    assert ">FAILED<" not in of_three
    of_four = said(*PASSED, unasked, failed)
    assert "<b>1 of 4 checks failed, 1 could not be asked.</b>" in of_four
    assert of_four.index("<td>FAILED</td>") < of_four.index("<td>not asked</td>") < of_four.index("<td>passed</td>")


def test_an_edge_whose_outside_was_seen_once_is_not_told_as_none(found: Numbers):
    seen_once = "outside the vocabulary was seen only once"
    assert seen_once in page.html(replace(found, frequent={**found.frequent, "ngrams_out": []})).decode()
    assert seen_once not in page.html(found).decode()


@pytest.mark.parametrize("machine", ["", "8 cores, 32 GB"])
def test_a_machine_that_was_not_recorded_is_not_spoken_of(found: Numbers, machine: str):
    said = page.html(replace(found, run={**found.run, "machine": machine})).decode()
    assert ("<dt>machine</dt>" in said) == bool(machine)
    assert machine in said
