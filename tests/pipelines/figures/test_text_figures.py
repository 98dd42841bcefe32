"""Histograms, scripts and frequent strings of texts."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.data.audit_tables import MEASURED
from altalign.filters import one_caption, words
from altalign.pipelines.figures import image_figures, text_figures
from altalign.pipelines.figures.text_figures import OF_IMAGE, OF_TEXT, Histograms
from altalign.storage import parquet
from tests.filters import plain_words

TYPES: dict[str, pa.DataType] = {
    "source": pa.string(),
    "reason": pa.string(),
    "format": pa.string(),
    "found_bytes": pa.int64(),
    "width": pa.int32(),
    "height": pa.int32(),
    "nsfw_score": pa.float32(),
    "failed": pa.list_(pa.string()),
}
sides = st.none() | st.tuples(*[st.sampled_from([1, 9, 200, 201, 1_023, 1_024, 40_000])] * 2)
reasons = st.sampled_from(["image_too_small", "image_too_elongated", "image_nsfw", "image_damaged"])
images = st.lists(
    st.tuples(sides, st.sampled_from([None, 0.0, 0.29, 0.999, 1.0]), st.lists(reasons, unique=True)), max_size=30
)


def table_of(rows: list[Any]) -> pa.Table:
    """Candidates with these sizes, scores and reasons, as `fetch` has them."""
    columns = {name: [] for name in TYPES}
    for number, (size, score, failed) in enumerate(rows):
        width, height = size or (None, None)
        reason = failed[0] if failed else None
        values = ("web", reason, ("jpeg", None)[number % 2], 7 * number, width, height, score, failed)
        for name, value in zip(TYPES, values, strict=True):
            columns[name].append(value)
    return pa.table({name: pa.array(columns[name], of) for name, of in TYPES.items()})


def counted(rows: pa.Table) -> pa.Table:
    found = Histograms(OF_IMAGE)
    found.add(image_figures.image_measures(rows), parquet.values(rows, "failed"), np.arange(len(rows)))
    return found.to_arrow()


@given(images)
def test_images_count_once_in_each_measure(rows: list[Any]):
    expected: Counter[tuple[Any, ...]] = Counter()
    for size, score, failed in rows:
        short, long = sorted(size or (0, 0))
        values = {
            "short_side_px": min(short, 1_024) if size else None,
            "aspect_percent": min(100 * long // short, 1_001) if size else None,
            "nsfw_percent": None if score is None else int(np.float32(score) * np.float32(100)),
        }
        own = {
            "short_side_px": "image_too_small",
            "aspect_percent": "image_too_elongated",
            "nsfw_percent": "image_nsfw",
        }
        expected.update((name, value, bool({*failed} - {own[name]})) for name, value in values.items())
    found = counted(table_of(rows))
    assert found.schema == MEASURED
    assert {tuple(row.values())[:3]: row["rows"] for row in found.to_pylist()} == expected


@given(images, st.integers(0, 30))
def test_parts_add_up_to_the_whole(rows: list[Any], cut: int):
    every = table_of(rows)
    parts = [counted(every.slice(0, cut)), counted(every.slice(cut))]
    assert text_figures.sum_of(parts, MEASURED).equals(text_figures.sum_of([counted(every)], MEASURED))


def test_many_parts_are_added_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_figures, "_AT_ONCE", 10)
    parts = [counted(table_of([((200 + number, 300), None, [])])) for number in range(40)]
    found = text_figures.sum_of(parts * 2, MEASURED)
    assert found.filter(pc.equal(found["measure"], pa.scalar("short_side_px")))["rows"].to_pylist() == [2] * 40


def test_counts_of_texts_are_exact_below_1_024_and_in_eighths_of_an_octave_above():
    counts = pa.array([None, 11, 1_023, 1_024, 2_048, 10**6], pa.int64())
    values = text_figures.values_of(
        pa.array([0, 3, 1_022, 1_023, 5_000, 20], pa.int32()), np.zeros(6, np.uint8), counts, counts
    )
    assert values["images_per_text"].tolist() == [0, 11, 1_023, 1_024 + 80, 1_024 + 88, 1_024 + 159]
    assert values["words"].tolist() == [0, 3, 1_022, 1_023, 1_023, 20]


def test_a_row_fails_otherwise_by_rules_on_anything_else():
    found, none = Histograms(OF_TEXT), pa.array([None] * 3, pa.int64())
    values = text_figures.values_of(pa.array([1, 1, 30], pa.int32()), np.full(3, 255, np.uint8), none, none)
    failed = [["text_too_short"], ["text_too_short", "text_has_rare_ngram"], ["text_too_long"]]
    found.add(values, failed, np.array([0, 1, 2]))
    rows = [tuple(row.values()) for row in found.to_arrow().to_pylist()]
    assert [row[1:] for row in rows if row[0] == "words"] == [(1, False, 1), (30, False, 1), (1, True, 1)]
    assert [row[1:] for row in rows if row[0] == "rarest_log2"] == [(255, True, 3)]


SCRIPT_ROWS = st.tuples(
    st.sampled_from(["a cat", "кот", "12"]), st.sampled_from(["text_too_short", None]), st.integers(0, 2**128 - 1)
)


@given(st.lists(SCRIPT_ROWS, max_size=40), st.sampled_from([1, 2, 1_024]))
def test_candidates_of_the_sample_are_counted_by_script_and_verdict(
    rows: list[tuple[str, str | None, int]], one_in: int
) -> None:
    keys = np.array([list(key.to_bytes(16)) for _, _, key in rows], np.uint8).reshape(-1, 16)
    captions, verdicts = (
        pa.array([row[0] for row in rows], pa.string()),
        pa.array([row[1] for row in rows], pa.string()).dictionary_encode(),
    )
    names = {"a cat": "Latin", "кот": "Cyrillic", "12": "none"}
    expected = Counter(
        (names[caption], verdict or "kept") for caption, verdict, key in rows if key >> 64 < 2**64 // one_in
    )
    found = text_figures.count_scripts(captions, verdicts, keys, one_in=one_in)
    assert found == expected


def test_of_a_long_caption_the_beginning_is_looked_at() -> None:
    caption = "к" * text_figures.SCRIPT_CHARACTERS + "a" * 2 * text_figures.SCRIPT_CHARACTERS
    found = text_figures.count_scripts(
        pa.array([caption], pa.string()),
        pa.nulls(1, pa.string()).dictionary_encode(),
        np.zeros((1, 16), np.uint8),
        one_in=1,
    )
    assert found == {("Cyrillic", "kept"): 1}


ENTRIES = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 6)), max_size=150, unique_by=lambda entry: entry[0]
).map(sorted)


def parts_of(entries: list[tuple[int, int]], parts: int) -> list[np.ndarray]:
    return [
        np.array(part, np.uint64).reshape(-1, 2)
        for part in np.array_split(np.array(entries, np.uint64).reshape(-1, 2), parts)
    ]


@given(ENTRIES, st.integers(1, 4), st.integers(1, 60))
def test_the_largest_counts_stay_and_of_equal_ones_the_smallest_hashes(
    entries: list[tuple[int, int]], parts: int, most: int
) -> None:
    top = text_figures.Top(most)
    for part in parts_of(entries, parts):
        top.add(part)
    assert top.entries.tolist() == [
        list(entry) for entry in sorted(entries, key=lambda entry: (-entry[1], entry[0]))[:most]
    ]


@given(ENTRIES, st.integers(1, 4), st.integers(2, 6))
def test_edges_are_the_rarest_inside_and_the_most_frequent_outside(
    entries: list[tuple[int, int]], parts: int, threshold: int
) -> None:
    edges = text_figures.Edges(threshold)
    for part in parts_of(entries, parts):
        edges.add(part)
    inside = sorted(
        ((hash_, count) for hash_, count in entries if count >= threshold), key=lambda entry: (entry[1], entry[0])
    )
    outside = sorted(
        ((hash_, count) for hash_, count in entries if count < threshold), key=lambda entry: (-entry[1], entry[0])
    )
    expected = [[*entry, 1] for entry in inside[: text_figures.PER_SIDE]] + [
        [*entry, 0] for entry in outside[: text_figures.PER_SIDE]
    ]
    assert edges.to_json() == expected


CAPTIONS = st.lists(
    st.lists(st.sampled_from(["Cat", "cat", "dog", "猫", "it's", "-"]), max_size=5).map(" ".join),
    min_size=1,
    max_size=12,
)


@given(
    CAPTIONS,
    st.sets(st.sampled_from(["cat", "dog cat", "猫 猫", "it's", "bird"]), max_size=3),
    st.lists(st.integers(0, 9), min_size=12, max_size=12),
)
def test_the_first_string_of_each_sought_hash_is_kept(captions: list[str], ngrams: set[str], counts: list[int]) -> None:
    hashes = {
        (one_caption.hash_of_bigram(*ngram.split()) if " " in ngram else one_caption.hash_of_word(ngram)): ngram
        for ngram in ngrams
    }
    texts = sorted({plain_words.hash_of_text(caption) for caption in captions[::2]})
    hashes_sought = np.sort(np.array(list(hashes), np.uint64))
    look = text_figures.Seen(
        text_figures.SoughtHashes(
            hashes_sought,
            text_figures.sieve_of(hashes_sought),
            np.array(texts, np.uint64),
            5,
            np.zeros(0, np.uint64),
            2**62,
        )
    )
    per_text = np.array(counts[: len(captions)], np.int64)
    look.captions(pa.array(captions, pa.string()), words.scan(pa.array(captions, pa.string())), per_text)
    expected: dict[int, str] = {}
    for caption, count in zip(captions, counts, strict=False):
        if count >= 5 and plain_words.hash_of_text(caption) in texts:
            expected.setdefault(plain_words.hash_of_text(caption), caption)
    of_pool = {ngram for caption in captions for ngram in one_caption.ngrams_of(caption)}
    assert look.to_json()["texts"] == [[hash_, caption] for hash_, caption in sorted(expected.items())]
    assert look.to_json()["ngrams"] == [[hash_, ngram] for hash_, ngram in sorted(hashes.items()) if ngram in of_pool]


@pytest.mark.parametrize("url", ["https://a.example/" + "x" * 5_000, None])
def test_a_long_string_is_cut_and_one_that_is_not_there_left_out(url: str | None) -> None:
    sought = text_figures.SoughtHashes(
        np.zeros(0, np.uint64), np.zeros(1 << 16, np.bool_), np.zeros(0, np.uint64), 2**62, np.array([7], np.uint64), 3
    )
    look = text_figures.Seen(sought)
    look.images(pa.array([url, url], pa.string()), np.array([7, 8], np.uint64), np.array([3, 9], np.int64))
    assert look.to_json()["images"] == ([[7, url[: text_figures.CHARACTERS_AT_MOST]]] if url else [])
