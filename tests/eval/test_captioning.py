"""The task of captioning, and its metrics against what pycocoevalcap makes of the same captions (golden)."""

import io
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from altalign.errors import UnreadableError, UsageError
from altalign.eval.captioning import bleu_counts, bleu_of, captioning, cider, measured, words_of
from altalign.eval.encoded import Encoder, Features
from altalign.eval.outcomes import intervals
from altalign.eval.sets import ImageSet, captioned_set
from altalign.eval.settings import EvalSets
from tests.support.pictures import encoded

GOLDEN = json.loads((Path(__file__).parents[1] / "cases" / "caption_metrics.json").read_text())
NAMES = list(GOLDEN["written"])


def picture(number: int) -> bytes:
    """A picture whose first pixel is its number."""
    return encoded(Image.new("RGB", (4, 4), (number, 0, 0)))


def decode(data: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(data)) as image:
        return torch.from_numpy(np.array(image))


def nothing(_: object) -> torch.Tensor:
    raise AssertionError("no embedding is asked for")


def features(*, writes: bool = True) -> Features:
    """A model that writes the golden caption of a picture's number."""

    def written(pixels: torch.Tensor, identities: Sequence[str]) -> list[str]:
        assert len(pixels) == len(identities)
        return [GOLDEN["written"][NAMES[int(one[0, 0, 0])]] for one in pixels]

    return Features(Encoder(decode, nothing, nothing, write=written if writes else None), batch=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = [
        {
            "filename": f"{number}.png",
            "split": "test",
            "sentences": [{"raw": one} for one in GOLDEN["references"][name]],
        }
        for number, name in enumerate(NAMES)
    ]
    for number in range(len(NAMES)):
        (tmp_path / f"{number}.png").write_bytes(picture(number))
    (tmp_path / "coco.json").write_text(json.dumps({"images": images}))
    return tmp_path


def coco(folder: Path) -> ImageSet:
    return captioned_set([str(folder / "coco.json")], images=str(folder))


def test_metrics_are_those_of_pycocoevalcap(folder: Path) -> None:
    found = captioning(coco(folder), features())
    assert found.metrics["bleu_4"] == pytest.approx(100 * GOLDEN["bleu_4"], rel=1e-12)
    assert found.metrics["cider"] == pytest.approx(100 * GOLDEN["cider"], rel=1e-12)
    assert found.outcomes["caption"].tolist() == list(GOLDEN["written"].values())
    assert found.facts == {"images": len(NAMES), "references": sum(map(len, GOLDEN["references"].values()))}
    ends = intervals(found.outcomes, measured, resamples=20, seed=0)
    for name, (low, high) in ends.items():
        assert low <= found.metrics[name] <= high


def test_an_image_that_cannot_be_decoded_is_left_out(folder: Path) -> None:
    (folder / "1.png").write_bytes(b"no image")
    found = captioning(coco(folder), features())
    assert found.rows == [row for row in range(len(NAMES)) if row != 1]
    assert [*found.left_out] == ["undecodable"]


def test_a_model_that_writes_no_captions_says_so(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"this model writes no captions; give a training run with a \[captioner\]"):
        captioning(coco(folder), features(writes=False))


def test_a_set_without_captions_is_refused(folder: Path) -> None:
    images = [{"filename": "0.png", "split": "test", "sentences": []}]
    (folder / "coco.json").write_text(json.dumps({"images": images}))
    with pytest.raises(UnreadableError, match="no caption"):
        coco(folder)


def test_the_set_is_of_the_settings() -> None:
    sets = EvalSets.from_values({"set": [{"task": "captioning", "name": "coco", "path": "x"}]}, where="x")
    assert [(each.task, each.metric) for each in sets.set] == [("captioning", "cider")]


# Metrics --------------------------------------------------------------------------------------------------------------


def bleu_4(written: Sequence[list[str]], references: Sequence[list[list[str]]]) -> float:
    sums = Counter[str]()
    for own, others in zip(written, references, strict=True):
        sums.update(bleu_counts(own, others))
    return bleu_of(sums)


@pytest.mark.parametrize(("caption", "words"), GOLDEN["words"])
def test_words_are_those_of_pycocoevalcaps_tokenizer(caption: str, words: str) -> None:
    assert " ".join(words_of(caption)) == words


def test_metrics_of_words_are_those_of_pycocoevalcap() -> None:
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
