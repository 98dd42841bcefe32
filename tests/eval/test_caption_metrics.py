"""BLEU-4 and CIDEr against what pycocoevalcap makes of the same captions (golden), and cases by hand."""

import json
import math
from pathlib import Path

import pytest

from altalign.eval.caption_metrics import bleu_4, cider, words_of

GOLDEN = json.loads((Path(__file__).parents[1] / "cases" / "caption_metrics.json").read_text())


@pytest.mark.parametrize(("caption", "words"), GOLDEN["words"])
def test_words_are_those_of_pycocoevalcaps_tokenizer(caption: str, words: str) -> None:
    assert " ".join(words_of(caption)) == words


def test_metrics_are_those_of_pycocoevalcap() -> None:
    own = [words_of(caption) for caption in GOLDEN["written"].values()]
    others = [[words_of(caption) for caption in GOLDEN["references"][name]] for name in GOLDEN["written"]]
    assert bleu_4(own, others) == pytest.approx(GOLDEN["bleu_4"], rel=1e-12)
    assert cider(own, others) == pytest.approx(GOLDEN["ciders"], rel=1e-12)
    assert sum(GOLDEN["ciders"]) / len(own) == pytest.approx(GOLDEN["cider"], rel=1e-12)


def test_the_reference_itself_has_all_and_a_short_half_is_penalised() -> None:
    reference = ["a", "red", "ring", "above", "a", "blue", "cross"]
    assert bleu_4([reference], [[reference]]) == pytest.approx(1)
    half = reference[:5]  # all its n-grams are right
    assert bleu_4([half], [[reference]]) == pytest.approx(math.exp(1 - 7 / 5))
    assert bleu_4([["no", "word", "of", "it", "at", "all"]], [[reference]]) < 1e-3


def test_an_empty_caption_scores_nothing() -> None:
    others = [[["a", "cat", "sits", "here"]], [["a", "dog", "runs", "fast"]]]
    found = cider([[], ["a", "dog", "runs", "fast"]], others)
    assert found[0] == 0
    assert 0 < found[1] <= 10
    assert (
        bleu_4([[], ["a", "dog", "runs", "fast"]], others) < bleu_4([["a"], ["a", "dog", "runs", "fast"]], others) < 1
    )
