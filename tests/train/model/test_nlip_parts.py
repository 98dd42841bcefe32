"""NLIP's parts: MAE's loss by plain loops, BART's shapes and names, and what reaches the contrastive text."""

from typing import Any

import pytest
import torch
from transformers import BartConfig, BartModel

from altalign.errors import UsageError
from altalign.train.data.batches import Batch, padded
from altalign.train.model.drawn import TokenDrop, token_drop
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.model.vision_transformer import ImageDecoder, normalised, patches
from altalign.train.run.ranks import Ranks
from altalign.train.settings.nlip import ReconstructionSettings
from altalign.train.settings.training import TrainConfig
from altalign.train.step.accumulation import gradients, towers_of
from altalign.train.step.learner import Learner, model_of
from altalign.train.step.loss import Noise, contrastive_loss

VOCABULARY = 40
SMALL: dict[str, Any] = {
    "data": {"resize_px": 32, "crop_px": 32},
    "tokenizer": {"tokens_at_most": 8},
    "image_tower": {
        "architecture": "vit_ti16", "width": 0.34, "depth": 0.1, "positions_px": 32, "embedding_width": 16,
        "token_drop": 0.5,
    },
    "text_tower": {"architecture": "bart", "layers": 1, "width": 16, "heads": 2},
    "loss": {"label_smoothing": 0.0, "directions": "mean"},
    "reconstruction": {"weight": 1.0, "blocks": 1, "width": 64},
    "captioner": {"weight": 0.7, "layers": 1, "tokens_at_most": 12},
    "loop": {"global_batch": 6, "chunk": 6, "precision": "float32", "device": "cpu"},
}  # fmt: skip


def config(**sections: dict[str, Any]) -> TrainConfig:
    return TrainConfig.model_validate({**SMALL, **{name: SMALL.get(name, {}) | of for name, of in sections.items()}})


def batch(count: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    texts = [[2, *range(5 + number, 8 + 2 * number - number), 3] for number in range(count)]
    prompted = padded([[2, 30, 31, *text[1:]] for text in texts], 12, width=12)
    keys = [f"{number:032x}" for number in range(count)]
    return Batch(keys, ["web"] * count, [0] * count, images, *padded(texts, 8), prompted)


def losses_of(model: DualEncoder, of: Batch, **more: Any) -> tuple[torch.Tensor, ...]:
    kept = TokenDrop(0.5, 16, 0, 1).kept(of.keys, of.images)
    return model(of.images, of.tokens, of.mask, kept=kept, prompted=of.prompted, has_losses=True, **more)


def test_reconstruction_is_the_error_on_masked_patches_alone_by_plain_loops() -> None:
    torch.manual_seed(0)
    decoder = ImageDecoder(ReconstructionSettings(weight=1.0, blocks=1, width=64), image_width=8, patch_px=16)
    images, states = torch.randint(256, (2, 3, 32, 48)), torch.randn(2, 4, 8)
    kept = torch.tensor([[0, 2, 5], [1, 2, 3]])
    predicted = decoder(states, kept, 2, 3)
    for image in range(2):
        errors = []
        for place in set(range(6)) - set(kept[image].tolist()):
            top, left = 16 * (place // 3), 16 * (place % 3)
            patch = images[image, :, top : top + 16, left : left + 16].permute(1, 2, 0).reshape(-1) / 255
            wanted = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
            errors.append((predicted[image, place] - wanted).square().mean())
        expected = torch.stack(errors).mean()
        torch.testing.assert_close(decoder.losses(states, kept, images)[image], expected, rtol=1e-5, atol=1e-6)
    assert normalised(patches(images.float(), 16)).mean(2).abs().max() < 1e-4


def test_the_caption_loss_is_that_of_tokens_one_after_the_other() -> None:
    model: Any = model_of(config(), vocabulary=VOCABULARY).eval()
    of = batch(3)
    captioner, tower, expected = model.captioner, model.text_tower, 0.0
    kept = TokenDrop(0.5, 16, 0, 1).kept(of.keys, of.images)
    assert of.prompted is not None
    for row in range(3):
        states = model.image_tower.states(of.images[row : row + 1], kept[row : row + 1])
        z, z_mask = (one[row : row + 1] for one in of.prompted)
        memory, attended = captioner.memory(states[:, 1:], tower.states(z, z_mask), z_mask)
        caption, of_row = of.tokens[row, : int(of.mask[row].sum())], []
        for upto in range(1, len(caption)):
            states = captioner.states(tower.words, caption[None, :upto], memory, attended)
            of_row.append(-captioner.logits(tower.words, states[0, -1]).log_softmax(0)[caption[upto]])
        expected += torch.stack(of_row).mean()
    torch.testing.assert_close(losses_of(model, of)[2][1], expected, rtol=1e-5, atol=1e-5)


def test_no_image_reaches_the_contrastive_text() -> None:
    """By gradient: pixels move image embeddings and captions' losses, and no text embedding."""
    model, of = model_of(config(), vocabulary=VOCABULARY), batch()
    pixels = of.images.float().requires_grad_()
    images, texts, own = losses_of(model, Batch(**{**of.__dict__, "images": pixels}))
    for value, reaches in ((images.sum(), True), (own[1], True), (texts.square().sum() + texts[:, 0].sum(), False)):
        (found,) = torch.autograd.grad(value, pixels, retain_graph=True, allow_unused=True)
        assert (found is not None and bool(found.abs().sum() > 0)) is reaches
    for weight in model.image_tower.parameters():
        assert torch.autograd.grad(texts.sum(), weight, retain_graph=True, allow_unused=True)[0] is None


@pytest.mark.parametrize("form", ["intended", "printed"])
def test_a_step_in_chunks_has_the_gradient_of_the_whole_with_all_losses(form: str) -> None:
    """In float64 and without dropout, of every weight: noise, reconstruction and captions together."""
    chosen = config(text_tower={"dropout": 0.0})
    noise = Noise(torch.linspace(0, 0.5, 6, dtype=torch.float64), form)  # type: ignore[arg-type]

    def loss(*embeddings: torch.Tensor, **more: Any) -> torch.Tensor:
        return contrastive_loss(*embeddings, label_smoothing=0.0, directions="mean", noise=noise, block=4, **more)

    found = []
    for chunk in (6, 2):
        model = model_of(chosen, vocabulary=VOCABULARY).double().train()
        result = gradients(
            towers_of(model), model, batch(), chunk=chunk, loss=loss, seed=1, step=1, own_weights=(1.0, 0.7),
            token_drop=token_drop(chosen.image_tower, seed=1, step=1),
        )  # fmt: skip
        assert result.drift < 1e-6
        found.append((result, {name: p.grad for name, p in model.named_parameters()}))
    (whole, of_whole), (parts, of_parts) = found
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)  # decoders' losses are float32
    assert parts.own == pytest.approx(whole.own, rel=1e-6)
    for name, gradient in of_whole.items():
        assert gradient is not None, name
        torch.testing.assert_close(of_parts[name], gradient, rtol=1e-4, atol=1e-7, msg=name)


def test_a_model_without_decoders_is_what_it_was(tmp_path: Any) -> None:
    del tmp_path
    chosen = config(reconstruction={"weight": 0.0}, captioner={"weight": 0.0})
    model = model_of(chosen, vocabulary=VOCABULARY)
    assert not model.has_decoders
    assert not [name for name in model.state_dict() if name.startswith(("captioner", "image_decoder"))]


def test_a_learner_steps_and_says_each_loss() -> None:
    learner = Learner(config(), vocabulary=VOCABULARY, ranks=Ranks(0, 1, torch.device("cpu")))
    found = [learner.step(number, batch()) for number in range(1, 4)]
    assert {"loss_reconstruction", "loss_caption"} <= found[0].keys()
    assert all(one["loss"] > one["loss_reconstruction"] + 0.7 * one["loss_caption"] for one in found)


def test_barts_own_weights_load_and_give_barts_own_states(tmp_path: Any) -> None:
    torch.manual_seed(0)
    shape = BartConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=20, pad_token_id=0,
        dropout=0.1, attention_dropout=0.1, activation_dropout=0.0,
    )  # fmt: skip
    theirs: Any = BartModel(shape).eval()
    theirs.save_pretrained(tmp_path)
    where = {"weights": str(tmp_path)}
    model: Any = model_of(config(text_tower=where, captioner=where), vocabulary=VOCABULARY).eval()
    of = batch(3)
    states = model.text_tower.states(of.tokens, of.mask)
    expected = theirs(
        input_ids=of.tokens, attention_mask=of.mask.long(), decoder_input_ids=of.tokens[:, :-1], use_cache=False
    )
    is_token = of.mask[..., None]
    torch.testing.assert_close(states * is_token, expected.encoder_last_hidden_state * is_token, rtol=1e-4, atol=1e-5)
    found = model.captioner.states(model.text_tower.words, of.tokens[:, :-1], states, of.mask)
    torch.testing.assert_close(found, expected.last_hidden_state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"image_tower": {"token_drop": 0.0}}, "no patch is masked"),
        ({"text_tower": {"architecture": "bert"}}, "give both"),
        ({"data": {"word_corruption": 0.2}}, "give 0 for both"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(sections: dict[str, Any], said: str) -> None:
    values = {**SMALL, **{name: SMALL.get(name, {}) | of for name, of in sections.items()}}
    with pytest.raises(UsageError, match=said):
        TrainConfig.from_values(values, where="x")
