"""Towers that begin as those of a finished run: its layer after the tower comes along, and its tokenizer."""

from typing import Any

import pytest
import torch

from altalign.errors import UsageError
from altalign.train.data import tokenizer
from altalign.train.exchange import encoders
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.settings.training import TokenizerSettings
from tests.support.trained_folders import write_trained
from tests.train.small_towers import captions, image_settings, images, text_settings

IMAGE = {"architecture": "b0", "width": 0.5, "depth": 0.3, "padding": "keras", "embedding_width": 16}
TEXT = {"layers": 2, "width": 32, "heads": 2}
LIGHTER = {"layers": 1, "width": 16, "heads": 2}
LAYER = r"^\[image_tower\] weights, the layer after the tower: run:.*: not this tower's weights"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_trained(tmp_path_factory.mktemp("run") / "trained", image_tower={"embedding_width": 16})


def model(vocabulary: int, *, image: dict[str, Any], text: dict[str, Any]) -> DualEncoder:
    return DualEncoder(image_settings(**image), text_settings(**text), vocabulary=vocabulary, tokens_at_most=12)


def test_a_frozen_tower_and_its_layer_stay_and_the_other_learns(run: str) -> None:
    theirs = encoders.trained(run).model
    ours = model(50, image={**IMAGE, "weights": f"run:{run}", "frozen": True}, text=LIGHTER).train()
    pixels, words = images(4, 33), captions(4)
    torch.testing.assert_close(ours.encode_image(pixels), theirs.encode_image(pixels))
    (ours.encode_image(pixels) * ours.encode_text(*words)).sum().backward()
    learned = {name.partition(".")[0] for name, values in ours.named_parameters() if values.grad is not None}
    assert learned == {"text_tower", "text_projection"}


def test_both_towers_of_a_run_are_its_model(run: str) -> None:
    of = encoders.trained(run)
    words = tokenizer.given(TokenizerSettings(tokens_at_most=12), f"run:{run}")
    assert words is not None
    assert words.digest == of.tokenizer.digest
    weights = {"weights": f"run:{run}"}
    ours = model(words.vocabulary, image={**IMAGE, **weights}, text={**TEXT, **weights}).eval()
    tokens, mask = captions(4)
    tokens %= words.vocabulary
    torch.testing.assert_close(ours.encode_text(tokens, mask), of.model.encode_text(tokens, mask))
    assert all(values.requires_grad for values in ours.parameters())


@pytest.mark.parametrize(
    ("image", "line"),
    [
        ({"weights": "run:nowhere"}, r"^\[image_tower\] weights: nowhere: no checkpoint \(there: none\); train first"),
        ({"embedding_width": 24}, rf"{LAYER} \(of another shape: weight 16x160 for 24x160, bias 16 for 24\); give"),
        ({"embedding_width": 0}, rf"{LAYER} \(unexpected: bias, weight\)"),
        ({"depth": 0.1}, r"^\[image_tower\] weights: run:.*: not this tower's weights"),
    ],
)
def test_a_run_that_does_not_fit_is_one_line(run: str, image: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line) as caught:
        model(50, image={**IMAGE, "weights": f"run:{run}", **image}, text=LIGHTER)
    assert "\n" not in str(caught.value)
