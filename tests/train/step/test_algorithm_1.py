"""Our accumulation against ZeroVL's algorithm 1, written down from the paper (section 4.1, equation 19), in float64."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from altalign.train.step import accumulation
from altalign.train.step.accumulation import chunk_seed, towers_of
from altalign.train.step.loss import contrastive_loss
from tests.train.small_model import gradients_of, pairs, small_model

SEED, STEP, CHUNK = 7, 3, 4
LOSS = partial(contrastive_loss, label_smoothing=0.0, directions="mean", block=5)


def encoded(model: Any, batch: Any, start: int) -> tuple[Tensor, Tensor]:
    """A chunk's embeddings, with the same seed before each pass (stable DGA)."""
    torch.manual_seed(chunk_seed(SEED, STEP, start))
    held = batch.chunk(start, start + CHUNK)
    return model(held.images, held.tokens, held.mask)


def algorithm_1(model: Any, batch: Any) -> None:
    """Leave the gradients of all weights and of the temperature.

    The left factors are divided by the root of the temperature without gradient, the surrogate by it with gradient:
    the temperature enters by images and by texts, and each side counts half.
    """
    count, starts = len(batch.keys), range(0, len(batch.keys), CHUNK)
    tau = model.temperature.value()
    with torch.no_grad():
        images, texts = (torch.cat(parts) for parts in zip(*(encoded(model, batch, at) for at in starts), strict=True))
        logits = images @ texts.T / tau
        to_text, to_image = logits.exp(), logits.exp()
        to_text = to_text / to_text.sum(1, keepdim=True)
        to_image = to_image / to_image.sum(0, keepdim=True)
        off = to_text + to_image - 2 * torch.eye(count, dtype=torch.float64)
        of_images, of_texts = off @ texts / tau.sqrt(), off.T @ images / tau.sqrt()
    for start in starts:
        rows = slice(start, start + CHUNK)
        again_images, again_texts = encoded(model, batch, start)
        surrogate = (of_images[rows] * again_images).sum() + (of_texts[rows] * again_texts).sum()
        (surrogate / model.temperature.value().sqrt() / (2 * count)).backward()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_gradient_of_chunks_is_algorithm_1s(dropout: float) -> None:
    batch, settings = pairs(12), {"statistics": "frozen", "dropout": dropout}
    ours, theirs = small_model(**settings), small_model(**settings)
    algorithm_1(theirs, batch)
    accumulation.gradients(towers_of(ours), ours, batch, chunk=CHUNK, loss=LOSS, seed=SEED, step=STEP)
    found, expected = gradients_of(ours), gradients_of(theirs)
    assert found.keys() == expected.keys()
    assert "temperature.logarithm" in found
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 1e-9 * gradient.norm() + 1e-14, name
