import json
import math
from pathlib import Path

import pytest
import torch

from altalign.errors import UnreadableError
from altalign.eval.composed import Query, composed, measured, queries_of, read_queries, search
from altalign.eval.encoded import Features
from altalign.eval.image_sources import UNDECODABLE
from tests.eval.one_hot import ENCODER, images_of


def slow_query(image: list[float], text: list[float], sign: int) -> list[float]:
    def at_length_1(vector: list[float]) -> list[float]:
        return [x / math.sqrt(sum(y * y for y in vector)) for x in vector]

    return at_length_1([a + 2 * sign * b for a, b in zip(at_length_1(image), at_length_1(text), strict=True)])


def test_queries_are_those_of_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = torch.randn(4, 3, generator=generator), torch.randn(4, 3, generator=generator)
    signs = [1, -1, -1, 1]
    queries = queries_of(images, texts, torch.tensor(signs))
    expected = [slow_query(*each) for each in zip(images.tolist(), texts.tolist(), signs, strict=True)]
    torch.testing.assert_close(queries, torch.tensor(expected))


def test_the_text_weighs_twice_the_image() -> None:
    found = queries_of(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 9.0]]), torch.tensor([1]))
    torch.testing.assert_close(found, torch.tensor([[1.0, 2.0]]) / math.sqrt(5))


def test_ranks_are_those_of_a_plain_loop_without_the_query_itself() -> None:
    generator = torch.Generator().manual_seed(1)
    candidates = torch.nn.functional.normalize(torch.randn(9, 4, generator=generator), dim=1)
    candidates[5] = candidates[2]  # a tie, which is against the model
    own, targets = torch.tensor([3, 0, 8, 1]), torch.tensor([5, 4, -1, 2])
    ranks = search(candidates[own], candidates, own, targets)
    for row, (query, target) in enumerate(zip(own.tolist(), targets.tolist(), strict=True)):
        scores = {place: float(candidates[query] @ candidates[place]) for place in range(9) if place != query}
        better = (
            sum(score >= scores[target] for place, score in scores.items() if place != target) if target >= 0 else -1
        )
        assert ranks[row] == 1 + better
    outcomes = {"rank": ranks.numpy()}
    assert measured(outcomes)["r5"] == pytest.approx(100 * sum(0 < rank <= 5 for rank in ranks.tolist()) / 3)


def test_a_set_is_searched_by_a_files_queries(tmp_path: Path) -> None:
    lines = [
        {"image": "0", "text": "2 snow", "sign": "+", "target": "2"},
        {"image": "1", "text": "3", "sign": "-"},
    ]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, lines)))
    queries = read_queries(str(tmp_path / "queries.jsonl"))
    assert queries == [Query("0", "2 snow", 1, "2"), Query("1", "3", -1)]
    images = images_of([b"image0", b"image1", b"image2", b"broken", b"image3"])
    found = composed(images, queries, Features(ENCODER, batch=3))
    assert found.metrics == {"r1": 100, "r5": 100, "r10": 100}
    assert found.facts == {"queries": 2, "images": 4, "with_target": 1}
    assert found.left_out == {UNDECODABLE: ["file/3"]}


@pytest.mark.parametrize("line", ["{", "[]", '{"image": "a"}', '{"image": "a", "text": "b", "sign": "*"}'])
def test_another_file_is_one_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "queries.jsonl").write_text(line)
    with pytest.raises(UnreadableError, match="no query") as caught:
        read_queries(str(tmp_path / "queries.jsonl"))
    assert "\n" not in str(caught.value)
    with pytest.raises(UnreadableError, match=r"nowhere\.jsonl: cannot be read as text"):
        read_queries(str(tmp_path / "nowhere.jsonl"))


def test_a_query_of_no_image_is_named() -> None:
    with pytest.raises(UnreadableError, match="9: named by a query, and no image of the set"):
        composed(images_of([b"image1"]), [Query("9", "1", 1)], Features(ENCODER, batch=3))
