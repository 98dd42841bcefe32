"""A text tower that starts from a folder of transformers, as BERT is published: weights and vocabulary of one place."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizerFast

from altalign.errors import UsageError
from altalign.train.data import tokenizer
from altalign.train.model.text_tower import TextTower
from altalign.train.settings.training import TextTowerSettings, TokenizerSettings

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "kite", "sea", "##s", "over", "the"]
CAPTIONS = ["Red kites over the sea", "the kite"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=40,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def test_the_cls_is_that_of_the_published_model(published: Path) -> None:
    words = tokenizer.read(str(published / "tokenizer.json"), tokens_at_most=25)
    settings = TextTowerSettings(layers=2, width=32, heads=4, weights=str(published))
    tower = TextTower(settings, vocabulary=words.vocabulary, positions=25).eval()
    theirs = BertModel.from_pretrained(published, add_pooling_layer=False).eval()
    of_theirs = Tokenizer.from_file(str(published / "tokenizer.json"))
    for caption, ids in zip(CAPTIONS, words.encode(CAPTIONS), strict=True):
        assert ids == of_theirs.encode(caption).ids
        tokens = torch.tensor([ids])
        with torch.no_grad():
            expected = theirs(input_ids=tokens).last_hidden_state[:, 0]
            torch.testing.assert_close(tower(tokens, torch.ones_like(tokens, dtype=torch.bool)), expected)


def test_the_tokenizer_is_that_of_the_folder(published: Path, tmp_path: Path) -> None:
    words = tokenizer.given(TokenizerSettings(tokens_at_most=25), str(published))
    assert words is not None
    theirs = Tokenizer.from_file(str(published / "tokenizer.json"))
    assert words.encode(CAPTIONS) == [theirs.encode(caption).ids for caption in CAPTIONS]
    assert tokenizer.given(TokenizerSettings(), str(published / "model.safetensors")) is None
    with pytest.raises(UsageError, match=r"tokenizer\.json: no such tokenizer"):
        tokenizer.given(TokenizerSettings(), str(tmp_path))


def test_a_vocabulary_of_another_size_is_named(published: Path) -> None:
    settings = TextTowerSettings(layers=2, width=32, heads=4, weights=str(published))
    with pytest.raises(UsageError, match=r"of another shape: embeddings\.word_embeddings\.weight 11x32 for 12x32"):
        TextTower(settings, vocabulary=12, positions=25)
