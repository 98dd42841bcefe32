import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.filters import concepts
from altalign.filters.one_caption import words_of

few = st.lists(st.sampled_from(["Dog", "dog", "cat", "on", "a", "mat", "漢字", "the", "Eiffel", "Tower"]), max_size=8)
texts = few.map(" ".join)


def plain_matches(captions: list[str], lines: list[str]) -> set[tuple[int, tuple[str, ...]]]:
    wanted = {tuple(words_of(line)) for line in lines} - {()}
    wanted = {entry for entry in wanted if len(entry) <= concepts.WORDS_AT_MOST}
    found = set()
    for row, caption in enumerate(captions):
        words = words_of(caption)
        for entry in wanted:
            if any(tuple(words[at : at + len(entry)]) == entry for at in range(len(words))):
                found.add((row, entry))
    return found


@given(st.lists(texts, max_size=12), st.lists(texts, max_size=8))
@settings(max_examples=150)
def test_entries_are_found_where_a_plain_loop_finds_them(captions: list[str], lines: list[str]) -> None:
    entries = concepts.Entries.from_lines(pa.array(lines, pa.string()))
    found = concepts.match(pa.array(captions, pa.string()), entries)
    named = [tuple(words_of(lines[int(number)])) for number in entries.number]
    pairs = [(row, named[place]) for row, place in zip(found.rows.tolist(), found.entries.tolist(), strict=True)]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == plain_matches(captions, lines)


@given(st.lists(texts, max_size=12), st.lists(texts, max_size=8), st.integers(1, 4))
def test_probabilities_are_those_of_a_plain_loop(captions: list[str], lines: list[str], limit: int) -> None:
    entries = concepts.Entries.from_lines(pa.array(lines, pa.string()))
    found = concepts.match(pa.array(captions, pa.string()), entries)
    counts = np.bincount(found.entries, minlength=len(entries.hashes))
    matches = plain_matches(captions, lines)
    of_entry = Counter(entry for _, entry in matches)
    wanted = [
        1 - math.prod(1 - min(1, limit / of_entry[entry]) for row, entry in matches if row == number)
        for number in range(len(captions))
    ]
    assert np.allclose(concepts.probabilities(found, counts, limit, len(captions)), wanted, atol=1e-12)


def test_a_plain_loop_over_100_000_captions_keeps_the_same() -> None:
    random = np.random.default_rng(4)
    words = [f"w{number}" for number in range(300)]
    shares = 1 / np.arange(1, 301)
    drawn = random.choice(300, (100_000, 3), p=shares / shares.sum())
    captions = [" ".join(words[number] for number in row) for row in drawn]
    keys = np.array([f"{number:032x}".encode() for number in random.integers(0, 2**62, 100_000)], "S32")
    entries = concepts.Entries.from_lines(pa.array([*words[:200], "w0 w1"]))
    found = concepts.match(pa.array(captions), entries)
    counts = np.bincount(found.entries, minlength=len(entries.hashes))
    coins = concepts.coins(keys, 7)
    of_entry = Counter(entry for row in captions for entry in {*row.split(), *_pair(row)} if _is_entry(entry))
    kept = []
    for limit in (50, 500):
        mine = coins < concepts.probabilities(found, counts, limit, len(captions))
        plain = [
            coin < 1 - math.prod(1 - min(1, limit / of_entry[e]) for e in {*row.split(), *_pair(row)} if _is_entry(e))
            for row, coin in zip(captions, coins.tolist(), strict=True)
        ]
        assert mine.tolist() == plain
        kept.append(mine)
    assert (kept[0] <= kept[1]).all()  # nested
    assert 0 < kept[0].sum() < kept[1].sum() < len(captions)
    assert abs(coins.mean() - 0.5) < 0.01


def _is_entry(entry: str) -> bool:
    return entry == "w0 w1" or (" " not in entry and int(entry[1:]) < 200)


def _pair(row: str) -> list[str]:
    return ["w0 w1"] if "w0 w1" in f" {row} ".replace(" w0 w1 ", " w0 w1 ") and " w0 w1 " in f" {row} " else []


def test_the_limit_leaves_the_tail_its_share() -> None:
    counts = np.array([0, 1, 1, 2, 3, 10, 100])
    for tail, wanted in ((0.0, 1), (0.01, 1), (0.02, 2), (0.04, 3), (0.06, 10), (0.15, 100), (1.0, 100)):
        limit = concepts.limit_of(counts, tail)
        assert limit == wanted
        assert counts[counts < limit].sum() <= tail * counts.sum()


def test_coins_are_of_key_and_seed_alone() -> None:
    keys = np.array([b"00" * 16, b"0f" * 16, b"00" * 16], "S32")
    first: Any = concepts.coins(keys, 1)
    assert first[0] == first[2] != first[1]
    assert (concepts.coins(keys, 2) != first).all()
    assert (concepts.coins(keys[::-1], 1) == first[::-1]).all()
