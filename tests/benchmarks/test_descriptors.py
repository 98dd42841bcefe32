"""Recall at a rate of false positives, as it is counted: against plain loops over pairs."""

from itertools import combinations

import numpy as np
import pytest

from altalign.dedup.copies import TRANSFORMS
from benchmarks import descriptors


def vectors(count: int, seed: int = 0) -> np.ndarray:
    return np.where(np.random.default_rng(seed).random((count, 16)) < 0.5, 1, -1).astype(np.int16)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a.astype(int) @ b) / 16


def test_the_greatest_cosines_of_all_pairs_are_found_across_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(descriptors, "ROWS_AT_A_TIME", 7)
    made = vectors(40)
    expected = sorted((cosine(a, b) for a, b in combinations(made, 2)), reverse=True)
    assert descriptors.unrelated(made, at_most=50) == pytest.approx(expected[:50])
    assert descriptors.unrelated(made, at_most=10_000) == pytest.approx(expected)


def test_recall_is_of_copies_above_what_the_allowed_share_of_pairs_exceeds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(descriptors, "COPIED", 5)
    monkeypatch.setattr(descriptors, "RATES", (0.1, 0.02))
    made, random = vectors(30), np.random.default_rng(1)
    copies = made[:5, np.newaxis] * np.where(random.random((5, len(TRANSFORMS), 16)) < 0.1, -1, 1)
    copies[0, 0] = 0  # no embedding: not found
    kept = np.arange(30) != 29
    found = descriptors.recall({"dct": made, "dct_copies": copies}, "dct", kept)
    pairs = [cosine(a, b) for a, b in combinations(made[:29], 2)]
    for one in found:
        assert (
            sum(pair > one.threshold for pair in pairs)
            <= one.rate * len(pairs)
            < sum(pair >= one.threshold - 1e-9 for pair in pairs)
        )
        is_found = [
            [cosine(copy, original) > one.threshold for copy in of_one]
            for of_one, original in zip(copies, made, strict=False)
        ]
        assert one.recall == pytest.approx(np.mean(is_found))
        assert list(one.by_transform.values()) == pytest.approx(np.mean(is_found, axis=0))
    assert found[0].recall >= found[1].recall > 0
    usual = descriptors.at_usual({"phash": made, "phash_copies": copies}, "phash", kept)
    assert usual["false_positives"] == sum(pair >= 1 - 10 / 32 - 1e-9 for pair in pairs)
    assert usual["recall"] == pytest.approx(
        np.mean([[cosine(copy, made[i]) >= 1 - 10 / 32 - 1e-9 for copy in copies[i]] for i in range(5)])
    )


def test_of_images_that_are_alike_the_first_stays():
    random = np.random.default_rng(2)
    thumbnails = random.integers(0, 200, (6, 32, 32)).astype(np.uint8)
    thumbnails[3] = thumbnails[1] + 1
    thumbnails[5] = thumbnails[3] // 2 + 40
    assert descriptors.distinct(thumbnails).tolist() == [True, True, True, False, True, False]
