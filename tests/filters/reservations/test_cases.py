"""Every case of tests/cases/reservations.toml by the pure readers: what is said, and which purposes it opposes."""

import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from altalign.data.purposes import PURPOSES
from altalign.filters import reservations
from altalign.filters.reservations import NOTATIONS, Said, opposed
from altalign.filters.reservations.robots_txt import Robots
from altalign.filters.reservations.tdmrep import Reservations
from altalign.settings.curate import FetchSettings
from tests.support.marks import image_of

TOKEN, WHEN = "altalign", "2026-11-29T10:00:00Z"
CASES: list[dict[str, Any]] = tomllib.loads(Path("tests/cases/reservations.toml").read_text(encoding="utf-8"))["case"]
META = re.compile(r'<meta name="([^"]*)" content="([^"]*)">', re.IGNORECASE)


def headers_of(lines: list[str]) -> dict[str, list[str]]:
    headers = defaultdict[str, list[str]](list)
    for name, _, value in (line.partition(": ") for line in lines):
        headers[name.lower()].append(value)
    return headers


def said_of(case: dict[str, Any], kind: str = "png") -> list[Said]:
    """All that is said in a case, by the reader of each place."""
    url = f"http://site.example{case.get('path', '/a.png')}"
    said = reservations.of_headers(headers_of(case.get("header", [])), TOKEN, "image header", WHEN)
    said += reservations.of_headers(headers_of(case.get("page_header", [])), TOKEN, "page header", WHEN)
    said += reservations.of_metas(META.findall("".join(case.get("meta", []))), TOKEN, WHEN)
    said += Robots.parse(case.get("robots", "").encode(), TOKEN).archived(url, WHEN)
    said += Reservations.parse(case.get("tdmrep", "").encode()).said(url, WHEN)
    return said + reservations.of_image(image_of(case, kind))


def test_the_cases_are_many_and_of_every_notation() -> None:
    assert len(CASES) >= 40
    assert len({case["name"] for case in CASES}) == len(CASES)
    assert {each.notation for case in CASES for each in said_of(case)} == set(NOTATIONS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_what_is_said_opposes_these_purposes(case: dict[str, Any]) -> None:
    expected = {purpose: tuple(case.get("opposed", {}).get(purpose, ())) for purpose in PURPOSES}
    kinds = ("jpeg", "png", "webp") if {"xmp", "c2pa"} & set(case) else ("png",)
    for kind in kinds:
        said = said_of(case, kind)
        assert {purpose: opposed(said, purpose, TOKEN) for purpose in PURPOSES} == expected, kind
        assert not opposed(said, "keep all", TOKEN)
        for each in said:
            assert each.notation in NOTATIONS
            assert 0 < len(each.value) <= 500
            assert each.when == (None if each.where == "image file" else WHEN)


def test_what_allows_and_what_nobody_knows_is_kept_as_it_was_written() -> None:
    by_name = {case["name"]: said_of(case) for case in CASES}
    assert by_name["words that nobody knows"] == [
        Said("content-usage", "dance=n, train-ai-2=n;why=x", "image header", WHEN)
    ]
    assert by_name["the group of all, the path of a longer line"] == [
        Said("content-usage", "/ai-ok/ train-ai=y", "robots.txt", WHEN)
    ]
    assert by_name["rights reserved in a header, with a policy"] == [
        Said("tdmrep", "tdm-reservation: 1", "page header", WHEN),
        Said("tdmrep", "tdm-policy: https://provider.com/policies/policy.json", "page header", WHEN),
    ]
    assert by_name["a licence in the group of all"] == [
        Said("rsl", "https://example.com/default-license.xml", "robots.txt", WHEN)
    ]
    assert by_name["DMI-ALLOWED"] == [Said("iptc", "http://ns.useplus.org/ldf/vocab/DMI-ALLOWED", "image file", None)]
    assert by_name["labels of C2PA 1.4"] == [
        Said(
            "c2pa",
            "c2pa.ai_inference=allowed, c2pa.ai_training=notAllowed, c2pa.ai_generative_training=allowed",
            "image file",
            None,
        )
    ]
    assert by_name["nothing is said"] == []


def test_documents_and_settings_know_every_notation_and_purpose() -> None:
    text = Path("docs/reference/reservations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9.-]+)` \|", text.partition("## What opposes")[0], re.MULTILINE)
    assert tuple(rows) == NOTATIONS
    assert re.findall(r"`(train|train-generative|train-other|search)` \|", text)[:4] == [*PURPOSES[:4]]
    assert get_args(get_type_hints(FetchSettings)["purpose"]) == PURPOSES
