from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.dedup.hash_tables import HashTable, log2_counts

derandomized = settings(derandomize=True, deadline=None, max_examples=100)

TOP = 2**64 - 1
ENDS = [0, 1, 2, 2**63 - 1, 2**63, TOP - 1, TOP]
hashes = st.sampled_from(ENDS) | st.integers(0, TOP) | st.integers(2**50, 2**50 + 30)


def uint64(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


def check(table: HashTable, entries: dict[int, int], queries: list[int]) -> None:
    assert table.lookup(uint64(queries)).tolist() == [entries.get(h, 0) for h in queries]


def check_rows(table: HashTable, entries: dict[int, int], rows: list[list[int]]) -> None:
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    is_missing, smallest = table.measure_rows(uint64([h for row in rows for h in row]), ends)
    assert is_missing.tolist() == [any(h not in entries for h in row) for row in rows]
    assert smallest.tolist() == [min((entries.get(h, 0) for h in row), default=255) for row in rows]
    assert (is_missing.dtype, smallest.dtype) == (np.bool_, np.uint8)


def table_of(entries: dict[int, int], kind: type[np.generic] = np.uint8) -> HashTable:
    return HashTable(uint64(sorted(entries)), np.array([entries[h] for h in sorted(entries)], kind))


@given(st.dictionaries(hashes, st.integers(1, 255), max_size=60), st.lists(st.lists(hashes, max_size=12), max_size=8))
@derandomized
def test_a_table_answers_as_a_dict_does(entries: dict[int, int], rows: list[list[int]]) -> None:
    known = sorted(entries)
    rows = [*rows, known, known[:3] * 2, []]
    table = table_of(entries)
    check(table, entries, [h for row in rows for h in row] + ENDS)
    check_rows(table, entries, rows)
    assert len(table) == len(entries)


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 15, 16, 17, 1000, 1024, 70_000])
def test_tables_of_any_size(size: int) -> None:
    rng = np.random.default_rng(size)
    entries = dict.fromkeys([*ENDS[: min(size, 1)], *ENDS[-min(size, 2) :]][:size], 9)
    while len(entries) < size:
        entries[int(rng.integers(0, TOP, dtype=np.uint64))] = int(rng.integers(1, 256))
    queries = [*list(entries)[:2_000], *ENDS, *rng.integers(0, TOP, 2_000, np.uint64).tolist()]
    check(table_of(entries), entries, queries)
    check_rows(table_of(entries), entries, [queries[i : i + 13] for i in range(0, len(queries), 13)])


@pytest.mark.parametrize("begin", [0, 2**33, TOP - 4_999])
def test_hashes_that_all_share_their_top_bits(begin: int) -> None:
    entries = {begin + i: i % 255 + 1 for i in range(0, 5_000, 2)}
    check(table_of(entries), entries, [begin + i for i in range(0, 5_000, 7)] + ENDS)
    check_rows(table_of(entries), entries, [[begin + i, begin + i + 2] for i in range(0, 4_990, 3)])


def test_a_table_mapped_from_files_is_only_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    entries = dict.fromkeys(rng.integers(0, TOP, 3_000, np.uint64).tolist(), 1)
    np.save(tmp_path / "hashes.npy", uint64(sorted(entries)))
    np.save(tmp_path / "counts.npy", np.ones(len(entries), np.uint8))
    table = HashTable(np.load(tmp_path / "hashes.npy", mmap_mode="r"), np.load(tmp_path / "counts.npy", mmap_mode="r"))
    queries = [*list(entries)[:500], *ENDS]
    check(table, entries, queries)
    check_rows(table, entries, [queries])
    read_only = uint64(queries)
    read_only.setflags(write=False)
    assert table.lookup(read_only).tolist() == table.lookup(uint64(queries)).tolist()


def test_exact_counts_come_back_however_large() -> None:
    entries = {5: 11, 2**63: 2**40, TOP: 1_001}
    check(table_of(entries, np.int64), entries, [5, 6, 2**63, TOP, 0])


def rounded_log2(count: int) -> int:
    """Eight times log2, rounded: the largest v with log2(count) >= (v - 1/2) / 8, in whole numbers of any size."""
    v = 0
    while v < 255 and Fraction(count) ** 16 >= Fraction(2) ** (2 * v + 1):
        v += 1
    return v


@given(st.integers(1, 10) | st.integers(1, 2**20) | st.integers(1, 2**62))
@derandomized
def test_log2_of_counts_is_that_of_whole_numbers(count: int) -> None:
    assert log2_counts(np.array([count])).tolist() == [rounded_log2(count)]


def test_log2_never_falls_and_powers_of_two_are_exact() -> None:
    assert log2_counts(np.array([0, 1, 2, 3, 4, 1_024, 2**31, 2**62])).tolist() == [0, 0, 8, 13, 16, 80, 248, 255]
    rising = log2_counts(np.unique(np.geomspace(1, 2**33, 20_000).astype(np.int64)))
    assert (np.diff(rising.astype(int)) >= 0).all()
    assert log2_counts(np.array([3_771_000_000, 3_772_000_000])).tolist() == [254, 255]  # 2 ** (254.5 / 8)
    assert log2_counts(np.zeros(0, np.int64)).dtype == np.uint8
