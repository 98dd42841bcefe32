import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from altalign.errors import UnreadableError
from altalign.eval.choices import caption_choices, choices, measured, pair_choices, read_examples
from altalign.eval.encoded import Features
from tests.eval.one_hot import ENCODER

NUMBERS = st.sampled_from([-1.0, 0.0, 1.0, 2.0, float("nan")])  # ties are many


def vectors(draw: st.DrawFn, *shape: int) -> torch.Tensor:
    number = math.prod(shape)
    return torch.tensor(draw(st.lists(NUMBERS, min_size=number, max_size=number))).reshape(shape)


@given(st.data())
def test_caption_choices_are_those_of_a_plain_loop(data: st.DataObject) -> None:
    images, right, wrong = (vectors(data.draw, 4, 2) for _ in range(3))
    expected = [
        sum(a * b for a, b in zip(image, one, strict=True)) > sum(a * b for a, b in zip(image, other, strict=True))
        for image, one, other in zip(images.tolist(), right.tolist(), wrong.tolist(), strict=True)
    ]
    assert caption_choices(images, right, wrong).tolist() == expected


@given(st.data())
def test_pair_choices_are_those_of_a_plain_loop(data: st.DataObject) -> None:
    images, captions = vectors(data.draw, 3, 2, 2), vectors(data.draw, 3, 2, 2)
    found = pair_choices(images, captions)
    for example in range(3):

        def score(caption: int, image: int, example: int = example) -> float:
            pairs = zip(captions[example, caption].tolist(), images[example, image].tolist(), strict=True)
            return sum(a * b for a, b in pairs)

        text = score(0, 0) > score(1, 0) and score(1, 1) > score(0, 1)
        image = score(0, 0) > score(0, 1) and score(1, 1) > score(1, 0)
        assert [bool(found[name][example]) for name in ("text", "image", "group")] == [text, image, text and image]


def test_a_model_that_embeds_all_alike_chooses_nothing_right() -> None:
    alike = torch.ones(5, 2, 3)
    outcomes = {name: of.numpy() for name, of in pair_choices(alike, alike).items()}
    assert measured(outcomes) == {"text": 0, "image": 0, "group": 0}
    assert not caption_choices(alike[:, 0], alike[:, 0], alike[:, 1]).any()


def test_percents_are_of_all_and_of_each_file_and_their_mean() -> None:
    outcomes = {"right": np.array([True, False, True, True]), "file": np.array(["add", "add", "swap", "swap"])}
    assert measured(outcomes) == {"right": 75, "right/add": 50, "right/swap": 100, "mean_of_files": 75}


def test_sugar_crepes_files_are_read_and_measured(tmp_path: Path) -> None:
    for place in range(3):
        (tmp_path / f"{place}.jpg").write_bytes(f"image{place}".encode())
    of = {
        "add_att": [("0.jpg", "0 a", "1 a"), ("1.jpg", "2 a", "1 b")],
        "swap_obj": [("2.jpg", "2", "0"), ("lost.jpg", "0", "1")],
    }
    for name, rows in of.items():
        values = [{"filename": file, "caption": own, "negative_caption": wrong} for file, own, wrong in rows]
        (tmp_path / f"{name}.json").write_text(json.dumps(dict(enumerate(values))))
    examples = read_examples(str(tmp_path / "*.json"))
    found = choices(examples, str(tmp_path), Features(ENCODER, batch=2))
    assert found.metrics == pytest.approx(
        {"right": 200 / 3, "right/add_att": 50, "right/swap_obj": 100, "mean_of_files": 75}
    )
    assert (found.facts, found.left_out) == ({"examples": 3}, {"no such file": ["lost.jpg"]})
    assert [found.images.names[row] for row in found.rows] == ["0.jpg", "1.jpg", "2.jpg"]


def test_winoground_is_read_and_measured(tmp_path: Path) -> None:
    for name, place in (("ex_0_img_0", 0), ("ex_0_img_1", 1), ("ex_1_img_0", 2), ("ex_1_img_1", 3)):
        (tmp_path / f"{name}.png").write_bytes(f"image{place}".encode())
    rows = [
        {"image_0": "ex_0_img_0", "image_1": "ex_0_img_1", "caption_0": "0 a", "caption_1": "1 a"},
        {"image_0": "ex_1_img_0", "image_1": "ex_1_img_1", "caption_0": "2", "caption_1": "2"},
    ]
    (tmp_path / "examples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    examples = read_examples(str(tmp_path / "examples.jsonl"))
    found = choices(examples, str(tmp_path), Features(ENCODER, batch=3))
    assert found.metrics == {"text": 50, "image": 50, "group": 50}


def test_another_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"0": {"filename": "a"}}')
    with pytest.raises(UnreadableError, match="neither a file of SugarCrepe") as caught:
        read_examples(str(tmp_path / "a.json"))
    assert "\n" not in str(caught.value)
