"""Text tower and captioner that start from a folder of transformers, as BART is published: weights and tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BartForConditionalGeneration, RobertaTokenizer

from altalign.errors import UsageError
from altalign.train.data import tokenizer
from altalign.train.data.batches import padded
from altalign.train.data.tokenizer import OF_BART, CaptionTokenizer
from altalign.train.data.training_data import prepared
from altalign.train.model.text_tower import BartTower, Captioner
from altalign.train.run.ranks import Ranks
from altalign.train.settings.nlip import CaptionerSettings
from altalign.train.settings.training import TextTowerSettings, TokenizerSettings, TrainConfig
from tests.support.run_folders import pairs, write_run
from tests.train.bart_folder import write_bart

CAPTIONS = ["Red kites over the sea", "the kite", "Kités, <mask> over  THE seas \U0001f642", "a red kite & 3 blue seas"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bart(tmp_path_factory.mktemp("bart"), CAPTIONS)


def text(folder: Path, **changed: Any) -> TextTowerSettings:
    values = {"architecture": "bart", "layers": 2, "width": 32, "heads": 4, "weights": str(folder)}
    return TextTowerSettings.model_validate({**values, **changed})


def words_of(folder: Path) -> CaptionTokenizer:
    found = tokenizer.given(TokenizerSettings(tokens_at_most=25), str(folder))
    assert found is not None
    return found


def test_the_tokens_are_those_of_transformers(published: Path) -> None:
    words = words_of(published)
    theirs = RobertaTokenizer.from_pretrained(str(published))
    plain = [caption for caption in CAPTIONS if "<mask>" not in caption]  # a caption's own <mask> is text here
    assert words.encode(plain) == [theirs(caption)["input_ids"] for caption in plain]
    assert words.vocabulary == len(theirs)
    assert [words.number(piece) for piece in OF_BART] == theirs.convert_tokens_to_ids(list(OF_BART))
    assert words.number("<mask>") not in words.encode(CAPTIONS)[2]
    assert [words.shown(ids) for ids in words.encode(CAPTIONS)] == CAPTIONS
    assert (
        words.framed([piece for word in words.encode_words(plain[:1])[0] for piece in word]) == words.encode(plain)[0]
    )
    assert {"kite", "over"} <= set(words.words())
    assert all(words.pieces(f"x {word}")[-2] == f"\u0120{word}" for word in words.words() if word.isalpha())


def test_states_and_logits_are_those_of_transformers(published: Path) -> None:
    words = words_of(published)
    tower = BartTower(text(published), vocabulary=words.vocabulary, positions=25).eval()
    settings = CaptionerSettings(weight=1.0, layers=2, weights=str(published))
    captioner = Captioner(settings, text(published), vocabulary=words.vocabulary, positions=25, image_width=8).eval()
    theirs = BartForConditionalGeneration.from_pretrained(published).eval()
    tokens, mask = padded(words.encode(CAPTIONS), 25)
    said, is_said = padded(words.encode(CAPTIONS[::-1]), 25)
    with torch.no_grad():
        states = tower.states(tokens, mask)
        own = captioner.logits(tower.words, captioner.states(tower.words, said, states, mask))
        found = theirs(
            input_ids=tokens.where(mask, words.number("<pad>")), attention_mask=mask.long(), decoder_input_ids=said
        )
    assert not mask.all()
    torch.testing.assert_close(states[mask], found.encoder_last_hidden_state[mask], rtol=0, atol=1e-5)
    torch.testing.assert_close(own[is_said], found.logits[is_said], rtol=0, atol=1e-5)
    assert found.logits.std() > 0.1  # all zeros would be equal too


def test_the_first_token_is_learned_although_its_number_is_0(published: Path) -> None:
    words = words_of(published)
    assert words.number("<s>") == 0
    tower = BartTower(text(published), vocabulary=words.vocabulary, positions=25).eval()
    tower(*padded(words.encode(CAPTIONS), 25)).square().sum().backward()
    gradient = tower.bart.embed_tokens.weight.grad
    assert gradient is not None
    assert gradient[0].abs().sum() > 0
    assert gradient[words.number("<pad>")].abs().sum() == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"heads": 2}, r"its config\.json has encoder_attention_heads = 4, where 2 is computed"),
        ({"width": 16}, r"of another shape: "),
        ({"layers": 3}, r"missing: layers\.2\."),
    ],
)
def test_settings_of_another_size_are_named(published: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        BartTower(text(published, **changed), vocabulary=words_of(published).vocabulary, positions=25)


@pytest.mark.parametrize(
    ("name", "value"), [("scale_embedding", True), ("model_type", "mbart"), ("activation_function", "relu")]
)
def test_another_model_of_the_same_shapes_is_named(published: Path, tmp_path: Path, name: str, value: object) -> None:
    facts = json.loads((published / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**facts, name: value}))
    with pytest.raises(UsageError, match=rf"\[captioner\] weights: .*: its config\.json has {name} = "):
        Captioner(
            CaptionerSettings(weight=1.0, layers=2, weights=str(tmp_path)),
            text(tmp_path), vocabulary=9, positions=9, image_width=8,
        )  # fmt: skip


def test_a_tower_of_bert_does_not_take_pieces_of_bytes(published: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "curated", pairs(4))
    values = {
        "run": {"folder": str(tmp_path / "run")},
        "data": {"runs": [str(tmp_path / "curated")]},
        "tokenizer": {"file": str(published)},
        "loop": {"global_batch": 2, "device": "cpu"},
    }
    with pytest.raises(UsageError, match=r'pieces of bytes, .* architecture = "bert"; give "bart"'):
        prepared(TrainConfig.from_values(values, where="x"), Ranks(0, 1, torch.device("cpu")), say=lambda _: None)
