from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.dedup.merge import CountHistogram, merge_ngrams, merge_pairs
from altalign.dedup.spill import NgramBuffers, PairBuffers

derandomized = settings(derandomize=True, deadline=None, max_examples=80)

TOP = 2**64 - 1
hashes = st.integers(0, 6) | st.integers(TOP - 3, TOP) | st.integers(0, TOP)
counts = st.integers(1, 6) | st.sampled_from([4_095, 4_096, 4_097, 1_000_000, 5_000_000_000])


def uint64(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


def twos(values: list[tuple[int, int]]) -> np.ndarray:
    return np.array(values, np.uint64).reshape(-1, 2)


# The histogram --------------------------------------------------------------------------------------------------------


@given(st.lists(counts, max_size=40), st.integers(1, 50))
@derandomized
def test_the_threshold_is_the_kth_of_the_sorted_counts(values: list[int], k: int) -> None:
    histogram = CountHistogram.from_counts(np.array(values, np.int64))
    falling = sorted(values, reverse=True)
    assert histogram.threshold(k) == (falling[k - 1] if k <= len(falling) else 1)
    assert histogram.keys == len(values)
    assert histogram.at_least(histogram.threshold(k)) == sum(value >= histogram.threshold(k) for value in values)
    assert histogram.to_json() == [[count, keys] for count, keys in sorted(Counter(values).items())]


def test_the_threshold_at_ties_at_all_keys_and_beyond() -> None:
    histogram = CountHistogram.from_counts(np.array([9, 5, 5, 5, 2]))
    assert [histogram.threshold(k) for k in (1, 2, 3, 4, 5, 6, 100_000_000)] == [9, 5, 5, 5, 2, 1, 1]
    assert histogram.at_least(5) == 4
    assert CountHistogram.from_counts(np.ones(3, np.int64)).threshold(2) == 1
    assert CountHistogram().threshold(1) == 1


@given(st.lists(st.lists(counts, max_size=10), max_size=5), st.randoms(use_true_random=False))
@derandomized
def test_histograms_add_up_in_any_order_and_survive_json(parts: list[list[int]], random) -> None:
    histograms = [CountHistogram.from_counts(np.array(part, np.int64)) for part in parts]
    random.shuffle(histograms)
    whole = CountHistogram.from_counts(np.array([count for part in parts for count in part], np.int64))
    assert CountHistogram.total(histograms) == whole
    assert CountHistogram.from_json(whole.to_json()) == whole


def test_a_histogram_of_a_tally_has_its_entries() -> None:
    assert CountHistogram.from_counts(np.zeros(0, np.int64), np.array([2, 0, 3])).to_json() == [[0, 2], [2, 3]]
    assert CountHistogram() != CountHistogram({1: 1})
    assert CountHistogram() != []


# N-grams --------------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(hashes, max_size=30), max_size=5),
    st.lists(st.lists(st.tuples(hashes, counts), max_size=6), max_size=4),
)
@derandomized
def test_ngrams_are_counted_as_by_a_counter_with_hot_ones_among_the_raw_and_not(
    raw: list[list[int]], hot: list[list[tuple[int, int]]]
) -> None:
    twin = Counter(h for part in raw for h in part)
    for part in hot:
        for h, count in part:
            twin[h] += count
    found, found_counts, histogram = merge_ngrams(
        uint64([h for part in raw for h in part]), twos([entry for part in hot for entry in part])
    )
    assert list(zip(found.tolist(), found_counts.tolist(), strict=True)) == sorted(
        (h, count) for h, count in twin.items() if count > 1
    )
    assert histogram == CountHistogram(Counter(twin.values()))
    assert (found.dtype, found_counts.dtype) == (np.uint64, np.int64)


@pytest.mark.parametrize("partitions", [2, 16, 64])
def test_the_table_is_the_same_whatever_the_partitions_and_the_order_of_units(partitions: int) -> None:
    rng = np.random.default_rng(7)
    units = [rng.zipf(1.3, 5_000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) for _ in range(3)]
    parts: list[list[np.ndarray]] = [[] for _ in range(partitions)]
    hot: list[list[np.ndarray]] = [[] for _ in range(partitions)]
    buffers = [NgramBuffers(partitions), NgramBuffers(partitions)]  # of two threads
    for number in (2, 0, 1):
        mine, flush = buffers[number % 2], lambda p, data: parts[p].append(data.copy())
        mine.add(units[number][:100], flush)
        mine.add(units[number][100:], flush)
        mine.finish(flush, lambda p, data: hot[p].append(data.copy()))
    merged = [
        merge_ngrams(np.concatenate([uint64([]), *parts[p]]), np.concatenate([twos([]), *hot[p]]))
        for p in range(partitions)
    ]
    twin = Counter(np.concatenate(units).tolist())
    table = [
        pair for found, found_counts, _ in merged for pair in zip(found.tolist(), found_counts.tolist(), strict=True)
    ]
    assert table == sorted((h, count) for h, count in twin.items() if count > 1)
    assert CountHistogram.total(histogram for _, _, histogram in merged) == CountHistogram(Counter(twin.values()))


# Pairs ----------------------------------------------------------------------------------------------------------------


def distinct_others(pairs: list[tuple[int, int]]) -> dict[int, int]:
    others: dict[int, set[int]] = defaultdict(set)
    for key, other in pairs:
        others[key].add(other)
    return {key: len(seen) for key, seen in others.items()}


def check_pairs(parts: list[np.ndarray], limit: int) -> None:
    twin = distinct_others([(key, other) for part in parts for key, other in part.tolist()])
    keys, distinct, histogram = merge_pairs(np.concatenate([twos([]), *parts]), limit=limit)
    assert list(zip(keys.tolist(), distinct.tolist(), strict=True)) == sorted(
        (key, n) for key, n in twin.items() if n > limit
    )
    assert histogram == CountHistogram(Counter(twin.values()))
    assert (keys.dtype, distinct.dtype) == (np.uint64, np.int64)


@given(st.lists(st.lists(st.tuples(hashes, hashes), max_size=40), max_size=4), st.integers(0, 4))
@derandomized
def test_distinct_others_are_those_of_sets(parts: list[list[tuple[int, int]]], limit: int) -> None:
    check_pairs([twos(part) for part in parts], limit)


def test_a_hot_key_and_a_hot_pair_cost_no_exactness() -> None:
    rng = np.random.default_rng(3)
    hot = np.stack([np.full(100_000, 2**40, np.uint64), rng.integers(0, 60_000, 100_000, np.uint64)], axis=1)
    repeated = np.tile(twos([(2**40 + 1, 5)]), (100_000, 1))
    rest = rng.integers(2**40 - 500, 2**40 + 500, (20_000, 2), np.uint64)
    pairs = np.concatenate([hot, repeated, rest])
    check_pairs(np.array_split(rng.permutation(pairs), 3), 10)


def test_pairs_of_a_partition_whose_keys_lie_close_together_or_far_apart() -> None:
    rng = np.random.default_rng(4)
    for low, high in ((0, 50), (TOP - 50, TOP), (0, TOP), (2**63 - 5, 2**63 + 5)):
        keys = rng.integers(low, high, 3_000, np.uint64, endpoint=True)
        check_pairs([np.stack([keys, rng.integers(0, 3, 3_000, np.uint64)], axis=1)], 1)


def test_keys_that_differ_in_their_lowest_bits_alone_beside_some_that_do_not() -> None:
    rng = np.random.default_rng(5)
    keys = np.concatenate([rng.integers(0, TOP, 500, np.uint64), rng.integers(2**60, 2**60 + 9, 500, np.uint64)])
    check_pairs([np.stack([rng.permutation(keys), rng.integers(0, 3, 1_000, np.uint64)], axis=1)], 1)
    check_pairs([twos([(TOP, 1)])], 0)


@pytest.mark.parametrize("size", [1, 2, 23, 24, 25, 26, 100])
def test_runs_of_every_size_are_counted_as_by_sets(size: int) -> None:
    rng = np.random.default_rng(size)
    check_pairs(
        [
            np.stack(
                [np.repeat(rng.integers(0, TOP, 40, np.uint64), size), rng.integers(0, size, 40 * size, np.uint64)],
                axis=1,
            )
        ],
        0,
    )


def test_pairs_do_not_change_in_the_merge() -> None:
    pairs = twos([(3, 1), (1, 2), (3, 0)])
    pairs.setflags(write=False)  # as read from a file
    merge_pairs(pairs, limit=0)
    merge_ngrams(pairs[:, 0].copy(), pairs)
    assert pairs.tolist() == [[3, 1], [1, 2], [3, 0]]


def test_pairs_through_buffers_are_counted_as_by_sets() -> None:
    rng = np.random.default_rng(5)
    keys, others = rng.integers(0, 200, 10_000, np.uint64) << np.uint64(56), rng.integers(0, 50, 10_000, np.uint64)
    parts: list[list[np.ndarray]] = [[] for _ in range(16)]
    buffers = PairBuffers(16)
    for begin in range(0, 10_000, 999):
        buffers.add(
            keys[begin : begin + 999], others[begin : begin + 999], lambda p, data: parts[p].append(data.copy())
        )
    buffers.finish(lambda p, data: parts[p].append(data.copy()))
    merged = [merge_pairs(np.concatenate(part), limit=30) for part in parts if part]
    twin = distinct_others(list(zip(keys.tolist(), others.tolist(), strict=True)))
    assert {
        key: n for found, distinct, _ in merged for key, n in zip(found.tolist(), distinct.tolist(), strict=True)
    } == {key: n for key, n in twin.items() if n > 30}
