"""Coefficients and vectors against plain whole numbers; what mirrors, brightness and copies do to them; the same bytes
on other CPUs.
"""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from altalign.dedup import embed
from altalign.dedup.embed import COEFFICIENTS, FREQUENCIES, NORM, Map, dct_coefficients, learn_map, mirrored, quantized
from tests.support.vectors import DISPATCHED, printed

derandomized = settings(derandomize=True, deadline=None, max_examples=60)
thumbnails = hnp.arrays(np.uint8, st.tuples(st.integers(0, 4), st.just(32), st.just(32)))
GOLDEN = {
    "coefficients": "4f47d5a0a3f480bf",
    "vectors": "ea8bc33456c52159",
    "quantized": "55d1560299e4ce96",
}


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32), np.uint8)


def smooth(count: int, seed: int = 0) -> np.ndarray:
    """Thumbnails with most of their scatter in low frequencies, as pictures have it."""
    random = np.random.default_rng(seed)
    sizes = 1 / (1 + np.add.outer(np.arange(32) ** 2, np.arange(32) ** 2)) ** 0.6
    x = np.arange(32)
    cosines = np.cos((2 * x + 1) * x[:, np.newaxis] * np.pi / 64)
    made = np.einsum("uy,nuv,vx->nyx", cosines, random.normal(size=(count, 32, 32)) * sizes, cosines)
    return np.clip(128 + 40 * made, 0, 255).astype(np.uint8)


def some_map(dimensions: int = 64, seed: int = 5) -> Map:
    random = np.random.default_rng(seed)
    return Map(
        random.integers(-900, 900, COEFFICIENTS, np.int32),
        random.integers(-(2**24), 2**24, (dimensions, COEFFICIENTS), np.int32, endpoint=True),
    )


def norms(vectors: np.ndarray) -> np.ndarray:
    return np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1))


def cosines_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(axis=1) / (norms(a) * norms(b))


# Coefficients ---------------------------------------------------------------------------------------------------------


def test_frequencies_are_the_lowest_without_the_mean_and_the_same_turned_by_90_degrees() -> None:
    assert FREQUENCIES.tolist()[:9] == [[0, 1], [1, 0], [1, 1], [0, 2], [2, 0], [1, 2], [2, 1], [2, 2], [0, 3]]
    known = {(u, v) for u, v in FREQUENCIES.tolist()}
    assert len(FREQUENCIES) == len(known) == COEFFICIENTS == 192
    assert {(v, u) for u, v in known} == known
    left_out = [u * u + v * v for u in range(32) for v in range(32) if (u or v) and (u, v) not in known]
    assert max(u * u + v * v for u, v in known) < min(left_out)


def test_no_cosine_hangs_between_two_whole_numbers() -> None:
    """The tables are made by the machine's cosine; its last bit must not matter."""
    for u in range(16):
        for x in range(32):
            exact = math.cos((2 * x + 1) * u * math.pi / 64) * (0.25 if u else math.sqrt(1 / 32)) * 2**20
            assert abs(exact - math.floor(exact) - 0.5) > 1e-6


def in_plain_numbers(luma: np.ndarray) -> list[list[int]]:
    """The transform in Python's integers: cosines rounded to 20 bits, sums rounded once, halves to even."""

    def cosine(u: int, x: int) -> int:
        return round(math.cos((2 * x + 1) * u * math.pi / 64) * (0.25 if u else math.sqrt(1 / 32)) * 2**20)

    table = [[cosine(u, x) for x in range(32)] for u in range(16)]
    rows = []
    for pixels in luma.tolist():
        down = [[sum(table[u][y] * pixels[y][x] for y in range(32)) for x in range(32)] for u in range(16)]
        sums = [sum(down[u][x] * table[v][x] for x in range(32)) for u, v in FREQUENCIES.tolist()]
        quotients = [divmod(8 * s, 2**40) for s in sums]
        rows.append([q + (2 * rest > 2**40 or (2 * rest == 2**40 and q % 2)) for q, rest in quotients])
    return rows


def test_coefficients_are_those_of_plain_whole_numbers() -> None:
    luma = np.concatenate([noise(3), smooth(3), np.full((1, 32, 32), 255, np.uint8), np.zeros((1, 32, 32), np.uint8)])
    coefficients, _ = dct_coefficients(luma)
    assert coefficients.dtype == np.int16
    assert coefficients.tolist() == in_plain_numbers(luma)


def test_coefficients_are_eighths_of_gray_levels_of_the_orthonormal_transform() -> None:
    luma = np.concatenate([noise(40), smooth(40)])
    x = np.arange(32)
    matrix = np.cos((2 * x + 1) * x[:, np.newaxis] * np.pi / 64) * np.sqrt(2 / 32)
    matrix[0] = np.sqrt(1 / 32)
    exact = 8 * (matrix @ luma.astype(np.float64) @ matrix.T)[:, FREQUENCIES[:, 0], FREQUENCIES[:, 1]]
    assert np.abs(dct_coefficients(luma)[0] - exact).max() < 0.52


def test_the_greatest_coefficients_fit() -> None:
    """Black where a frequency is below zero, white where it is above: no picture has more of it."""
    x = np.arange(32)
    luma = np.array(
        [
            np.where(np.outer(np.cos((2 * x + 1) * u * np.pi / 64), np.cos((2 * x + 1) * v * np.pi / 64)) > 0, 255, 0)
            for u, v in FREQUENCIES
        ]
    )
    coefficients, _ = dct_coefficients(luma.astype(np.uint8))
    own = np.diagonal(coefficients)
    assert own.min() > 25_000
    assert own.max() <= 32_640
    assert np.array_equal(dct_coefficients((255 - luma).astype(np.uint8))[0], -coefficients)


def test_halves_round_to_even() -> None:
    """By a table of two cosines with which a pixel is a half."""
    luma, table = np.zeros((6, 32, 32), np.uint8), np.zeros((16, 32), np.int32)
    luma[:, 0, 0] = [1, 2, 3, 5, 7, 0]
    for sign, expected in ((1, [0, 1, 2, 2, 4, 0]), (-1, [0, -1, -2, -2, -4, 0])):
        table[0, 0], table[1, 0] = 2**18, sign * 2**18
        coefficients, is_flat = np.empty((6, 192), np.int16), np.empty(6, np.bool_)
        embed._transform(luma, table, FREQUENCIES, coefficients, is_flat)
        assert coefficients[:, 0].tolist() == expected


@given(thumbnails)
@derandomized
def test_a_mirror_changes_signs_alone(luma: np.ndarray) -> None:
    coefficients, is_flat = dct_coefficients(luma)
    seen, is_flat_seen = dct_coefficients(luma[:, :, ::-1])
    assert np.array_equal(seen, mirrored(coefficients))
    assert np.array_equal(mirrored(mirrored(coefficients)), coefficients)
    assert np.array_equal(is_flat, is_flat_seen)
    assert seen.dtype == mirrored(coefficients).dtype == np.int16


@given(hnp.arrays(np.uint8, (2, 32, 32), elements=st.integers(0, 155)), st.integers(0, 100))
@derandomized
def test_brightness_is_not_in_the_coefficients(luma: np.ndarray, brighter: int) -> None:
    assert np.array_equal(dct_coefficients(luma)[0], dct_coefficients(luma + np.uint8(brighter))[0])


def test_an_image_does_not_depend_on_its_neighbours() -> None:
    luma = smooth(7)
    assert np.array_equal(
        np.concatenate([dct_coefficients(luma[i : i + 1])[0] for i in range(7)]), dct_coefficients(luma)[0]
    )
    assert [array.shape for array in dct_coefficients(luma[:0])] == [(0, 192), (0,)]


def test_flat_is_a_deviation_below_10_gray_levels_exactly() -> None:
    luma = np.full((4, 32, 32), 100, np.uint8)
    luma[0, ::2], luma[1, ::2], luma[2, ::2] = 120, 119, 80
    luma[2, 0, 0] = 81
    assert dct_coefficients(luma)[1].tolist() == [False, True, True, True]


# Vectors --------------------------------------------------------------------------------------------------------------


def brought_to_norm(values: list[int]) -> list[int]:
    """In Python's integers: 25 bits of each value, the whole root of the sum of squares, halves away from zero."""
    bits = max(map(abs, values)).bit_length()
    if not bits:
        return values
    sizes = [abs(v) << (25 - bits) if bits < 25 else abs(v) >> (bits - 25) for v in values]
    root = math.isqrt(sum(size**2 for size in sizes))
    return [
        (-1 if v < 0 else 1) * ((2 * NORM * size + root) // (2 * root)) for v, size in zip(values, sizes, strict=True)
    ]


@pytest.mark.parametrize("dimensions", [1, 2, 64, 192])
def test_vectors_are_those_of_plain_whole_numbers(dimensions: int) -> None:
    plain = some_map(dimensions)
    coefficients = np.concatenate(
        [dct_coefficients(np.concatenate([noise(3), smooth(5)]))[0], np.full((1, 192), 32_640, np.int16)]
    )
    centred = [[c - m for c, m in zip(row, plain.mean.tolist(), strict=True)] for row in coefficients.tolist()]
    products = [
        [sum(m * c for m, c in zip(line, row, strict=True)) for line in plain.matrix.tolist()] for row in centred
    ]
    assert plain.embed(coefficients).tolist() == [brought_to_norm(product) for product in products]


def test_greatest_values_do_not_overflow() -> None:
    signs = np.where(np.arange(192) % 2, 1, -1)
    greatest = Map(
        np.full(192, -(2**15), np.int32) * signs.astype(np.int32),
        np.full((64, 192), 2**24, np.int32) * signs.astype(np.int32),
    )
    vectors = greatest.embed((np.full((1, 192), 32_640) * signs).astype(np.int16))
    assert vectors.tolist() == [[4096] * 64]


def test_vectors_have_one_length_and_the_cosines_of_the_product() -> None:
    plain, coefficients = some_map(), dct_coefficients(smooth(200))[0]
    vectors = plain.embed(coefficients)
    assert vectors.dtype == np.int16
    assert np.abs(norms(vectors) / NORM - 1).max() < 1e-4
    product = (coefficients.astype(np.float64) - plain.mean) @ plain.matrix.T
    assert np.abs(cosines_of(vectors[:-1], vectors[1:]) - cosines_of(product[:-1], product[1:])).max() < 1e-4


def test_the_mean_itself_has_no_direction() -> None:
    plain = some_map()
    assert not plain.embed(plain.mean.astype(np.int16)[np.newaxis]).any()
    assert plain.embed(np.zeros((0, 192), np.int16)).shape == (0, 64)


def test_rows_that_are_no_neighbours_in_memory_are_read_right() -> None:
    plain, coefficients = some_map(), dct_coefficients(smooth(6))[0]
    assert np.array_equal(plain.embed(coefficients[::2]), plain.embed(coefficients)[::2])
    assert np.array_equal(plain.embed(np.asfortranarray(coefficients)), plain.embed(coefficients))


@pytest.mark.parametrize(
    ("mean", "matrix", "words"),
    [
        (
            np.zeros(191, np.int32),
            np.zeros((64, 192), np.int32),
            r"int32 of shape \(191,\), not int32 of shape \(192,\)",
        ),
        (np.zeros(192, np.int16), np.zeros((64, 192), np.int32), "int16 of shape"),
        (np.zeros(192, np.int32), np.zeros((64, 191), np.int32), "not int32 of shape"),
        (np.zeros(192, np.int32), np.zeros((0, 192), np.int32), "int32 of shape"),
        (
            np.zeros(192, np.int32),
            np.full((1, 192), 2**24 + 1, np.int32),
            "more than 16,777,216 off 0",
        ),
        (np.full(192, -(2**31), np.int32), np.zeros((1, 192), np.int32), "more than 32,768 off 0"),
    ],
)
def test_what_is_no_map_is_refused(mean: np.ndarray, matrix: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Map(mean, matrix)


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(0, 5), st.integers(1, 40)),
        elements=st.floats(-(2.0**126), 2.0**126, width=32),
    )
)
@derandomized
def test_features_keep_their_direction(features: np.ndarray) -> None:
    vectors = quantized(features)
    assert vectors.dtype == np.int16
    assert vectors.shape == features.shape
    for feature, vector in zip(features.astype(np.float64), vectors.astype(np.float64), strict=True):
        if not feature.any():
            assert not vector.any()
            continue
        feature /= np.abs(feature).max()
        assert np.abs(vector - feature / np.sqrt((feature**2).sum()) * NORM).max() < 0.51


def test_features_of_any_scale_and_width_give_the_same_vectors() -> None:
    features = np.random.default_rng(3).normal(size=(20, 512)).astype(np.float32)
    assert np.array_equal(quantized(features), quantized(features * np.float32(2.0**-100)))
    assert np.array_equal(quantized(features), quantized(features.astype(np.float64)))
    assert np.abs(norms(quantized(features)) / NORM - 1).max() < 1e-3


def test_features_without_a_value_are_refused() -> None:
    features = np.ones((4, 3), np.float32)
    features[2, 1] = np.nan
    with pytest.raises(ValueError, match="row 2 of the features has a value that is not finite"):
        quantized(features)
    with pytest.raises(ValueError, match=r"\(n, d\)"):
        quantized(np.ones(3, np.float32))


# The learned map ------------------------------------------------------------------------------------------------------


def training(count: int = 60, copies: int = 5, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, and copies in which two frequencies change at random and the others a little."""
    random = np.random.default_rng(seed)
    originals = dct_coefficients(smooth(count, seed))[0]
    copy_of = np.repeat(np.arange(count), copies)
    changes = random.normal(0, 20, (len(copy_of), COEFFICIENTS))
    changes[:, [0, 4]] = random.normal(0, 8000, (len(copy_of), 2))
    return originals, np.clip(originals[copy_of] + np.rint(changes), -32_640, 32_640).astype(np.int16), copy_of


def test_a_map_looks_away_from_what_copies_change() -> None:
    originals, copies, copy_of = training()
    learned = learn_map(originals, copies, copy_of)
    unseen, unseen_copies, unseen_of = training(seed=9)
    before = cosines_of(unseen_copies, unseen[unseen_of])
    after = cosines_of(learned.embed(unseen_copies), learned.embed(unseen)[unseen_of])
    assert np.median(before) < 0.9
    assert np.quantile(after, 0.02) > 0.95
    assert np.abs(cosines_of(learned.embed(unseen)[1:], learned.embed(unseen)[:-1])).max() < 0.7


def test_rows_are_the_discriminants_of_images_against_copies() -> None:
    originals, copies, copy_of = training(300)
    learned = learn_map(originals, copies, copy_of)
    assert learned.matrix.shape == (64, 192)
    assert np.abs(learned.matrix).max() == 2**24
    assert np.array_equal(learned.mean, np.rint(originals.mean(axis=0, dtype=np.float64)))
    total = np.cov(originals.T.astype(np.float64), bias=True)
    changes = copies.astype(np.float64) - originals[copy_of]
    within = changes.T @ changes / len(changes)
    total, within = total + 0.05 * np.diag(np.diag(total)), within + 0.05 * np.diag(np.diag(within)) + np.eye(192)
    rows = learned.matrix / np.sqrt((learned.matrix[0] @ within) @ learned.matrix[0])
    assert np.allclose(rows @ within @ rows.T, np.eye(64), atol=1e-4)
    found = rows @ total @ rows.T
    assert np.allclose(found / found[0, 0], np.diag(np.diag(found)) / found[0, 0], atol=1e-4)
    eigenvalues = np.sort(np.linalg.eigvals(np.linalg.solve(within, total)).real)[::-1]
    assert np.allclose(np.diag(found), eigenvalues[:64], rtol=1e-4)
    assert (rows[np.arange(64), np.abs(rows).argmax(axis=1)] > 0).all()


def test_a_map_does_not_depend_on_the_order_of_images() -> None:
    originals, copies, copy_of = training()
    random = np.random.default_rng(0)
    order, shuffled = random.permutation(len(originals)), random.permutation(len(copies))
    learned = learn_map(originals, copies, copy_of)
    again = learn_map(originals[order], copies[shuffled], np.argsort(order)[copy_of[shuffled]])
    assert np.array_equal(learned.mean, again.mean)
    assert np.array_equal(learned.matrix, again.matrix)


def test_two_images_and_copies_that_change_nothing_are_enough_for_a_map() -> None:
    originals = dct_coefficients(smooth(2))[0]
    learned = learn_map(originals, originals, np.arange(2), dimensions=16)
    assert learned.dimensions == 16
    assert cosines_of(learned.embed(originals[:1]), learned.embed(originals[1:]))[0] < -0.99


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"originals": np.zeros((1, 192), np.int16)}, "two images or more"),
        ({"copies": np.zeros((0, 192), np.int16), "copy_of": np.zeros(0, np.int64)}, "not from 60 and 0"),
    ],
)
def test_too_few_training_images_are_refused(change: dict[str, object], words: str) -> None:
    originals, copies, copy_of = training()
    with pytest.raises(ValueError, match=words):
        learn_map(**{"originals": originals, "copies": copies, "copy_of": copy_of, **change})  # type: ignore[arg-type]


# On every machine -----------------------------------------------------------------------------------------------------


def digests() -> dict[str, str]:
    """Of what must be the same everywhere, from whole numbers alone."""
    n, y, x = np.mgrid[:20, :32, :32]
    luma = ((x * x * (n + 3) + y * 11 + x * y * n) % 256).astype(np.uint8)
    k, d = np.arange(192), np.arange(64)[:, np.newaxis]
    plain = Map(
        (k * 37 % 501 - 250).astype(np.int32),
        ((k * k * 7919 + d * 104_729 * (k + 1)) % 20_000_003 - 10_000_001).astype(np.int32),
    )
    coefficients, _ = dct_coefficients(luma)
    features = (luma.reshape(20, -1)[:, :512] * np.float32(1 / 3) - 40).astype(np.float32)
    found = {
        "coefficients": coefficients,
        "vectors": plain.embed(coefficients),
        "quantized": quantized(features),
    }
    return {
        name: hashlib.sha256(np.ascontiguousarray(array, "<i2").tobytes()).hexdigest()[:16]
        for name, array in found.items()
    }


def test_every_machine_has_these_bytes() -> None:
    assert digests() == GOLDEN


@pytest.mark.machines
def test_the_simplest_cpu_has_the_same_bytes(tmp_path: Path) -> None:
    """Kernels compiled for a CPU with the first vector units alone, NumPy's own switched off, another BLAS kernel."""
    code = "from tests.dedup.test_embed import digests; import json; print(json.dumps(digests()))"
    there = printed(
        code,
        NUMBA_CPU_NAME="generic",
        NUMBA_CPU_FEATURES="",
        NUMBA_CACHE_DIR=str(tmp_path),
        NPY_DISABLE_CPU_FEATURES=DISPATCHED,
        OPENBLAS_CORETYPE="Prescott",
    )
    assert json.loads(there) == GOLDEN


def test_one_thumbnail_is_flat_where_a_batch_says_so():
    rng = np.random.default_rng(5)
    levels = [rng.integers(128 - spread, 129 + spread, (32, 32)).astype(np.uint8) for spread in range(30)]
    _, flat = embed.dct_coefficients(np.stack(levels))
    assert [embed.is_flat(each) for each in levels] == flat.tolist()
    assert 0 < flat.sum() < len(levels)
