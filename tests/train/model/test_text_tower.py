from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

from altalign.errors import UsageError
from altalign.train.model.text_tower import TextTower
from altalign.train.settings.training import TextTowerSettings
from tests.train.small_towers import TOKENS_AT_MOST, VOCABULARY, captions, text_settings


def tower(**settings: object) -> TextTower:
    torch.manual_seed(0)
    return TextTower(text_settings(**settings), vocabulary=VOCABULARY, positions=TOKENS_AT_MOST)


def of_transformers(*, add_pooling_layer: bool = True, **settings: object) -> BertModel:
    """BERT of the same size, spelled out, with settings of its config."""
    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 16,
    }
    config = BertConfig(**sizes, **settings, attn_implementation="eager")  # type: ignore[arg-type]
    return BertModel(config, add_pooling_layer=add_pooling_layer)


@pytest.mark.parametrize(
    ("layers", "width", "heads", "published"),
    # with the pooler
    [(4, 256, 4, 11_170_560), (8, 512, 8, 41_373_184), (12, 768, 12, 109_482_240), (24, 1024, 16, 335_141_888)],
)
def test_parameters(layers: int, width: int, heads: int, published: int) -> None:
    with torch.device("meta"):
        built = TextTower(TextTowerSettings(layers=layers, width=width, heads=heads), vocabulary=30_522, positions=512)
    assert sum(values.numel() for values in built.parameters()) == published - width * (width + 1)


@torch.no_grad()
def test_features_are_the_cls_of_the_last_layer() -> None:
    theirs = of_transformers().eval()
    ours = tower().eval()
    ours.bert.load_state_dict(
        {name: values for name, values in theirs.state_dict().items() if not name.startswith("pooler.")}
    )
    tokens, mask = captions(6)
    expected = theirs(input_ids=tokens, attention_mask=mask.long()).last_hidden_state[:, 0]
    torch.testing.assert_close(ours(tokens, mask), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_padding_changes_nothing() -> None:
    ours = tower().double().eval()
    tokens, mask = captions(6)
    longer = torch.zeros(6, TOKENS_AT_MOST, dtype=torch.int64)
    longer[:, :8] = tokens
    padded = torch.zeros(6, TOKENS_AT_MOST, dtype=torch.bool)
    padded[:, :8] = mask
    expected = ours(tokens, mask)
    torch.testing.assert_close(ours(longer, padded), expected)
    noise = torch.where(padded, longer, 7)
    torch.testing.assert_close(ours(noise, padded), expected)
    alone = [
        ours(tokens[row : row + 1, : int(mask[row].sum())], mask[row : row + 1, : int(mask[row].sum())])
        for row in range(6)
    ]
    torch.testing.assert_close(torch.cat(alone), expected)


@torch.no_grad()
def test_every_token_of_a_caption_counts() -> None:
    ours, mask = tower().double().eval(), torch.ones(1, 6, dtype=torch.bool)
    tokens = torch.tensor([[1, 10, 11, 12, 13, 2]])
    features = ours(tokens, mask)
    for position in range(6):
        other = tokens.clone()
        other[0, position] = 20
        assert (ours(other, mask) - features).abs().max() > 1e-6


def test_weights_start_as_berts() -> None:
    embeddings = tower(width=128).bert.embeddings
    assert embeddings.word_embeddings.weight.detach().std() == pytest.approx(0.02, rel=0.05)
    assert not embeddings.word_embeddings.weight[0].any()  # [PAD]
    assert tower(width=128).bert.encoder.layer[0].intermediate.dense.weight.detach().std() == pytest.approx(
        0.02, rel=0.05
    )


def test_dropout_is_of_training_alone() -> None:
    ours, (tokens, mask) = tower(dropout=0.5), captions(4)
    assert not torch.equal(ours(tokens, mask), ours(tokens, mask))
    ours.eval()
    assert torch.equal(ours(tokens, mask), ours(tokens, mask))


def test_activation_checkpointing_changes_nothing_but_memory() -> None:
    (tokens, mask), found = captions(4), []
    for checkpointed in (False, True):
        ours = tower().double().train()
        ours.set_grad_checkpointing(checkpointed)
        torch.manual_seed(1)
        ours(tokens, mask).sin().sum().backward()
        found.append([values.grad for values in ours.parameters()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_tower_compiles_into_one_graph() -> None:
    ours, (tokens, mask) = tower(layers=1).double().eval(), captions(4)
    torch.testing.assert_close(torch.compile(ours, backend="eager", fullgraph=True)(tokens, mask), ours(tokens, mask))


def test_weights_come_from_a_file_of_ours_or_of_transformers(tmp_path: Path) -> None:
    theirs, path, (tokens, mask) = of_transformers().eval(), str(tmp_path / "bert.safetensors"), captions(4)
    state = theirs.state_dict()
    expected = theirs(input_ids=tokens, attention_mask=mask.long()).last_hidden_state[:, 0]
    bert = {f"bert.{name}": values for name, values in state.items()}
    whole = {f"text_tower.{name}": values for name, values in bert.items()}
    for tensors in (
        state,
        {**bert, "cls.predictions.bias": torch.zeros(1)},
        {**whole, "temperature.logarithm": torch.zeros(())},
    ):
        save_file(tensors, path)
        torch.testing.assert_close(tower(weights=path).eval()(tokens, mask), expected, rtol=1e-5, atol=1e-5)


def test_weights_of_another_vocabulary_are_one_line(tmp_path: Path) -> None:
    path = str(tmp_path / "bert.safetensors")
    state = of_transformers(add_pooling_layer=False).state_dict()
    save_file({**state, "embeddings.word_embeddings.weight": torch.zeros(60, 32)}, path)
    with pytest.raises(UsageError) as caught:
        tower(weights=path)
    assert str(caught.value) == (
        f"[text_tower] weights: {path}: not this tower's weights (of another shape: embeddings.word_embeddings.weight "
        "60x32 for 50x32); "
        "give a file of the same architecture, or change the settings"
    )
