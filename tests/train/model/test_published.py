"""Towers of CLIP and SigLIP from small random weights of transformers, and of open_clip: the same embeddings."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from torch.nn import functional
from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

from altalign import cli
from altalign.errors import UsageError
from altalign.train.data import tokenizer
from altalign.train.data.batches import Batch, padded
from altalign.train.exchange.encoders import opened
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.run import published
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import ImageTowerSettings, TextTowerSettings, TrainConfig
from altalign.train.step.learner import Learner
from tests.support.run_folders import pairs, write_run
from tests.train.test_training_run import measured, settings, written

WORDS, CONTEXT, SIDE = 40, 8, 32
needs_open_clip = pytest.mark.skipif(not find_spec("open_clip"), reason="no open_clip here: `make test-readers`")
OF_IMAGE = {"positions_px": SIDE, "depth": 2 / 12}
CLIP = {"architecture": "clip_b16", "normalisation": "clip", "width": 2 / 12, "embedding_width": 16, **OF_IMAGE}
SIGLIP = {"architecture": "siglip_b16", "width": 2 / 12, **OF_IMAGE}
CLIP_TEXT = {"architecture": "clip", "layers": 2, "width": 32, "heads": 4, "dropout": 0.0}
SIGLIP_TEXT = {"architecture": "siglip", "layers": 2, "width": 32, "heads": 4, "dropout": 0.0}
# of transformers; the width of an image tower's heads is 64
BOTH = {"num_hidden_layers": 2, "layer_norm_eps": 1e-5}
HF_IMAGE = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "image_size": SIDE,
    "patch_size": 16,
}
HF_TEXT = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": WORDS}
ENDS = {"bos_token_id": WORDS - 2, "eos_token_id": WORDS - 1, "pad_token_id": 1, "max_position_embeddings": CONTEXT}


@torch.no_grad()
def drawn(model: Any) -> Any:
    """A model whose weights are all random: biases and norms too."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(noise * 0.15 + ("norm" in name or "ln_" in name) * name.endswith("weight"))
    return model.eval()


def of_transformers(kind: str) -> Any:
    of_kind, model = (CLIPConfig, CLIPModel) if kind == "clip" else (SiglipConfig, SiglipModel)
    width = 16 if kind == "clip" else 128
    both = BOTH if kind == "clip" else {"num_hidden_layers": 2}
    more = {"projection_dim": width} if kind == "clip" else {}
    text = {**HF_TEXT, **both, **ENDS, **({} if kind == "clip" else {"projection_size": width})}
    return drawn(model(of_kind(text_config=text, vision_config={**HF_IMAGE, **both}, **more)))


def ours(image: dict[str, Any], text: dict[str, Any], path: str, **activation: str) -> DualEncoder:
    of_image = ImageTowerSettings(**image, **activation, weights=path)
    of_text = TextTowerSettings(**text, **activation, weights=path)
    return DualEncoder(of_image, of_text, vocabulary=WORDS, tokens_at_most=CONTEXT).eval()


def given() -> tuple[Tensor, Tensor, Tensor]:
    """Pixels, tokens with a first and a last, and their mask."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (5, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    words = torch.randint(2, WORDS - 2, (5, CONTEXT), generator=generator).tolist()
    tokens = [[WORDS - 2, *row[: 1 + number], WORDS - 1] for number, row in enumerate(words)]
    return images, *padded(tokens, CONTEXT)


def seen(images: Tensor, image: dict[str, Any]) -> Tensor:
    """Pixels as other libraries are given them."""
    from timm.data.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

    mean, deviation = (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD) if "normalisation" in image else ((0.5,) * 3, (0.5,) * 3)
    return (images / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(deviation).view(3, 1, 1)


KINDS = {"clip": (CLIP, CLIP_TEXT, "quick_gelu"), "siglip": (SIGLIP, SIGLIP_TEXT, "gelu_tanh")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["folder", "bin"])
@torch.no_grad()
def test_embeddings_are_those_of_transformers(kind: str, form: str, tmp_path: Path) -> None:
    image, text, activation = KINDS[kind]
    theirs, (images, tokens, mask) = of_transformers(kind), given()
    theirs.save_pretrained(tmp_path)
    path = str(tmp_path)
    if form == "bin":
        path = f"{tmp_path}/pytorch_model.bin"
        torch.save(theirs.state_dict(), path)
    own = ours(image, text, path, activation=activation)
    padding = torch.where(mask, tokens, 1)  # transformers pads CLIP's with any; of SigLIP's </s> is 1
    if kind == "siglip":
        padding = functional.pad(padding, (0, CONTEXT - padding.shape[1]), value=1)
    expected = [
        theirs.get_image_features(pixel_values=seen(images, image)).pooler_output,
        theirs.get_text_features(input_ids=padding).pooler_output,
    ]
    for embeddings, features in zip((own.encode_image(images), own.encode_text(tokens, mask)), expected, strict=True):
        torch.testing.assert_close(embeddings, functional.normalize(features, dim=1), rtol=1e-5, atol=2e-6)


def of_open_clip(kind: str) -> Any:
    import open_clip

    if kind == "clip":
        of_image = {"image_size": SIDE, "layers": 2, "width": 128, "patch_size": 16}
        of_text = {"context_length": CONTEXT, "vocab_size": WORDS, "width": 32, "heads": 4, "layers": 2}
        return drawn(open_clip.CLIP(16, of_image, of_text))
    of_text = {"no_causal_mask": True, "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-6}}
    of_text |= {"context_length": CONTEXT, "vocab_size": WORDS, "width": 32, "heads": 4, "layers": 2}
    of_image = {"timm_model_name": "vit_base_patch16_siglip_224", "timm_pool": "map", "timm_proj": "none"}
    with pytest.MonkeyPatch.context() as patch:
        import timm

        small = {"embed_dim": 128, "depth": 2, "num_heads": 2, "img_size": SIDE}
        made = timm.create_model
        patch.setattr(timm, "create_model", lambda *names, **more: made(*names, **more, **small))
        return drawn(open_clip.CustomTextCLIP(128, {**of_image, "image_size": SIDE}, of_text, init_logit_bias=-10))


@needs_open_clip
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["safetensors", "pt"])
@torch.no_grad()
def test_embeddings_are_those_of_open_clip(kind: str, form: str, tmp_path: Path) -> None:
    image, text, _ = KINDS[kind]
    theirs, (images, tokens, mask) = of_open_clip(kind), given()
    path = f"{tmp_path}/weights.{form}"
    if form == "pt":  # as its trainer writes it
        torch.save(
            {"epoch": 1, "state_dict": {f"module.{name}": one for name, one in theirs.state_dict().items()}}, path
        )
    else:
        save_file(theirs.state_dict(), path)
    own = ours(image, text, path)
    padding = torch.where(mask, tokens, 1 if kind == "siglip" else 0)
    padding = functional.pad(padding, (0, CONTEXT - padding.shape[1]), value=1 if kind == "siglip" else 0)
    expected = theirs.encode_image(seen(images, image), normalize=True), theirs.encode_text(padding, normalize=True)
    for embeddings, others in zip((own.encode_image(images), own.encode_text(tokens, mask)), expected, strict=True):
        torch.testing.assert_close(embeddings, others, rtol=1e-5, atol=2e-6)


@needs_open_clip
@pytest.mark.parametrize("kind", KINDS)
def test_loss_gradient_and_step_are_those_of_open_clip(kind: str, tmp_path: Path) -> None:
    """CLIP's loss and SigLIP's, from the same weights, with AdamW; in two passes here, in one there."""
    from open_clip.loss import ClipLoss, SigLipLoss

    image, text, _ = KINDS[kind]
    theirs, (images, tokens, mask) = of_open_clip(kind).train(), given()
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    path = str(tmp_path / "weights.safetensors")
    scale = theirs.logit_scale.exp().item()
    loss = {"name": "sigmoid", "bias": theirs.logit_bias.item()} if kind == "siglip" else {"directions": "mean"}
    config = TrainConfig.from_values(
        {
            "image_tower": {**image, "weights": path},
            "text_tower": {**text, "weights": path},
            "tokenizer": {"tokens_at_most": CONTEXT},
            "data": {"crop_px": SIDE, "resize_px": SIDE},
            "loss": {**loss, "label_smoothing": 0.0, "temperature": 1 / scale},
            "optimizer": {"name": "adamw", "weight_decay": 0.0, "beta2": 0.98, "epsilon": 1e-6},
            "schedule": {"peak": 1e-2, "warmup_steps": 0, "decay": "constant"},
            "loop": {"global_batch": 5, "chunk": 2, "precision": "float32", "device": "cpu"},
        },
        where="here",
    )
    learner = Learner(config, vocabulary=WORDS, ranks=Ranks(0, 1, torch.device("cpu")))
    keys = [f"{number:032x}" for number in range(5)]
    said = learner.step(1, Batch(keys, ["web"] * 5, [0] * 5, images, tokens, mask))
    padding = torch.where(mask, tokens, 1 if kind == "siglip" else 0)
    padding = functional.pad(padding, (0, CONTEXT - padding.shape[1]), value=1 if kind == "siglip" else 0)
    of_images, of_texts, *logit = theirs(seen(images, image), padding)
    expected = (SigLipLoss() if kind == "siglip" else ClipLoss())(of_images, of_texts, *logit)
    expected.backward()
    parameters = list(theirs.parameters())
    gradients = published.as_ours({name: one.grad for name, one in theirs.named_parameters() if one.grad is not None})
    for name, parameter in learner.model.named_parameters():
        if not name.startswith("temperature."):
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-6, msg=name)
    norm = torch.nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None])
    torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.0).step()
    assert said["loss"] == pytest.approx(expected.item(), rel=1e-5)
    # ours is of the temperature's logarithm, which is theirs with the other sign
    assert said["gradient_norm"] == pytest.approx(float(norm), rel=1e-4)
    save_file(theirs.state_dict(), tmp_path / "after.safetensors")
    after = ours(image, text, str(tmp_path / "after.safetensors")).state_dict()
    for name, value in learner.model.state_dict().items():
        if not name.startswith("temperature."):
            # a weight whose gradient is zero but for rounding moves in any direction
            torch.testing.assert_close(value, after[name], rtol=1e-3, atol=2e-4, msg=name)
    assert said["temperature"] == pytest.approx(1 / scale)
    assert learner.model.temperature.logarithm.item() == pytest.approx(-theirs.logit_scale.item(), rel=1e-4)
    if kind == "siglip":
        assert learner.model.temperature.bias is not None
        assert learner.model.temperature.bias.item() == pytest.approx(theirs.logit_bias.item(), rel=1e-4)


@needs_open_clip
@pytest.mark.parametrize("groups", [1, 2])
def test_frozen_groups_are_those_that_open_clip_locks(groups: int, tmp_path: Path) -> None:
    """Of open_clip's four groups: embeddings, a block, the last block with its norm, the projection."""
    theirs = of_open_clip("clip")
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    theirs.lock_image_tower(unlocked_groups=4 - groups)
    locked = {name for name, one in theirs.visual.named_parameters() if not one.requires_grad}
    every = published.as_ours({name: torch.ones_like(one) for name, one in theirs.named_parameters()})
    of_ours = published.as_ours(
        {name: torch.full_like(one, float(one.requires_grad)) for name, one in theirs.named_parameters()}
    )
    own = ours({**CLIP, "frozen_groups": groups}, CLIP_TEXT, str(tmp_path / "weights.safetensors"))
    frozen = {name for name, one in own.named_parameters() if not one.requires_grad}
    assert locked
    assert frozen == {name for name in every if name.startswith("image_tower") and not of_ours[name].any()}


def words_of_clip() -> str:
    """A tokenizer.json as CLIP's, of small letters alone."""
    letters = [chr(97 + number) for number in range(26)]
    first, last = "<|startoftext|>", "<|endoftext|>"
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "ki", "te</w>", "kite</w>", first, last]
    merges = [("k", "i"), ("t", "e</w>"), ("ki", "te</w>")]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(numbers, merges, unk_token=last, end_of_word_suffix="</w>"))
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoders.BPEDecoder("</w>")
    made.add_special_tokens([first, last])
    made.post_processor = processors.RobertaProcessing(
        (last, numbers[last]), (first, numbers[first]), trim_offsets=False, add_prefix_space=False
    )
    return made.to_str()


def words_of_siglip() -> str:
    """A tokenizer.json as SigLIP's."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("\u2581", -3.0), ("\u2581kite", -1.0)]
    pieces += [(chr(97 + number), -4.0) for number in range(26)]
    made = Tokenizer(models.Unigram(pieces, 0, byte_fallback=False))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["</s>", "<unk>"])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return made.to_str()


def read(text: str, folder: Path, most: int = CONTEXT) -> tokenizer.CaptionTokenizer:
    (folder / "tokenizer.json").write_text(text)
    return tokenizer.read(str(folder / "tokenizer.json"), tokens_at_most=most)


def test_pieces_of_clip_and_siglip_have_their_ends_and_words(tmp_path: Path) -> None:
    clip, siglip = read(words_of_clip(), tmp_path), read(words_of_siglip(), tmp_path)
    assert clip.pieces("A Kite") == ["<|startoftext|>", "a</w>", "kite</w>", "<|endoftext|>"]
    assert clip.encode(["kite " * 20])[0] == [55, *[54] * (CONTEXT - 2), 56]
    assert siglip.pieces("Kite_kite, a-b!") == ["\u2581kite", "\u2581kite", "\u2581", "a", "b", "</s>"]
    assert siglip.encode(["kite " * 20])[0] == [*[3] * (CONTEXT - 1), 1]
    for words, whole in ((clip, {"te", "kite"}), (siglip, {"kite"})):
        assert {words.shown([number]) for number in words.whole_words.tolist()} == whole
        *first, last = words.framed([])
        assert words.framed([3] * 20) == [*first, *[3] * (CONTEXT - len(first) - 1), last]
    with pytest.raises(UsageError, match=r"the vocabulary has no \[MASK\]; give another file"):
        clip.number(clip.special.mask)


def test_models_of_others_are_refused_in_a_line_where_they_compute_otherwise(tmp_path: Path) -> None:
    of_transformers("clip").save_pretrained(tmp_path)
    quick, path = {"activation": "quick_gelu"}, str(tmp_path)
    of_text = r"\[text_tower\] weights: .*: "
    wrong = [
        (CLIP, CLIP_TEXT, {}, r"\[image_tower\] weights: .*: activation are 'quick_gelu' there, not 'gelu'; give"),
        (
            CLIP,
            {**CLIP_TEXT, "heads": 8},
            quick,
            of_text + r"heads are 4 there, not 8; give heads = 4",
        ),
        (
            CLIP,
            {**CLIP_TEXT, "layers": 1},
            quick,
            of_text + r"not this tower's weights \(unexpected: blocks",
        ),
        ({**CLIP, "embedding_width": 24}, CLIP_TEXT, quick, r"the layer after the tower: .*\(of another shape: weight"),
        ({**CLIP, "architecture": "siglip_b16"}, CLIP_TEXT, quick, r"\[image_tower\] weights: .*not this tower's"),
    ]
    for image, text, activation, message in wrong:
        with pytest.raises(UsageError, match=message) as caught:
            ours(image, text, path, **activation)
        assert "\n" not in str(caught.value)


@pytest.mark.trained
def test_a_training_from_a_folder_of_transformers_takes_its_words_along_and_is_exported(tmp_path: Path) -> None:
    write_run(tmp_path / "curated", pairs(60, images=30))
    folder = tmp_path / "clip"
    model = CLIPConfig(
        text_config={**HF_TEXT, "num_hidden_layers": 2, **ENDS, "vocab_size": 57, "eos_token_id": 56},
        vision_config={**HF_IMAGE, "num_hidden_layers": 2},
        projection_dim=16,
    )
    drawn(CLIPModel(model)).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(words_of_clip())
    quick = {"weights": str(folder), "activation": "quick_gelu"}
    config = written(
        tmp_path,
        image_tower={**CLIP, **quick, "frozen_groups": 1},
        text_tower={**CLIP_TEXT, **quick},
        tokenizer={"tokens_at_most": CONTEXT},
        loop={**settings(tmp_path)["loop"], "global_batch": 8, "recompute": "all"},
        schedule={"steps": 2, "warmup_steps": 0, "peak": 1e-4},
    )
    text = Path(config).read_text()
    for line in ("ghost_group = 4\n", "vocabulary_size = 80\n"):
        text = text.replace(line, "")
    Path(config).write_text(text)
    assert cli.main(["train", config]) == 0
    run = tmp_path / "trained"
    assert (run / "tokenizer.json").read_text() == words_of_clip()
    assert measured(run, 2)["retrieval/held"]["captions"] > 0
    assert cli.main(["export", str(run), str(tmp_path / "onnx"), "--to", "onnx"]) == 0
    assert json.loads((tmp_path / "onnx" / "preprocessing.json").read_text())["padding"] == -1
    after = opened(str(run)).model.state_dict()
    first = published.as_ours(load_file(folder / "model.safetensors"))
    assert torch.equal(after["image_tower.patch_embed.proj.weight"], first["image_tower.patch_embed.proj.weight"])
    torch.testing.assert_close(after["text_projection.weight"], first["text_projection.weight"], rtol=0, atol=1e-3)
