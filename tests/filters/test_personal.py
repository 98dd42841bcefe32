"""Personal data in captions: golden cases of several countries with their false friends, and what bounds the search."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from altalign.errors import UsageError
from altalign.filters import one_url, personal
from altalign.settings.curate import CurateConfig, TextSettings

CASES = tomllib.loads((Path(__file__).parents[1] / "cases" / "personal.toml").read_text(encoding="utf-8"))["caption"]
COUNTRIES = TextSettings().phone_countries


@pytest.mark.parametrize("kind", personal.KINDS)
def test_golden_captions_have_what_is_written(kind: str) -> None:
    texts: Any = pa.array([case["text"] for case in CASES])
    found = personal.found(texts, [kind], COUNTRIES)[kind]
    wrong = [
        case["text"]
        for case, has in zip(CASES, found, strict=True)
        if has != (kind in [*case["has"], *case.get("taken_for", [])])
    ]
    assert not wrong
    assert 0 < found.sum() < len(CASES)


def test_national_numbers_are_those_of_the_countries() -> None:
    texts: Any = pa.array(["Tel. 22 694 49 83 Warszawa", "Tel. +48 22 694 49 83"])
    assert personal.found(texts, ["phone"], COUNTRIES)["phone"].tolist() == [False, True]
    assert personal.found(texts, ["phone"], ["PL"])["phone"].tolist() == [True, True]
    assert personal.found(texts, ["phone"], [])["phone"].tolist() == [False, True]


def test_no_caption_depends_on_the_others_and_long_ones_are_looked_at_as_far_as_it_says() -> None:
    texts = [case["text"] for case in CASES]
    beyond = "a" * personal.CHARACTERS
    every: Any = pa.array([*texts, f"{beyond} info@example.org", "", "a@b.com " + beyond])
    masks = personal.found(every, personal.KINDS, COUNTRIES)
    for kind, mask in masks.items():
        alone = [personal.found(every.slice(row, 1), [kind], COUNTRIES)[kind][0] for row in range(len(every))]
        assert mask.tolist() == alone
    assert masks["email"].tolist()[-3:] == [False, False, True]
    of_any = np.logical_or.reduce([*masks.values()]).tolist()
    settings = TextSettings.model_validate({"drop_personal": [*personal.KINDS]})
    assert personal.has_any(every, settings).to_pylist() == of_any
    assert not any(personal.has_any(every, TextSettings()).to_pylist())


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("www.example.co.uk", "example.co.uk"),
        ("cdn.images.Example.COM", "example.com"),
        ("someone.github.io", "someone.github.io"),
        ("xn--mnchen-3ya.de", "xn--mnchen-3ya.de"),
        ("com", ""),
        ("127.0.0.1", ""),
        ("localhost", ""),
        ("", ""),
    ],
)
def test_the_registered_domain_of_a_host(host: str, domain: str) -> None:
    assert one_url.registered_domain(host) == domain


def test_a_country_without_numbers_is_refused_by_its_name() -> None:
    values = {"input": {"paths": ["x"]}, "text": {"phone_countries": ["US", "UK"]}}
    with pytest.raises(
        UsageError, match='"UK" has no phone numbers of its own; give countries by ISO 3166, such as GB'
    ):
        CurateConfig.from_values(values, where="mine.toml")
