"""Models of others that come in: as first weights of towers, and as models that are evaluated beside ours."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AlignConfig, AlignModel

from altalign import cli
from altalign.errors import UsageError
from altalign.models import torch_models
from altalign.settings.common import dump
from altalign.train.exchange.encoders import opened, trained
from altalign.train.model.image_tower import ImageTower, align_names
from altalign.train.model.text_tower import TextTower
from altalign.train.settings.training import ImageTowerSettings, TextTowerSettings
from tests.support.run_folders import pairs, picture, write_run
from tests.support.trained_folders import write_trained
from tests.train.test_training_run import written

pytestmark = pytest.mark.trained

needs_open_clip = pytest.mark.skipif(not find_spec("open_clip"), reason="no open_clip here: `make test-readers`")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_trained(tmp_path_factory.mktemp("small") / "run")


@pytest.fixture(scope="module")
def align(run: str) -> str:
    """A tiny AlignModel."""
    folder = Path(run).with_name("align")
    assert cli.main(["export", run, str(folder), "--to", "align"]) == 0
    return str(folder)


@pytest.fixture(scope="module")
def open_clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A run, and an open_clip model of it."""
    folder = tmp_path_factory.mktemp("open_clip")
    image = {"width": 0.0, "depth": 0.0, "padding": "same", "embedding_width": 24}
    run = write_trained(folder / "run", image_tower=image)
    assert cli.main(["export", run, str(folder / "out"), "--to", "open_clip"]) == 0
    return run, str(folder / "out")


def towers(run: str, weights: str) -> tuple[ImageTower, TextTower]:
    """Towers of a run's settings that begin with somebody's weights."""
    of = trained(run)
    image = of.config.image_tower.model_copy(update={"weights": weights})
    text = of.config.text_tower.model_copy(update={"weights": weights})
    most = of.tokenizer.tokens_at_most
    return ImageTower(image), TextTower(text, vocabulary=of.tokenizer.vocabulary, positions=most)


def check_same(found: torch.nn.Module, expected: torch.nn.Module, but: str = "nothing") -> None:
    for name, values in expected.state_dict().items():
        if but not in name:
            torch.testing.assert_close(found.state_dict()[name], values, rtol=0, atol=0, msg=name)


def test_towers_begin_with_the_weights_of_a_folder_of_align_model(run: str, align: str) -> None:
    image, text = towers(run, align)
    check_same(image, trained(run).model.image_tower)
    check_same(text, trained(run).model.text_tower)  # whose table of positions is shorter


def test_the_layout_of_coyo_aligns_converted_weights_fits_b7_and_bert_base() -> None:
    with torch.device("meta"):
        theirs = AlignModel(AlignConfig())  # whose defaults are COYO-ALIGN's sizes
        image = ImageTower(ImageTowerSettings(architecture="b7", padding="keras"))
        text = TextTower(TextTowerSettings(layers=12, width=768, heads=12), vocabulary=30_522, positions=64)
    shapes = {name: values.shape for name, values in theirs.state_dict().items()}
    state = image.state_dict()
    assert {f"vision_model.{name}": state[own].shape for own, name in align_names(state).items()} == {
        name: shape for name, shape in shapes.items() if name.startswith("vision_model.")
    }
    for name, values in text.bert.state_dict().items():
        expected = shapes[f"text_model.{name}"]  # of 512 positions, of which the first are taken
        assert values.shape == (torch.Size([64, 768]) if "position" in name else expected)


@needs_open_clip
def test_towers_begin_with_the_weights_of_a_folder_of_open_clip(open_clip: tuple[str, str]) -> None:
    run, folder = open_clip
    image, text = towers(run, f"open_clip:{folder}")
    check_same(image, trained(run).model.image_tower)
    check_same(text, trained(run).model.text_tower, but="layer.1.output.LayerNorm.bias")  # which has the projection's


def broken(folder: str, to: Path, changed: dict[str, Any]) -> str:
    """A copy of a folder, its weights changed; None takes one away."""
    to.mkdir()
    for path in Path(folder).iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    tensors = {**load_file(to / "model.safetensors"), **changed}
    save_file({name: values for name, values in tensors.items() if values is not None}, to / "model.safetensors")
    return str(to)


@pytest.mark.parametrize(
    ("changed", "message", "of_torch"),
    [
        (
            {"vision_model.embeddings.convolution.weight": None},
            "missing: conv_stem.weight",
            'Missing key(s) in state_dict: "vision_model.embeddings.convolution.weight"',
        ),
        (
            {"vision_model.surplus": torch.zeros(1)},
            "unexpected: surplus",
            'Unexpected key(s) in state_dict: "vision_model.surplus"',
        ),
        (
            {"vision_model.embeddings.convolution.weight": torch.zeros(2)},
            "of another shape: conv_stem.weight",
            "size mismatch for vision_model.embeddings.convolution.weight",
        ),
    ],
)
def test_weights_of_another_architecture_are_one_line_with_names(
    run: str, align: str, tmp_path: Path, changed: dict[str, Any], message: str, of_torch: str
) -> None:
    folder = broken(align, tmp_path / "broken", changed)
    with pytest.raises(UsageError, match="cannot be opened") as caught:
        torch_models.opened(folder)
    assert of_torch in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="not this tower's weights") as caught:
        towers(run, folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_pickle_is_read(run: str, align: str, tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / "config.json").write_bytes(Path(align, "config.json").read_bytes())
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")
    with pytest.raises(UsageError, match=r"no weights at .*model\.safetensors; give weights in safetensors"):
        torch_models.opened(str(folder))
    with pytest.raises(UsageError, match="a pickle may run code when it is read; give safetensors"):
        towers(run, str(folder / "pytorch_model.bin"))
    with pytest.raises(UsageError, match="a pickle may run code when it is read; give safetensors"):
        towers(run, str(folder))
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(UsageError, match=r"a folder without model\.safetensors or open_clip_model\.safetensors"):
        towers(run, str(folder))
    assert not Path("executed").exists()


@torch.no_grad()
def check_computes_where_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_models, "device_of", lambda _: torch.device("meta"))
    encoder, on_cpu = torch_models.opened(name), torch.stack([torch.zeros(3, 32, 32)])
    assert encoder.encode_image(on_cpu).device.type == "meta"
    with pytest.raises(
        RuntimeError, match="cannot be called on meta tensors"
    ):  # the text tower looks at a mask's values
        encoder.encode_text(["a kite"])
    assert encoder.device == "meta"


def test_align_models_compute_on_the_device_that_is_asked_for(align: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_computes_where_asked(align, monkeypatch)


@needs_open_clip
def test_models_of_open_clip_do(open_clip: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    check_computes_where_asked(f"open_clip:{open_clip[1]}", monkeypatch)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("whose", ["run", "align"])
def test_a_gpu_that_is_not_there_is_refused(whose: str, request: pytest.FixtureRequest) -> None:
    with pytest.raises(UsageError, match="torch sees no GPU here"):
        torch_models.opened(request.getfixturevalue(whose), device="cuda")


def test_a_model_of_another_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip"}))
    with pytest.raises(UsageError, match=r"a model of type 'clip'; give a folder of AlignModel, open_clip:DIR"):
        torch_models.opened(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="no JSON"):
        torch_models.opened(str(tmp_path))


@torch.no_grad()
def check_embeds_alike(run: str, name: str) -> None:
    ours, theirs = opened(run), torch_models.opened(name)
    captions = ["3 red rings below a kite", "a blue cross", " ".join(["kite"] * 40)]
    torch.testing.assert_close(theirs.encode_text(captions), ours.encode_text(captions), rtol=0, atol=1e-5)
    images = [picture(number, (50, 40)) for number in range(3)]
    found = theirs.encode_image(torch.stack([theirs.decode(image) for image in images]))
    cosines = (found * ours.encode_image(ours.pixels(images))).sum(1)
    assert cosines.min() > 0.99  # resized by another library


@pytest.mark.everyday
def test_an_align_model_is_evaluated_beside_ours(run: str, align: str, tmp_path: Path) -> None:
    check_embeds_alike(run, align)
    curated = write_run(tmp_path / "curated", pairs(20, images=10))
    values = {"run": {"folder": run}, "evaluation": {"retrieval": [{"name": "a", "path": curated}]}}
    (tmp_path / "eval.toml").write_text(dump(values))
    assert cli.main(["eval", str(tmp_path / "eval.toml"), "--model", align]) == 0
    (place,) = (Path(run) / "eval").glob("*align*/metrics.json")
    assert json.loads(place.read_text())["retrieval/a"]["images"] == 10


def test_another_model_is_evaluated_where_nothing_was_trained_and_training_may_begin_there(
    align: str, tmp_path: Path
) -> None:
    write_run(tmp_path / "curated", pairs(60, images=30))
    config = written(tmp_path, schedule={"steps": 1, "warmup_steps": 1})
    assert cli.main(["eval", config, "--model", align]) == 0
    assert cli.main(["train", config]) == 0


@needs_open_clip
def test_an_open_clip_model_embeds_as_the_one_it_came_from(open_clip: tuple[str, str]) -> None:
    run, folder = open_clip
    check_embeds_alike(run, f"open_clip:{folder}")


@torch.no_grad()
def test_a_model_of_timm_embeds_images_and_no_text(tmp_path: Path) -> None:
    import timm

    model = timm.create_model("resnet10t", num_classes=0).eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    encoder = torch_models.opened(f"timm:resnet10t:{tmp_path}/weights.safetensors", device="cpu")
    pixels = torch.stack([encoder.decode(picture(number, (50, 40))) for number in range(2)])
    torch.testing.assert_close(encoder.encode_image(pixels), torch.nn.functional.normalize(model(pixels), dim=-1))
    with pytest.raises(UsageError, match="an image tower alone, which embeds no text"):
        encoder.encode_text(["a kite"])


def test_a_training_run_embeds_images_for_decontamination(run: str) -> None:
    import numpy as np

    from altalign.filters import pixels
    from altalign.pipelines.images import embedders
    from altalign.settings.curate import DecontaminateSettings

    embedder = embedders.load(f"run:{run}")
    assert (embedder.dimensions, embedder.colour, embedder.short_side_px) == (160, True, 36)
    (file,) = DecontaminateSettings(embedder=f"run:{run}").embedder_files
    assert file == f"{run}/checkpoints/step-0000005/manifest.json"
    found = pixels.decode(picture(4, (50, 40)), pixels_at_most=10**6, colour=True, short_side_px=pixels.FULL_SIZE_PX)
    assert found.pixels is not None
    vector = embedder.features(found.pixels)
    assert vector is not None
    ours = opened(run)
    with torch.no_grad():
        expected = ours.encode_image(ours.pixels([picture(4, (50, 40))]))[0].numpy()
    cosine = vector @ expected / np.linalg.norm(vector.astype(float))
    assert cosine > 0.9999
