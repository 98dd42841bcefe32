"""A text tower that starts from a folder of transformers, as BERT is published: weights and vocabulary of one place."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizerFast

from altalign.errors import UnreadableError, UsageError
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


def test_the_tokenizer_is_that_of_the_folder_also_where_it_has_a_vocabulary_alone(
    published: Path, tmp_path: Path
) -> None:
    (tmp_path / "vocab.txt").write_bytes((published / "vocab.txt").read_bytes())
    whole = tokenizer.given(TokenizerSettings(tokens_at_most=25), str(published))
    plain = tokenizer.given(TokenizerSettings(file=str(tmp_path), tokens_at_most=25))
    assert whole is not None
    assert plain is not None
    captions = [*CAPTIONS, "Kités  [MASK] over\tTHE seas"]
    assert plain.encode(captions) == whole.encode(captions)
    assert tokenizer.given(TokenizerSettings(), str(published / "model.safetensors")) is None
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    cased = tokenizer.given(TokenizerSettings(file=str(tmp_path)))
    assert cased is not None
    assert cased.pieces("Kite kite") == ["[CLS]", "[UNK]", "kite", "[SEP]"]


def test_a_vocabulary_without_special_tokens_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\nkite", encoding="utf-8")
    with pytest.raises(UnreadableError, match=r"vocab\.txt: no vocabulary of BERT, without \[UNK\], \[CLS\]"):
        tokenizer.given(TokenizerSettings(file=str(tmp_path)))


def test_a_vocabulary_of_another_size_is_named(published: Path) -> None:
    settings = TextTowerSettings(layers=2, width=32, heads=4, weights=str(published))
    with pytest.raises(UsageError, match=r"of another shape: embeddings\.word_embeddings\.weight 11x32 for 12x32"):
        TextTower(settings, vocabulary=12, positions=25)
