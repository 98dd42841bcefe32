"""Models of other libraries as scorers: the cosine of image and caption is that of the library itself."""

import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch
from PIL import Image

from altalign import cli
from altalign.errors import UsageError
from altalign.models.model import opened as opened_model
from altalign.pipelines.score import scoring
from altalign.pipelines.score.scorers import Batch
from altalign.settings.score import ScoreConfig
from altalign.train.exchange.encoders import opened, trained
from tests.support.run_folders import picture
from tests.support.trained_folders import write_trained

pytestmark = pytest.mark.trained

SIDE_PX = 36  # what images are resized to: libraries resize a little differently, which is not what is compared here
CAPTIONS = ["3 red rings below a kite", "8 blue crosses", "a kite"]
WHOLE_B0 = {"width": 0.0, "depth": 0.0, "padding": "same", "embedding_width": 24}
needs_open_clip = pytest.mark.skipif(not find_spec("open_clip"), reason="no open_clip here: `make test-readers`")

Pictures = list[npt.NDArray[np.uint8]]


def pictures() -> Pictures:
    made = [Image.open(io.BytesIO(picture(seed, (SIDE_PX, SIDE_PX), "PNG"))) for seed in range(3)]
    return [np.asarray(each.convert("RGB")) for each in made]


def scores(model: str) -> npt.NDArray[np.float64]:
    """What `altalign score` stores for each picture with the caption of the same number."""
    of = [{"name": "similarity", "kind": "similarity", "model": model}]
    (scorer,) = scoring.loaded(ScoreConfig.from_values({"score": of}, where="scores.toml"), "scores.toml")
    images = [{name: make(each) for name, make in scorer.prepares.items()} for each in pictures()]
    (found,) = scorer.measure(Batch(pa.table({"caption": CAPTIONS}), np.arange(3), images))
    return np.array(found.to_pylist(), np.float64)


@torch.no_grad()
def check(model: str, images: Callable[[Image.Image], torch.Tensor], texts: Callable[[str], torch.Tensor]) -> None:
    """Embeddings are within 1e-4 of the library's, and so are stored values, beside half a step of 1/4096."""
    of_images = torch.stack([images(Image.fromarray(each)).flatten() for each in pictures()])
    of_texts = torch.stack([texts(each).flatten() for each in CAPTIONS])
    wanted = [torch.nn.functional.normalize(each.double(), dim=1).numpy() for each in (of_images, of_texts)]
    found = opened_model(model, "test", with_texts=True)
    made = (found.of_images([found.prepare(each) for each in pictures()]), found.of_texts(CAPTIONS))
    for ours, theirs in zip(made, wanted, strict=True):
        apart = np.abs(theirs[1:] - theirs[0]).max()  # little, with random weights: none is to be taken for another
        assert np.abs(ours - theirs).max() <= min(1e-4, 0.1 * apart)
    stored = scores(model)
    assert np.abs(stored - (wanted[0] * wanted[1]).sum(axis=1)).max() <= 0.5 / 4096 + 1e-4
    assert all(float(value * 4096).is_integer() for value in stored)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_trained(tmp_path_factory.mktemp("small") / "run")


def test_a_training_run_scores_as_its_model_embeds(run: str) -> None:
    model, encoder = trained(run).model, opened(run)

    def image(of: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.asarray(of).copy()).permute(2, 0, 1)[None].float()
        return model.encode_image(pixels[:, :, 1:34, 1:34])  # the central crop of 33 px

    check(f"run:{run}", image, lambda text: encoder.encode_text([text]))


def test_a_folder_of_align_model_scores_as_transformers_has_it(run: str, tmp_path: Path) -> None:
    from transformers import AlignModel, AutoProcessor

    folder = tmp_path / "align"
    assert cli.main(["export", run, str(folder), "--to", "align"]) == 0
    model, processor = AlignModel.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)

    def given(image: Image.Image, text: str) -> Any:
        return model(**processor(images=image, text=[text], return_tensors="pt", truncation=True, max_length=12))

    blank = Image.new("RGB", (SIDE_PX, SIDE_PX))
    check(
        f"align:{folder}",
        lambda image: given(image, "a kite").image_embeds,
        lambda text: given(blank, text).text_embeds,
    )


@needs_open_clip
def test_a_folder_of_open_clip_scores_as_open_clip_has_it(tmp_path: Path) -> None:
    import open_clip

    whole, folder = write_trained(tmp_path / "run", image_tower=WHOLE_B0), tmp_path / "open_clip"
    assert cli.main(["export", whole, str(folder), "--to", "open_clip"]) == 0
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    words, model = open_clip.get_tokenizer(f"local-dir:{folder}"), model.eval()
    check(
        f"open_clip:{folder}",
        lambda image: model.encode_image(transform(image)[None]),
        lambda text: model.encode_text(words([text])),
    )


@needs_open_clip
def test_a_vit_of_open_clip_scores_by_its_name_and_checkpoint(tmp_path: Path) -> None:
    import open_clip
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model, _, transform = open_clip.create_model_and_transforms("ViT-S-32", pretrained=None)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    words, model = open_clip.get_tokenizer("ViT-S-32"), model.eval()
    large: Pictures = [np.asarray(Image.fromarray(each).resize((224, 224))) for each in pictures()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "pictures", lambda: large)
        check(
            f"open_clip:ViT-S-32:{tmp_path}/weights.safetensors",
            lambda image: model.encode_image(transform(image)[None]),
            lambda text: model.encode_text(words([text])),
        )


def test_models_that_are_missing_or_pickles_are_one_line(run: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in (f"run:{tmp_path}/nowhere", f"align:{tmp_path}/empty", f"open_clip:{tmp_path}/empty"):
        with pytest.raises(UsageError) as error:
            scores(name)
        assert "\n" not in str(error.value)
        assert str(error.value).startswith("scores.toml [[score]] similarity model")
