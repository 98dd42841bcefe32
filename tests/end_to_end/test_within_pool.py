"""`[dedup] within_pool`: whole runs over drawn pictures and their copies, and over real clip art against a comparison
of all with all.
"""

import random
import shutil
import signal
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.cli import main
from altalign.dedup import embed
from altalign.dedup import image_groups as cells
from altalign.pipelines.images import calibration_files
from altalign.pipelines.images.calibration_files import Calibration
from altalign.pipelines.near import index
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.run.image_tables import FEATURES, FETCHED, kept_images
from altalign.settings.curate import CurateConfig
from tests.end_to_end import faults
from tests.shared_data import SHARED, needs_shared
from tests.support.curations import rows_in, summary, tree
from tests.support.pictures import encoded
from tests.support.vectors import groups_by_search, pairs_by_matrix

pytestmark = pytest.mark.runs

REASON = "near_duplicate_in_pool"
CONFIG = """
[run]
folder = "run"

[[input]]
kind = "table"
paths = ["input/*.parquet"]
image_column = "image"

[dedup]
within_pool = "keep_one_image"

[decontaminate]
calibration = "calibrated"

[shards]
samples_per_shard = 40

[engine]
workers = 1
"""


class Picture(NamedTuple):
    """An image of the pool; those of one name are copies."""

    name: str
    url: str
    data: bytes
    captions: list[str]


def drawn(number: int) -> Image.Image:
    """A picture like no other."""
    return (
        Image.frombytes("L", (8, 6), random.Random(number).randbytes(48))
        .resize((400, 300), Image.Resampling.BICUBIC)
        .convert("RGB")
    )


@cache
def pictures() -> list[Picture]:
    """60 pictures and copies of some: smaller, as JPEG, the same bytes; and flat ones, which are alike and no copies
    but by their bytes.
    """
    found = []
    for number in range(60):
        image = drawn(number)
        made = [encoded(image)]
        if number % 3 == 0:
            made.append(encoded(image, "JPEG", quality=60))
        if number % 6 == 0:
            made += [encoded(image.resize((300, 225))), made[0]]
        found += [(f"picture {number}", data) for data in made]
    for number in range(6):
        flat = encoded(Image.new("RGB", (300, 300), (number, 0, 0)))
        found += [(f"flat {number}", flat)] * (2 if number < 2 else 1)
    return [
        Picture(
            name,
            f"https://img.example/{i}.png",
            data,
            [f"the {name} is shown here for the time {i} by {who}" for who in ("one", "two")[: 1 + i % 2]],
        )
        for i, (name, data) in enumerate(found)
    ]


def write_pool(folder: Path) -> None:
    """The pool, its config, and a calibration: the lowest frequencies as they are."""
    rows = [(picture.url, caption, picture.data) for picture in pictures() for caption in picture.captions]
    random.Random(1).shuffle(rows)
    (folder / "input").mkdir(parents=True)
    for part in range(2):
        url, caption, data = zip(*rows[part::2], strict=True)
        pq.write_table(pa.table({"url": url, "caption": caption, "image": data}), folder / "input" / f"{part}.parquet")
    lowest = embed.Map(
        np.zeros(embed.COEFFICIENTS, np.int32), np.eye(embed.DIMENSIONS, embed.COEFFICIENTS, dtype=np.int32)
    )
    calibration_files.save(
        str(folder / "calibrated"), Calibration("dct", 0.975, lowest, np.eye(1, embed.DIMENSIONS, dtype=np.int16)), {}
    )
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pool, and a run of it whose images are fetched."""
    folder = tmp_path_factory.mktemp("pool") / "fetched"
    write_pool(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["curate", "config.toml", "--until", "fetch"]) == 0
    return folder


def continued(fetched: Path, folder: Path, *options: str) -> Path:
    """The run, finished in another folder with these options."""
    shutil.copytree(fetched, folder, dirs_exist_ok=True)  # with the times of files
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["curate", "config.toml", *options]) == 0
    return folder


@pytest.fixture(scope="module")
def finished(fetched: Path) -> Path:
    return continued(fetched, fetched.parent / "finished")


# What goes and what stays ---------------------------------------------------------------------------------------------


@pytest.mark.everyday
def test_of_every_group_of_copies_the_smallest_image_stays_with_all_its_captions(finished: Path) -> None:
    kept, dropped = rows_in(finished / "run" / "shards"), rows_in(finished / "run" / "dropped" / "decontaminate")
    by_url = {row["image_url"]: row["image_id"] for row in [*kept, *dropped]}
    groups: dict[str, list[Picture]] = defaultdict(list)
    for picture in pictures():
        groups[picture.name].append(picture)
    stays = {min(by_url[picture.url] for picture in group) for group in groups.values()}
    assert {row["image_id"] for row in kept} == stays
    assert len(kept) + len(dropped) == sum(len(picture.captions) for picture in pictures())
    assert len(dropped) > 40
    assert {row["reason"] for row in dropped} == {REASON}
    assert all(row["failed"] == [REASON] for row in dropped)


def test_a_dropped_row_names_the_first_pair_of_what_stays_and_the_cosine_with_it(finished: Path) -> None:
    kept, dropped = rows_in(finished / "run" / "shards"), rows_in(finished / "run" / "dropped" / "decontaminate")
    names = {picture.url: picture for picture in pictures()}
    first: dict[str, dict[str, Any]] = {}
    for row in sorted(kept, key=lambda row: row["key"]):
        first.setdefault(row["image_id"], row)
    by_key = {row["key"]: row for row in first.values()}
    for row in dropped:
        picture, other = names[row["image_url"]], names[by_key[row["kept_key"]]["image_url"]]
        assert picture.name == other.name
        assert row["similarity"] == 1 if picture.data == other.data else 0.975 < row["similarity"] <= 1
        assert row["test_set"] is row["test_image"] is None


def test_summary_and_explain_say_it(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = summary(finished / "run")
    dropped = rows_in(finished / "run" / "dropped" / "decontaminate")
    in_pool = found["near_duplicates"]["within_pool"]
    assert [stage["dropped"] for stage in found["stages"] if stage["stage"] == "decontaminate"] == [
        {REASON: len(dropped)}
    ]
    assert in_pool["images_that_go"] == len({row["image_id"] for row in dropped})
    assert in_pool["images_that_stay_for_others"] == len({row["kept_key"] for row in dropped}) == 22
    assert in_pool["images_that_go_by_their_bytes"] == 12
    assert in_pool["images_compared"] == found["images"] + in_pool["images_that_go"]
    monkeypatch.chdir(finished)
    assert main(["explain", "run", "--key", dropped[0]["key"]]) == 0
    said = capsys.readouterr().out
    assert f"dropped: {REASON}" in said
    assert dropped[0]["kept_key"] in said


def test_what_is_near_a_test_image_goes_for_that_and_nothing_stays_for_its_copies(
    fetched: Path, finished: Path, tmp_path: Path
) -> None:
    """Picture 6 has four images: all are near the test image, and none is near_duplicate_in_pool."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "six.jpg").write_bytes(encoded(drawn(6), "JPEG", quality=80))
    continued(fetched, tmp_path, "--set", 'decontaminate.test_sets=["tests"]', "--until", "decontaminate")
    before, dropped = (
        rows_in(finished / "run" / "dropped" / "decontaminate"),
        rows_in(tmp_path / "run" / "dropped" / "decontaminate"),
    )
    six = {picture.url for picture in pictures() if picture.name == "picture 6"}
    of_six = [row for row in dropped if row["image_url"] in six]
    assert len(six) == 4
    assert {row["image_url"] for row in of_six} == six
    assert {(row["reason"], row["test_image"], row["kept_key"]) for row in of_six} == {
        ("near_duplicate_of_test_image", of_six[0]["test_image"], None)
    }
    columns = ("key", "reason", "kept_key", "similarity")
    rest = [
        [tuple(row[name] for name in columns) for row in rows if row["image_url"] not in six]
        for rows in (before, dropped)
    ]
    assert rest[0] == rest[1]


def test_off_it_is_not_looked_for(fetched: Path, tmp_path: Path) -> None:
    continued(fetched, tmp_path, "--set", "dedup.within_pool=off")
    assert not rows_in(tmp_path / "run" / "dropped" / "decontaminate")
    assert "near_duplicates" not in summary(tmp_path / "run")
    assert not (tmp_path / "run" / "audit" / "near_duplicates").exists()


# The same bytes -------------------------------------------------------------------------------------------------------


def test_more_workers_change_no_byte(fetched: Path, finished: Path, tmp_path: Path) -> None:
    assert tree(continued(fetched, tmp_path, "--set", "engine.workers=4") / "run") == tree(finished / "run")


def test_killed_within_its_steps_a_run_continues_to_the_same_bytes(
    fetched: Path, finished: Path, tmp_path: Path
) -> None:
    start, arguments = Path(shutil.copytree(fetched, tmp_path / "start")), ["curate", "config.toml"]
    paths = faults.changes(faults.copied(start, "whole"), arguments)
    for step in ("compared", "joined", "replaced"):
        ours = [number for number, path in enumerate(paths, 1) if f"decontaminate/{step}/" in path]
        new = faults.copied(start, step)
        ended = faults.give(new, arguments, faults.killed, ours[len(ours) // 2])
        assert ended.code == -signal.SIGKILL, step
        assert f"/decontaminate/{step}/" in ended.at
        again = faults.give(new, arguments)
        assert again.code == 0, again.output
        assert tree(new / "run") == tree(finished / "run"), step


# Real pictures --------------------------------------------------------------------------------------------------------

CLIP_ART = f"""
[run]
folder = "run"

[[input]]
kind = "table"
paths = ["{SHARED}/openclipart.parquet"]
url_column = ""
caption_column = "text"
image_column = "image_bytes"

[text]
words_at_least = 1
words_at_most = 1_000
images_per_text_at_most = 1_000_000

[image]
short_side_above_px = 1
aspect_ratio_below = 1_000.0

[dedup]
within_pool = "keep_one_image"
"""


@needs_shared
def test_of_clip_art_hardly_a_copy_is_lost_and_none_is_invented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In cells of 300, where 15,000 are usual: fewer images share one, so more could be lost."""
    monkeypatch.setattr(cells, "IMAGES_PER_CELL", 300)
    monkeypatch.setattr(index, "TRAINING_IMAGES", 40)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text(CLIP_ART, encoding="utf-8")
    assert main(["curate", "config.toml"]) == 0
    run = find_run(CurateConfig.load(tmp_path / "config.toml", []), config_path="config.toml")
    ids, digests, vectors = [], [], []
    for name in run.finished(FETCHED.step):
        images, features = kept_images(run, name), FEATURES.array(run, name)
        ids += images["image_id"].to_pylist()
        digests += images["found_sha256"].to_pylist()
        of_unit = index.calibration_of(run).vectors(features)
        of_unit[~features.any(axis=1)] = 0
        vectors.append(of_unit)
    near, everything = [], np.concatenate(vectors)
    for begin in range(0, len(everything), 500):
        near += [
            (begin + a, b)
            for a, b in pairs_by_matrix(everything[begin : begin + 500], everything, 0.975)
            if begin + a < b
        ]
    first: dict[str, int] = {}
    same = [(first.setdefault(digest, number), number) for number, digest in enumerate(digests)]
    staying = groups_by_search([*near, *same], len(ids))
    expected = {ids[number]: ids[stays] for number, stays in enumerate(staying) if number != stays}
    found = {row["image_id"] for row in rows_in(tmp_path / "run" / "dropped" / "decontaminate")}
    assert ids == sorted(ids)
    assert summary(tmp_path / "run")["near_duplicates"]["within_pool"]["cells"] > 8
    assert found <= expected.keys()
    assert len(expected) > 200
    assert len(found) >= 0.99 * len(expected)
