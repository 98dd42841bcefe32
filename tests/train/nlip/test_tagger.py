"""Nouns by spaCy's tagger, with a small model that is made here; where spaCy is not installed, it is skipped."""

import sys
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

from altalign.train.nlip import concepts

NOUNS = {"kites": "kite", "kite": "kite", "sea": "sea", "Sea": "sea"}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model under the name of the one that is looked for: it knows three nouns, and a verb."""
    pytest.importorskip("spacy", reason="spaCy is not installed")
    model = import_module("spacy").blank("en")
    rules = model.add_pipe("attribute_ruler")
    for word, lemma in NOUNS.items():
        rules.add([[{"ORTH": word}]], {"POS": "NOUN", "LEMMA": lemma})
    rules.add([[{"ORTH": "fly"}]], {"POS": "VERB", "LEMMA": "fly"})
    rules.add([[{"ORTH": "kite-2"}]], {"POS": "NOUN", "LEMMA": "kite-2"})
    model.to_disk(tmp_path / concepts.TAGGER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    invalidate_caches()


@pytest.mark.usefixtures("installed")
def test_nouns_are_those_that_the_tagger_finds_by_their_lemma() -> None:
    tagged = concepts.tagger()
    assert tagged is not None
    texts = ["kites fly over the Sea", "a kite", "sea sea sea", "fly", ""]
    assert list(tagged(texts)) == [["kite", "sea"], ["kite"], ["sea", "sea", "sea"], [], []]
    assert concepts.of_tagger(tagged, texts, texts_at_least=2) == ["kite", "sea"]
    assert concepts.of_tagger(tagged, texts, texts_at_least=3) == []


def test_without_the_model_there_is_no_tagger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concepts, "TAGGER", "no_model_of_this_name")
    assert concepts.tagger() is None
