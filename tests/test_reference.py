from collections import Counter
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pytest
from fontTools.unicodedata import script
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from altalign.data.key import image_id, sample_key
from altalign.data.reasons import KEPT, REASONS, DropReason
from altalign.filters.unicode_16 import unicodedata
from altalign.settings.curate import CurateConfig
from tests.altalign.data.test_reasons import CONTRACT
from tests.golden import candidates_of, caption_cases, failed_of, pool_cases, settings_of
from tests.reference.captions import (
    WHITE_SPACE,
    bigrams,
    category,
    clean,
    decode_entities,
    folded,
    is_letter_or_number,
    stands_alone,
    words,
)
from tests.reference.curation import (
    Candidate,
    ImageFacts,
    Settings,
    Tables,
    extract,
    image_verdict,
    images_in_hand,
    judge,
    reconcile,
    run,
    tables,
    url_without_fragment,
)
from tests.shared_data import SHARED, needs_shared
from tests.strategies import ENTITIES, REFERENCES, SHA256S, image_facts, nasty_captions, pools, small_settings

SEEDED = budget(derandomize=True, deadline=None, max_examples=60)
EVERY_CODE_POINT = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]

# BLAKE2b-128 of lines "0041;0061\n" and "4E00\n", computed from the UnicodeData.txt and Scripts.txt of Unicode 16.0.0
# themselves, which neither the interpreter nor the packages used here ship.
SIMPLE_LOWER_CASE_16 = "91936bf1b52b2a57fb24df7aaa2d93a4"
LETTERS_AND_NUMBERS_ALONE_16 = "02983d36956a7de773f8649842328ecb"
WORD_CHARACTERS_16 = "3e579ff31b9c0a05bbf330a9c7b5b808"
FORMAT_CHARACTERS_16 = "ce73e26f272748b9b02bdd885baa6f6e"


def digest(lines: list[str]) -> str:
    return blake2b("".join(line + "\n" for line in lines).encode(), digest_size=16).hexdigest()


# Unicode 16.0


def test_the_simple_lower_case_mapping_is_that_of_unicode_16():
    changed = [(c, folded(c)) for c in EVERY_CODE_POINT if folded(c) != c]
    assert len(changed) == 1460
    assert digest([f"{ord(c):04X};{ord(lower):04X}" for c, lower in changed]) == SIMPLE_LOWER_CASE_16


def test_categories_and_scripts_are_those_of_unicode_16():
    by_category: dict[str, list[str]] = {}
    for c in EVERY_CODE_POINT:
        by_category.setdefault(unicodedata.category(c), []).append(c)
    of = {
        name: sorted(c for key, found in by_category.items() if key[0] in name or key == name for c in found)
        for name in ("LN", "LMN", "Cf")
    }
    alone = [c for c in of["LN"] if stands_alone(c)]
    assert digest([f"{ord(c):04X}" for c in alone]) == LETTERS_AND_NUMBERS_ALONE_16
    assert digest([f"{ord(c):04X}" for c in sorted([*of["LMN"], *by_category["Pc"]])]) == WORD_CHARACTERS_16
    assert digest([f"{ord(c):04X}" for c in by_category["Cf"]]) == FORMAT_CHARACTERS_16
    assert script("ー") == "Zyyy"  # Common: it is no script of its own that makes コー one word
    assert [c for c in EVERY_CODE_POINT if category(c) == "Cc" and c in WHITE_SPACE] == list("\t\n\v\f\r\x85")


# Captions


@pytest.mark.parametrize("case", caption_cases(), ids=lambda case: case["why"])
def test_golden_captions_are_cleaned_folded_and_split_as_written(case: dict[str, Any]):
    raw = decode_entities(case["raw"]) if case.get("decode_entities") else case["raw"]
    assert clean(raw) == case["clean"]
    assert folded(case["clean"]) == case.get("folded", folded(case["clean"]))
    assert words(case["clean"]) == case.get("words", words(case["clean"]))


@SEEDED
@given(nasty_captions())
def test_a_clean_caption_is_clean(raw: str):
    caption = clean(raw)
    assert clean(caption) == caption == unicodedata.normalize("NFC", caption)
    assert caption == caption.strip(WHITE_SPACE)
    assert not [c for c in caption if unicodedata.category(c) == "Cc" or (c in WHITE_SPACE and c != " ")]
    assert "  " not in caption


@SEEDED
@given(nasty_captions())
def test_folding_twice_is_folding_once_and_words_do_not_depend_on_it(raw: str):
    caption = clean(raw)
    assert folded(folded(caption)) == folded(caption)
    assert len(folded(caption)) == len(caption)
    assert words(folded(caption)) == words(caption)


@SEEDED
@given(nasty_captions())
def test_words_are_whole_disjoint_and_complete(raw: str):
    caption = clean(raw)
    found = words(caption)
    text = "".join(c for c in folded(caption).replace("’", "'") if category(c) != "Cf" or c == "\u200b")
    for word in found:
        assert any(map(is_letter_or_number, word))
        assert word[0] != "'" != word[-1]
        assert sum(map(stands_alone, word)) <= 1 or all(category(c) == "Lm" for c in word[1:] if stands_alone(c))
        before, text_before = text.index(word), text
        text = text[before + len(word) :]
        # no letter or number is left between two words
        assert not any(map(is_letter_or_number, text_before[:before]))
    assert not any(map(is_letter_or_number, text))


@SEEDED
@given(nasty_captions())
def test_n_grams_tell_words_apart(raw: str):
    found = words(clean(raw))
    assert not [word for word in found if " " in word]
    assert [tuple(bigram.split(" ")) for bigram in bigrams(found)] == list(pairwise(found))


@SEEDED
@given(st.text())
def test_text_without_an_ampersand_holds_no_entities(text: str):
    assert decode_entities(text.replace("&", "")) == text.replace("&", "")
    assert decode_entities(text.replace("&", "&amp;")) == text


@SEEDED
@given(
    st.lists(
        st.sampled_from(
            [*ENTITIES, *REFERENCES, "&", "&#", "amp", "lt", "not", "frac12", "a", "=", ";", "1", "x", " "]
        ),
        max_size=12,
    ).map("".join)
)
def test_entities_are_decoded_as_an_html_parser_decodes_an_attribute(text: str):
    element = LexborHTMLParser(f'<img alt="{text}">').css_first("img")
    assert element is not None
    assert decode_entities(text) == element.attributes["alt"]


# Judging


@pytest.mark.parametrize("case", pool_cases(), ids=lambda case: case["name"])
def test_golden_pools_are_judged_as_written(case: dict[str, Any]):
    candidates = candidates_of(case)
    outcomes = judge(candidates, settings_of(case))
    for row, outcome in zip(case["rows"], outcomes, strict=True):
        assert (outcome.reason or KEPT) == row["verdict"], row
        assert outcome.failed == failed_of(row), row
        assert outcome.words == row.get("words", outcome.words), row
        assert (outcome.images_per_text, outcome.texts_per_image) == (
            row.get("images_per_text"),
            row.get("texts_per_image"),
        ), row
        assert outcome.kept_key == (outcomes[row["repeats"]].key if "repeats" in row else None), row
    assert Counter(outcome.reason or KEPT for outcome in outcomes) == case["counts"]


def test_defaults_are_those_of_the_contract_and_of_the_settings():
    assert Settings.of(CurateConfig.from_values({"input": {"paths": ["x"]}}, where="test")) == Settings()


def test_every_reason_of_judge_has_a_golden_case():
    found = {row["verdict"] for case in pool_cases() for row in case["rows"]}
    assert found == {KEPT, *CONTRACT["judge"].split()} - {DropReason.ROW_TOO_LARGE}  # golden rows keep no columns


@SEEDED
@given(pools(), small_settings(), st.randoms(use_true_random=False))
def test_verdicts_depend_on_positions_and_not_on_the_order_in_which_rows_come(
    candidates: list[Candidate], settings: Settings, random: Any
):
    shuffled = random.sample(candidates, len(candidates))
    assert sorted(judge(shuffled, settings), key=lambda o: o.candidate.position) == judge(candidates, settings)


@SEEDED
@given(pools(), small_settings())
def test_of_repeated_pairs_exactly_one_is_kept(candidates: list[Candidate], settings: Settings):
    outcomes = judge(candidates, settings)
    passing = [outcome for outcome in outcomes if not outcome.failed or outcome.reason == DropReason.PAIR_REPEATED]
    kept = Counter(outcome.key for outcome in outcomes if not outcome.failed)
    assert set(kept.values()) <= {1}
    assert kept.keys() == {outcome.key for outcome in passing}
    assert all(
        outcome.kept_key == (outcome.key if outcome.failed == [DropReason.PAIR_REPEATED] else None)
        for outcome in outcomes
    )


@SEEDED
@given(pools(), small_settings())
def test_wider_limits_leave_no_more_reasons(candidates: list[Candidate], settings: Settings):
    wider = replace(
        settings,
        words_at_most=1000,
        images_per_text_at_most=1000,
        texts_per_image_at_most=1000,
        vocabulary_size=100_000,
    )
    for narrow, wide in zip(judge(candidates, settings), judge(candidates, wider), strict=True):
        assert set(wide.failed) - {DropReason.PAIR_REPEATED} <= set(narrow.failed)


@SEEDED
@given(pools(max_size=12), pools(kind="warc", max_size=12), small_settings())
def test_failed_lists_reasons_of_the_stage_in_their_order_and_the_first_is_the_reason(
    table: list[Candidate], pages: list[Candidate], settings: Settings
):
    for outcome in [*extract(pages), *judge(table, settings)]:
        assert outcome.failed == [reason for reason in REASONS[outcome.stage] if reason in outcome.failed]
        assert outcome.reason == next(iter(outcome.failed), None)


def test_a_key_is_of_identity_and_stored_caption_and_a_row_without_identity_has_the_empty_one():
    with_image, without = judge(
        [Candidate(" http://a.example/#x", "A  Dog"), Candidate("nowhere", "A  Dog")], Settings()
    )
    assert (with_image.image_url, with_image.image_id, with_image.key) == (
        "http://a.example/",
        image_id("http://a.example/"),
        sample_key("http://a.example/", "A Dog"),
    )
    assert (without.image_url, without.image_id, without.key) == ("nowhere", None, sample_key("", "A Dog"))


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("http://a.example/ #x", "http://a.example/ "),
        ("\u3000http://a.example/\x85", "http://a.example/"),
        ("http:a.example", "http:a.example"),
    ],
)
def test_a_url_is_trimmed_once_and_then_loses_its_fragment(url: str, stored: str):
    assert url_without_fragment(url) == stored


def test_pages_lose_missing_and_empty_alts_and_invalid_urls_before_they_are_judged():
    page = Candidate("http://a.example/", "a dog", kind="warc")
    rows = [
        page,
        replace(page, caption_raw=None),
        replace(page, caption_raw=" \x01"),
        replace(page, image_url=None),
        replace(page, broken=True),
    ]
    rows += [
        replace(page, caption_raw="", image_url="x"),
        replace(page, kind="table", caption_raw=None, image_url=None),
    ]
    assert [outcome.failed for outcome in extract(rows)] == [
        [],
        ["alt_missing"],
        ["alt_empty"],
        ["url_invalid"],
        ["record_broken"],
        ["alt_empty", "url_invalid"],
        [],
    ]


# Images and whole runs


@pytest.mark.parametrize(
    ("facts", "failed"),
    [
        (ImageFacts(width=201, height=602), []),
        (ImageFacts(width=603, height=201), ["image_too_elongated"]),
        (ImageFacts(width=200, height=500), ["image_too_small"]),
        (ImageFacts(width=20, height=60), ["image_too_small", "image_too_elongated"]),
        (ImageFacts(width=500, height=200, damaged=True), ["image_damaged", "image_too_small"]),
        (ImageFacts(damaged=True), ["image_damaged"]),
        (ImageFacts(format=None), ["image_undecodable"]),
        (ImageFacts(format=None, hashes=frozenset({"bad"})), ["image_undecodable", "image_blocked"]),
        (ImageFacts(width=1000, height=1000), []),
        (ImageFacts(width=1001, height=1000), ["image_too_many_pixels"]),
        (
            ImageFacts(width=1_000_001, height=1, hashes=frozenset({"bad"})),
            ["image_too_many_pixels", "image_too_small", "image_too_elongated", "image_blocked"],
        ),
        (ImageFacts(width=300, height=300, nsfw_score=0.5), ["image_nsfw"]),
        (ImageFacts(width=300, height=300, nsfw_score=0.49), []),
    ],
)
def test_images_are_judged_at_their_boundaries(facts: ImageFacts, failed: list[str]):
    assert (
        image_verdict(
            facts, Settings(pixels_at_most=1_000_000, blocked_hashes=frozenset({"bad"}), nsfw_at_or_above=0.5)
        )
        == failed
    )


def test_a_ratio_that_is_no_binary_fraction_is_compared_as_written():
    assert image_verdict(ImageFacts(width=2100, height=1000), Settings(aspect_ratio_below=2.1)) == [
        "image_too_elongated"
    ]
    assert image_verdict(ImageFacts(width=2099, height=1000), Settings(aspect_ratio_below=2.1)) == []


def test_without_a_model_no_image_is_dropped_for_its_score():
    assert image_verdict(ImageFacts(width=300, height=300, nsfw_score=1.0), Settings()) == []


def test_of_several_images_in_hand_the_first_with_bytes_counts():
    rows = [
        Candidate("http://a.example/", "a", position=0),
        *(Candidate("http://a.example/#x", "a", position=n, image_sha256=SHA256S[2 - n]) for n in (2, 1)),
    ]
    assert images_in_hand(rows) == {"http://a.example/": SHA256S[1]}


@SEEDED
@given(
    pools(max_size=20),
    pools(kind="warc", max_size=10),
    small_settings(),
    st.lists(image_facts(), min_size=1, max_size=8),
    st.integers(0, 100),
)
def test_no_row_is_lost_and_counts_add_up(
    table: list[Candidate], pages: list[Candidate], settings: Settings, facts: list[ImageFacts], seed: int
):
    candidates = [*table, *(replace(page, position=len(table) + page.position) for page in pages)]
    identities = sorted({candidate.identity for candidate in candidates if candidate.identity})
    images = {identity: facts[(seed + n) % len(facts)] for n, identity in enumerate(identities) if (seed + n) % 7}
    curation = run(candidates, images, settings)
    assert sorted(outcome.candidate.position for outcome in [*curation.dropped, *curation.kept]) == list(
        range(len(candidates))
    )
    assert reconcile(curation.counts, curation.received) == []
    assert sum(curation.received["extract", source] for source in ("north", "south")) == len(candidates)
    assert [(o.image_id, o.key) for o in curation.kept] == sorted({(o.image_id, o.key) for o in curation.kept})
    assert all(outcome.identity in images for outcome in curation.kept)


def test_counts_that_do_not_add_up_are_named():
    counts = {("extract", "north", KEPT): 3, ("judge", "north", KEPT): 1, ("judge", "north", "text_empty"): 1}
    assert reconcile(counts) == ["north: extract kept 3, judge received 2"]
    assert reconcile({**counts, ("judge", "north", "pair_repeated"): 1}, {("judge", "north"): 4}) == [
        "('judge', 'north'): received 4, counted 3"
    ]


# duckdb counts the same from the same words

SETTINGS = Settings(words_at_least=2, vocabulary_size=8_000, images_per_text_at_most=2, texts_per_image_at_most=2)


def duckdb_tables(
    candidates: list[Candidate], settings: Settings
) -> tuple[dict[str, int], int | None, dict[str, int], dict[str, int], dict[int, int]]:
    """All n-grams, threshold, over-shared texts, over-captioned images and words per row, by SQL over (row, position,
    word).
    """
    placed = [
        (row, position, word)
        for row, found in enumerate(c.words for c in candidates)
        for position, word in enumerate(found)
    ]
    columns = list(zip(*placed, strict=True)) or [(), (), ()]
    placed_words = pa.table(dict(zip(("row", "position", "word"), map(list, columns), strict=True)))
    rows = pa.table(
        {
            "row": range(len(candidates)),
            "text": [folded(c.caption) for c in candidates],
            "image": [c.identity for c in candidates],
        }
    )
    with duckdb.connect(config={"threads": 1}) as sql:
        sql.register("words", placed_words)
        sql.register("rows", rows)
        sql.execute("""create table ngrams as select ngram, count(*) as n from (
            select word as ngram from words union all
            select word || ' ' || lead(word) over (partition by row order by position) from words)
            where ngram is not null group by ngram""")
        kth = sql.execute(
            "select n from ngrams order by n desc limit 1 offset ?", [settings.vocabulary_size - 1]
        ).fetchone()
        over = "select {0}, count(distinct {1}) as n from rows where image is not null group by {0} having n > ?"
        return (
            dict(sql.execute("select * from ngrams").fetchall()),
            None if kth is None or kth[0] == 1 else kth[0],
            dict(sql.execute(over.format("text", "image"), [settings.images_per_text_at_most]).fetchall()),
            dict(sql.execute(over.format("image", "text"), [settings.texts_per_image_at_most]).fetchall()),
            dict(
                sql.execute(
                    "select n, count(*) from (select row, count(word) as n from rows left join words using (row) group "
                    "by row) group by n"
                ).fetchall()
            ),
        )


def assert_equal_tables(
    found: Tables, by_sql: tuple[dict[str, int], int | None, dict[str, int], dict[str, int], dict[int, int]]
):
    every_ngram, threshold, texts, images, words_per_row = by_sql
    assert dict(found.ngrams) == every_ngram
    assert found.threshold == threshold
    assert found.vocabulary == (
        None if threshold is None else {ngram: n for ngram, n in every_ngram.items() if n >= threshold}
    )
    assert found.over_shared_texts == texts
    assert found.over_captioned_images == images
    assert dict(found.words_per_row) == words_per_row


@budget(SEEDED, max_examples=15)
@given(pools(), small_settings())
def test_duckdb_makes_the_same_tables_of_generated_pools(candidates: list[Candidate], settings: Settings):
    # an empty column has no type
    pool = [*candidates, Candidate("http://a.example/", "one", position=len(candidates))]
    assert_equal_tables(tables(pool, settings), duckdb_tables(pool, settings))


@needs_shared
def test_duckdb_makes_the_same_tables_of_real_captions():
    with duckdb.connect(config={"threads": 1}) as sql:
        found = sql.execute(
            "select image, text from read_parquet(?) where md5(image) < '030' limit 20000",
            [str(SHARED / "alt_text.parquet")],
        ).fetchall()
    pool = [
        Candidate(None if position % 50 == 0 else f"https://images.example/{quote(image)}", text, position=position)
        for position, (image, text) in enumerate(sorted(found))
    ]
    facts = tables(pool, SETTINGS)
    assert facts.threshold is not None
    assert min(len(facts.over_shared_texts), len(facts.over_captioned_images)) > 10
    assert_equal_tables(facts, duckdb_tables(pool, SETTINGS))
    reasons = Counter(outcome.reason for outcome in judge(pool, SETTINGS))
    assert reasons.total() == len(pool)
    bounds = {"text_too_large", "url_too_long", DropReason.ROW_TOO_LARGE}
    assert reasons.keys() == {None, *CONTRACT["judge"].split()} - {"text_empty"} - bounds
