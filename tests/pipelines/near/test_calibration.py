"""The parts of a calibration: the search against plain loops, labelled pairs, the report."""

import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from rich.console import Console

from altalign.dedup.embed import COEFFICIENTS, DIMENSIONS, Map
from altalign.dedup.thresholds import Share, of_best_view
from altalign.errors import UsageError
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.near import calibration, comparing
from altalign.pipelines.near.comparing import Search
from altalign.settings.curate import CurateConfig
from tests.shared_data import SHARED, needs_shared
from tests.support.pictures import encoded

LOWEST = Map(np.zeros(COEFFICIENTS, np.int32), np.eye(DIMENSIONS, COEFFICIENTS, dtype=np.int32))
ONE_CLUSTER = np.eye(1, DIMENSIONS, dtype=np.int16)
CALIBRATION = Calibration("dct", 0.9, LOWEST, ONE_CLUSTER)


def plain_cosine(a: np.ndarray, b: np.ndarray) -> float:
    x, y = [int(value) for value in a], [int(value) for value in b]
    norms = sum(value * value for value in x) * sum(value * value for value in y)
    return sum(p * q for p, q in zip(x, y, strict=True)) / norms**0.5 if norms else float("nan")


# Cosines as the search decides on them --------------------------------------------------------------------------------


def test_the_best_view_is_the_nearest_of_those_that_share_a_bucket() -> None:
    rng = np.random.default_rng(3)
    vectors, views = (
        rng.integers(-300, 300, (40, 6)).astype(np.int16),
        rng.integers(-300, 300, (2, 40, 6)).astype(np.int16),
    )
    vectors[0] = views[1, 1] = 0
    centroids = rng.integers(-300, 300, (12, 6)).astype(np.int16)
    found = of_best_view(vectors, list(views), centroids, at_least=2, nearest=4)
    anyhow = of_best_view(vectors, list(views), centroids, at_least=0, nearest=4)
    lost = 0
    for i, vector in enumerate(vectors):
        best, best_inside = float("nan"), float("nan")
        for view in views[:, i]:
            sides = [
                set(sorted(range(12), key=lambda c: (-int(centroids[c].astype(int) @ side.astype(int)), c))[:4])
                for side in (vector, view)
            ]
            cosine = plain_cosine(vector, view)
            best = np.fmax(best, cosine)
            best_inside = np.fmax(best_inside, cosine if len(sides[0] & sides[1]) >= 2 else np.nan)
        np.testing.assert_allclose([anyhow[i], found[i]], [best, best_inside], rtol=1e-12)
        lost += bool(np.isnan(best_inside) and not np.isnan(best))
    assert np.isnan(anyhow[0])
    assert lost > 0


# The search -----------------------------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """A search, and what it was made of."""

    search: Search
    pool: np.ndarray
    tests: np.ndarray
    sha256: np.ndarray
    of_tests: np.ndarray


@pytest.fixture
def drawn_search() -> Drawn:
    rng = np.random.default_rng(5)
    base = rng.normal(size=(1, 8))
    pool, tests = (((base + rng.normal(size=(count, 8))) * 900).astype(np.int16) for count in (230, 60))
    digests = [np.array([f"{side}{i:03}" for i in range(count)], "S64") for side, count in (("p", 230), ("t", 60))]
    # three images of the pool are test images, two of them one and the same
    digests[0][[4, 5, 229]] = [b"t007", b"t007", b"t059"]
    tests[7] = tests[8]
    return Drawn(Search(pool, digests[0], tests, digests[1], 2), pool, tests, *digests)


def plain_pairs(drawn: Drawn) -> list[tuple[float, int, int]]:
    """Cosine, row and test of all pairs that are not of the same bytes."""
    return [
        (plain_cosine(a, b), i, j)
        for i, a in enumerate(drawn.pool)
        for j, b in enumerate(drawn.tests)
        if drawn.sha256[i] != drawn.of_tests[j]
    ]


def test_every_pair_is_counted_but_those_of_the_same_bytes(
    drawn_search: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("altalign.pipelines.near.comparing._COMPARISONS_AT_A_TIME", 1)
    counted, pairs = drawn_search.search.counted(), plain_pairs(drawn_search)
    assert counted.compared == 230 * 60
    for at in (0.5, 0.7, 0.9, 0.97):
        assert counted.above(at).hits == sum(cosine > at for cosine, _, _ in pairs)
    assert counted.above(0.5).hits > 1_000


def test_the_pairs_around_a_threshold_are_those_of_a_plain_sort(drawn_search: Drawn) -> None:
    pairs = sorted(plain_pairs(drawn_search))
    around = drawn_search.search.around(0.8, above=0.5, pairs=20)
    above, below = [pair for pair in pairs if pair[0] > 0.8][:10], [pair for pair in pairs if pair[0] <= 0.8][-10:]
    np.testing.assert_allclose(around.cosines, [cosine for cosine, _, _ in below + above], rtol=1e-12)
    assert list(zip(around.rows.tolist(), around.tests.tolist(), strict=True)) == [(i, j) for _, i, j in below + above]


# Labelled pairs -------------------------------------------------------------------------------------------------------


def config_with(*, mirrored: bool) -> CurateConfig:
    values = {"input": {"paths": ["x"]}, "decontaminate": {"mirrored": mirrored}}
    return CurateConfig.from_values(values, where="test")


def png(pixels: np.ndarray) -> bytes:
    return encoded(Image.fromarray(pixels))


@pytest.fixture
def drawn(tmp_path: Path) -> tuple[str, str]:
    """Labelled pairs of three drawn images, their mirror images, a flat one, and a broken one."""
    rng = np.random.default_rng(1)
    drawings = {f"{name}": np.kron(rng.integers(0, 255, (8, 8)), np.ones((16, 16))).astype(np.uint8) for name in "abc"}
    files = {name: png(pixels) for name, pixels in drawings.items()} | {
        "a again": png(np.repeat(drawings["a"], 2, axis=0)),
        "a flipped": png(drawings["a"][:, ::-1]),
    }
    files |= {"flat": png(np.full((64, 64), 9, np.uint8)), "broken": files["b"][:60]}
    rows = [
        ("a", "a again", "near", "taller"),
        ("a", "a flipped", "near", "flip"),
        ("b", "b", "exact", "as it is"),
        ("a", "b", "related", "another"),
        ("b", "c", "unrelated", "another"),
        ("b", "broken", "near", "cut"),
        ("flat", "flat", "near", "flat"),
    ]
    names = ("image_a", "image_b", "relation", "how")
    pq.write_table(
        pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), tmp_path / "pairs.parquet"
    )
    pq.write_table(pa.table({"image": list(files), "image_bytes": list(files.values())}), tmp_path / "images.parquet")
    return str(tmp_path / "pairs.parquet"), str(tmp_path / "images.parquet")


@pytest.mark.parametrize("mirrored", [False, True])
def test_labelled_pairs_are_found_as_they_are_or_in_a_mirror(drawn: tuple[str, str], *, mirrored: bool) -> None:
    config, made = config_with(mirrored=mirrored), Calibration("dct", 0.95, LOWEST, ONE_CLUSTER)
    hits = 2 + mirrored
    assert comparing.measure_labelled(*drawn, config, made, 0) == {
        "recall": Share(hits, 4).to_json(),  # taller, as it is, flip or not, and flat, which is never found
        "precision": Share(hits, hits).to_json(),
        "by_how": {
            "taller": Share(1, 1).to_json(),
            "flip": Share(int(mirrored), 1).to_json(),
            "as it is": Share(1, 1).to_json(),
            "flat": Share(0, 1).to_json(),
        },
        "left_out": 1,
    }


def test_a_pair_whose_image_is_not_there_is_named(drawn: tuple[str, str]) -> None:
    pairs, of_images = drawn
    pq.write_table(pa.table({"image_a": ["a"], "image_b": ["z"], "relation": ["near"]}), pairs)
    with pytest.raises(UsageError, match='image "z" is not in'):
        comparing.measure_labelled(pairs, of_images, config_with(mirrored=False), CALIBRATION, 0)


def test_files_without_the_columns_are_refused(drawn: tuple[str, str]) -> None:
    pairs, of_images = drawn
    with pytest.raises(
        UsageError, match=r'^--pairs .*images\.parquet: no column "image_a" \(there are image, image_bytes\)'
    ):
        comparing.check_labelled(of_images, of_images)
    with pytest.raises(UsageError, match=r'^--images .*pairs\.parquet: no column "image" '):
        comparing.check_labelled(pairs, pairs)
    with pytest.raises(UsageError, match=r"^--images nowhere: no such file"):
        comparing.check_labelled(pairs, "nowhere")
    comparing.check_labelled(pairs, of_images)


@needs_shared
@pytest.mark.parametrize("mirrored", [False, True])
def test_pairs_that_people_labelled(*, mirrored: bool) -> None:
    pairs, images = (str(SHARED / f"near_duplicates_{name}.parquet") for name in ("pairs", "images"))
    comparing.check_labelled(pairs, images)
    made = Calibration("dct", 0.975, LOWEST, ONE_CLUSTER)
    measured: dict[str, Any] = comparing.measure_labelled(pairs, images, config_with(mirrored=mirrored), made, 0)
    # of 4 flips and rotations the flips, and in a mirror alone
    assert measured["recall"] == Share(27 + 2 * mirrored, 31).to_json()
    assert measured["precision"]["found"] == measured["precision"]["asked"]
    assert measured["left_out"] == 2
    assert [how for how, share in measured["by_how"].items() if share["found"] < share["asked"]] == (
        ["_rotation"] if mirrored else ["_hflip", "_rotation"]
    )


# Reports ------------------------------------------------------------------------------------------------------------


FACTS = {  # of two kinds of copies one is found always, the other once in four times
    "training_images": 100,
    "copied": 4,
    "test_sets": {"mine": 100},
    "flat_test_images": 3,
    "views": 1,
    "false_positives_at_most": 1e-3,
    "false_positives_expected": 9e-4,
    "is_extrapolated": True,
    "recall": {"crop <20> %": Share(1, 4).to_json(), "jpeg 75": Share(4, 4).to_json()},
    "not_covered": ["crop <20> %"],
    "labelled_pairs": {
        "recall": Share(3, 4).to_json(),
        "precision": Share(3, 3).to_json(),
        "by_how": {"<i>": Share(0, 1).to_json()},
        "left_out": 2,
    },
}


def shown(facts: dict[str, Any]) -> str:
    out = io.StringIO()
    calibration.show(CALIBRATION, facts, Console(file=out, width=80, markup=False, highlight=False))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    return " ".join(out.getvalue().split())


def test_nobody_is_left_to_believe_that_what_is_lost_is_covered() -> None:
    text = shown(FACTS)
    assert "NOT COVERED, fewer than half of the copies are found: crop <20> % (25%). " in text
    assert "Such copies of test images stay in the data." in text
    assert "Threshold: a cosine above 0.9." in text
    assert "extrapolated" in text
    assert "recall 3 of 4 (75.0%" in text
    assert "2 pairs left out" in text
    assert "Not all found of: <i> 0 of 1." in text
    assert "NOT COVERED" not in shown({**FACTS, "not_covered": [], "labelled_pairs": None})


def test_a_page_needs_no_network_and_runs_nothing_of_what_it_shows() -> None:
    def looked(*values: object) -> dict[str, Any]:
        names = ("cosine", "key", "test_set", "test_image", "of_pool", "of_test")
        return dict(zip(names, (*values, b"no image", b"and no one asks"), strict=True))

    looked_at = [
        looked(0.91, "k1", "<script>alert(1)</script>", "<img src=x onerror=alert(2)>\x1b[31m"),
        looked(0.9, "k2", "set", "b.jpg"),
    ]
    page = calibration.page(CALIBRATION, looked_at).decode()
    assert re.findall(r'(?:src|href)="(?!data:image/webp;base64,)', page) == []
    assert not re.search(r"<script|<img src=x|\x1b", page)
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<figure>") == 2
    assert page.index("Above: dropped") < page.index("k1") < page.index("At it or below: kept") < page.index("k2")
