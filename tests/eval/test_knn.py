import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from altalign.eval import knn as module
from altalign.eval.class_names import Classes
from altalign.eval.encoded import Features
from altalign.eval.image_sources import UNDECODABLE
from altalign.eval.knn import knn, neighbours
from altalign.eval.sets import LabelledSet
from tests.eval.one_hot import ENCODER, images_of

Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    queries, index, width = draw(st.integers(1, 8)), draw(st.integers(1, 12)), draw(st.integers(1, 3))
    number = st.sampled_from([-1.0, 0.0, 1.0, 2.0]) | st.sampled_from([-1.0, 0.0, 1.0, float("nan")])
    rows = st.lists(number, min_size=width, max_size=width)
    vectors = torch.tensor(draw(st.lists(rows, min_size=queries + index, max_size=queries + index)))
    labels = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=queries + index, max_size=queries + index)))
    return vectors[:queries], vectors[queries:], labels[:queries], labels[queries:]


@given(cases(), st.sampled_from([1, 20, 1 << 24]))
def test_ranks_are_those_of_a_plain_loop(case: Case, held: int) -> None:
    queries, index, labels, others = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SCORES", held)
        found = neighbours(*case).tolist()
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
