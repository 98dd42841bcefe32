"""LAMB over parts of weights that fit into a CPU's cache."""

import numpy as np
import pytest
import torch

from altalign.train.step import optimizers
from altalign.train.step.optimizers import make_optimizer
from tests.train.step.test_optimizers import model_of, rate_of, settings_of


@pytest.mark.parametrize("is_alike", [True, False], ids=["channels last", "channels first"])
def test_parts_that_fit_into_a_cache_step_bit_for_bit_as_the_whole(
    monkeypatch: pytest.MonkeyPatch, *, is_alike: bool
) -> None:
    rng = np.random.default_rng(0)
    shapes = {"weight": (8, 3, 3, 3), "wide": (50, 70), "line": (7,), "scalar": ()}
    values = {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in shapes.items()}
    found = []
    for numbers in (64, 1 << 20):
        monkeypatch.setattr(optimizers, "_NUMBERS_OF_A_CACHE", numbers)
        model = model_of(values).to(memory_format=torch.channels_last)
        optimizer = make_optimizer(model, settings_of(weight_decay=0.1))
        draws = torch.Generator().manual_seed(1)
        for step in range(5):
            for group in optimizer.param_groups:
                group["lr"] = rate_of(step)
            for parameter in model.parameters():
                gradient = torch.randn(parameter.shape, generator=draws)
                parameter.grad = torch.empty_like(parameter).copy_(gradient) if is_alike else gradient
            optimizer.step()
        found.append(model.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert not torch.equal(found[0]["image_tower.wide"], torch.tensor(values["wide"]))
