"""BERT without the states that nobody reads, beside transformers' with all of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from altalign.train.model.blocks import as_a_gpu
from altalign.train.model.text_tower import TextTower
from tests.train.model.test_text_tower import of_transformers, tower
from tests.train.small_towers import captions

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
WAYS: dict[str, Callable[[], AbstractContextManager[None]]] = {"packed": nullcontext, "padded": as_a_gpu}
MASKS = {
    "captions of all lengths": captions(6)[1],
    "no padding": torch.ones(6, 8, dtype=torch.bool),
    "[CLS] alone": torch.arange(8).expand(6, -1) < 1,
}


def shapes_of_states(ours: TextTower, mask: torch.Tensor) -> list[tuple[int, ...]]:
    """Of the states that each layer is given, and of those that the last one gives."""
    shapes = list[tuple[int, ...]]()
    hooks = [
        layer.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
        for layer in ours.bert.encoder.layer
    ]
    shapes.append(tuple(ours(captions(6)[0], mask).shape))
    for hook in hooks:
        hook.remove()
    return shapes


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of", MASKS)
def test_features_and_gradients_are_those_of_transformers(way: str, of: str, dtype: torch.dtype) -> None:
    mask, tokens = MASKS[of], torch.randint(5, 50, (6, 8), generator=torch.Generator().manual_seed(1))
    theirs = of_transformers(add_pooling_layer=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ours = tower(dropout=0.0).to(dtype).train()
    ours.bert.load_state_dict(theirs.to(dtype).train().state_dict())
    expected = theirs(input_ids=tokens, attention_mask=mask.long()).last_hidden_state[:, 0]
    with WAYS[way]():
        found = ours(tokens, mask)
    towards = torch.randn(found.shape, dtype=dtype, generator=torch.Generator().manual_seed(2))
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    found.backward(towards)
    expected.backward(towards)
    gradients = {name: values.grad for name, values in theirs.named_parameters()}
    assert list(gradients) == [name for name, _ in ours.bert.named_parameters()]
    for name, values in ours.bert.named_parameters():
        torch.testing.assert_close(values.grad, gradients[name], rtol=tolerance, atol=10 * tolerance, msg=name)


def test_states_of_padding_are_computed_on_no_cpu_in_training_and_the_last_layer_gives_the_cls() -> None:
    ours, mask = tower(), captions(6)[1]
    assert not mask.all()
    packed, padded = [(int(mask.sum()), 32)] * 2 + [(6, 32)], [(6, 8, 32)] * 2 + [(6, 32)]
    assert shapes_of_states(ours.train(), mask) == packed
    with as_a_gpu():
        assert shapes_of_states(ours, mask) == padded
    assert shapes_of_states(ours.eval(), mask) == padded


@pytest.mark.parametrize("way", WAYS)
def test_attention_drops_out_in_training_alone(way: str) -> None:
    ours, (tokens, mask) = tower(dropout=0.0).train(), captions(6)
    with WAYS[way]():
        assert torch.equal(ours(tokens, mask), ours(tokens, mask))
        for layer in ours.bert.encoder.layer:
            layer.attention.self.dropout.p = 0.5
        assert not torch.equal(ours(tokens, mask), ours(tokens, mask))
        ours.eval()
        assert torch.equal(ours(tokens, mask), ours(tokens, mask))
