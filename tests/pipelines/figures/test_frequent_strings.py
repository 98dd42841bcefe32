import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.filters import one_caption, words
from altalign.pipelines.figures import text_figures

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
    texts = sorted({one_caption.hash_of_text(caption) for caption in captions[::2]})
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
    look.captions(
        pa.array(captions, pa.string()), words.scan(pa.array(captions, pa.string()), words.Scratch()), per_text
    )
    expected: dict[int, str] = {}
    for caption, count in zip(captions, counts, strict=False):
        if count >= 5 and one_caption.hash_of_text(caption) in texts:
            expected.setdefault(one_caption.hash_of_text(caption), caption)
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
