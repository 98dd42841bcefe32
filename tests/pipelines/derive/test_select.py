from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.data.reasons import reasons_of
from altalign.filters import where
from altalign.pipelines.derive import select
from altalign.pipelines.derive.select import distinct, kth_largest, ordered, rows_of_share

floats = st.floats(width=32, allow_nan=False)
integers = st.integers(-(2**31), 2**31 - 1)
columns = st.one_of(
    st.lists(floats, min_size=1, max_size=60).map(lambda values: pa.array(values, pa.float32())),
    st.lists(st.sampled_from([0.25, -0.5, 0.0]), min_size=1, max_size=60).map(lambda v: pa.array(v, pa.float32())),
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=60).map(lambda values: pa.array(values, pa.float64())),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60).map(lambda v: pa.array(v, pa.int64())),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=60).map(lambda values: pa.array(values, pa.uint32())),
    st.lists(st.integers(-128, 127), min_size=1, max_size=60).map(lambda values: pa.array(values, pa.int8())),
    st.lists(integers, min_size=1, max_size=60).map(lambda values: pa.array(values, pa.int32())),
)


@given(columns, st.integers(1, 60), st.integers(1, 60))
def test_the_kth_largest_is_what_a_sort_finds(values: Any, k: int, at_once: int) -> None:
    k = min(k, len(values))
    of_sort = sorted(values.to_pylist(), reverse=True)[k - 1]
    parts = [distinct(ordered(values[at : at + at_once])) for at in range(0, len(values), at_once)]
    assert kth_largest(lambda: parts, k) == ordered(pa.array([of_sort], values.type))[0]


def test_no_values_have_no_bound() -> None:
    assert kth_largest(lambda: [np.zeros((2, 0), np.uint32)], 0) is None


@given(columns)
def test_numbers_are_in_the_order_of_values(values: Any) -> None:
    numbers, plain = ordered(values), values.to_numpy()
    order = np.argsort(plain, kind="stable")
    assert (numbers[order][1:] >= numbers[order][:-1]).all()
    assert ((numbers[order][1:] == numbers[order][:-1]) == (plain[order][1:] == plain[order][:-1])).all()


@pytest.mark.parametrize(("share", "rows", "number"), [("0.3", 10, 3), ("0.3", 11, 4), ("1", 7, 7), ("0.001", 5, 1)])
def test_a_share_is_rounded_up(share: str, rows: int, number: int) -> None:
    assert rows_of_share(Fraction(share), rows) == number


def test_each_condition_has_its_reason_and_missing_values_have_theirs() -> None:
    rows = pa.table({"n": [None, 1, 1, 1], "a": [0.9, 0.1, None, 0.9], "b": [1.0, 1.0, 1.0, 0.5]})
    selection: Any = SimpleNamespace(
        conditions=where.parsed("n IS NOT NULL AND 0.5 <= a AND b > a").parts, nulls="drop", columns=["n", "a", "b"]
    )
    first, _ = reasons_of(select._of_conditions(selection, rows))  # pyright: ignore[reportPrivateUsage]
    assert first.cast(pa.string()).to_pylist() == ["score_missing:n", "score_below:a", "score_missing:a", "not_where:3"]
