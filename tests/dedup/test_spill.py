from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.dedup import spill
from altalign.dedup.spill import NgramBuffers, PairBuffers, shift_of

derandomized = settings(derandomize=True, deadline=None, max_examples=60)

TOP = 2**64 - 1
# 0, 2^14, 2^62 … share a slot of the cache; both ends of the first and last partition
FEW = [0, 1, 2**14, TOP, 2**63, 2**63 - 1, 2**62, 3 * 2**62]
hashes = st.sampled_from(FEW) | st.integers(0, TOP)
batches = st.lists(st.lists(hashes, max_size=60), max_size=6)


class Store:
    """What was flushed, partition by partition, copied: buffers are used again."""

    def __init__(self, partitions: int):
        self.parts: list[list[np.ndarray]] = [[] for _ in range(partitions)]
        self.calls: list[int] = []

    def __call__(self, partition: int, data: np.ndarray) -> None:
        assert len(data)
        assert data.flags.c_contiguous
        self.parts[partition].append(data.copy())
        self.calls.append(partition)

    def check(self, shift: int) -> None:
        for partition, arrays in enumerate(self.parts):
            for array in arrays:
                assert {h >> shift for h in array.reshape(len(array), -1)[:, 0].tolist()} == {partition}

    def rows(self) -> list[list[int]]:
        return [row for arrays in self.parts for array in arrays for row in array.reshape(len(array), -1).tolist()]


def as_hashes(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


@pytest.mark.parametrize("partitions", [0, 1, 3, 255, 2**17, -2])
def test_only_powers_of_two_are_numbers_of_partitions(partitions: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        shift_of(partitions)


def test_partitions_in_order_are_hashes_in_order() -> None:
    assert [shift_of(2), shift_of(256), shift_of(65_536)] == [63, 56, 48]


@pytest.mark.parametrize("room", [64, 16 << 10])
@pytest.mark.parametrize("partitions", [2, 16, 1024])
def test_counts_are_those_of_a_counter(partitions: int, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "BUFFER_BYTES", room)
    monkeypatch.setattr(spill, "SLICE_BYTES", 64)
    rng = np.random.default_rng(partitions)
    buffers = NgramBuffers(partitions)
    for _ in range(2):  # a second unit, with the same buffers
        ngrams = as_hashes(FEW)[rng.integers(0, len(FEW), 3_000)]
        ngrams[::3] = rng.integers(0, TOP, 1_000, np.uint64, endpoint=True)
        raw, hot = Store(partitions), Store(partitions)
        for part in np.array_split(ngrams, 7):
            buffers.add(part, raw)
        buffers.finish(raw, hot)
        assert counted(raw, hot, partitions) == Counter(ngrams.tolist())
        assert sum(map(len, hot.rows())), "the hot ones never came into play"


def counted(raw: Store, hot: Store, partitions: int) -> Counter[int]:
    shift = shift_of(partitions)
    raw.check(shift)
    hot.check(shift)
    assert hot.calls == sorted(set(hot.calls)), "partitions of hot ones come in order, once"
    found = Counter(h for (h,) in raw.rows())
    for h, count in hot.rows():
        found[h] += count
    return found


@given(st.lists(batches, max_size=3), st.sampled_from([2, 8, 64]))
@derandomized
def test_counts_are_exact_unit_after_unit_whatever_was_hot(units: list[list[list[int]]], partitions: int) -> None:
    buffers = NgramBuffers(partitions)
    for unit in units:
        raw, hot = Store(partitions), Store(partitions)
        for batch in unit:
            buffers.add(as_hashes(batch), raw)
        buffers.finish(raw, hot)
        assert counted(raw, hot, partitions) == Counter(h for batch in unit for h in batch)


def test_what_is_hot_is_not_stored_one_by_one() -> None:
    raw, hot = Store(4), Store(4)
    buffers = NgramBuffers(4)
    buffers.add(np.full(10_000, 5, np.uint64), raw)
    buffers.finish(raw, hot)
    assert (raw.rows(), hot.rows()) == ([], [[5, 10_000]])


def test_the_more_frequent_of_two_that_share_a_slot_is_hot() -> None:
    rival = 5 + (1 << spill.HOT_BITS)
    for often, seldom in ((5, rival), (rival, 5)):
        raw, hot = Store(4), Store(4)
        buffers = NgramBuffers(4)
        buffers.add(as_hashes([seldom, often, often]), raw)
        buffers.finish(raw, hot)
        assert (raw.rows(), hot.rows()) == ([[seldom]], [[often, 2]])


def test_a_unit_without_ngrams_flushes_nothing() -> None:
    raw, hot = Store(4), Store(4)
    buffers = NgramBuffers(4)
    buffers.add(as_hashes([]), raw)
    buffers.finish(raw, hot)
    assert raw.calls == hot.calls == []


@given(st.lists(st.lists(st.tuples(hashes, hashes), max_size=60), max_size=6), st.sampled_from([2, 8, 64]))
@derandomized
def test_pairs_all_come_out_in_the_partition_of_their_key(
    batches: list[list[tuple[int, int]]], partitions: int
) -> None:
    buffers, store = PairBuffers(partitions), Store(partitions)
    for batch in batches:
        buffers.add(as_hashes([key for key, _ in batch]), as_hashes([other for _, other in batch]), store)
    buffers.finish(store)
    store.check(shift_of(partitions))
    assert sorted(store.rows()) == sorted([key, other] for batch in batches for key, other in batch)


def test_pairs_that_fill_a_buffer_many_times_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "BUFFER_BYTES", 1)
    monkeypatch.setattr(spill, "SLICE_BYTES", 512)
    keys, others = np.full(1_000, TOP, np.uint64), np.arange(1_000, dtype=np.uint64)
    buffers, store = PairBuffers(2), Store(2)
    buffers.add(keys, others, store)
    buffers.finish(store)
    assert [other for _, other in store.rows()] == others.tolist()
    assert max(len(array) for array in store.parts[1]) == 32
