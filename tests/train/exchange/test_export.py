"""Models in other libraries' forms, opened by these libraries."""

import io
import json
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from altalign import cli
from altalign.train.exchange import export, to_timm
from altalign.train.exchange.encoders import Trained, trained
from altalign.train.model.image_tower import FACTORS
from altalign.train.settings.training import TrainConfig
from altalign.train.step.learner import model_of
from tests.support.run_folders import picture
from tests.support.trained_folders import write_trained

pytestmark = pytest.mark.trained

WHOLE_B0 = {"width": 0.0, "depth": 0.0, "padding": "same"}  # as timm has it
SMALL_BERT = {"layers": 2, "width": 32, "heads": 2}
needs_open_clip = pytest.mark.skipif(not find_spec("open_clip"), reason="no open_clip here: `make test-readers`")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of a small EfficientNet, padded as Keras does."""
    return write_trained(tmp_path_factory.mktemp("small") / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of a B0 as timm has it, with a linear layer after it."""
    return write_trained(tmp_path_factory.mktemp("whole") / "run", image_tower={**WHOLE_B0, "embedding_width": 24})


def exported(run: str, folder: Path, to: str, *more: str) -> Path:
    assert cli.main(["export", run, str(folder), "--to", to, *more]) == 0
    return folder


def ours(run: str) -> Trained:
    return trained(run)


@pytest.mark.everyday
@torch.no_grad()
def test_a_folder_of_align_model_computes_what_ours_does(small: str, tmp_path: Path) -> None:
    from transformers import AlignModel, AutoProcessor

    folder, of = exported(small, tmp_path / "align", "align"), ours(small)
    model, processor = AlignModel.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
    photo, caption = Image.open(io.BytesIO(picture(3, (90, 60), "PNG"))), "3 red rings below a kite"
    given = processor(images=photo, text=[caption], return_tensors="pt", truncation=True, max_length=12)
    found = model(**given)
    pixels = (given["pixel_values"] + 1) * 127.5
    torch.testing.assert_close(found.image_embeds, of.model.encode_image(pixels), rtol=0, atol=1e-5)
    from altalign.train.exchange.encoders import opened

    again = opened(small)
    near = again.encode_image(again.pixels([picture(3, (90, 60), "PNG")]))
    assert float((found.image_embeds * near).sum()) > 0.9999  # resized by torchvision, and by us
    torch.testing.assert_close(found.text_embeds, again.encode_text([caption]), rtol=0, atol=1e-5)
    assert float(model.temperature) == pytest.approx(float(of.model.temperature.value()))
    padded = processor(text=[caption], return_tensors="pt")  # to 64 by itself
    torch.testing.assert_close(
        torch.nn.functional.normalize(model.get_text_features(**padded).pooler_output, dim=-1),
        found.text_embeds,
        rtol=0,
        atol=1e-5,
    )


def test_at_the_papers_289_px_keras_padding_is_align_models(tmp_path: Path) -> None:
    run = write_trained(tmp_path / "run", data={"resize_px": 346, "crop_px": 289})
    facts = json.loads((exported(run, tmp_path / "align", "align") / "lineage.json").read_text())
    assert facts["largest_differences"]["images"] <= 1e-5


def test_the_card_says_where_a_model_comes_from_and_what_was_measured(small: str, tmp_path: Path) -> None:
    folder = exported(small, tmp_path / "align", "align")
    facts, card = json.loads((folder / "lineage.json").read_text()), (folder / "README.md").read_text()
    assert facts["manifests"] == {"runs/demo": "ab" * 32}
    assert facts["step"] == 5
    assert max(facts["largest_differences"].values()) <= 1e-5
    assert "`runs/demo`: manifest.json has SHA-256 `abab" in card
    assert "| retrieval/held | 12.5 | 25.0 | 100.0 |" in card
    assert (folder / "training.toml").read_bytes() == (Path(small) / "config.toml").read_bytes()
    assert not list(folder.glob("*.bin")) + list(folder.glob("*.pt"))


@torch.no_grad()
def test_graphs_take_any_number_of_inputs_and_embed_for_decontamination(whole: str, tmp_path: Path) -> None:
    import onnxruntime

    from altalign.pipelines.images import embedders

    folder, of = exported(whole, tmp_path / "onnx", "onnx"), ours(whole)
    image = onnxruntime.InferenceSession(folder / "image.onnx")
    squares = torch.rand(3, 3, 36, 36) * 255
    found = torch.from_numpy(image.run(None, {"images": squares.numpy()})[0])
    torch.testing.assert_close(found, of.model.encode_image(squares[:, :, 1:34, 1:34]), rtol=0, atol=1e-4)
    embedder = embedders.load(f"onnx:{folder / 'image.onnx'}")
    assert embedder.dimensions == 24
    assert embedder.features(np.asarray(Image.open(io.BytesIO(picture(1, (90, 60)))))) is not None


@torch.no_grad()
def test_timm_opens_the_image_tower(whole: str, tmp_path: Path) -> None:
    import timm

    folder, of = exported(whole, tmp_path / "timm", "timm"), ours(whole)
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    photo = Image.open(io.BytesIO(picture(3, (90, 60)))).convert("RGB")
    pixels = transform(photo)[None]
    assert pixels.shape[-2:] == (33, 33)
    torch.testing.assert_close(model(pixels), of.model.image_features((pixels + 1) * 127.5), rtol=1e-4, atol=1e-5)


@needs_open_clip
@torch.no_grad()
def test_open_clip_opens_it(whole: str, tmp_path: Path) -> None:
    import open_clip

    folder, of = exported(whole, tmp_path / "open_clip", "open_clip"), ours(whole)
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    words = open_clip.get_tokenizer(f"local-dir:{folder}")
    pixels = transform(Image.open(io.BytesIO(picture(3, (90, 60)))))[None]
    images, texts, scale = model.eval()(pixels, words(["3 red rings"]))
    torch.testing.assert_close(images, of.model.encode_image((pixels + 1) * 127.5), rtol=0, atol=1e-5)
    assert float(scale) == pytest.approx(1 / float(of.model.temperature.value()), rel=1e-5)
    from altalign.train.exchange.encoders import opened

    torch.testing.assert_close(texts, opened(whole).encode_text(["3 red rings"]), rtol=0, atol=1e-5)


# Written by hand: what a caption is, and whether open_clip's tokenizer changes what our vocabulary sees of it.
ODD_CAPTIONS = {
    "3 red rings": False,
    "3  red\trings \n below": False,
    "": False,
    "   ": False,
    "RED Rings": False,
    "red\u00a0rings": False,
    "r\u00e9d rings": False,
    "re\u0301d rings": True,  # which becomes one letter; captions of a curation have it so
    "[SEP] red [MASK] [PAD]": False,
    "<b>red</b>": False,
    "red " * 30: False,
    "red \U0001f600 rings": False,
    "red &amp; blue": True,
    "red &amp;amp; blue": True,
    "3 &lt; rings": True,
    "a dog\u2019s \u201cring\u201d": True,
    "\ufb01ne ring": True,  # a ligature
    "\uff52\uff49\uff4e\uff47 red": True,  # full width
    "sch\u00c3\u00b6n ring": True,  # mojibake
    "red\x85ring": True,
    "\x1b[31mred ring": True,  # a terminal's colour
}


@needs_open_clip
@torch.no_grad()
def test_every_caption_embeds_in_open_clip_as_here_once_its_cleaning_is_off(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    import open_clip

    from altalign.train.exchange.encoders import opened
    from tests.support import trained_folders

    letters = sorted({letter for caption in ODD_CAPTIONS for letter in caption if not letter.isspace()})
    words = [*trained_folders.CAPTIONS, *(f"{letter} a{letter}" for letter in letters), *ODD_CAPTIONS]
    monkeypatch.setattr(trained_folders, "CAPTIONS", words * 2)
    folder = tmp_path_factory.mktemp("odd")
    run = write_trained(
        folder / "run", tokenizer={"vocabulary_size": 1000, "tokens_at_most": 24}, image_tower={"padding": "same"}
    )
    place = exported(run, folder / "open_clip", "open_clip")
    model, _, _ = open_clip.create_model_and_transforms(f"local-dir:{place}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{place}")

    def apart() -> dict[str, float]:
        found = model.eval().encode_text(tokenizer(list(ODD_CAPTIONS)), normalize=True)
        return dict(zip(ODD_CAPTIONS, (found - expected).abs().amax(1).tolist(), strict=True))

    expected = opened(run).encode_text(list(ODD_CAPTIONS))
    assert {caption: by > 1e-5 for caption, by in apart().items()} == ODD_CAPTIONS
    tokenizer.clean_fn = str  # as the card and the guide say
    assert max(apart().values()) <= 1e-5
    assert "`tokenizer.clean_fn = str`" in (place / "README.md").read_text()


@torch.no_grad()
def test_a_caption_that_names_special_pieces_is_text_in_align_model_too(small: str, tmp_path: Path) -> None:
    from transformers import AlignModel, AutoProcessor

    from altalign.train.exchange.encoders import opened

    folder, captions = exported(small, tmp_path / "align", "align"), ["[SEP] red [MASK] [PAD]", "[CLS]"]
    given = AutoProcessor.from_pretrained(folder)(text=captions, return_tensors="pt", truncation=True, max_length=12)
    found: Any = AlignModel.from_pretrained(folder).eval().get_text_features(**given)
    texts = torch.nn.functional.normalize(found.pooler_output, dim=-1)
    torch.testing.assert_close(texts, opened(small).encode_text(captions), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "tower",
    [
        {"width": 0.5, "depth": 0.3},
        {"width": 0.7, "depth": 1.5, "embedding_width": 24},  # deeper than a B0: in a B3
    ],
)
def test_timm_and_open_clip_hold_towers_of_other_widths_and_depths(tmp_path: Path, tower: dict[str, Any]) -> None:
    run = write_trained(tmp_path / "run", image_tower={"padding": "same", **tower})
    exported(run, tmp_path / "timm", "timm")  # opened again and compared, to 1e-5
    if find_spec("open_clip"):
        exported(run, tmp_path / "open_clip", "open_clip")  # whose text projection has no bias


@pytest.mark.parametrize("architecture", FACTORS)
def test_a_tower_of_no_other_width_is_timms_of_the_same_name(architecture: str) -> None:
    config = TrainConfig.from_values(
        {"image_tower": {"architecture": architecture}, "text_tower": SMALL_BERT}, where="test"
    )
    with torch.device("meta"):
        model = model_of(config, vocabulary=60)
    of = Trained(Path(), 0, config, cast(Any, None), model)
    assert to_timm.name_of(of) == f"tf_efficientnet_{architecture}"


def test_the_demo_exports_everywhere_and_a_plan_says_what_cannot_be() -> None:
    def foreseen(values: dict[str, Any]) -> dict[str, str]:
        config = TrainConfig.from_values(values, where="test")
        with torch.device("meta"):
            return export.foreseen(config, model_of(config, vocabulary=60))

    demo = tomllib.loads((Path(__file__).parents[3] / "configs" / "train-demo.toml").read_text())
    assert not any(foreseen(demo).values())
    refused = foreseen({"image_tower": {"architecture": "b0", "embedding_width": 128}, "text_tower": SMALL_BERT})
    assert [to for to, why in refused.items() if why] == ["align"]
    assert "train with embedding_width = 0" in refused["align"]
    vit = {"image_tower": {"architecture": "vit_ti16"}, "data": {"crop_px": 64}, "text_tower": SMALL_BERT}
    of_a_vit = foreseen(vit)
    assert [to for to, why in of_a_vit.items() if not why] == ["onnx"]


def test_every_value_of_align_models_processor_is_written_and_onnx_keeps_weights_in_the_graph(
    small: str, tmp_path: Path
) -> None:
    from transformers import EfficientNetImageProcessor

    wanted = {"do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor"}
    wanted |= {"rescale_offset", "do_normalize", "image_mean", "image_std", "include_top"}
    written = json.loads((exported(small, tmp_path / "align", "align") / "processor_config.json").read_text())
    assert wanted <= written["image_processor"].keys()
    assert written["image_processor"]["resample"] == 2  # bilinear: what is left out differs from version to version
    assert wanted <= EfficientNetImageProcessor().to_dict().keys()
    files = {path.name for path in exported(small, tmp_path / "onnx", "onnx").iterdir()}
    assert {name for name in files if "onnx" in name} == {"image.onnx", "text.onnx"}


@pytest.mark.parametrize("to", ["open_clip", "onnx"])
def test_a_package_that_is_missing_is_named(
    small: str, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export.TARGETS[to], "PACKAGE", "no_such_package")
    assert cli.main(["export", small, str(tmp_path / "out"), "--to", to, "--crop-px", "32"]) == 2
    assert f"--to {to}: the package no_such_package is missing; `make setup EXTRAS={to}`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sections", "to", "message"),
    [
        (
            {"image_tower": {"embedding_width": 24}},
            "align",
            "[image_tower] embedding_width = 24, and AlignModel has no projection after its image tower, whose own "
            "width is 160; train with embedding_width = 0",
        ),
        ({"image_tower": {"padding": "same"}}, "align", 'padding = "same" pads otherwise than AlignModel'),
        ({"image_tower": {"width": 0.25}}, "align", "the first block of a stage has a skip"),
        ({"image_tower": {"width": 0.25}}, "timm", "width = 0.25, depth = 0.3 a stage is larger than those of all"),
        ({"image_tower": {"width": 5.0}}, "open_clip", "a stage is larger than those of all tf_efficientnet"),
        ({"image_tower": {**WHOLE_B0, "padding": "keras"}}, "timm", 'padding = "keras" pads otherwise than timm'),
    ],
)
def test_what_a_form_cannot_hold_is_refused_with_the_reason(
    tmp_path: Path, sections: dict[str, Any], to: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_trained(tmp_path / "run", **sections)
    assert cli.main(["export", run, str(tmp_path / "out"), "--to", to]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_side_without_odd_maps_fits_where_another_does_not(tmp_path: Path) -> None:
    run = write_trained(tmp_path / "run", image_tower={"padding": "same"})
    exported(run, tmp_path / "align", "align", "--crop-px", "32")


def test_a_folder_that_is_there_and_a_run_that_is_not_are_refused(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", small, str(tmp_path), "--to", "align"]) == 2
    assert "it is there already; give a new folder" in capsys.readouterr().err
    assert cli.main(["export", "nowhere", str(tmp_path / "out"), "--to", "align"]) == 2
    assert "nowhere: no such training run" in capsys.readouterr().err


@torch.no_grad()
def test_a_folder_for_the_hub_has_a_card_that_the_hub_reads(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """AlignModel where it holds the model, else graphs: of a ViT."""
    from huggingface_hub import ModelCard
    from transformers import AlignModel

    folder, of = exported(small, tmp_path / "ours", "hub"), ours(small)
    assert "`hf upload OWNER/NAME DIR` publishes the folder" in " ".join(capsys.readouterr().out.split())
    card = ModelCard.load(folder / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "zero-shot-image-classification")
    assert (card.data.model_name, card.data.tags) == ("ours", ["image-text", "altalign"])
    results = {(one.dataset_name, one.metric_type): one.metric_value for one in card.data.eval_results or ()}
    assert results == {
        ("retrieval/held", "rsum"): 100.0,
        ("retrieval/held", "image_to_text_r1"): 12.5,
        ("retrieval/held", "text_to_image_r1"): 25.0,
    }
    assert "AlignModel.from_pretrained" in card.text
    tokens = torch.tensor([[2, 7, 3]])
    features = AlignModel.from_pretrained(folder).eval().get_text_features(tokens, tokens > 0).pooler_output
    expected = of.model.encode_text(tokens, tokens > 0)
    torch.testing.assert_close(torch.nn.functional.normalize(features), expected, rtol=0, atol=1e-5)
    vit = {"architecture": "vit_ti16", "width": 0.34, "depth": 0.1, "positions_px": 32, "padding": "same"}
    run = write_trained(tmp_path / "vit", image_tower=vit, data={"resize_px": 36, "crop_px": 32})
    graphs = exported(run, tmp_path / "graphs", "hub")
    assert ModelCard.load(graphs / "README.md").data.library_name == "onnx"
    assert {"image.onnx", "text.onnx", "tokenizer.json"} <= {path.name for path in graphs.iterdir()}


@needs_open_clip
def test_open_clip_has_the_bias_of_a_model_that_learned_by_sigmoids(tmp_path: Path) -> None:
    import open_clip

    run = write_trained(tmp_path / "run", loss={"name": "sigmoid", "bias": -7.0})
    folder = exported(run, tmp_path / "open_clip", "open_clip", "--crop-px", "32")
    model, _, _ = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    assert model.logit_bias.item() == -7.0
    assert model.logit_scale.item() == pytest.approx(1.5)  # what `write_trained` gives the temperature's logarithm
