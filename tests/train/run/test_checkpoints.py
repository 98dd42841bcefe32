"""Checkpoints: what a reader may touch, and state that goes on as it was."""

from pathlib import Path

import pytest
import torch
from torch import nn

from altalign.train.run import checkpoints
from altalign.train.settings.training import OptimizerSettings
from altalign.train.step.optimizers import make_optimizer


class Model(nn.Module):
    """A convolution in channels-last memory, under the name of a tower."""

    def __init__(self) -> None:
        super().__init__()
        self.image_tower = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)


def saved(folder: Path, step: int, *, name: str = "lamb") -> Path:
    """A checkpoint of a model that took a step."""
    for file in ("config.toml", "tokenizer.json"):
        (folder / file).write_text("")
    model = Model()
    optimizer = make_optimizer(model, OptimizerSettings(name=name))  # type: ignore[arg-type]
    model.image_tower(torch.rand(2, 3, 5, 5)).square().sum().backward()
    optimizer.step()
    checkpoints.save(str(folder), step, checkpoints.Kept.now(model, optimizer), {}, keep=3)
    return checkpoints.folder_of(str(folder), step)


def test_looking_for_the_newest_leaves_what_another_process_is_writing(tmp_path: Path) -> None:
    place = saved(tmp_path, 3)
    partial = place.with_name("step-0000006.partial")
    partial.mkdir()
    assert checkpoints.newest(str(tmp_path)) == place
    assert partial.is_dir()
    checkpoints.sweep(str(tmp_path))
    assert not partial.exists()
    assert checkpoints.newest(str(tmp_path)) == place


@pytest.mark.parametrize("name", ["lamb", "lars", "adamw", "sgd"])
def test_an_optimisers_state_comes_back_in_the_memory_format_of_its_parameters(tmp_path: Path, name: str) -> None:
    place = saved(tmp_path, 1, name=name)
    model = Model()
    optimizer = make_optimizer(model, OptimizerSettings(name=name))  # type: ignore[arg-type]
    checkpoints.load_optimizer(place, optimizer)
    states = [
        value
        for value in optimizer.state[model.image_tower.weight].values()
        if isinstance(value, torch.Tensor) and value.ndim == 4
    ]
    assert states
    assert all(value.stride() == model.image_tower.weight.stride() for value in states)
    assert all(value.abs().sum() > 0 for value in states) or name in ("sgd", "lars")
