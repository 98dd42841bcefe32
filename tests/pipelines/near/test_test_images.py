"""What is read of test sets is kept for as long as it is the same: a set more is not all of them anew."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from altalign.dedup import embed
from altalign.pipelines.near import index
from altalign.pipelines.run.image_tables import TESTS
from altalign.pipelines.run.units import Run, map_unit
from altalign.settings.curate import CurateConfig


def picture(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 255, (6, 8), np.uint8)
    Image.fromarray(noise).resize((320, 240), Image.Resampling.BICUBIC).save(path)


def run_of(folder: Path, **decontaminate: Any) -> Run:
    config = CurateConfig.from_values(
        {"input": {"paths": ["none"]}, "run": {"folder": str(folder / "run")}, "decontaminate": decontaminate},
        where="test",
    )
    return Run(str(folder / "run"), config, ())


def read(run: Run) -> list[str]:
    """Read what is to be read; the test sets of these units."""
    units = index.plan_tests(run)
    for unit in units:
        map_unit(run, TESTS, unit, index.read_tests)
    assert index.plan_tests(run) == []
    return [unit["part"]["test_set"] for unit in units]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(("a/1.png", "a/2.png", "b/1.png")):
        picture(tmp_path / name, number)
    return tmp_path


def test_only_a_set_that_is_new_or_has_changed_is_read(folder: Path) -> None:
    a, b = ({"name": name, "path": str(folder / name)} for name in "ab")
    assert read(run_of(folder, test_sets=[a])) == ["a"]
    assert read(run_of(folder, test_sets=[a, b])) == ["b"]
    both = index.table_of_tests(run_of(folder, test_sets=[a, b]))
    assert both.select(["test_set", "test_image"]).to_pylist() == [
        {"test_set": "a", "test_image": "1.png"},
        {"test_set": "a", "test_image": "2.png"},
        {"test_set": "b", "test_image": "1.png"},
    ]
    picture(folder / "b" / "1.png", 77)
    assert read(run_of(folder, test_sets=[a, b])) == ["b"]
    assert index.table_of_tests(run_of(folder, test_sets=[a, b]))["features"][2] != both["features"][2]
    assert read(run_of(folder, test_sets=[a])) == []  # one less: what was read of it goes
    assert len(index.table_of_tests(run_of(folder, test_sets=[a]))) == 2


@pytest.mark.parametrize("other", [{"mirrored": True}, {"embedder": "phash"}])
def test_another_way_of_reading_reads_all_anew(folder: Path, other: dict[str, Any]) -> None:
    sets = [{"name": name, "path": str(folder / name)} for name in "ab"]
    assert read(run_of(folder, test_sets=sets)) == ["a", "b"]
    assert read(run_of(folder, test_sets=sets, **other)) == ["a", "b"]


def test_the_mirrored_view_is_the_mirror_of_the_coefficients(folder: Path) -> None:
    run = run_of(folder, test_sets=[str(folder / "a")], mirrored=True)
    read(run)
    for row in index.table_of_tests(run).to_pylist():
        straight, turned = (np.frombuffer(row[name], np.int16) for name in ("features", "mirrored"))
        assert (embed.mirrored(straight) == turned).all()


def test_too_few_images_teach_no_map(folder: Path) -> None:
    mapped = index.map_of([])
    coefficients = np.zeros((1, embed.COEFFICIENTS), np.int16)
    coefficients[0, :3] = (300, 0, -400)
    assert mapped.embed(coefficients)[0, :4].tolist() == [19_660, 0, -26_214, 0]
