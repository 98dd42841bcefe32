"""Distinct pairs: each counted once, wherever its rows are."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.audit_tables import PAIRS_JOINT
from altalign.pipelines.evidence import pairs_joint
from altalign.pipelines.evidence.text_joint import JointCounts, combined_of_survivors
from altalign.reasons import DropReason, drop_where, reasons_of

derandomized = settings(derandomize=True, deadline=None, max_examples=80)

keys = st.sampled_from([0, 1, 2**16, 2**48, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
entries = st.lists(st.tuples(keys, st.integers(0, 3)), max_size=60)


def array_of(found: list[tuple[int, int]]) -> np.ndarray:
    return np.array(found, pairs_joint.PAIR)


@given(entries, st.sampled_from([1, 8, 4096, 65_536]))
@derandomized
def test_each_pair_is_there_once_and_in_one_partition(found: list[tuple[int, int]], count: int) -> None:
    once = pairs_joint.distinct(array_of(found * 3))
    assert once.tolist() == list(dict.fromkeys(found))
    parts = dict(pairs_joint.partitioned(array_of(found), count))
    assert list(parts) == sorted({(key >> 48) * count >> 16 for key, _ in found})
    for partition, part in parts.items():
        assert part.tolist() == [pair for pair in found if (pair[0] >> 48) * count >> 16 == partition]


def test_many_pairs_of_one_partition_are_told_apart() -> None:
    """Their keys begin alike, and end alike but for a few bits in the middle."""
    found = np.zeros(50_000, pairs_joint.PAIR)
    found["key"] = np.arange(50_000, dtype=np.uint64) % 40_000 << np.uint64(20) | np.uint64(7 << 48)
    found["combination"] = 5
    assert len(pairs_joint.distinct(found)) == 40_000
    assert [(partition, len(part)) for partition, part in pairs_joint.partitioned(found, 4096)] == [(0, 50_000)]


def test_rows_are_wanted_of_which_thresholds_alone_hold() -> None:
    short, shared, rare = DropReason.TEXT_TOO_SHORT, DropReason.TEXT_ON_TOO_MANY_IMAGES, DropReason.TEXT_HAS_RARE_NGRAM
    rows = [[], [short], [short, shared], [rare], [short, rare], [shared], []]
    verdicts = [drop_where(pa.array([reason in row for row in rows]), reason) for reason in (short, shared, rare)]
    assert pairs_joint.only_of_thresholds(reasons_of(verdicts)[1]).tolist() == [1, 2, 5]


@given(st.lists(st.tuples(st.integers(0, 1_100), st.sampled_from([1, 8, 255])), max_size=30), entries)
@derandomized
def test_survivors_and_others_are_counted_together(kept: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    words, rarest = (np.array([row[n] for row in kept], np.int64) for n in range(2))
    # combinations that survivors have too
    like = combined_of_survivors(np.array([4, 5, 6, 7]), np.array([8, 8, 8, 255]))
    of_others = array_of([(key, int(like[n])) for key, n in others])
    found = pairs_joint.to_arrow(pairs_joint.counted(words, rarest, of_others))
    plain = Counter((min(n, 1_023), log2, 0, 0) for n, log2 in kept)
    plain.update(((4, 8), (5, 8), (6, 8), (7, 255))[n] + (0, 0) for _, n in set(others))
    assert [tuple(row.values()) for row in found.to_pylist()] == [(*of, n) for of, n in sorted(plain.items())]
    assert found.schema == PAIRS_JOINT.schema


def test_a_total_of_many_is_that_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("altalign.pipelines.evidence.text_joint._AT_ONCE", 10)
    parts = [np.arange(n) % (n // 2 + 1) for n in range(30)]
    total = JointCounts.total(JointCounts.of(part) for part in parts)
    every = Counter(np.concatenate(parts).tolist())
    assert dict(zip(total.combinations.tolist(), total.rows.tolist(), strict=True)) == every
    assert (np.diff(total.combinations) > 0).all()
    assert len(JointCounts.total([])) == 0
