import numpy as np
import pytest

from altalign.dedup import hash_tables
from altalign.dedup.hash_tables import HashTable

TOP = 2**64 - 1


def spread(size: int, seed: int = 0) -> dict[int, int]:
    """Entries as a good hash function has them, among them hashes alike in their low 56 bits, and some of which these
    are all 0.
    """
    rng = np.random.default_rng(seed)
    entries = dict.fromkeys(
        [k << 56 for k in range(1, 256, 2)] + [k << 56 | 12_345 for k in range(0, 256, 2)] + [TOP, 2**63], 7
    )
    for h in rng.integers(0, TOP, size, np.uint64).tolist():
        entries[h] = int(h % 255) + 1
    return entries


def table_of(entries: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    hashes = sorted(entries)
    return np.array(hashes, np.uint64), np.array([entries[h] for h in hashes], np.uint8)


def measured(hashes: np.ndarray, counts: np.ndarray, rows: list[list[int]]) -> list[tuple[bool, int]]:
    laid = hash_tables.lines_of(hashes, counts)
    assert laid is not None
    is_missing, smallest = np.empty(len(rows), np.bool_), np.empty(len(rows), np.uint8)
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    hash_tables.measure_in_lines(
        laid, np.array([h for row in rows for h in row], np.uint64), ends, is_missing, smallest
    )
    return list(zip(is_missing.tolist(), smallest.tolist(), strict=True))


@pytest.mark.parametrize("size", [21_000, 100_000])
def test_lines_answer_as_a_dict_does(size: int) -> None:
    entries = spread(size, seed=size)
    known, rng = list(entries), np.random.default_rng(1)
    # those that differ from an entry in their top 8 bits alone
    alike = [h ^ k << 56 for h in known[:300] for k in (1, 2, 0x55, 0x80)]
    near = [(h + step) & TOP for h in known[:2_000] for step in (-1, 1, 1 << 32, -1 << 32)]
    absent = [0, 1, 2**63 - 1, *[k << 56 for k in range(0, 256, 2)], *rng.integers(0, TOP, 5_000, np.uint64).tolist()]
    one_each = [[h] for h in [*known, *alike, *near, *absent]]
    some = np.array(known + absent, np.uint64)
    mixed = [rng.choice(some, n).tolist() for n in rng.integers(0, 20, 2_000).tolist()]
    rows = [*one_each, [], *mixed, known[:1_000], []]
    expected = [
        (any(h not in entries for h in row), min((entries.get(h, 0) for h in row), default=255)) for row in rows
    ]
    assert measured(*table_of(entries), rows) == expected


def test_full_lines_overflow_into_the_next() -> None:
    entries = spread(40_000)
    crowded = [(1 << 60) + i for i in range(60)]  # of one line, and more than it and the next seven have room for
    entries |= dict.fromkeys(crowded[:40], 9)
    answers = measured(*table_of(entries), [[h] for h in crowded])
    assert answers == [(False, 9)] * 40 + [(True, 0)] * 20


@pytest.mark.parametrize(
    "entries",
    [
        {},
        spread(1_000),
        spread(30_000) | {5: 0},
        spread(30_000) | dict.fromkeys(range(1 << 60, (1 << 60) + 80), 1),
        dict.fromkeys(range(30_000), 1),
    ],
    ids=["empty", "small", "a count of 0", "one line is crowded", "no hashes"],
)
def test_what_does_not_fit_is_no_lines_and_the_table_answers_all_the_same(entries: dict[int, int]) -> None:
    hashes, counts = table_of(entries)
    assert hash_tables.lines_of(hashes, counts) is None
    queries = [*list(entries)[:500], *[(1 << 60) + i for i in range(90)], 5, TOP - 1]
    is_missing, smallest = HashTable(hashes, counts).measure_rows(
        np.array(queries, np.uint64), np.arange(1, len(queries) + 1)
    )
    assert is_missing.tolist() == [h not in entries for h in queries]
    assert smallest.tolist() == [entries.get(h, 0) for h in queries]


def test_a_table_of_many_entries_has_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes, counts = table_of(spread(30_000))
    assert hash_tables.lines_of(hashes, counts) is not None
    monkeypatch.setattr(hash_tables, "LINED_AT_MOST", len(hashes) - 1)
    assert hash_tables.lines_of(hashes, counts) is None
