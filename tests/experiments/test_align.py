"""The pairs of the experiment on ALIGN, and its composed queries, whose answers are known."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from altalign.demo.scenes import BOILERPLATE, COLOURS, SHAPES
from altalign.eval.encoded import Encoder, Features
from altalign.eval.evaluation import results_of
from altalign.eval.settings import EvalSets
from experiments import align
from experiments.data import Pair
from experiments.nlip import SHUFFLED

PAIRS: list[Pair] = [(f"{number}".encode(), f"caption {number}") for number in range(align.SCENES)]


def test_the_pool_has_each_image_once_and_its_shares_of_wrong_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(align, "drawn", lambda _: PAIRS)  # without drawing 4,000 scenes
    pool, true = align.noisy(), dict(PAIRS)
    assert {name: len(pairs) for name, pairs in pool.items()} == {"true": 2_000, SHUFFLED: 1_600, "boilerplate": 400}
    assert sorted(image for pairs in pool.values() for image, _ in pairs) == sorted(true)
    assert all(true[image] == caption for image, caption in pool["true"])
    assert all(true[image] != caption for image, caption in pool[SHUFFLED])
    assert {caption for _, caption in pool["boilerplate"]} == set(BOILERPLATE)
    assert align.noisy() == pool


class Oracle:
    """What knows the scenes: an embedding has a number for each thing, a shape of a colour, and for each ground."""

    def __init__(self) -> None:
        things = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]
        self._place = {word: place for place, word in enumerate([*things, *COLOURS])}
        self._scenes: dict[bytes, list[str]] = {}
        for number, (ground, things) in enumerate(align.families(align.FAMILIES)):
            for places, scene in align.scenes_of(things, ground).items():
                image = Path("data/evaluation/scenes", f"{number:02}-{''.join(map(str, places))}.webp").read_bytes()
                self._scenes[image] = [*(f"{group.colour} {group.shape}" for group in scene.groups), ground]

    def vectors(self, shown: list[list[str]]) -> Tensor:
        rows = torch.zeros(len(shown), len(self._place))
        for row, words in zip(rows, shown, strict=True):
            row[[self._place[word] for word in words]] = 1
        return functional.normalize(rows, dim=1)

    def decode(self, image: bytes) -> Tensor:
        return self.vectors([self._scenes[image]])[0]

    def texts(self, texts: list[str]) -> Tensor:
        return self.vectors([[text] for text in texts])


def test_who_knows_the_scenes_answers_every_query_and_by_half_of_it_not_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "evaluation").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    align.SETS["evaluation"](tmp_path / "data" / "evaluation")
    oracle, sets = Oracle(), EvalSets.load("data/evaluation/sets.toml")
    features = Features(Encoder(oracle.decode, lambda pixels: pixels, oracle.texts), batch=64)
    of_queries = sets.model_copy(update={"set": [each for each in sets.set if each.task == "composed"]})
    results, missing = results_of(of_queries, features, None)
    assert not missing
    assert {name: result.metrics["r1"] for name, result in results.items()} == {
        "composed/plus": 100,
        "composed/minus": 100,
    }
    assert {result.facts["queries"] for result in results.values()} == {6 * align.FAMILIES}
    assert all(found <= 50 for found in align.alone(features).values())
    others = [each for each in sets.set if each.task != "composed"]
    assert [Path(each.path).is_dir() for each in others] == [True, True]
    assert len(list(Path(others[0].path).iterdir())) == len(COLOURS)
