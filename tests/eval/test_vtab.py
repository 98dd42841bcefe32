from pathlib import Path

import pytest

from altalign.errors import UnreadableError
from altalign.eval.encoded import Features
from altalign.eval.vtab import GROUPS, TASKS, means, of_folder
from tests.eval.one_hot import ENCODER


def test_there_are_19_tasks_in_three_groups() -> None:
    assert len(TASKS) == len(set(TASKS)) == 19
    assert {name: len(of) for name, of in GROUPS.items()} == {"natural": 7, "specialised": 4, "structured": 8}


def test_the_mean_of_all_is_that_of_a_plain_loop_over_all_19() -> None:
    accuracies = {name: 3.0 * number for number, name in enumerate(TASKS)}
    found = means(accuracies)
    assert found["mean_all"] == pytest.approx(sum(accuracies.values()) / 19)
    for group, names in GROUPS.items():
        assert found[f"mean_{group}"] == pytest.approx(sum(accuracies[name] for name in names) / len(names))


def test_a_missing_task_takes_its_means_away() -> None:
    assert means({name: 50.0 for name in TASKS if name != "kitti"}).keys() == {"mean_natural", "mean_specialised"}
    assert means({"mine": 10.0}) == {}


def write_task(folder: Path, *, wrong: int = 0) -> None:
    """A task of three classes that an image names; of the test images so many have another's."""
    folder.mkdir(parents=True)
    parts = {"train800": list(range(3)) * 4, "val200": list(range(3)), "test": [0, 1, 2, 0, 1]}
    for part, classes in parts.items():
        lines = []
        for place, number in enumerate(classes):
            seen = (number + 1) % 3 if part == "test" and place < wrong else number
            (folder / f"{part}-{place}.jpg").write_bytes(f"image{seen}".encode())
            lines.append(f"{part}-{place}.jpg {number}")
        (folder / f"{part}.txt").write_text("\n".join(lines))


def test_tasks_that_are_there_are_probed_and_the_others_counted(tmp_path: Path) -> None:
    for place, name in enumerate(("eurosat", "kitti")):
        write_task(tmp_path / name, wrong=place)
    _, found = of_folder(str(tmp_path), Features(ENCODER, batch=4))
    assert found.metrics == {"eurosat": 100, "kitti": 80, "mean_there": 90}
    assert found.facts == {"tasks": 2, "of_tasks": 19}
    assert len(found.left_out["no folder of this task"]) == 17
    assert len(found.rows) == len(found.outcomes["rank"]) == 10


def test_a_folder_of_nothing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no folder of VTAB") as caught:
        of_folder(str(tmp_path), Features(ENCODER, batch=4))
    assert "\n" not in str(caught.value)
