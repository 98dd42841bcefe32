from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.dedup import image_groups
from altalign.dedup.clusters import nearest_clusters
from altalign.dedup.image_groups import cosines_with_staying, groups, join, replaced, train_cells
from altalign.dedup.near_duplicates import Pairs
from tests.support.vectors import copies, drawn, groups_by_search, is_near, pairs_by_loops, pairs_by_matrix

derandomized = settings(derandomize=True, deadline=None, max_examples=100)

Numbers = list[tuple[int, int]]


def numbers(pairs: Pairs) -> Numbers:
    return list(zip(pairs.rows.tolist(), pairs.tests.tolist(), strict=True))


def pool(seed: int, distinct: int, copied: int, dimensions: int = 64) -> np.ndarray:
    """Distinct images, copies of them above the threshold, copies of copies, and the same ones again."""
    rng = np.random.default_rng(seed)
    images = drawn(rng, distinct, dimensions)
    near = copies(rng, images[rng.integers(0, distinct, copied)], 0.985, spread=0.008)
    again = copies(rng, near[rng.integers(0, copied, copied // 4)], 0.985, spread=0.008)
    everything = np.concatenate([images, near, again, near[: copied // 10]])
    return everything[rng.permutation(len(everything))]


# One cell -------------------------------------------------------------------------------------------------------------


def check_forest(vectors: np.ndarray, visitors: np.ndarray, above: float, wanted: Numbers) -> None:
    """Every pair joined is a true one, they connect what all wanted ones connect, and each connects something."""
    both, joined = np.concatenate([vectors, visitors]), join(vectors, visitors, above=above)
    for (a, b), cosine in zip(numbers(joined), joined.cosines.tolist(), strict=True):
        assert a < b
        assert is_near(both[a].tolist(), both[b].tolist(), above)
        left, right = both[a].astype(float), both[b].astype(float)
        assert cosine == pytest.approx(left @ right / np.sqrt((left @ left) * (right @ right)), rel=1e-12)
    expected = groups_by_search(wanted, len(both))
    assert groups(joined.rows, joined.tests, len(both)).tolist() == expected
    assert len(joined.rows) == len(both) - len(set(expected))


def wanted_of(vectors: np.ndarray, visitors: np.ndarray, above: float) -> Numbers:
    """All pairs above the threshold with one of the cell's own, and those of equal vectors."""
    both = np.concatenate([vectors, visitors])
    pairs = pairs_by_loops(both, both, above)
    return [(a, b) for a, b in pairs if a < b and (a < len(vectors) or (both[a] == both[b]).all())]


@given(
    st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), max_size=25),
    st.integers(0, 25),
    st.sampled_from([0.5, 0.9, 0.975, 1.0]),
)
@derandomized
def test_a_cell_is_joined_as_by_all_its_pairs(rows: list[list[int]], own: int, above: float) -> None:
    vectors = np.array(rows, np.int16).reshape(-1, 3)
    check_forest(vectors[:own], vectors[own:], above, wanted_of(vectors[:own], vectors[own:], above))


def test_a_cell_of_vectors_as_embedders_make_them() -> None:
    images = pool(1, 900, 300)
    pairs = [(a, b) for a, b in pairs_by_matrix(images, images, 0.975) if a < b]
    check_forest(images, images[:0], 0.975, pairs)
    own, visitors = images[:1_000], images[1_000:]
    check_forest(own, visitors, 0.975, [(a, b) for a, b in pairs if a < 1_000 or (images[a] == images[b]).all()])
    assert len(pairs) > 350


@pytest.mark.parametrize("pairs_at_a_time", [1, 1_000, 40_000])
def test_a_cell_is_joined_the_same_in_blocks_of_any_size(pairs_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images = pool(2, 150, 50)
    whole = join(images[:150], images[150:], above=0.975)
    monkeypatch.setattr(image_groups, "_PAIRS_AT_A_TIME", pairs_at_a_time)
    for one, other in zip(join(images[:150], images[150:], above=0.975), whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_cell_of_visitors_alone_joins_equal_ones() -> None:
    images = drawn(np.random.default_rng(3), 5, 16)
    assert numbers(join(images[:0], images, above=0.975)) == []
    assert numbers(join(images[:0], images[[0, 1, 0]], above=0.975)) == [(0, 2)]
    assert numbers(join(images[:0], images[:0], above=0.975)) == []


def test_a_large_cell_is_split_and_hardly_a_pair_is_lost() -> None:
    images = pool(4, 3_000, 1_500)
    whole, split = (join(images, images[:0], above=0.975, at_most=at_most) for at_most in (len(images), 800))
    connected = groups(whole.rows, whole.tests, len(images))
    assert (connected[split.rows] == connected[split.tests]).all()  # what is joined in parts is joined in whole
    assert 0.98 * len(whole.rows) < len(split.rows) < len(whole.rows)
    for one, other in zip(split, join(images, images[:0], above=0.975, at_most=800), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_cell_that_does_not_fall_into_parts_is_joined_whole() -> None:
    alike = copies(
        np.random.default_rng(5), np.repeat(drawn(np.random.default_rng(6), 1, 32), 300, axis=0), 0.999, spread=0.0
    )
    assert len(np.unique(alike, axis=0)) == 300
    joined = join(alike, alike[:0], above=0.975, at_most=100)
    assert groups(joined.rows, joined.tests, 300).tolist() == [0] * 300


def test_equal_vectors_by_the_thousand_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(block: np.ndarray, *_: Any, **__: Any) -> Pairs:
        assert len(block) == 2
        return Pairs(*np.zeros((2, 0), np.int64), np.zeros(0))

    monkeypatch.setattr(image_groups, "find_pairs", searched)
    two = np.array([[100, 0], [0, 100]], np.int16)
    joined = join(np.repeat(two, 5_000, axis=0), two[:0], above=0.975, at_most=10)
    assert groups(joined.rows, joined.tests, 10_000).tolist() == [0] * 5_000 + [5_000] * 5_000
    assert (joined.cosines == 1.0).all()


# The whole pool -------------------------------------------------------------------------------------------------------


def dropped(images: np.ndarray, identities: np.ndarray, centroids: np.ndarray, above: float) -> dict[bytes, bytes]:
    """What goes, and what stays for it, cell after cell."""
    nearest = nearest_clusters(images, centroids, 2)
    left, right = [identities[:0]], [identities[:0]]
    for cell in range(len(centroids)):
        own, visitors = np.flatnonzero(nearest[:, 0] == cell), np.flatnonzero(nearest[:, 1] == cell)
        joined, names = join(images[own], images[visitors], above=above), identities[np.concatenate([own, visitors])]
        left.append(names[joined.rows])
        right.append(names[joined.tests])
    goes, stays = replaced(np.concatenate(left), np.concatenate(right))
    assert goes.tolist() == sorted(goes.tolist())
    return dict(zip(goes.tolist(), stays.tolist(), strict=True))


def named(images: np.ndarray) -> np.ndarray:
    """Identities in an order of their own."""
    return np.array([f"{(i * 2_654_435_761) % 2**32:032x}".encode() for i in range(len(images))])


def test_a_pool_in_cells_loses_hardly_a_pair_and_invents_none() -> None:
    images = pool(7, 4_000, 1_500)
    identities = np.sort(named(images))  # so that the smallest number is the smallest identity
    exact = np.array([(a, b) for a, b in pairs_by_matrix(images, images, 0.975) if a < b]).T
    staying = groups(exact[0], exact[1], len(images))
    expected = {identities[i]: identities[staying[i]] for i in np.flatnonzero(staying != np.arange(len(images)))}
    found = dropped(images, identities, train_cells(images, 6), 0.975)
    assert len(found) >= 0.99 * len(expected)
    assert found.keys() <= expected.keys()
    assert np.mean([expected[goes] == stays for goes, stays in found.items()]) > 0.99


def test_what_goes_does_not_depend_on_the_order_of_images_or_cells() -> None:
    images, rng = pool(8, 500, 200), np.random.default_rng(9)
    identities, centroids = named(images), train_cells(images, 5)
    found = dropped(images, identities, centroids, 0.975)
    order = rng.permutation(len(images))
    assert dropped(images[order], identities[order], centroids, 0.975) == found
    assert len(found) > 200


def test_the_smallest_identity_of_a_group_stays() -> None:
    left, right = np.array([b"d", b"b", b"x", b"e"]), np.array([b"c", b"c", b"y", b"d"])
    goes, stays = replaced(left, right)
    assert goes.tolist() == [b"c", b"d", b"e", b"y"]
    assert stays.tolist() == [b"b", b"b", b"b", b"x"]
    assert [array.tolist() for array in replaced(left[:0], right[:0])] == [[], []]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=60), st.randoms(use_true_random=False))
@derandomized
def test_groups_are_those_of_a_search_in_any_order(pairs: Numbers, random) -> None:
    shuffled = [random.choice([pair, pair[::-1]]) for pair in random.sample(pairs, len(pairs))]
    left, right = np.array(shuffled, np.int64).reshape(-1, 2).T
    assert groups(left, right, 41).tolist() == groups_by_search(pairs, 41)


@pytest.mark.parametrize("seed", [1, 2])
def test_many_cells_are_made_in_two_levels(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images = drawn(np.random.default_rng(seed), 8_000, 32)
    flat = train_cells(images, 100)
    monkeypatch.setattr(image_groups, "_CLUSTERS_AT_ONCE", 50)
    levels = train_cells(np.concatenate([images, np.zeros((500, 32), np.int16)]), 100)
    assert 90 <= len(levels) <= 110
    nearness = [(images.astype(float) @ centroids.astype(float).T).max(axis=1).mean() for centroids in (flat, levels)]
    assert nearness[1] > 0.97 * nearness[0]
    assert np.bincount(nearest_clusters(images, levels, 1)[:, 0]).max() < 800
    np.testing.assert_array_equal(levels, train_cells(np.concatenate([images, np.zeros((500, 32), np.int16)]), 100))


# What stays -----------------------------------------------------------------------------------------------------------


def test_a_cosine_with_what_stays_is_that_of_a_pair_or_of_equal_ones() -> None:
    left, right = np.array([1, 1, 2, 5, 7, 8]), np.array([2, 3, 4, 6, 9, 9])
    cosines = np.array([0.98, 1.0, 0.99, 1.0, 0.976, 1.0])
    goes, stays = replaced(left, right)
    assert list(zip(goes.tolist(), stays.tolist(), strict=True)) == [(2, 1), (3, 1), (4, 1), (6, 5), (8, 7), (9, 7)]
    np.testing.assert_array_equal(
        cosines_with_staying(goes, stays, left, right, cosines), [0.98, 1.0, np.nan, 1.0, 0.976, 0.976]
    )
    assert len(cosines_with_staying(goes[:0], stays[:0], left[:0], right[:0], cosines[:0])) == 0


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=40))
@derandomized
def test_cosines_with_what_stays_are_those_of_loops(found: list[tuple[int, int]]) -> None:
    """Images of one kind (their number by three) are equal, and the cosine of two kinds is always the same."""
    pairs = [(min(a, b), max(a, b)) for a, b in found if a != b]
    left, right = np.array(pairs, np.int64).reshape(-1, 2).T
    cosines = np.array([1.0 if a // 3 == b // 3 else 0.98 + (a // 3 + b // 3) / 1_000 for a, b in pairs])
    equal = groups_by_search([pair for pair, cosine in zip(pairs, cosines, strict=True) if cosine == 1], 16)
    of_kinds = {frozenset((equal[a], equal[b])): cosine for (a, b), cosine in zip(pairs, cosines.tolist(), strict=True)}
    goes, stays = replaced(left, right)
    wanted = [
        1.0 if equal[a] == equal[b] else of_kinds.get(frozenset((equal[a], equal[b])), np.nan)
        for a, b in zip(goes, stays, strict=True)
    ]
    np.testing.assert_array_equal(cosines_with_staying(goes, stays, left, right, cosines), wanted)
