"""Mixup: who is whose partner, one coin and one lambda a step, and gradients of chunks that are the batch's."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from altalign.errors import UsageError
from altalign.train.model.drawn import Mixup
from altalign.train.model.drawn import mixup as drawn
from altalign.train.settings.training import LossSettings
from altalign.train.step import accumulation
from altalign.train.step.accumulation import chunk_seed, towers_of
from altalign.train.step.loss import contrastive_loss
from tests.train.small_model import gradients_of, pairs, small_model

LOSS = partial(contrastive_loss, label_smoothing=0.0, directions="mean", block=3)


def test_a_pair_has_its_mirror_image_in_its_group() -> None:
    assert Mixup("images", 0.3, 4).partners(8).tolist() == [3, 2, 1, 0, 7, 6, 5, 4]
    with pytest.raises(UsageError, match=r"mixup_group = 4: a process has 6 pairs .* no multiple"):
        Mixup("images", 0.3, 4).partners(6)


def test_mixed_values_keep_their_share() -> None:
    values = torch.tensor([[0.0], [10.0], [20.0], [40.0]])
    assert Mixup("texts", 0.25, 4).mixed(values).flatten().tolist() == [30.0, 17.5, 12.5, 10.0]
    pixels = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 3, 1, 1)
    assert Mixup("images", 0.25, 2).mixed(pixels)[:, 0, 0, 0].tolist() == [191.25, 63.75]


def test_a_step_has_one_coin_and_one_lambda_of_beta() -> None:
    settings = LossSettings(mixup=0.1)
    found = [drawn(settings, seed=1, step=step) for step in range(2000)]
    assert found == [drawn(settings, seed=1, step=step) for step in range(2000)]
    shares = np.array([each.share for each in found if each])
    assert sum(each.mixes == "images" for each in found if each) == pytest.approx(1000, abs=112)  # 5 standard errors
    assert shares.mean() == pytest.approx(0.5, abs=0.051)
    assert shares.var() == pytest.approx(1 / (4 * 1.2), abs=0.01)  # of Beta(a, a): 1 / (4 (2 a + 1))
    texts_alone = [drawn(LossSettings(mixup=1, mixup_of="texts"), seed=1, step=step) for step in range(9)]
    assert {each.mixes for each in texts_alone if each} == {"texts"}
    assert drawn(LossSettings(), seed=1, step=1) is None


def plain(model: Any, batch: Any, chunk: int, mixup: Mixup, seed: int, step: int) -> torch.Tensor:
    """The mixed loss of the whole batch, a pair and a direction at a time (equations 20 to 24)."""
    count, share, partners = len(batch.keys), mixup.share, mixup.partners(len(batch.keys)).tolist()
    pixels = batch.images.double()
    if mixup.mixes == "images":
        pixels = torch.stack([share * pixels[i] + (1 - share) * pixels[j] for i, j in enumerate(partners)])
    images, texts = [], []
    for start in range(0, count, chunk):
        torch.manual_seed(chunk_seed(seed, step, start))
        rows = slice(start, start + chunk)
        texts_of_chunk = model.text_tower(batch.tokens[rows], batch.mask[rows])
        images.append(model.image_tower(pixels[rows]))
        texts.append(texts_of_chunk)
    seen, read = torch.cat(images), torch.cat(texts)
    if mixup.mixes == "texts":
        read = torch.stack([share * read[i] + (1 - share) * read[j] for i, j in enumerate(partners)])
    seen, read = functional.normalize(seen, dim=1), functional.normalize(read, dim=1)
    logits = seen @ read.T / model.temperature.value()
    total = torch.zeros((), dtype=torch.float64)
    for i, j in enumerate(partners):
        for of_direction in (logits, logits.T):
            log_p = functional.log_softmax(of_direction[i], dim=0)
            total = total - share * log_p[i] - (1 - share) * log_p[j]
    return total / (2 * count)


@pytest.mark.parametrize("mixes", ["images", "texts"])
def test_the_gradient_of_chunks_is_that_of_the_mixed_batch(mixes: Any) -> None:
    batch, mixup = pairs(12), Mixup(mixes, 0.3, 2)
    ours, expected = small_model(group=4), small_model(group=4)
    loss = plain(expected, batch, 4, mixup, 7, 3)
    loss.backward()
    result = accumulation.gradients(towers_of(ours), ours, batch, chunk=4, loss=LOSS, seed=7, step=3, mixup=mixup)
    assert result.loss == pytest.approx(float(loss.detach()), rel=1e-12)
    assert result.drift == 0
    found, wanted = gradients_of(ours), gradients_of(expected)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert (found[name] - gradient).norm() <= 1e-9 * gradient.norm() + 1e-14, name
