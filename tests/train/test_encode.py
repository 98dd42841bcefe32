"""`altalign encode`, and the model loaded in Python, beside the functions that evaluation calls."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from altalign import cli
from altalign.train.exchange.encoders import opened
from tests.support.run_folders import pairs, picture, write_run
from tests.train.test_training_run import written

pytestmark = pytest.mark.trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trained run, of 2 steps on 40 pairs of 20 images."""
    folder = tmp_path_factory.mktemp("encode")
    write_run(folder / "curated", pairs(40, images=20))
    assert cli.main(["train", written(folder, schedule={"steps": 2}, loop={"checkpoint_every": 1})]) == 0
    return str(folder / "trained")


def vectors(path: Path) -> np.ndarray:
    return np.array(pq.read_table(path)["embedding"].to_pylist(), np.float32)


@pytest.mark.everyday
def test_a_run_is_encoded_as_the_functions_of_evaluation_do(run: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli.main(["encode", run, str(Path(run).parent / "curated"), str(out), "--batch", "7"]) == 0
    images, captions = pq.read_table(out / "images.parquet"), pq.read_table(out / "captions.parquet")
    assert (len(images), len(captions)) == (20, 40)
    model = opened(run)
    of = {int(name["image"]): name["name"] for name in images.select(["image", "name"]).to_pylist()}
    assert sorted(of) == list(range(20))
    expected = model.encode_text(captions["caption"].to_pylist())
    np.testing.assert_allclose(vectors(out / "captions.parquet"), expected.numpy(), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors(out / "images.parquet"), axis=1), 1, atol=1e-5)
    assert set(captions["image"].to_pylist()) == set(range(20))
    facts = json.loads((out / "encode.json").read_text())
    assert (facts["step"], facts["images"], facts["captions"], facts["undecodable"]) == (2, 20, 40, [])


def test_a_folder_of_images_and_a_file_of_captions_are_inputs(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "b.jpg").write_bytes(picture(1))
    (tmp_path / "in" / "deep" / "a.png").write_bytes(picture(2, image_format="PNG"))
    (tmp_path / "in" / "broken.jpg").write_bytes(b"no image")
    assert cli.main(["encode", run, str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert "1 images cannot be decoded: see encode.json" in capsys.readouterr().out.replace("\n", " ")
    names = pq.read_table(tmp_path / "out" / "images.parquet")["name"].to_pylist()
    assert names == [str(tmp_path / "in" / "b.jpg"), str(tmp_path / "in" / "deep" / "a.png")]
    model = opened(run)
    with torch.inference_mode():
        expected = model.encode_image(model.pixels([picture(1), picture(2, image_format="PNG")]))
    np.testing.assert_allclose(vectors(tmp_path / "out" / "images.parquet"), expected.numpy(), atol=1e-6)

    (tmp_path / "said.txt").write_text("a red ring\n\na blue cross\n")
    assert cli.main(["encode", run, str(tmp_path / "said.txt"), str(tmp_path / "texts"), "--checkpoint", "1"]) == 0
    texts = pq.read_table(tmp_path / "texts" / "captions.parquet")
    assert (texts["caption"].to_pylist(), texts["image"].to_pylist()) == (["a red ring", "a blue cross"], [None, None])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["RUN", "nowhere", "OUT"], "nowhere: no input of `altalign encode`"),
        (["nowhere", "RUN", "OUT"], "nowhere: no such training run; give the [run] folder of a training"),
        (["RUN", "RUN/index", "OUT"], "neither a finished run nor a folder with images in it"),
        (["RUN", "RUN", "RUN"], "it is there already; give a new folder"),
        (["RUN", "x/*.tar", "OUT"], "nothing is at 'x/*.tar'"),
        (["RUN", "RUN/../curated", "OUT", "--checkpoint", "9"], "no checkpoint of step 9 (there: 1, 2)"),
        (["RUN", "RUN", "OUT", "--batch", "0"], "0: not a whole number of 1 or more"),
    ],
)
def test_what_cannot_be_encoded_is_one_line(
    run: str, tmp_path: Path, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [word.replace("RUN", run).replace("OUT", str(tmp_path / "out")) for word in given]
    try:
        code = cli.main(["encode", *argv])
    except SystemExit as leave:
        code = leave.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
