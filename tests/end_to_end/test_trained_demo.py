"""What `make train` has learned of the demo, where it has run (CI runs it before the tests)."""

import json
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "runs" / "train-demo"


def test_the_demo_is_learned_ten_times_better_than_chance() -> None:
    evaluations = sorted((RUN / "eval").glob("step-*/metrics.json"))
    if not evaluations:
        pytest.skip("nothing is trained here: run `make train`")
    found = json.loads(evaluations[-1].read_text())["retrieval/demo"]
    assert min(found["image_to_text_r1"], found["text_to_image_r1"]) >= 10 * found["chance_r1"]
    assert json.loads((RUN / "run.json").read_text())["finished"]
