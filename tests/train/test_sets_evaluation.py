"""`altalign eval RUN --sets FILE`, with a model whose weights are random."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign import cli
from altalign.eval.results import compare
from tests.support.trained_folders import write_trained

pytestmark = pytest.mark.trained
SET = '[[set]]\nname = "a"\ntask = '
SETS = """
[[set]]
task = "zero_shot"
name = "colours"
path = "{folder}/test"
templates = ["a {{}} ring", "2 {{}} rings"]

[[set]]
task = "knn"
name = "colours"
path = "{folder}/test"
train = "{folder}/train"

[[set]]
task = "knn"
name = "nothing"
path = "{folder}/nothing"
train = "{folder}/train"
"""


def write_pictures(place: Path) -> None:
    """Pictures of two colours, a folder each, to test and to train on."""
    random = np.random.default_rng(0)
    for split, number in (("test", 6), ("train", 4)):
        for channel, name in ((0, "red"), (2, "blue")):
            (place / split / name).mkdir(parents=True)
            for image in range(number):
                pixels = random.integers(0, 60, (40, 48, 3), np.uint8)
                pixels[..., channel] += 150
                Image.fromarray(pixels).save(place / split / name / f"{image}.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and pictures of two colours to evaluate it on."""
    place = tmp_path_factory.mktemp("sets")
    write_trained(place / "run")
    write_pictures(place)
    (place / "test" / "red" / "9.jpg").write_bytes(b"no image")
    (place / "sets.toml").write_text(SETS.format(folder=place))
    return place


@pytest.mark.everyday
def test_a_run_is_measured_on_sets_and_what_is_missing_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["eval", str(folder / "run"), "--sets", str(folder / "sets.toml")]) == 1
    out = capsys.readouterr().out
    assert "2 of 3 sets" in out
    assert "missing: knn/nothing: nothing is at" in out
    place = folder / "run" / "eval" / "step-0000005"
    metrics, sets = (json.loads((place / f"{name}.json").read_text()) for name in ("metrics", "sets"))
    assert "retrieval/held" in metrics  # of an evaluation before
    assert metrics["zero_shot/colours"].keys() == {"top1", "top5", "mean_per_class", "images", "classes", "chance_top1"}
    low, high = sets["zero_shot/colours"]["intervals"]["top1"]
    assert low <= metrics["zero_shot/colours"]["top1"] <= high
    assert sets["zero_shot/colours"]["left_out"]["undecodable"]["number"] == 1
    assert "nothing is at" in sets["knn/nothing"]["missing"]
    outcomes = pq.read_table(place / "outcomes" / "zero_shot-colours.parquet").to_pylist()
    assert len(outcomes) == 12
    assert outcomes[0].keys() == {"name", "label", "rank"}
    assert 100 * np.mean([row["rank"] == 1 for row in outcomes]) == pytest.approx(metrics["zero_shot/colours"]["top1"])


def test_a_second_evaluation_encodes_nothing_and_gives_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["eval", str(folder / "run"), "--sets", str(folder / "sets.toml"), "--out"]
    cli.main([*given, str(folder / "first")])
    monkeypatch.setattr("altalign.train.model.dual_encoder.DualEncoder.encode_image", None)
    monkeypatch.setattr("altalign.train.model.dual_encoder.DualEncoder.encode_text", None)
    cli.main([*given, str(folder / "second")])
    first, second = ((folder / name / "metrics.json").read_bytes() for name in ("first", "second"))
    assert first == second


def test_a_damaged_file_of_features_is_made_anew(folder: Path) -> None:
    given = ["eval", str(folder / "run"), "--sets", str(folder / "sets.toml"), "--out"]
    cli.main([*given, str(folder / "before")])
    for path in (folder / "run" / "eval" / "features").glob("*.npz"):
        path.write_bytes(path.read_bytes()[:-8])
    cli.main([*given, str(folder / "after")])
    before, after = ((folder / name / "metrics.json").read_bytes() for name in ("before", "after"))
    assert before == after


def test_two_evaluations_are_compared_image_by_image(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    given = ["--sets", str(folder / "sets.toml"), "--out"]
    cli.main(["eval", str(folder / "run"), *given, str(folder / "a")])
    cli.main(["eval", str(folder / "run"), *given, str(folder / "b"), "--set", "evaluation.resize_px=60"])
    capsys.readouterr()
    assert cli.main(["eval", str(folder / "a"), str(folder / "b"), "--out", str(folder / "both")]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[:-1])) <= 80
    compared = json.loads((folder / "both" / "comparison.json").read_text())
    assert compared.keys() == {"zero_shot/colours", "knn/colours"}
    metrics = [json.loads((folder / name / "metrics.json").read_text()) for name in "ab"]
    for name, each in compared.items():
        assert (each["images"], each["of_one"]) == (12, 0)
        for metric, difference in each["differences"].items():
            a, b = (of[name][metric] for of in metrics)
            assert difference["value"] == pytest.approx(a - b)
            assert difference["low"] <= difference["value"] <= difference["high"]
            assert 0 < difference["p"] <= 1


def test_images_of_one_evaluation_alone_are_left_out_and_counted(folder: Path) -> None:
    given = ["--sets", str(folder / "sets.toml"), "--out"]
    cli.main(["eval", str(folder / "run"), *given, str(folder / "whole")])
    place = folder / "part"
    shutil.copytree(folder / "whole", place)
    path = place / "outcomes" / "knn-colours.parquet"
    pq.write_table(pq.read_table(path).slice(2), path)
    (found,) = [each for each in compare(str(folder / "whole"), str(place), resamples=5) if "knn" in each.name]
    assert (found.images, found.of_one, found.differences["r1"].value) == (10, 2, 0)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "give CONFIG"),
        (["a", "b", "c"], "one training run to evaluate, or two"),
        (["nothing", "none"], "nothing: no evaluation with --sets is there"),
        (["--model", "x", "--sets", "{sets}"], "say where the results go, with --out"),
        (["--sets", "{sets}"], "nothing to evaluate"),
        (["{run}", "--sets", "none.toml"], "no such settings file"),
        (["{run}", "--sets", "{sets}", "--checkpoint", "3"], "no checkpoint of step 3"),
    ],
)
def test_a_wrong_use_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    given = [word.format(run=folder / "run", sets=folder / "sets.toml") for word in argv]
    assert cli.main(["eval", *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no set; add"),
        (f'{SET}"knn"\npath = "b"\n', '[set]: train: missing; task = "knn" needs it'),
        (f'{SET}"retrieval"\n', "give a path or held_out"),
        (
            f'{SET}"zero_shot"\npath = "b"\ntrain = "c"\n',
            '[set]: train: task = "zero_shot" takes no such setting; it takes path, split, image_column, label_column, '
            "classes, templates, only_own_classes",
        ),
        (f'{SET}"zero_shot"\npath = "b"\nmetric = "r1"\n', '[set]: metric = "r1": give top1, top5, mean_per_class'),
        (f'{SET}"zero"\npath = "b"\n', '[set] task = "zero": give "retrieval", "zero_shot"'),
        (f'{SET}"vtab"\npaths = "b"\n', "[set] paths: no such setting (there are: name, "),
        (f'{SET}"retrieval"\npath = "b"\nshared_captions = "all"\n', "there is no such setting any more"),
        (f'{SET}"knn"\npath = "b"\ntrain = "c"\n' * 2, "two sets are called knn/a"),
    ],
)
def test_a_wrong_file_of_sets_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "sets.toml").write_text(text)
    assert cli.main(["eval", str(folder / "run"), "--sets", str(tmp_path / "sets.toml")]) == 2
    assert said in capsys.readouterr().err
