import json
from pathlib import Path

import pytest
from rich.console import Console

from altalign.eval.results import retrieval_table, write_metrics

RECALLS = {f"{direction}_r{k}": k + 0.25 for direction in ("image_to_text", "text_to_image") for k in (1, 5, 10)}
DEMO = {
    **RECALLS,
    "rsum": 33.5,
    "mean_recall": 5.583,
    "chance_r1": 0.02,
    "images": 5000,
    "captions": 25010,
    "undecodable": 0,
}


def test_metrics_are_written_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "eval" / "metrics.json"
    write_metrics(str(path), {"retrieval/demo": DEMO})
    assert json.loads(path.read_text()) == {"retrieval/demo": DEMO}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_written(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        write_metrics(str(tmp_path / "metrics.json"), {"retrieval/demo": {**DEMO, "rsum": value}})
    assert not list(tmp_path.iterdir())


def test_the_table_fits_eighty_columns_and_says_each_recall() -> None:
    console = Console(width=80, record=True, markup=False)
    sets = {
        "retrieval/demo": DEMO,
        "retrieval/a name that is longer than what a column of it holds": {**DEMO, "undecodable": 3},
        "other/x": {"score": 1},
    }
    with console.capture() as capture:
        console.print(retrieval_table(sets))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 80
    words = next(line for line in lines if "demo" in line).split()
    assert " ".join(words).replace(" │", "") == "│ demo captions by image 25,010 1.2 5.2 10.2 16.8"
    assert "3 undecodable" in capture.get()
    assert "other" not in capture.get()


def test_a_name_cannot_act_on_the_terminal() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(retrieval_table({"retrieval/a\x1b[31m": DEMO}))
    assert "\x1b" not in capture.get()
