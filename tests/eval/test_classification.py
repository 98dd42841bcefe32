from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from altalign.eval import search as module
from altalign.eval.class_names import Classes
from altalign.eval.classification import knn, measured, zero_shot
from altalign.eval.encoded import Features
from altalign.eval.image_sources import UNDECODABLE
from altalign.eval.search import ranks_of_labels
from altalign.eval.sets import LabelledSet
from tests.eval.one_hot import ENCODER, images_of


def slow_rank(scores: Sequence[float], label: int) -> int | None:
    """One more than the other classes whose score is not below the right one's; None: never found."""
    own = scores[label]
    if own != own:
        return None
    return 1 + sum(not score < own for number, score in enumerate(scores) if number != label)


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embeddings of whole numbers (products are exact, ties many), some not a number."""
    images, classes, width = draw(st.integers(1, 12)), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    number = st.sampled_from([-1.0, 0.0, 1.0, 2.0]) | st.sampled_from([-1.0, 0.0, 1.0, float("nan")])
    rows = st.lists(number, min_size=width, max_size=width)
    vectors = torch.tensor(draw(st.lists(rows, min_size=images + classes, max_size=images + classes)))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=images, max_size=images))
    return vectors[:images], vectors[images:], torch.tensor(labels)


@given(cases(), st.sampled_from([1, 20, 1 << 24]))
def test_ranks_and_metrics_are_those_of_a_plain_loop(
    case: tuple[torch.Tensor, torch.Tensor, torch.Tensor], held: int
) -> None:
    images, classes, labels = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SCORES", held)
        ranks = ranks_of_labels(images, classes, labels, torch.arange(len(classes)))
    slow = [
        slow_rank([float(image @ one) for one in classes], label)
        for image, label in zip(images, labels.tolist(), strict=True)
    ]
    assert [rank if rank < 1000 else None for rank in ranks.tolist()] == slow
    found = measured({"rank": ranks.numpy(), "label": labels.numpy()})
    hits = [rank is not None and rank <= 1 for rank in slow]
    assert found["top1"] == pytest.approx(100 * sum(hits) / len(slow))
    assert found["top5"] == pytest.approx(100 * sum(rank is not None and rank <= 5 for rank in slow) / len(slow))
    by_class = [[hit for hit, of in zip(hits, labels.tolist(), strict=True) if of == each] for each in range(9)]
    assert found["mean_per_class"] == pytest.approx(100 * np.mean([np.mean(some) for some in by_class if some]))


def test_classes_are_means_of_templates_and_what_cannot_be_decoded_is_named() -> None:
    images = images_of([b"image1", b"image2", b"broken", b"image3"])
    labels = np.array([0, 1, 1, 0])
    of = LabelledSet(images, labels, Classes(("1", "2")), {"class without images": ["x"]})
    found = zero_shot(of, Features(ENCODER, batch=3), templates=["{} a", "3 {}", "{}"])
    assert found.metrics == {"top1": pytest.approx(200 / 3), "top5": 100, "mean_per_class": 75}  # the last is a tie
    assert found.left_out == {"class without images": ["x"], UNDECODABLE: ["file/2"]}
    assert found.rows == [0, 1, 3]
    assert found.facts == {"images": 3, "classes": 2, "chance_top1": 50}


# Neighbours -----------------------------------------------------------------------------------------------------------


Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@st.composite
def neighbour_cases(draw: st.DrawFn) -> Case:
    queries, index, width = draw(st.integers(1, 8)), draw(st.integers(1, 12)), draw(st.integers(1, 3))
    number = st.sampled_from([-1.0, 0.0, 1.0, 2.0]) | st.sampled_from([-1.0, 0.0, 1.0, float("nan")])
    rows = st.lists(number, min_size=width, max_size=width)
    vectors = torch.tensor(draw(st.lists(rows, min_size=queries + index, max_size=queries + index)))
    labels = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=queries + index, max_size=queries + index)))
    return vectors[:queries], vectors[queries:], labels[:queries], labels[queries:]


@given(neighbour_cases(), st.sampled_from([1, 20, 1 << 24]))
def test_ranks_are_those_of_a_plain_loop(case: Case, held: int) -> None:
    queries, index, labels, others = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SCORES", held)
        found = ranks_of_labels(*case).tolist()
    for query, label, rank in zip(queries, labels.tolist(), found, strict=True):
        scores = [(float(query @ one), of == label) for one, of in zip(index, others.tolist(), strict=True)]
        best = max((score for score, is_own in scores if is_own and score == score), default=None)
        if best is None:
            assert rank > 1000
        else:
            assert rank == 1 + sum(not score < best for score, is_own in scores if not is_own)


def test_the_label_of_a_query_is_looked_for_among_its_nearest_images() -> None:
    names = Classes(("a", "b", "c"))
    index = LabelledSet(images_of([b"image1", b"image2", b"?", b"image2"]), np.array([0, 1, 2, 2]), names, {})
    of = LabelledSet(images_of([b"image1", b"image2", b"image3"]), np.array([0, 1, 2]), names, {})
    found = knn(of, index, Features(ENCODER, batch=2))
    assert found.outcomes["rank"].tolist() == [1, 2, 3]  # a tie of two labels; nothing near, and all alike
    assert found.metrics == {"r1": pytest.approx(100 / 3), "r10": 100}
    assert found.left_out == {f"index: {UNDECODABLE}": ["file/2"]}
    assert found.facts == {"images": 3, "index_images": 3, "classes": 3}
