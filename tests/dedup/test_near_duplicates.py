from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.dedup import near_duplicates
from altalign.dedup.near_duplicates import find_pairs, is_above
from tests.support.vectors import copies, drawn, is_near, pairs_by_loops, pairs_by_matrix, quantised

derandomized = settings(derandomize=True, deadline=None, max_examples=150)

THRESHOLDS = [0.0, 0.5, 0.875, 0.9375, 0.975, 1.0]


def found(block: np.ndarray, tests: np.ndarray, above: float, built_for: float = 0.975) -> list[tuple[int, int]]:
    pairs = find_pairs(block, near_duplicates.TestSide.build(tests, above=built_for), above=above)
    assert (pairs.rows.dtype, pairs.tests.dtype, pairs.cosines.dtype) == (np.int64, np.int64, np.float64)
    return list(zip(pairs.rows.tolist(), pairs.tests.tolist(), strict=True))


# Against brute force --------------------------------------------------------------------------------------------------


@st.composite
def sides(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A block and a test side of few numbers: many equal vectors, zeros, cosines that are the threshold itself."""
    dimensions, at_most = (
        draw(st.sampled_from([1, 2, 3, 7, 15, 16, 17, 40, 63, 64, 65, 70])),
        draw(st.sampled_from([1, 2, 3_000])),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shared = rng.integers(-at_most, at_most + 1, (4, dimensions))

    def side(count: int) -> np.ndarray:
        vectors = shared[rng.integers(0, 4, count)]
        vectors = np.where(
            rng.random(vectors.shape) < draw(st.sampled_from([0.0, 0.03, 0.5])),
            rng.integers(-at_most, at_most + 1, vectors.shape),
            vectors,
        )
        return (vectors * rng.integers(0, 3, (count, 1))).astype(np.int16)

    return side(draw(st.integers(0, 9))), side(draw(st.integers(0, 70)))


@given(sides(), st.sampled_from(THRESHOLDS))
@derandomized
def test_all_pairs_above_the_threshold_are_found_and_no_other(
    both: tuple[np.ndarray, np.ndarray], above: float
) -> None:
    assert found(*both, above) == pairs_by_loops(*both, above)


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize(("dimensions", "falls"), [(24, 0.0), (64, 0.0), (64, 1.0), (192, 0.5), (512, 0.3)])
@pytest.mark.parametrize("above", [0.6, 0.975])
def test_vectors_as_embedders_make_them(
    width: int, dimensions: int, falls: float, above: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_duplicates, "_WIDTHS", (width,))
    rng = np.random.default_rng(dimensions)
    tests = drawn(rng, 1_500, dimensions, falls)
    tests[40:60] = tests[0]  # a test set that holds one image many times
    block = np.concatenate(
        [copies(rng, tests[:600], above, spread=3e-3), drawn(rng, 30, dimensions, falls), tests[900:910]]
    )
    block = block[rng.permutation(len(block))]
    expected = pairs_by_matrix(block, tests, above)
    assert found(block, tests, above) == expected
    assert len(expected) > 200


@pytest.mark.parametrize(("falls", "above", "width"), [(1.0, 0.975, 16), (0.1, 0.9, 32), (0.1, 0.8, 64)])
def test_the_width_is_chosen_by_how_the_test_side_is_spread(falls: float, above: float, width: int) -> None:
    rng = np.random.default_rng(4)
    tests = drawn(rng, 4_000, 128, falls)
    assert 2 * near_duplicates.TestSide.build(tests, above=above).strips.shape[1] == width
    block = copies(rng, tests[:30], above, spread=0.05)
    assert found(block, tests, above, built_for=above) == pairs_by_matrix(block, tests, above)


def test_a_block_may_be_of_any_size_and_cut_anywhere() -> None:
    rng = np.random.default_rng(5)
    tests = drawn(rng, 500, 32)
    block = copies(rng, tests[rng.integers(0, 500, 2_500)], 0.97)
    whole = found(block, tests, 0.97)
    assert whole == pairs_by_matrix(block, tests, 0.97)
    cut = [
        (begin + row, test)
        for begin in range(0, 2_500, 701)
        for row, test in found(block[begin : begin + 701], tests, 0.97)
    ]
    assert cut == whole


def test_more_pairs_than_any_buffer_holds_at_first() -> None:
    rng = np.random.default_rng(6)
    block, tests = np.repeat(drawn(rng, 1, 20), 1_300, axis=0), np.repeat(drawn(rng, 1, 20), 500, axis=0)
    tests[::2] = block[0]
    assert found(block, tests, 0.975) == [(row, test) for row in range(1_300) for test in range(0, 500, 2)]


@pytest.mark.parametrize("dimensions", [100, 1_100])
def test_what_lies_beside_all_leading_directions_is_found(dimensions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_duplicates, "_SAMPLE", 10)
    monkeypatch.setattr(near_duplicates, "_SAMPLE_OF_LONG", 10)
    axes = np.eye(dimensions, dtype=np.int16) * 20_000
    # the sample knows but a few axes; vectors along the others have nothing but a rest
    tests = axes[np.arange(500) % 50]
    tests[1::50] = axes[dimensions - 1]
    expected = pairs_by_matrix(axes, tests, 0.975)
    assert found(axes, tests, 0.975) == expected
    assert len(expected) == 500


def test_the_longest_vectors_that_can_be_searched() -> None:
    rng = np.random.default_rng(12)
    tests = drawn(rng, 60, near_duplicates.DIMENSIONS_AT_MOST)
    tests[:, 1:] //= 50  # nearly all in one column, the largest there is
    block = copies(rng, tests, 0.975)
    assert found(block, tests, 0.975) == pairs_by_matrix(block, tests, 0.975)
    assert found(tests, tests, 0.9) == pairs_by_matrix(tests, tests, 0.9)


@pytest.mark.parametrize("dimensions", [2, near_duplicates.DIMENSIONS_AT_MOST])
def test_a_test_side_of_none_has_no_pairs(dimensions: int) -> None:
    assert found(drawn(np.random.default_rng(13), 3, dimensions), np.zeros((0, dimensions), np.int16), 0.0) == []


@pytest.mark.parametrize("above", [0.5, 0.9])
def test_bounds_hold_however_floats_are_rounded(above: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_duplicates, "_WIDTHS", (16,))
    rng, dimensions = np.random.default_rng(7), 1_000
    known, _ = np.linalg.qr(rng.normal(size=(dimensions, 15)))
    flat = rng.normal(size=(300, 15))
    tests = quantised(flat @ known.T)  # nearly nothing is left beside the columns of the bound: it is tight
    block = quantised(copies(rng, flat, above, spread=2e-5) @ known.T)
    expected = [pair for pair in pairs_by_matrix(block, tests, above) if pair[0] == pair[1]]
    rotated, most, of_tests = near_duplicates._rotated, near_duplicates._error(1, dimensions), []

    def badly_rounded(*arguments: Any) -> np.ndarray:
        """The columns of each row off by the most, away from those of the test image that it is a copy of."""
        made = rotated(*arguments)
        of_tests.append(made)
        return made - np.float32(most) * np.sign(of_tests[0]) if len(of_tests) > 1 else made

    monkeypatch.setattr(near_duplicates, "_rotated", badly_rounded)
    assert [pair for pair in found(block, tests, above, above) if pair[0] == pair[1]] == expected
    assert 100 < len(expected) < 200


# At the threshold -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 800])
def test_a_cosine_of_exactly_the_threshold_is_not_above(times: int) -> None:
    test = np.array([[40, 0, 0, 0, 0, 0]], np.int16) * np.int16(times)
    block = np.array(
        [[39, 8, 3, 2, 1, 1], [39, 8, 3, 2, 1, 0], [39, 8, 3, 2, 2, 1], [-39, 8, 3, 2, 1, 0]], np.int16
    ) * np.int16(times)
    # cosines of 39 / 40, a little more, a little less; the float 0.975 is less than 39 / 40
    assert found(block, test, 0.975) == [(1, 0)]
    assert found(block, test, 0.97499999) == [(0, 0), (1, 0)]


def test_cosines_of_signs_are_multiples_of_a_32nd() -> None:
    rng = np.random.default_rng(8)
    tests = rng.choice(np.array([-1, 1], np.int16), (300, 64))
    block = np.repeat(tests[:60], 6, axis=0)
    for row in range(len(block)):
        block[row, rng.permutation(64)[: row % 6]] *= -1  # that many bits differ
    for above, bits in ((0.875, 4), (0.90625, 3), (0.9375, 2), (0.936, 3), (0.97, 1)):
        pairs = found(block, tests, above)
        assert pairs == pairs_by_matrix(block, tests, above)
        assert [row for row, test in pairs if test == row // 6] == [row for row in range(len(block)) if row % 6 < bits]


@given(
    st.lists(st.tuples(*[st.lists(st.integers(-30_000, 30_000), min_size=2, max_size=2)] * 2), min_size=1, max_size=20),
    st.sampled_from([*THRESHOLDS, 0.9999999]),
)
@derandomized
def test_decisions_are_those_of_fractions(pairs: list[tuple[list[int], list[int]]], above: float) -> None:
    products, norms, other_norms = np.array(
        [[a[0] * b[0] + a[1] * b[1], a[0] ** 2 + a[1] ** 2, b[0] ** 2 + b[1] ** 2] for a, b in pairs], np.int64
    ).T
    assert is_above(products, norms, other_norms, above).tolist() == [is_near(a, b, above) for a, b in pairs]


@given(st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1), st.integers(1, 999), st.integers(-2, 2))
@derandomized
def test_decisions_next_to_the_threshold_are_those_of_fractions(
    norm: int, other_norm: int, thousandths: int, off: int
) -> None:
    above = thousandths / 1_000
    product = int(above * (norm * other_norm) ** 0.5) + off
    exact = product > 0 and Fraction(product**2) > Fraction(thousandths, 1_000) ** 2 * norm * other_norm
    assert is_above(*(np.array([value]) for value in (product, norm, other_norm)), above).tolist() == [exact]


def test_vectors_of_zeros_are_near_nothing() -> None:
    block = np.array([[0, 0], [3, 4]], np.int16)
    for above in THRESHOLDS:
        assert found(block, block, above) == ([(1, 1)] if above < 1 else [])
    assert is_above(np.array([0]), np.array([0]), np.array([5]), 0.0).tolist() == [False]


def test_cosines_are_those_of_the_vectors() -> None:
    rng = np.random.default_rng(9)
    tests = drawn(rng, 200, 48)
    block = copies(rng, tests, 0.99)
    pairs = find_pairs(block, near_duplicates.TestSide.build(tests, above=0.975), above=0.975)
    left, right = block[pairs.rows].astype(float), tests[pairs.tests].astype(float)
    expected = (left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    np.testing.assert_allclose(pairs.cosines, expected, rtol=1e-14)
    assert len(pairs.rows) >= 150


# The test side --------------------------------------------------------------------------------------------------------


def test_a_test_side_mapped_from_files_is_searched_as_the_one_that_was_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(10)
    tests = drawn(rng, 333, 100)
    block = copies(rng, tests, 0.975)
    built = near_duplicates.TestSide.build(tests, above=0.975)
    for name, array in built.arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
    mapped = near_duplicates.TestSide(**{path.stem: np.load(path, mmap_mode="r") for path in tmp_path.glob("*.npy")})
    pairs, of_mapped = (find_pairs(block, side, above=0.975) for side in (built, mapped))
    assert len(pairs.rows) > 100
    for one, other in zip(pairs, of_mapped, strict=True):
        np.testing.assert_array_equal(one, other)
    read_only = block.copy()
    read_only.setflags(write=False)
    np.testing.assert_array_equal(find_pairs(read_only, mapped, above=0.975).tests, pairs.tests)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 100])
def test_the_first_of_a_test_side_are_found_as_if_there_were_no_more(count: int) -> None:
    rng = np.random.default_rng(11)
    tests = drawn(rng, 100, 80)
    block = copies(rng, tests, 0.98)
    pairs = find_pairs(block, near_duplicates.TestSide.build(tests, above=0.975).first(count), above=0.975)
    assert list(zip(pairs.rows.tolist(), pairs.tests.tolist(), strict=True)) == pairs_by_matrix(
        block, tests[:count], 0.975
    )


@pytest.mark.parametrize(
    ("block", "above", "says"),
    [
        (np.zeros((1, 3), np.int16), 0.975, "vectors of 3 and 2 dimensions"),
        (np.zeros((1, 2), np.float32), 0.975, "must be int16 of two dimensions, not float32 of 2"),
        (np.full((1, 2), -32_768, np.int16), 0.975, "a norm of 46,341"),
    ],
)
def test_what_cannot_be_searched_is_refused(block: np.ndarray, above: float, says: str) -> None:
    side = near_duplicates.TestSide.build(np.array([[1, 2]], np.int16), above=0.975)
    with pytest.raises(ValueError, match=says):
        find_pairs(block, side, above=above)


def test_a_test_side_that_cannot_be_built_is_refused() -> None:
    for columns in (0, near_duplicates.DIMENSIONS_AT_MOST + 1):
        with pytest.raises(ValueError, match=f"vectors have {columns} dimensions"):
            near_duplicates.TestSide.build(np.zeros((1, columns), np.int16), above=0.975)
    with pytest.raises(ValueError, match="must be int16 of two dimensions"):
        near_duplicates.TestSide.build(np.zeros(5, np.int16), above=0.975)
