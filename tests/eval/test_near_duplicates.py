import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.data.audit_tables import NEAR_TEST_IMAGES
from altalign.errors import UsageError
from altalign.eval.evaluation import Without, without
from altalign.eval.image_sources import Images
from altalign.eval.outcomes import Outcomes, Result

NAMES = ["/sets/pets/test/cat/0.jpg", "/sets/pets/test/cat/1.jpg", "/sets/pets/test/dog/0.jpg"]
IMAGES = Images(NAMES, NAMES)


def measured(outcomes: Outcomes) -> dict[str, float]:
    return {"top1": 100 * float(outcomes["right"].mean())}


def result(right: list[int], rows: list[int], images: Images = IMAGES) -> Result:
    outcomes = {"right": np.array(right)}
    return Result(images, rows, outcomes, measured(outcomes), {})


def run(folder: Path, near: list[tuple[str, str]], *, sets: dict[str, int]) -> str:
    """A curation that looked for near-duplicates of test sets: what it found, as it writes it."""
    place = folder / "audit" / "near_duplicates"
    place.mkdir(parents=True)
    (place / "found.json").write_text(json.dumps({"test_sets": sets}))
    rows = [{"test_set": of, "test_image": name, "images": 1, "similarity": 0.98} for of, name in near]
    pq.write_table(pa.Table.from_pylist(rows, schema=NEAR_TEST_IMAGES.schema), place / "test_images.parquet")
    return str(folder)


def test_the_score_without_images_that_a_run_found_near_duplicates_of(tmp_path: Path) -> None:
    """cat/0.jpg is another image than dog/0.jpg: names are compared by folders too."""
    of = run(tmp_path, [("pets", "cat/0.jpg"), ("birds", "dog/0.jpg")], sets={"pets": 3, "birds": 9})
    found = without(result([1, 0, 1], [0, 1, 2]), measured, test_set="pets", runs=[of])
    assert found == [Without(of, 1, {"top1": 50})]
    undecodable = without(result([0, 1], [1, 2]), measured, test_set="pets", runs=[of])
    assert undecodable == [Without(of, 0, {"top1": 50})]


def test_a_run_that_did_not_look_or_has_no_list_says_nothing(tmp_path: Path) -> None:
    other = run(tmp_path / "other", [], sets={"birds": 9})
    unlisted = run(tmp_path / "unlisted", [], sets={"pets": 3})
    (tmp_path / "unlisted" / "audit" / "near_duplicates" / "test_images.parquet").unlink()
    none = run(tmp_path / "none", [], sets={"pets": 3})
    (tmp_path / "plain").mkdir()
    runs = [other, unlisted, str(tmp_path / "plain"), none]
    assert without(result([1, 1, 1], [0, 1, 2]), measured, test_set="pets", runs=runs) == [
        Without(none, 0, {"top1": 100})
    ]


def test_two_test_images_that_are_nearly_one_both_go(tmp_path: Path) -> None:
    of = run(tmp_path, [("pets", "cat/0.jpg"), ("pets", "cat/1.jpg")], sets={"pets": 3})
    assert without(result([1, 1, 0], [0, 1, 2]), measured, test_set="pets", runs=[of]) == [Without(of, 2, {"top1": 0})]


def test_a_set_of_near_duplicates_alone_leaves_nothing(tmp_path: Path) -> None:
    of = run(tmp_path, [("pets", "cat/0.jpg"), ("pets", "cat/1.jpg"), ("pets", "dog/0.jpg")], sets={"pets": 3})
    assert without(result([1, 1, 1], [0, 1, 2]), measured, test_set="pets", runs=[of]) == [Without(of, 3, {})]


def test_names_of_another_set_are_refused(tmp_path: Path) -> None:
    of = run(tmp_path, [("pets", "val/7.jpg")], sets={"pets": 3})
    with pytest.raises(UsageError, match=r"no image of the set is called like 'val/7\.jpg'"):
        without(result([1, 1, 1], [0, 1, 2]), measured, test_set="pets", runs=[of])


def test_the_same_bytes_under_another_name_are_as_near(tmp_path: Path) -> None:
    of = run(tmp_path, [("pets", "cat/0.jpg")], sets={"pets": 3})
    of_two = result([1, 0, 1], [0, 1, 2], Images(["x", "y", "x"], NAMES))
    found = without(of_two, measured, test_set="pets", runs=[of])
    assert found == [Without(of, 2, {"top1": 0})]
