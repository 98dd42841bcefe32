"""Accumulation through the towers that are trained."""

import torch

from altalign.train.model.dual_encoder import DualEncoder, Temperature
from altalign.train.settings.training import ImageTowerSettings, TextTowerSettings
from tests.train.small_model import gradients_of, pairs
from tests.train.step.test_accumulation import assert_same, step


def encoder(*, dropout: float) -> DualEncoder:
    """EfficientNet-B0 at a quarter of its width, BERT of two layers; float64, training mode."""
    image = ImageTowerSettings(
        architecture="b0",
        width=0.25,
        depth=0.3,
        batch_norm="ghost",
        ghost_group=4,
        embedding_width=16,
    )
    text = TextTowerSettings(layers=2, width=32, heads=2, dropout=dropout)
    return (
        DualEncoder(image, text, vocabulary=20, tokens_at_most=8, temperature=Temperature(0.1, learned=True))
        .double()
        .train()
    )


def test_chunks_of_efficientnet_and_bert_have_the_gradient_of_the_batch() -> None:
    whole, chunked, batch = encoder(dropout=0.0), encoder(dropout=0.0), pairs(8)
    step(whole, batch, 8)
    assert step(chunked, batch, 4).drift == 0
    assert_same(gradients_of(chunked), gradients_of(whole), 1e-6)
    for name, buffer in whole.named_buffers():
        torch.testing.assert_close(chunked.get_buffer(name), buffer, rtol=1e-6, atol=1e-9)


def test_with_dropout_both_passes_are_the_same() -> None:
    assert step(encoder(dropout=0.2), pairs(8), 4).drift == 0
