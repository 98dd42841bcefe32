"""Near-duplicates within the pool, of vectors as embedders make them, against a comparison of all with all."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from altalign import storage
from altalign.dedup import image_groups as cells
from altalign.pipelines import curate
from altalign.pipelines.engine.options import options
from altalign.pipelines.images import calibration_files
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.near import within_pool
from altalign.pipelines.run import outputs
from altalign.pipelines.run.image_tables import CELLS, COMPARED, FEATURES, FETCHED, FETCHED_ROW, FETCHED_ROWS, REPLACED
from altalign.pipelines.run.units import Run
from altalign.settings.curate import CurateConfig
from tests.support.vectors import copies, drawn, groups_by_search, pairs_by_matrix

ABOVE, DIMENSIONS, PER_FETCH_UNIT = 0.975, 64, 100

Pairs = list[tuple[int, int]]


class Pool(NamedTuple):
    """Images in the order of their image_id."""

    vectors: np.ndarray  # zeros for one that is flat
    digests: list[str]

    @property
    def keys(self) -> list[str]:
        return [f"{number:032x}" for number in range(1, len(self.digests) + 1)]


def pool(seed: int, distinct: int = 500, copied: int = 150) -> Pool:
    """Distinct images, near copies, copies of copies, equal vectors of other bytes, equal bytes, and flat images."""
    rng = np.random.default_rng(seed)
    images = drawn(rng, distinct, DIMENSIONS)
    near = copies(rng, images[rng.integers(0, distinct, copied)], 0.985, spread=0.008)
    again = copies(rng, near[rng.integers(0, copied, copied // 4)], 0.985, spread=0.008)
    vectors = np.concatenate([images, near, again, near[: copied // 10], np.zeros((40, DIMENSIONS), np.int16)])
    digests = [f"{number:064x}" for number in range(len(vectors))]
    digests[-10:] = digests[-20:-10]
    same = rng.integers(0, distinct, 30)
    vectors, digests = np.concatenate([vectors, vectors[same]]), [*digests, *(digests[number] for number in same)]
    order = rng.permutation(len(vectors))
    return Pool(vectors[order], [digests[i] for i in order])


def fetched(folder: Path, images: Pool, above: float = ABOVE, **settings: Any) -> Run:
    """A run whose images are fetched and whose threshold is known; each image with two captions."""
    values = {
        "run": {"folder": str(folder)},
        "input": {"paths": ["none"]},
        "decontaminate": {"embedder": "phash"},
        "dedup": {"within_pool": "keep_one_image"},
    }
    run = Run(str(folder), CurateConfig.from_values({**values, **settings}, where="test"), ())
    for begin in range(0, max(1, len(images.digests)), PER_FETCH_UNIT):
        some, name = slice(begin, begin + PER_FETCH_UNIT), f"00000-{begin // PER_FETCH_UNIT:05d}"
        keys, digests = images.keys[some], images.digests[some]
        twice = [f"{key[:-1]}{last}" for key in (key.replace("0", "a", 1) for key in keys) for last in "01"]
        columns = {
            "key": [key for pair in zip(keys, twice[1::2], strict=True) for key in pair],
            "image_id": [key for key in keys for _ in range(2)],
            "found_sha256": [digest for digest in digests for _ in range(2)],
        }
        rows = pa.table(
            {field.name: pa.array(columns.get(field.name, [None] * 2 * len(keys)), field.type) for field in FETCHED_ROW}
        )
        FETCHED_ROWS.write(run, rows, name)
        FEATURES.save(run, images.vectors[some], name)
        storage.write_json(run.mark(FETCHED.step, name), {"kept": len(rows), "counts": []})
    calibration_files.save(
        outputs.near_duplicates(run),
        Calibration("phash", above, None, np.eye(1, DIMENSIONS, dtype=np.int16)),
        {},
    )
    return run


def kept_of(run: Run) -> dict[int, tuple[int, float]]:
    """By the number of each image that goes: the number of the one that stays, and the cosine."""
    steps = [step for step in curate.PIPELINE["decontaminate"][0] if step.marks in (CELLS, COMPARED, REPLACED)]
    assert len(steps) == 3
    for step in steps:
        curate.run_step(run, step, options(run.config.engine, []))
    by_number: dict[int, tuple[int, float]] = {}
    for place in range(len(run.finished(FETCHED.step))):
        numbers, kept = within_pool.replaced_in(run, place)
        for number, key, cosine in zip(numbers.tolist(), kept["key"], kept["cosine"].tolist(), strict=True):
            by_number[place * PER_FETCH_UNIT + number] = int(key.tobytes().hex(), 16) - 1, cosine
    return by_number


def facts_of(run: Run) -> dict[str, int]:
    return within_pool.facts_of(run)


def expected_of(images: Pool, above: float = ABOVE, gone: Sequence[int] = ()) -> dict[int, int]:
    """What a comparison of all with all says: for each image that goes the smallest of its group."""
    near = [(a, b) for a, b in pairs_by_matrix(images.vectors, images.vectors, above) if a < b] if above < 1 else []
    by_bytes: dict[str, int] = {}
    same = [
        (by_bytes.setdefault(digest, number), number)
        for number, digest in enumerate(images.digests)
        if number not in gone
    ]
    pairs = [(a, b) for a, b in [*near, *same] if a not in gone and b not in gone]
    return {
        number: stays for number, stays in enumerate(groups_by_search(pairs, len(images.digests))) if stays != number
    }


@pytest.fixture
def small_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "IMAGES_PER_CELL", 100)


def test_in_one_cell_what_goes_is_what_a_comparison_of_all_says_and_the_smallest_stays(tmp_path: Path) -> None:
    images = pool(1)
    run = fetched(tmp_path, images)
    kept = kept_of(run)
    expected = expected_of(images)
    assert {number: stays for number, (stays, _) in kept.items()} == expected
    assert len(expected) > 200
    assert facts_of(run) == {
        "cells": 1,
        "largest_cell": facts_of(run)["largest_cell"],
        "images_compared": len(images.digests),
        "images_that_go": len(expected),
        "images_that_stay_for_others": len(set(expected.values())),
        "images_that_go_by_their_bytes": len(images.digests) - len(set(images.digests)),
    }


def test_a_cosine_is_the_one_with_what_stays_or_none_at_all(tmp_path: Path) -> None:
    images = pool(2)
    vectors = images.vectors.astype(float)
    near = set(pairs_by_matrix(images.vectors, images.vectors, ABOVE))
    chained = 0
    for number, (stays, cosine) in kept_of(fetched(tmp_path, images)).items():
        if images.digests[number] == images.digests[stays]:
            assert cosine == 1
        elif np.isnan(cosine):
            chained += 1
        else:
            exact = (
                vectors[number]
                @ vectors[stays]
                / np.sqrt((vectors[number] @ vectors[number]) * (vectors[stays] @ vectors[stays]))
            )
            assert cosine == pytest.approx(exact, abs=1e-7)
            assert (stays, number) in near
        if (stays, number) not in near and images.digests[number] != images.digests[stays]:
            assert np.isnan(cosine)
    assert chained > 3  # copies of copies


@pytest.mark.usefixtures("small_cells")
def test_in_cells_hardly_a_pair_is_lost_none_is_invented_and_equal_bytes_are_never(tmp_path: Path) -> None:
    images = pool(3, 1_500, 500)
    run = fetched(tmp_path, images)
    kept, expected = kept_of(run), expected_of(images)
    assert facts_of(run)["cells"] > 10
    assert kept.keys() <= expected.keys()
    assert len(kept) > 0.95 * len(expected)
    for number, (stays, _) in kept.items():
        assert stays < number
        assert stays not in kept
        assert expected.get(stays, stays) == expected[number]
    first: dict[str, int] = {}
    for number, digest in enumerate(images.digests):
        before = first.setdefault(digest, number)
        if before != number:
            assert kept[number][0] == kept.get(before, (before,))[0]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    """A run of small cells by one worker, with what goes and what stays in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "IMAGES_PER_CELL", 100)
        run = fetched(tmp_path_factory.mktemp("compared"), pool(4), engine={"workers": 1})
        return run, str(kept_of(run))  # NaN is NaN


@pytest.mark.usefixtures("small_cells")
@pytest.mark.parametrize(
    ("engine", "at_most"),
    [({"workers": 4}, 64), ({"workers": 1}, 3)],
    ids=["threads", "units"],
)
def test_neither_the_engine_nor_the_size_of_units_changes_what_stays(
    compared: tuple[Run, str], tmp_path: Path, engine: dict[str, Any], at_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, expected = compared
    monkeypatch.setattr(within_pool, "UNITS", 1)
    monkeypatch.setattr(within_pool, "FETCH_UNITS_AT_MOST", at_most)
    run = fetched(tmp_path, pool(4), engine=engine)
    assert str(kept_of(run)) == expected
    assert len(run.finished(COMPARED.step)) < len(before.finished(COMPARED.step))
    # equal vectors of a unit are one there
    assert facts_of(run) | {"largest_cell": 0} == facts_of(before) | {"largest_cell": 0}
    for name in ("goes.npy", "kept.npy"):
        assert storage.read_bytes(run.work(REPLACED.step, name)) == storage.read_bytes(before.work(REPLACED.step, name))


def test_what_goes_because_of_a_test_image_is_compared_with_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = pool(5)
    run = fetched(tmp_path, images)
    gone = sorted(set(expected_of(images).values()))[::2]  # those that would stay
    monkeypatch.setitem(curate.PIPELINE, "decontaminate", _without(gone))
    kept = {number: stays for number, (stays, _) in kept_of(run).items()}
    assert kept == expected_of(images, gone=gone)
    assert facts_of(run)["images_compared"] == len(images.digests) - len(gone)


def _without(gone: Sequence[int]) -> tuple[list[curate.Step], Callable[[Run], None]]:
    def of_unit(_: Run, name: str) -> np.ndarray:
        first = int(name[-5:]) * PER_FETCH_UNIT
        return np.array([number - first for number in gone if first <= number < first + PER_FETCH_UNIT], np.int64)

    steps, conclude = curate.PIPELINE["decontaminate"]
    return [
        step._replace(transform=partial(within_pool.Compare, gone=of_unit)) if step.marks == COMPARED else step
        for step in steps
    ], conclude


@pytest.mark.parametrize(
    "images",
    [
        Pool(np.zeros((0, DIMENSIONS), np.int16), []),
        Pool(np.zeros((4, DIMENSIONS), np.int16), ["0a" * 32, "0b" * 32] * 2),
    ],
)
def test_a_pool_of_no_images_or_flat_ones_alone_has_exact_copies_at_most(tmp_path: Path, images: Pool) -> None:
    run = fetched(tmp_path, images)
    assert kept_of(run) == ({2: (0, 1.0), 3: (1, 1.0)} if images.digests else {})
    assert facts_of(run)["largest_cell"] == 0


def test_with_a_threshold_that_no_cosine_is_above_bytes_alone_decide(tmp_path: Path) -> None:
    images = pool(6, 100, 40)
    kept = kept_of(fetched(tmp_path, images, above=1.0))
    assert {number: stays for number, (stays, _) in kept.items()} == expected_of(images, above=1.0)
    assert len(kept) == len(images.digests) - len(set(images.digests))


def test_nothing_is_planned_where_it_is_not_asked_for(tmp_path: Path) -> None:
    run = fetched(tmp_path, pool(7, 20, 10), dedup={"within_pool": "off"})
    assert within_pool.plan(run) == []
    numbers, kept = within_pool.replaced_in(run, 0)
    assert len(numbers) == len(kept) == 0
