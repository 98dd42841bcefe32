"""Groups of layers: which are frozen, and how rates fall from layer to layer."""

from typing import Any

import pytest
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

from altalign.errors import UsageError
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.settings.training import ImageTowerSettings, OptimizerSettings, TextTowerSettings
from altalign.train.step.optimizers import make_optimizer

VIT = {"architecture": "vit_ti16", "depth": 0.25, "width": 0.34, "positions_px": 32}  # three blocks of a head
B0 = {"architecture": "b0", "width": 0.25, "depth": 0.25}  # seven
SMALL = {"layers": 2, "width": 16, "heads": 2}


def model(image: dict[str, Any], text: dict[str, Any]) -> DualEncoder:
    of_image, of_text = ImageTowerSettings(**image), TextTowerSettings(**{**SMALL, **text})
    return DualEncoder(of_image, of_text, vocabulary=20, tokens_at_most=8)


def learns(tower: nn.Module) -> set[str]:
    """First parts of the names of what learns, with the number of a layer."""
    names = (name.split(".") for name, one in tower.named_parameters() if one.requires_grad)
    return {".".join(part for part in name[:4] if part.isdigit() or part == name[0]) for name in names}


def test_frozen_groups_are_the_embeddings_and_the_first_layers() -> None:
    of = model({**VIT, "frozen_groups": 3}, {"frozen_groups": 2})
    assert learns(of.image_tower) == {"blocks.2", "norm"}
    assert learns(of.text_tower) == {"bert.1"}
    bart = model(VIT, {"architecture": "bart", "frozen_groups": 1})
    assert learns(bart.text_tower) == {"bart.0", "bart.1"}
    assert learns(bart.image_tower) == {
        "cls_token",
        "pos_embed",
        "patch_embed",
        "blocks.0",
        "blocks.1",
        "blocks.2",
        "norm",
    }


def test_frozen_groups_keep_their_statistics_and_drop_nothing_while_the_others_learn() -> None:
    of = model({**B0, "frozen_groups": 2}, {"frozen_groups": 1, "dropout": 0.5})
    assert learns(of.image_tower) == {f"blocks.{stage}.0" for stage in range(1, 7)}
    before = {name: value.clone() for name, value in of.state_dict().items()}
    of.train()
    images = torch.randint(256, (16, 3, 32, 32), dtype=torch.uint8)
    embedded = of.text_tower.get_submodule("bert.embeddings")
    assert not embedded.training
    for part in of(images, torch.ones(16, 4, dtype=torch.int64), torch.ones(16, 4, dtype=torch.bool)):
        part.sum().backward()
    make_optimizer(of, OptimizerSettings(name="sgd")).step()
    tower = of.image_tower.eval().state_dict()
    frozen = [name for name in tower if name.startswith(("conv_stem", "bn1", "blocks.0."))]
    assert any(name.endswith("running_mean") for name in frozen)
    assert all(torch.equal(tower[name], before[f"image_tower.{name}"]) for name in frozen)


@pytest.mark.parametrize(("tower", "groups"), [("image", 5), ("text", 4)])
def test_more_groups_than_there_are_is_one_line(tower: str, groups: int) -> None:
    image, text = ({"frozen_groups": groups} if tower == each else {} for each in ("image", "text"))
    why = rf"\[{tower}_tower\] frozen_groups = {groups}: the tower has {groups - 1}: what is before its layers, and"
    with pytest.raises(UsageError, match=why):
        model({**VIT, **image}, text)


def test_rates_by_layer_are_timms() -> None:
    of = model(VIT, {})
    settings = OptimizerSettings(name="adamw", layer_decay={"image_tower": 0.5}, rate_factors={"image_tower": 0.1})
    ours = {
        name: group["factor"]
        for group in make_optimizer(of, settings).param_groups
        for name in group["param_names"]
        if group["part"] == "image_tower"
    }
    names = {id(one): name for name, one in of.named_parameters()}
    theirs = {
        names[id(one)]: 0.1 * 0.5 * group["lr_scale"]  # of a model with a head, which has the whole rate
        for group in param_groups_layer_decay(of.image_tower, layer_decay=0.5)
        for one in group["params"]
    }
    norm = {f"image_tower.norm.{name}": 0.1 for name in ("weight", "bias")}  # as in BEiT; timm's is of the last block
    assert ours == pytest.approx({**theirs, **norm})


def test_rates_by_layer_of_a_text_tower() -> None:
    settings = OptimizerSettings(layer_decay={"text_tower": 0.5})
    factors = {
        name: group["factor"]
        for group in make_optimizer(model(VIT, {}), settings).param_groups
        for name in group["param_names"]
    }
    assert factors["text_tower.bert.embeddings.word_embeddings.weight"] == 0.125
    assert factors["text_tower.bert.encoder.layer.0.output.dense.weight"] == 0.25
    assert factors["text_tower.bert.encoder.layer.1.output.dense.weight"] == 0.5
    assert factors["text_projection.weight"] == factors["image_tower.patch_embed.proj.weight"] == 1.0
