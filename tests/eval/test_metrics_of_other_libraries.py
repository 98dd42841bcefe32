"""On the same embeddings our metrics equal those of CLIP_benchmark's and open_clip's own code."""

import importlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from torch.nn import functional

from altalign.eval import classification, retrieval
from altalign.eval.class_names import Classes
from altalign.eval.encoded import Encoder, Features
from altalign.eval.outcomes import Result
from altalign.eval.sets import LabelledSet
from tests.eval.one_hot import images_of

CLIP_BENCHMARK = Path(__file__).parents[2] / ".cache" / "clip-benchmark"
IMAGES, CLASSES, WIDTH = 200, 24, 16
TEMPLATES = ["a photo of a {}.", "{}", "many {} in a row"]
NAMES = [f"class {number}" for number in range(CLASSES)]


@pytest.fixture
def clip_benchmark(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its package, which `make test-readers` brings without what it depends on."""
    if not CLIP_BENCHMARK.is_dir():
        pytest.skip("no clip-benchmark here: `make test-readers`")
    for name, value in (("KMP_DUPLICATE_LIB_OK", "True"), ("KMP_INIT_AT_FORK", "FALSE")):
        monkeypatch.setenv(name, value)  # as scikit-learn sets them when it is imported
    monkeypatch.syspath_prepend(CLIP_BENCHMARK)
    return CLIP_BENCHMARK


class Model:
    """Embeddings are random functions of the input; texts and images of one class are near each other."""

    def __init__(self) -> None:
        self.images = functional.normalize(torch.randn(IMAGES, WIDTH), dim=1)
        self.labels = torch.randint(0, CLASSES, (IMAGES,))
        self.images += 0.12 * self._of_text("class", self.labels.tolist())

    def encode_image(self, pixels: torch.Tensor, *, normalize: bool = False) -> torch.Tensor:
        found = self.images[pixels.reshape(-1).long()]
        return functional.normalize(found, dim=1) if normalize else found

    def encode_text(self, texts: Sequence[str], *, normalize: bool = False) -> torch.Tensor:
        found = torch.stack([self._of_words(text) for text in texts])
        return functional.normalize(found, dim=1) if normalize else found

    def _of_text(self, word: str, numbers: list[int]) -> torch.Tensor:
        return torch.stack([self._of_words(f"{word} {number}") for number in numbers])

    @staticmethod
    def _of_words(text: str) -> torch.Tensor:
        """Sums of a random vector of each word and its neighbour."""
        words = [word.strip(".") for word in text.split()]
        seeds = [crc32(" ".join(two).encode()) for two in pairwise(words)]
        vectors = [torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return torch.stack(vectors).sum(0)


class Words(list[str]):
    """What a tokenizer gives here: the texts."""

    def to(self, _: Any) -> "Words":
        return self


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


def ours(model: Model) -> Result:
    """Our result of classifying the model's images."""
    encoder = Encoder(
        lambda data: torch.tensor([int(data)]),
        lambda pixels: model.encode_image(pixels, normalize=True),
        lambda texts: model.encode_text(texts, normalize=True),
    )
    images = images_of([b"%d" % number for number in range(IMAGES)])
    of = LabelledSet(images, model.labels.numpy(), Classes(tuple(NAMES)), {})
    return classification.zero_shot(of, Features(encoder, batch=50), templates=TEMPLATES)


def accuracy(logits: torch.Tensor, labels: torch.Tensor, topk: Sequence[int]) -> list[float]:
    """As both libraries have it: theirs makes a number of an array of one element, which NumPy 2.4 refuses."""
    right = logits.topk(max(topk), 1, largest=True, sorted=True)[1] == labels[:, None]
    return [right[:, :k].any(1).double().mean().item() for k in topk]


def test_zero_shot_classification_is_that_of_clip_benchmark(
    clip_benchmark: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = importlib.import_module("clip_benchmark.metrics.zeroshot_classification")
    numbers = torch.arange(IMAGES)

    class Loader(list[Any]):
        class dataset:  # noqa: N801 - theirs
            classes = NAMES

    batches = Loader((numbers[first : first + 64], model.labels[first : first + 64]) for first in range(0, IMAGES, 64))
    templates = [each.replace("{}", "{c}") for each in TEMPLATES]
    monkeypatch.setattr(theirs, "accuracy", accuracy)
    expected = theirs.evaluate(model, batches, Words, NAMES, templates, "cpu", amp=False)
    found = ours(model).metrics
    assert found["top1"] == pytest.approx(100 * expected["acc1"], abs=1e-6)
    assert found["top5"] == pytest.approx(100 * expected["acc5"], abs=1e-6)
    assert found["mean_per_class"] == pytest.approx(100 * expected["mean_per_class_recall"], abs=1e-6)
    assert 5 < found["top1"] < 95


def test_zero_shot_classification_is_that_of_open_clip(model: Model) -> None:
    open_clip = pytest.importorskip("open_clip", reason="no open_clip here: `make test-readers`")
    classes = open_clip.build_zero_shot_classifier(model, Words, NAMES, TEMPLATES)
    logits = 100.0 * model.encode_image(torch.arange(IMAGES), normalize=True) @ classes
    top1, top5 = accuracy(logits, model.labels, topk=(1, 5))
    found = ours(model).metrics
    assert found["top1"] == pytest.approx(100 * top1, abs=1e-6)
    assert found["top5"] == pytest.approx(100 * top5, abs=1e-6)


def pairs(captions: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embeddings of images and of so many captions of each, and the image of each caption."""
    torch.manual_seed(1)
    owner = torch.repeat_interleave(torch.tensor(captions))
    images = functional.normalize(torch.randn(len(captions), WIDTH), dim=1)
    texts = functional.normalize(images[owner] + 0.5 * torch.randn(len(owner), WIDTH), dim=1)
    return images, texts, owner


def test_retrieval_is_that_of_clip_benchmark(clip_benchmark: Path) -> None:
    theirs = importlib.import_module("clip_benchmark.metrics.zeroshot_retrieval")
    captions = (np.arange(IMAGES) % 5 + 1).tolist()
    images, texts, owner = pairs(captions)
    found = retrieval.measured(retrieval.outcomes_of(images, texts, owner))

    class Encoders:
        def encode_image(self, numbers: torch.Tensor) -> torch.Tensor:
            return images[numbers]

        def encode_text(self, numbers: torch.Tensor) -> torch.Tensor:
            return texts[numbers]

    own = [(owner == number).nonzero()[:, 0].tolist() for number in range(IMAGES)]
    batches = [(torch.arange(first, first + 50), own[first : first + 50]) for first in range(0, IMAGES, 50)]
    expected = theirs.evaluate(Encoders(), batches, torch.tensor, "cpu", amp=False, recall_k_list=[1, 5, 10])
    for k in (1, 5, 10):
        assert found[f"text_to_image_r{k}"] == pytest.approx(100 * expected[f"image_retrieval_recall@{k}"], abs=1e-5)
        assert found[f"image_to_text_r{k}"] == pytest.approx(100 * expected[f"text_retrieval_recall@{k}"], abs=1e-5)
    assert 5 < found["text_to_image_r1"] < 95


def test_retrieval_is_that_of_open_clip_where_an_image_has_one_caption() -> None:
    pytest.importorskip("open_clip", reason="no open_clip here: `make test-readers`")
    theirs = importlib.import_module("open_clip_train.train").get_clip_metrics
    images, texts, owner = pairs([1] * IMAGES)
    found = retrieval.measured(retrieval.outcomes_of(images, texts, owner))
    expected = theirs(images, texts, 100.0)
    for direction in ("image_to_text", "text_to_image"):
        for k in (1, 5, 10):
            assert found[f"{direction}_r{k}"] == pytest.approx(100 * expected[f"{direction}_R@{k}"], abs=1e-6)
