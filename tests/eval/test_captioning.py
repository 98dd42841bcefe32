"""The task of captioning: a model that writes captions, by what it writes of each image."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from altalign.errors import UnreadableError, UsageError
from altalign.eval.captioning import captioning, measured
from altalign.eval.encoded import Encoder, Features
from altalign.eval.outcomes import intervals
from altalign.eval.sets import ImageSet, captioned_set
from altalign.eval.settings import EvalSets
from tests.filters.pictures import encoded

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
    first = found.examples[0]
    assert first.found[0] == GOLDEN["written"][NAMES[int(first.query)]]
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
