"""Near-duplicates of test images: found whatever form the test set has, and nothing else is; decided by plain loops
over all buckets.
"""

import gzip
import io
import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.dedup import embed
from altalign.filters import pixels
from altalign.filters.thumbnails import thumbnail
from altalign.pipelines.near import index
from altalign.pipelines.run.image_tables import FOUND as FOUND_PAIRS
from altalign.pipelines.run.units import Run
from altalign.pipelines.stages import decontaminate
from altalign.settings.curate import CurateConfig
from tests.end_to_end.decontaminating import (
    CONFIG,
    COPIES,
    FOUND,
    OTHERS,
    TESTS,
    curate,
    curated,
    dropped,
    failure,
    fetched,
    folder,
    judged,
    names,
    planted,
    write_pool,
)
from tests.shared_data import SHARED, needs_shared
from tests.support.curations import rows_in, summary, tree
from tests.support.pictures import encoded
from tests.support.tars import tar

__all__ = ["curated", "fetched", "folder", "judged"]  # fixtures

pytestmark = pytest.mark.runs

# Which images go ------------------------------------------------------------------------------------------------------


@pytest.mark.everyday
def test_copies_of_test_images_go_and_no_other_image(curated: Path) -> None:
    rows = dropped(curated / "run")
    assert names(rows) == FOUND
    assert len(rows) == 2 * len(FOUND)  # every caption of them
    kept = rows_in(curated / "run" / "shards")
    assert names(kept) == planted("mirrored") | {f"other-{number}" for number in range(OTHERS)} | {"flat-other"}
    for row in rows:
        name = row["image_url"].rpartition("/")[2]
        wanted = (
            "flat.png"
            if name.startswith("flat")
            else f"{name[-1]}.png"
            if int(name[-1]) % 2 == 0
            else f"more/{name[-1]}.png"
        )
        assert (row["reason"], row["failed"], row["test_set"], row["test_image"]) == (
            "near_duplicate_of_test_image",
            [row["reason"]],
            "mine",
            wanted,
        )
        assert row["similarity"] == 1 if "same" in name else row["similarity"] > 0.975
    facts = summary(curated / "run")
    assert facts["stages"][-1] == {
        "stage": "decontaminate",
        "received": 2 * (len(kept) // 2 + len(FOUND)),
        "kept": len(kept),
        "dropped": {"near_duplicate_of_test_image": len(rows)},
    }
    near = facts["near_duplicates"]
    assert (near["test_sets"], near["test_images"], near["flat_test_images"], near["flat_images"]) == (
        {"mine": 7},
        7,
        1,
        2,
    )
    assert (near["images_above"], near["images_without_a_bucket"], near["similarity_above"]) == (len(FOUND), 0, 0.975)


def test_the_gallery_shows_pairs_on_both_sides_of_the_threshold_and_of_the_dropped(fetched: Path) -> None:
    write_calibration(fetched / "own", fetched, 40, 0.5)
    curate("--until", "decontaminate", "--set", "decontaminate.calibration=own")
    rows = pq.read_table(fetched / "run" / "audit" / "near_duplicates" / "gallery.parquet").to_pylist()
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in ("just above", "just below", "dropped")}
    assert [len(of_kind) for of_kind in kinds.values()] == [25, 25, 50]
    above, below = ([row["similarity"] for row in kinds[kind]] for kind in ("just above", "just below"))
    assert above == sorted(above)
    assert below == sorted(below, reverse=True)
    assert below[-1] < below[0] <= 0.5 < above[0] < above[-1]
    gone = {row["image_id"]: (row["test_set"], row["test_image"]) for row in dropped(fetched / "run")}
    assert all(gone[row["image_id"]] == (row["test_set"], row["test_image"]) for row in kinds["dropped"])
    assert len({row["image_id"] for row in kinds["dropped"]}) == 50
    for row in rows:
        sides = [max(Image.open(io.BytesIO(row[name])).size) for name in ("image", "test")]
        assert sides == [192, 192]

    counted = pq.read_table(fetched / "run" / "audit" / "near_duplicates" / "similarity.parquet").to_pylist()
    pairs = json.loads((fetched / "run" / "audit" / "near_duplicates" / "found.json").read_text(encoding="utf-8"))[
        "pairs"
    ]
    at = {
        verdict: [row["cosine_permille"] for row in counted if row["verdict"] == verdict]
        for verdict in ("above", "below")
    }
    assert (min(at["above"]), max(at["below"])) == (int(1_000 * above[0]), int(1_000 * below[0]))
    assert sum(row["pairs"] for row in counted if row["verdict"] == "above") == pairs


@pytest.mark.parametrize("threshold", ["0.975", "0.8"])
def test_all_test_images_that_are_near_are_listed_not_only_the_nearest(fetched: Path, threshold: str) -> None:
    """Two test images are nearly one: a copy in the pool is dropped for the nearer one, and near to both."""
    twins = fetched / "twins"
    twins.mkdir()
    for name, kind in (("0.png", "same"), ("0-again.jpg", "jpeg 50"), ("1.png", "same")):
        (twins / name).write_bytes(COPIES[kind](TESTS[int(name[0])]))
    (twins / "far.png").write_bytes(encoded(TESTS[2].rotate(90), "PNG"))
    sets = 'decontaminate.test_sets=[{name = "twins", path = "twins"}]'
    curate("--until", "decontaminate", "--set", sets, "--set", f"decontaminate.similarity_above={threshold}")
    run = fetched / "run"
    listed = pq.read_table(run / "audit" / "near_duplicates" / "test_images.parquet").to_pylist()
    of = {row["test_image"]: (row["images"], row["similarity"]) for row in listed}
    assert {row["test_set"] for row in listed} == {"twins"}
    expected = dict[str, list[float]]()  # the plain loop, over what the search wrote
    order = pq.read_table(next((run / "work").rglob("names.parquet")))["test_image"].to_pylist()
    for path in (run / "work" / FOUND_PAIRS.step).rglob("*.parquet"):
        for row in pq.read_table(path).to_pylist() if "below" not in str(path) else []:
            if row["shares_bucket"]:
                expected.setdefault(order[row["test"]], []).append(row["cosine"])
    assert of == {name: (len(cosines), max(cosines)) for name, cosines in expected.items()}
    assert of.keys() >= {"0.png", "0-again.jpg", "1.png"}
    assert "far.png" not in of
    assert {row["test_image"] for row in dropped(run) if "same-0" in row["image_url"]} == {"0.png"}  # one of both


def test_mirrored_copies_go_where_they_are_asked_for(fetched: Path) -> None:
    curate("--until", "decontaminate", "--set", "decontaminate.mirrored=true")
    assert names(dropped(fetched / "run")) == FOUND | planted("mirrored")


@pytest.mark.parametrize("form", ["table", "struct", "tar", "tar.gz", "folder of tables", "two sets"])
def test_the_form_of_a_test_set_changes_nothing(fetched: Path, form: str) -> None:
    images = [
        (str(path.relative_to(fetched / "tests")), path.read_bytes())
        for path in sorted((fetched / "tests").rglob("*.png"))
    ]
    data = [data for _, data in images]
    match form:
        case "table" | "folder of tables":
            (fetched / "set").mkdir()
            pq.write_table(
                pa.table({"image": data, "label": range(len(data))}), fetched / "set" / "test.parquet", row_group_size=3
            )
            sets = ["set" if form != "table" else "set/*.parquet"]
        case "struct":
            pq.write_table(
                pa.table({"picture": [{"bytes": each, "path": name} for name, each in images]}),
                fetched / "test.parquet",
            )
            sets = [{"name": "hf", "path": "test.parquet", "image_column": "picture"}]
        case "two sets":
            sets = ["tests/more", {"name": "rest", "path": "tests/*.png"}]
        case _:
            data = tar([*images, ("labels.json", b"{}")])
            (fetched / f"test.{form}").write_bytes(gzip.compress(data) if form.endswith("gz") else data)
            sets = [f"test.{form}"]
    entries = ", ".join(
        json.dumps(each)
        if isinstance(each, str)
        else "{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in each.items()) + "}"
        for each in sets
    )
    curate("--until", "decontaminate", "--set", f"decontaminate.test_sets=[{entries}]")
    rows = dropped(fetched / "run")
    assert names(rows) == FOUND
    assert {row["test_set"] for row in rows} == {
        "table": {"*.parquet"},
        "struct": {"hf"},
        "two sets": {"more", "rest"},
        "folder of tables": {"set"},
    }.get(form, {f"test.{form}"})


def test_phash_finds_them_too_and_has_no_map(judged: Path) -> None:
    curate(
        "--until",
        "decontaminate",
        "--set",
        "decontaminate.embedder=phash",
        "--set",
        "decontaminate.similarity_above=0.9",
    )
    assert names(dropped(judged / "run")) >= planted("same", "recoloured") | {"flat-same"}
    assert not names(dropped(judged / "run")) & planted("mirrored")
    assert not (judged / "run" / "audit" / "near_duplicates" / "map_matrix.npy").exists()


def test_without_test_sets_nothing_goes_and_the_summary_says_so(
    fetched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curate("--set", "decontaminate.test_sets=[]")
    assert dropped(fetched / "run") == []
    assert "near_duplicates" not in summary(fetched / "run")
    assert "decontamination: off, nothing was looked for" in capsys.readouterr().out


@pytest.mark.parametrize("require_bucket", ["true", "false"])
def test_every_verdict_is_that_of_plain_loops_over_all_buckets(fetched: Path, require_bucket: str) -> None:
    settings = {
        "similarity_above": 0.1,
        "clusters": 80,
        "require_bucket": require_bucket,
    }
    other = [part for name, value in settings.items() for part in ("--set", f"decontaminate.{name}={value}")]
    write_calibration(fetched / "own", fetched, 80, 0.1)
    curate(*other, "--set", "decontaminate.calibration=own")
    pool = {f"https://img.example/{name}": data for name, data in images_of(fetched)}
    tests = {
        str(path.relative_to(fetched / "tests")): path.read_bytes()
        for path in sorted((fetched / "tests").rglob("*.png"))
    }
    expected, spared = by_plain_loops(
        fetched / "own", pool, tests, above=0.1, nearest=10, of=3, needs_bucket=require_bucket == "true"
    )
    assert {row["image_url"] for row in dropped(fetched / "run")} == expected
    facts = summary(fetched / "run")["near_duplicates"]
    assert facts["images_without_a_bucket"] == len(spared) > 0  # else this test would not see buckets
    assert facts["clusters"] == 80


def images_of(folder: Path) -> list[tuple[str, bytes]]:
    table = pq.read_table(folder / "pool.parquet").to_pylist()
    return [(row["url"].rpartition("/")[2], row["image"]) for row in table[::2]]


def coefficients(data: bytes) -> np.ndarray | None:
    decoded = pixels.decode(data, pixels_at_most=10**9, colour=False, short_side_px=128).pixels
    assert decoded is not None
    found, is_flat = embed.dct_coefficients(thumbnail(decoded)[np.newaxis])
    return None if is_flat[0] else found[0]


def write_calibration(target: Path, folder: Path, clusters: int, above: float) -> None:
    """A map that takes the lowest frequencies, and images of the pool as centroids: any calibration will do."""
    vectors = [found for _, data in images_of(folder) if (found := coefficients(data)) is not None]
    matrix = np.eye(16, embed.COEFFICIENTS, dtype=np.int32)
    mapped = embed.Map(np.zeros(embed.COEFFICIENTS, np.int32), matrix)
    target.mkdir()
    np.save(target / "map_mean.npy", mapped.mean)
    np.save(target / "map_matrix.npy", mapped.matrix)
    np.save(target / "centroids.npy", mapped.embed(np.stack(vectors[:clusters])))
    (target / "calibration.json").write_text(
        json.dumps({"version": 1, "embedder": "dct", "similarity_above": above, "is_mapped": True}), encoding="utf-8"
    )


def by_plain_loops(
    calibration: Path,
    pool: dict[str, bytes],
    tests: dict[str, bytes],
    *,
    above: float,
    nearest: int,
    of: int,
    needs_bucket: bool,
) -> tuple[set[str], set[str]]:
    """Which images of the pool go, and which are above the threshold and share no bucket."""
    mapped = embed.Map(np.load(calibration / "map_mean.npy"), np.load(calibration / "map_matrix.npy"))
    centroids = [[int(x) for x in row] for row in np.load(calibration / "centroids.npy")]

    def described(data: bytes) -> tuple[list[int], set[tuple[int, ...]]] | None:
        found = coefficients(data)
        if found is None:
            return None
        vector = [int(x) for x in mapped.embed(found[np.newaxis])[0]]
        order = sorted(
            range(len(centroids)), key=lambda c: (-sum(a * b for a, b in zip(vector, centroids[c], strict=True)), c)
        )
        return vector, set(itertools.combinations(sorted(order[:nearest]), of))

    of_tests = {name: described(data) for name, data in tests.items()}
    goes, spared = set(), set()
    for url, data in pool.items():
        mine, is_above, is_shared = described(data), False, False
        for name, other in of_tests.items():
            if data == tests[name]:
                is_above = is_shared = True
            if mine is not None and other is not None and cosine_is_above(mine[0], other[0], above):
                is_above, is_shared = True, is_shared or bool(mine[1] & other[1])
        if is_above and (is_shared or not needs_bucket):
            goes.add(url)
        if is_above and not is_shared:
            spared.add(url)
    return goes, spared


def cosine_is_above(a: list[int], b: list[int], above: float) -> bool:
    product = sum(x * y for x, y in zip(a, b, strict=True))
    norms = math.prod(sum(x * x for x in vector) for vector in (a, b))
    return product > 0 and Fraction(product) ** 2 > Fraction(str(above)) ** 2 * norms


def test_a_calibration_of_a_run_gives_the_same_verdicts(curated: Path, judged: Path) -> None:
    curate("--until", "decontaminate", "--set", f"decontaminate.calibration={curated}/run/audit/near_duplicates")
    assert tree(judged / "run" / "dropped") == tree(curated / "run" / "dropped")


def test_what_is_learned_and_found_does_not_depend_on_workers_nor_on_how_many_images_are_searched_for_at_a_time(
    curated: Path, judged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decontaminate, "_AT_A_TIME", 7)
    monkeypatch.setattr(decontaminate, "_BELOW_AT_A_TIME", 5)
    curate("--set", "engine.workers=4")
    assert tree(judged / "run") == tree(curated / "run")
    config = CurateConfig.load(judged / "config.toml")
    assert index.calibration_of(Run("run", config, ())).map is not None


def test_the_summary_says_what_each_test_set_cost_and_above_what(
    fetched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curate("--set", 'decontaminate.test_sets=["tests/more", {name = "rest", path = "tests/*.png"}]')
    assert (
        "decontamination: 12 images near more (3), 13 images near rest (4); cosine above 0.975\n"
        in capsys.readouterr().out
    )
    assert summary(fetched / "run")["near_duplicates"]["images_near"] == {"more": 12, "rest": 13}


# What cannot be looked for --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cut", "no image"])
def test_a_test_image_that_cannot_be_read_stops_the_run_before_images_are_fetched(
    curated: Path, judged: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    (judged / "bad").mkdir()
    whole = encoded(TESTS[0], "JPEG")
    (judged / "bad" / "one.jpg").write_bytes(whole[: len(whole) // 2] if kind == "cut" else b"<html>")
    said = failure(capsys, 1, "curate", "config.toml", "--set", 'decontaminate.test_sets=["bad"]')
    assert "one.jpg: an image of test set bad cannot be decoded" in said
    assert not (judged / "run" / "work" / "fetch" / "units").exists()
    learned = f"decontaminate.calibration={curated}/run/audit/near_duplicates"  # or the map would be learned again
    # with sets that can be read it goes on
    curate("--until", "decontaminate", "--set", 'decontaminate.test_sets=["tests"]', "--set", learned)
    assert names(dropped(judged / "run")) == FOUND


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ('test_sets=["nowhere"]', "[decontaminate] test_sets: nothing is at 'nowhere'"),
        ('test_sets=["empty"]', "[decontaminate] test_sets: empty: no image, Parquet file or tar in it (it is empty)"),
        ('test_sets=["pool.parquet"]', None),
        (
            'test_sets=[{name = "a", path = "tests", image_column = ""}, {name = "a", path = "tests/more"}]',
            'two test sets are named "a"',
        ),
        (
            'test_sets=[{name = "a", path = "pool.parquet", image_column = "img"}]',
            'pool.parquet: no columns "img" (there are url, caption, image)',
        ),
        ("calibration=nowhere", "[decontaminate] calibration = 'nowhere': no calibration.json is there"),
        ("embedder=onnx:none.onnx", "none.onnx"),
    ],
)
def test_what_cannot_be_looked_for_is_refused_before_any_work(
    folder: Path, capsys: pytest.CaptureFixture[str], setting: str, said: str | None
) -> None:
    (folder / "empty").mkdir()
    if said is None:
        curate("--dry-run", "--set", f"decontaminate.{setting}")
        return
    assert said in failure(capsys, 2, "curate", "config.toml", "--set", f"decontaminate.{setting}")
    assert not (folder / "run").exists()


# Real images ----------------------------------------------------------------------------------------------------------


@needs_shared
@pytest.mark.runs
def test_planted_copies_of_clip_art_go_and_unrelated_clip_art_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pq.read_table(
        SHARED / "openclipart.parquet", columns=["image_bytes", "short_side_over_200", "title"]
    ).to_pylist()
    # one of each title: variants of a drawing share it
    by_title = {row["title"]: row["image_bytes"] for row in rows if row["short_side_over_200"]}
    usable = [
        data for data in by_title.values() if (decoded := decoded_of(data)) is not None and min(decoded.size) > 200
    ]
    tests, pool = usable[:40], usable[40:700]
    kinds = {
        "same": COPIES["same"],
        **{name: copy for name, copy in COPIES.items() if name not in ("same", "mirrored")},
        "crop": cropped,
    }
    copies = [
        (f"{kind}-{n}", data if kind == "same" else copy(decoded_of(data)))
        for n, data in enumerate(tests)
        for kind, copy in kinds.items()
    ]
    write_pool(tmp_path, [*copies, *((f"other-{n}", data) for n, data in enumerate(pool))])
    (tmp_path / "tests").mkdir()
    for number, data in enumerate(tests):
        (tmp_path / "tests" / f"{number}.jpg").write_bytes(data)
    (tmp_path / "config.toml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(index, "TRAINING_IMAGES", 100)
    curate("--until", "decontaminate", "--set", "image.short_side_above_px=100")
    found = names(dropped(tmp_path / "run"))
    recall = {kind: sum(name.startswith(f"{kind}-") for name in found) / len(tests) for kind in kinds}
    assert recall["same"] == 1
    assert min(recall["jpeg 50"], recall["smaller"], recall["recoloured"]) > 0.8
    assert not {name for name in found if name.startswith("other")}


def decoded_of(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def cropped(image: Image.Image) -> bytes:
    across, down = image.width // 40, image.height // 40
    return encoded(image.crop((across, down, image.width - across, image.height - down)), "JPEG")
