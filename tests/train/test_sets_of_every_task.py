"""Every task of `altalign eval --sets`, of a tiny run and of the AlignModel that it was exported to, side by side."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image

from altalign import cli
from tests.support.pictures import encoded
from tests.support.trained_folders import CAPTIONS, write_trained

pytestmark = pytest.mark.trained
SETS = """
[[set]]
task = "linear_probe"
name = "colours"
path = "{folder}/test"
train = "{folder}/train"

[[set]]
task = "linear_probe"
name = "tower"
path = "{folder}/test"
train = "{folder}/train"
features = "before projection"

[[set]]
task = "vtab"
name = "vtab"
path = "{folder}/vtab"

[[set]]
task = "cxc"
name = "cxc"
path = "{folder}/coco.json"
images = "{folder}/flat"
ratings = "{folder}"

[[set]]
task = "multilingual"
name = "two"
path = "{folder}/names.txt"
images = "{folder}/flat"
captions = {{ en = ["{folder}/names.en"], de = ["{folder}/names.de"] }}

[[set]]
task = "word_similarity"
name = "words"
path = "{folder}/words.txt"

[[set]]
task = "choices"
name = "sugar"
path = "{folder}/add_att.json"
images = "{folder}/flat"

[[set]]
task = "choices"
name = "winoground"
metric = "group"
path = "{folder}/examples.jsonl"
images = "{folder}/flat"

[[set]]
task = "composed"
name = "mine"
path = "{folder}/queries.jsonl"
images = "{folder}/flat"
"""
NUMBER = 8


def picture(seed: int, channel: int) -> bytes:
    pixels = torch.randint(0, 60, (40, 48, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    pixels[..., channel] += 150
    return encoded(Image.fromarray(pixels.numpy()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("every")
    write_trained(place / "run", words_apart=16.0)
    flat = [f"{number}.png" for number in range(NUMBER)]
    task = place / "vtab" / "eurosat"
    for path in ("test/red", "test/blue", "train/red", "train/blue", "flat"):
        (place / path).mkdir(parents=True)
    task.mkdir(parents=True)
    for number, name in enumerate(flat):
        data = picture(number, 2 * (number % 2))
        (place / "flat" / name).write_bytes(data)
        (task / name).write_bytes(data)
        for split in ("test", "train"):
            (place / split / ("red", "blue")[number % 2] / name).write_bytes(data)
    lines = [f"{name} {number % 2}" for number, name in enumerate(flat)]
    for part in ("train800", "val200", "test"):
        (task / f"{part}.txt").write_text("\n".join(lines))
    sentences = [[{"raw": CAPTIONS[number], "sentid": number}] for number in range(NUMBER)]
    images = [
        {"filename": name, "split": "test", "sentences": said} for name, said in zip(flat, sentences, strict=True)
    ]
    (place / "coco.json").write_text(json.dumps({"images": images}))
    ids = [f"COCO_val2014:sentid:{number}" for number in range(NUMBER)]
    # the model knows no digits: pairs four apart are the same to it, so their ratings are, for rounding gives the order
    for task_name, first, second, columns in (
        ("sts", ids, ids, "caption1,caption2"),
        ("sis", flat, flat, "image1,image2"),
        ("sits", ids, flat, "caption,image"),
    ):
        rows = [f"{a},{second[(place_ + 1) % NUMBER]},{place_ % 4}" for place_, a in enumerate(first)]
        (place / f"{task_name}_test.csv").write_text("\n".join([f"{columns},agg_score", *rows]))
    (place / "names.txt").write_text("\n".join(flat))
    (place / "names.en").write_text("\n".join(CAPTIONS[:NUMBER]))
    (place / "names.de").write_text("\n".join(CAPTIONS[1 : NUMBER + 1]))
    (place / "words.txt").write_text("red\tblue\t3\nring\tcross\t5\nkite\tring\t1\n")
    choice = {"filename": flat[0], "caption": CAPTIONS[0], "negative_caption": CAPTIONS[5]}
    (place / "add_att.json").write_text(json.dumps({"0": choice}))
    example = {"image_0": flat[0], "image_1": flat[1], "caption_0": CAPTIONS[0], "caption_1": CAPTIONS[5]}
    (place / "examples.jsonl").write_text(json.dumps(example))
    query = {"image": flat[0], "text": "red ring", "sign": "-", "target": flat[1]}
    (place / "queries.jsonl").write_text(json.dumps(query))
    (place / "sets.toml").write_text(SETS.format(folder=place))
    return place


def measured(folder: Path) -> dict[str, dict[str, float]]:
    return json.loads((folder / "metrics.json").read_text())


def check_side_by_side(folder: Path, model: str, out: Path) -> None:
    """Ours and somebody's weights of the same run: the tasks of texts alone agree, and all are measured."""
    ours = folder / "run" / "eval" / "step-0000005"
    assert cli.main(["eval", str(folder / "run"), "--sets", str(folder / "sets.toml")]) == 0
    assert cli.main(["eval", "--model", model, "--sets", str(folder / "sets.toml"), "--out", str(out)]) == 0
    of_run, of_other = measured(ours), measured(out)
    names = [
        "linear_probe/colours", "linear_probe/tower", "vtab/vtab", "cxc/cxc", "multilingual/two",
        "word_similarity/words", "choices/sugar", "choices/winoground", "composed/mine",
    ]  # fmt: skip
    assert [name for name in of_run if name != "retrieval/held"] == [*of_other] == names
    assert of_run["linear_probe/colours"]["top1"] == of_other["linear_probe/colours"]["top1"] == 100
    assert of_run["linear_probe/tower"]["top1"] == of_other["linear_probe/tower"]["top1"] == 100
    assert (of_run["vtab/vtab"]["tasks"], of_run["vtab/vtab"]["of_tasks"]) == (1, 19)
    assert "mean_all" not in of_run["vtab/vtab"]
    assert of_other["cxc/cxc"]["sts"] == pytest.approx(of_run["cxc/cxc"]["sts"], abs=1e-6)
    assert of_other["cxc/cxc"]["text_to_text_queries"] == of_run["cxc/cxc"]["text_to_text_queries"]
    for place in (ours, out):
        assert (place / "eval.html").stat().st_size > 5_000


@pytest.mark.everyday
def test_a_tiny_align_model_is_measured_beside_ours(folder: Path, tmp_path: Path) -> None:
    assert cli.main(["export", str(folder / "run"), str(tmp_path / "align"), "--to", "align"]) == 0
    check_side_by_side(folder, str(tmp_path / "align"), tmp_path / "out")
    out = str(tmp_path / "compared")
    assert cli.main(["eval", str(folder / "run"), str(tmp_path / "out"), "--out", out]) == 0
    assert (Path(out) / "comparison.html").stat().st_size > 5_000
    compared = json.loads((Path(out) / "comparison.json").read_text())
    assert compared.keys() == measured(tmp_path / "out").keys()
    assert compared["choices/winoground"]["a"].keys() == {"text", "image", "group"}


@pytest.mark.skipif(not find_spec("open_clip"), reason="no open_clip here: `make test-readers`")
def test_a_tiny_open_clip_model_is_measured_beside_ours(folder: Path, tmp_path: Path) -> None:
    image = {"width": 0.0, "depth": 0.0, "padding": "same", "embedding_width": 24}
    run = write_trained(tmp_path / "run", image_tower=image)
    assert cli.main(["export", run, str(tmp_path / "open_clip"), "--to", "open_clip"]) == 0
    out = str(tmp_path / "out")
    model = f"open_clip:{tmp_path / 'open_clip'}"
    assert cli.main(["eval", "--model", model, "--sets", str(folder / "sets.toml"), "--out", out]) == 0
    assert len(measured(Path(out))) == 9
