"""duckdb counts the tables of a run again, from the reference's words, and agrees to the last n-gram."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.end_to_end.inputs import HANDBOOKS, Part, handbooks, placed, write_parts
from tests.end_to_end.oracle import assert_tables, curate
from tests.reference.curation import Candidate, Settings, Tables
from tests.test_reference import duckdb_tables

pytestmark = pytest.mark.runs

_LETTERS = "etaoinshrdlu漢ñд"


def tables_by_sql(candidates: Sequence[Candidate], settings: Settings) -> Tables:
    """What tests/reference says of a pool, by SQL alone; limits of zero list every text and image."""
    every = replace(settings, images_per_text_at_most=0, texts_per_image_at_most=0)
    ngrams, threshold, texts, images, words_per_row = duckdb_tables(list(candidates), every)
    return Tables(
        ngrams=Counter(ngrams),
        vocabulary=None if threshold is None else {ngram: n for ngram, n in ngrams.items() if n >= threshold},
        threshold=threshold,
        images_per_text=texts,
        over_shared_texts={text: n for text, n in texts.items() if n > settings.images_per_text_at_most},
        texts_per_image=images,
        over_captioned_images={image: n for image, n in images.items() if n > settings.texts_per_image_at_most},
        words_per_row=Counter(words_per_row),
    )


def repeated_words(rows: int, *, seed: int) -> list[Candidate]:
    """Captions of words that fall off as words do, on images that fall off too; some captions are whole sentences seen
    before.
    """
    rng = random.Random(seed)
    words = ["".join(rng.choices(_LETTERS, k=rng.randrange(1, 9))) for _ in range(4_000)]
    sentences = [_sentence(rng, words) for _ in range(300)]
    found = []
    for _ in range(rows):
        caption = rng.choice(sentences).title() if rng.random() < 0.2 else _sentence(rng, words)
        url = (
            f"https://i{_rank(rng, 40)}.example/{_rank(rng, 500)}.jpg"
            if rng.random() < 0.97
            else rng.choice([None, "", "x.jpg"])
        )
        found.append(Candidate(url, caption))
    return found


def _sentence(rng: random.Random, words: Sequence[str]) -> str:
    return " ".join(words[_rank(rng, len(words))] for _ in range(rng.randrange(13)))


def _rank(rng: random.Random, below: int) -> int:
    """0 often, each larger one less often."""
    return min(int(rng.paretovariate(0.6)) - 1, below - 1)


@pytest.mark.parametrize("vocabulary_size", [1_500, 10_000_000])
def test_tables_of_20_000_rows_of_repeated_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary_size: int):
    """Seven units of three files and 64 partitions, with buffers so small that they overflow again and again."""
    monkeypatch.setattr("altalign.pipelines.run.pool.ROWS_PER_UNIT", 3_000)
    monkeypatch.setattr("altalign.pipelines.stages.tables.ROWS_PER_PARTITION", 400)
    monkeypatch.setattr("altalign.dedup.spill.BUFFER_BYTES", 1 << 14)
    monkeypatch.setattr("altalign.dedup.spill.SLICE_BYTES", 256)
    settings = Settings(vocabulary_size=vocabulary_size, images_per_text_at_most=3, texts_per_image_at_most=30)
    rows = repeated_words(20_000, seed=3)
    parts = [
        Part("a", "parquet", rows[:9_000]),
        Part("b", "jsonl", rows[9_000:11_000]),
        Part("a", "parquet", rows[11_000:]),
    ]
    by_sql = tables_by_sql(placed(parts)[0], settings)
    assert_tables(curate(tmp_path, write_parts(tmp_path, parts), settings, "--until", "tables"), by_sql, settings)
    assert min(len(by_sql.over_shared_texts), len(by_sql.over_captioned_images)) > 50
    assert (by_sql.threshold or 1) > 5 or vocabulary_size > len(by_sql.ngrams)


@pytest.mark.everyday
@pytest.mark.parametrize("vocabulary_size", [90, 317, 318, 767])
def test_tables_of_both_handbooks(tmp_path: Path, vocabulary_size: int):
    """At both sides of where the threshold becomes one, and beyond: 317 n-grams of two books occur twice or more, 766
    in all.
    """
    settings = Settings(vocabulary_size=vocabulary_size, images_per_text_at_most=1, texts_per_image_at_most=1)
    by_sql = tables_by_sql(handbooks()[0], settings)
    assert_tables(curate(tmp_path, HANDBOOKS, settings, "--until", "tables"), by_sql, settings)
    assert (by_sql.threshold is None) == (vocabulary_size > 317)
