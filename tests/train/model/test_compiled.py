"""Towers whose blocks are compiled."""

from contextlib import nullcontext

import pytest
import torch
from torch import _dynamo

from altalign.train.exchange.encoders import by_ranks
from altalign.train.model.dual_encoder import DualEncoder, Temperature
from altalign.train.model.passes import BLOCKS, compile_blocks
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import ImageTowerSettings, TextTowerSettings
from tests.train.small_model import gradients_of, pairs
from tests.train.step.test_accumulation import assert_same, step

TOWERS = {
    "EfficientNet and BERT": (
        {"architecture": "b0", "width": 0.25, "depth": 0.25, "ghost_group": 4},
        {"layers": 2, "width": 16, "heads": 2},
    ),
    "ViT and BART": (
        {"architecture": "vit_ti16", "width": 0.34, "depth": 0.17, "positions_px": 16},
        {"architecture": "bart", "layers": 2, "width": 16, "heads": 2},
    ),
}


def encoder(towers: str) -> DualEncoder:
    image, text = TOWERS[towers]
    of_images = ImageTowerSettings(embedding_width=8, **image)
    temperature = Temperature(0.2, learned=True)
    made = DualEncoder(
        of_images, TextTowerSettings(dropout=0.0, **text), vocabulary=20, tokens_at_most=8, temperature=temperature
    )
    return made.double().train()


def batch(count: int) -> object:
    """Pairs of a ViT's size."""
    made = pairs(count)
    images = made.images.repeat_interleave(2, 2).repeat_interleave(2, 3)
    return type(made)(made.keys, images, made.tokens, made.mask)


@pytest.mark.trained
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo's own looking into tensors
@pytest.mark.parametrize(("towers", "checkpointing"), [("EfficientNet and BERT", False), ("ViT and BART", True)])
def test_compiled_blocks_have_the_same_gradients_and_are_all_compiled(towers: str, *, checkpointing: bool) -> None:
    """In both passes of a step, each block in one graph."""
    _dynamo.reset()
    counted = _dynamo.utils.counters
    counted.clear()
    plain, ours = encoder(towers), encoder(towers)
    if checkpointing:
        ours.checkpoint_activations()
    assert (
        compile_blocks(ours, backend="eager", fullgraph=True)
        == sum(isinstance(one, BLOCKS) for one in plain.modules())
        > 0
    )
    step(plain, batch(8), 4)
    assert step(ours, batch(8), 4).drift == 0
    assert_same(gradients_of(ours), gradients_of(plain))
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer, rtol=1e-9, atol=1e-12)
    assert counted["stats"]["unique_graphs"] > 0
    assert not counted["recompile_limit"]
    graphs = counted["stats"]["unique_graphs"]
    by_ranks(
        Ranks(0, 1, torch.device("cpu")), ours, nullcontext, 5, lambda part: ours.encode_image(batch(5).images[part])
    )
    assert counted["stats"]["unique_graphs"] == graphs  # an evaluation compiles nothing
