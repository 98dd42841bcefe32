from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.data.reasons import OPT_OUTS, REASONS, WORDS, DropReason, Stage, drop_where, reasons_of

# The contract's table, in its order.
CONTRACT = {
    "extract": "record_broken alt_missing alt_empty url_too_long url_invalid",
    "judge": (
        "url_too_long url_invalid text_empty text_too_large text_too_short text_too_long text_on_too_many_images "
        "text_has_rare_ngram image_has_too_many_texts row_too_large pair_repeated"
    ),
    "fetch": (
        "not_in_archive row_too_large http_status http_timeout http_not_asked http_unreachable http_broken "
        "http_too_large opt_out_x_robots_tag opt_out_meta_robots opt_out_content_usage opt_out_content_signal "
        "opt_out_tdmrep opt_out_rsl opt_out_iptc opt_out_c2pa opt_out_robots_txt http_refused url_blocked removed"
    ),
    "image": (
        "image_undecodable image_damaged image_too_many_pixels image_too_small image_too_elongated image_blocked "
        "image_nsfw"
    ),
    "decontaminate": "near_duplicate_of_test_image near_duplicate_in_pool",
    "select": ("not_listed out_of_balance removed text_on_too_many_images image_has_too_many_texts pair_repeated"),
}
RULES = list(REASONS[Stage.JUDGE])

masks = st.lists(st.lists(st.booleans(), min_size=len(RULES), max_size=len(RULES)), max_size=30)


def verdicts_of(rows: list[list[bool]]) -> Any:
    return [drop_where(pa.array([row[i] for row in rows], pa.bool_()), rule) for i, rule in enumerate(RULES)]


def test_stages_and_reasons_are_those_of_the_contract_in_its_order() -> None:
    for stage, names in CONTRACT.items():  # rules may be added between them
        assert [reason for reason in REASONS[Stage(stage)] if reason in names.split()] == names.split()
    assert list(REASONS) == list(Stage)


def test_every_reason_belongs_to_one_stage_but_some_to_two() -> None:
    uses = Counter(reason for reasons in REASONS.values() for reason in reasons)
    of_two = ("url_invalid", "url_too_long", DropReason.ROW_TOO_LARGE)
    of_two += (DropReason.REMOVED, *OPT_OUTS)
    of_two += ("text_on_too_many_images", "image_has_too_many_texts", DropReason.PAIR_REPEATED)
    assert uses == {reason: 2 if reason in of_two else 1 for reason in WORDS}


def test_a_verdict_is_the_reason_or_null() -> None:
    verdict: Any = drop_where(pa.array([True, False]), "text_too_short")
    assert verdict.type.value_type == pa.string()
    assert verdict.to_pylist() == ["text_too_short", None]


@given(masks)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_the_first_reason_is_that_of_a_plain_loop(rows: list[list[bool]]) -> None:
    expected = [next((rule for rule, holds in zip(RULES, row, strict=True) if holds), None) for row in rows]
    found: Any = reasons_of(verdicts_of(rows))[0]
    assert found.to_pylist() == expected


@given(masks)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_all_reasons_are_those_of_a_plain_loop(rows: list[list[bool]]) -> None:
    found: Any = reasons_of(verdicts_of(rows))[1]
    assert found.type.value_type == pa.list_(pa.string())
    assert found.to_pylist() == [[rule for rule, holds in zip(RULES, row, strict=True) if holds] for row in rows]


@given(masks, st.integers(0, 5))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_reasons_of_a_slice_are_a_slice_of_the_reasons(rows: list[list[bool]], start: int) -> None:
    verdicts = verdicts_of(rows)
    sliced = [verdict.slice(min(start, len(rows))) for verdict in verdicts]
    found: Any = reasons_of(sliced)
    of_all: Any = reasons_of(verdicts)
    assert found[1].to_pylist() == of_all[1].to_pylist()[start:]
    assert found[0].to_pylist() == of_all[0].to_pylist()[start:]


@given(masks, st.integers(0, 9))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_a_verdict_of_a_sliced_mask_is_a_slice_of_the_verdict(rows: list[list[bool]], start: int) -> None:
    mask = pa.array([row[0] for row in rows], pa.bool_())
    expected = [RULES[0] if holds else None for holds in mask.to_pylist()]
    verdict: Any = drop_where(mask.slice(min(start, len(rows))), RULES[0])
    assert verdict.to_pylist() == expected[start:]
