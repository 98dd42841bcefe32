"""Golden cases of every built-in rule, and what its declaration holds."""

import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from altalign.data.reasons import RULES, SECTIONS
from altalign.errors import AltalignError
from altalign.rules.rule import Rule, value_of
from altalign.settings.curate import CurateConfig

CASES = tomllib.loads((Path(__file__).parents[1] / "cases" / "rules.toml").read_text(encoding="utf-8"))["rule"]
EVERY = [rule for rules in RULES.values() for rule in rules]
NUMBERS = ("words", "width", "height", "bytes", "images_per_text", "texts_per_image")
TYPES = {
    **dict.fromkeys(NUMBERS, pa.int64()),
    **dict.fromkeys(("has_identity", "has_rare_ngram", "has_personal", "is_blocked"), pa.bool_()),
    "nsfw_score": pa.float32(),
}


def config_of(settings: dict[str, Any]) -> CurateConfig:
    return CurateConfig.from_values({"input": {"paths": ["x"]}, **settings}, where="the case")


def value(row: dict[str, Any], column: str) -> Any:
    longer = row.get("bytes_of", {}).get(column)
    return row[column].ljust(longer, "u") if longer else row.get(column)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden_rows_are_kept_and_dropped_as_written(case: dict[str, Any]) -> None:
    rule = next(rule for rule in EVERY if rule.name == case["name"])
    rows = [*case["keeps"], *case["drops"]]
    columns = {
        name: pa.array([value(row, name) for row in rows], TYPES.get(name, pa.string())) for name in rule.columns
    }
    mask: Any = rule.mask(columns, config_of(case.get("settings", {})))
    assert mask.to_pylist() == [False] * len(case["keeps"]) + [True] * len(case["drops"])


def test_every_rule_has_a_golden_case_that_keeps_and_one_that_drops() -> None:
    both = {case["name"] for case in CASES if case["keeps"] and case["drops"]}
    assert both == {rule.name for rule in EVERY}


@pytest.mark.parametrize(
    "name", ["text_too_short", "text_too_long", "text_has_rare_ngram", "text_empty", "url_invalid"]
)
def test_a_null_where_a_value_is_needed_is_an_error_and_keeps_nothing(name: str) -> None:
    rule = next(rule for rule in EVERY if rule.name == name)
    columns = {
        "words": pa.array([1, None], pa.int32()),
        "has_rare_ngram": pa.array([True, None]),
        "caption": pa.array(["a", None]),
        "has_identity": pa.array([True, None]),
    }
    with pytest.raises(AltalignError, match=rf"text\.py line \d+: {name}: it returned null for 1;"):
        rule.mask(columns, config_of({}))


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.name)
def test_no_rows_have_an_empty_mask(rule: Rule) -> None:
    columns: Any = {name: pa.array([], TYPES.get(name, pa.string())) for name in rule.columns}
    assert len(rule.mask(columns, config_of({}))) == 0


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.name)
def test_every_rule_declares_settings_that_are_there_and_a_meaning_or_a_paper(rule: Rule) -> None:
    config = config_of({})
    assert all(
        isinstance(value_of(config, name), int | float) for name in {*rule.settings, rule.words.threshold} - {""}
    )
    assert rule.words.meaning.endswith(".")
    assert bool(rule.paper) != bool(rule.words.why)
    assert {rule.words.threshold} - {""} <= {*rule.words.settings}


def test_no_rule_is_declared_twice() -> None:
    names = [rule.name for rule in EVERY]
    assert len(names) == len({*names})
    assert RULES.keys() == SECTIONS.keys()
