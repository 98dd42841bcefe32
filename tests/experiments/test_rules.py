"""The pool of the experiment on ALIGN's rules: its shares, that each kind is what it says, and what rules do to it."""

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from PIL import Image

from altalign.errors import AltalignError
from altalign.filters.one_caption import words_of
from experiments import crawl, plan, queue, rules
from experiments.crawl import COPIES, NOISE, RECIPE, TRUE
from experiments.data import Pair
from experiments.zerovl import drawn


@pytest.fixture(scope="module")
def _small() -> Iterator[None]:
    """A pool of few pairs, without the tables of shared/data."""

    def clip_art(*, is_test: bool, side_px: int) -> Iterator[Pair]:
        return ((image, f"title {n}") for n, (image, _) in enumerate(drawn(30, is_test=is_test, side_px=side_px)))

    def clothes(split: str, *, side_px: int) -> Iterator[Pair]:
        return ((image, "t-shirt") for image, _ in drawn(30, name=split, side_px=side_px))

    counts = {"scenes": 200, "noise": 200, "kinds": {**RECIPE["kinds"]}}
    counts["kinds"]["too many texts"] = {**RECIPE["kinds"]["too many texts"], "pairs": 20}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crawl, "clip_art", clip_art)
        patch.setattr(crawl, "clothes", clothes)
        patch.setattr(crawl, "TEST_SCENES", 20)
        for name, value in counts.items():
            patch.setitem(RECIPE, name, value)
        yield


@pytest.fixture(scope="module")
def pool(_small: None) -> dict[str, list[Pair]]:
    return crawl.noisy(crawl.true_pairs())


def size(image: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(image)) as picture:
        return picture.size


def test_the_pool_has_every_kind_in_the_shares_of_the_recipe(pool: dict[str, list[Pair]]) -> None:
    assert pool.keys() == {TRUE, *RECIPE["kinds"]}
    rates = {name: kind["rate"] for name, kind in RECIPE["kinds"].items() if "rate" in kind}
    for name, rate in rates.items():
        assert len(pool[name]) == round(200 * rate / sum(rates.values()))
    assert sum(len(pool[name]) for name in [TRUE, *NOISE]) == 200 + 30 + 30
    assert all(kind["source"] for kind in RECIPE["kinds"].values())


def test_each_kind_is_what_it_says(pool: dict[str, list[Pair]]) -> None:
    of_image = dict(crawl.true_pairs())
    assert all(of_image[image] == caption for image, caption in pool[TRUE])
    assert all(of_image[image] != caption for image, caption in pool["wrong caption"])
    assert all(len(words_of(caption)) < 3 for _, caption in pool["too short"])
    assert all(len(words_of(caption)) > 20 for _, caption in pool["too long"])
    assert all(min(size(image)) <= 200 for image, _ in pool["small picture"])
    assert all(max(size(image)) >= 3 * min(size(image)) > 600 for image, _ in pool["elongated picture"])
    assert set(pool["repeated pair"]) <= set(pool[TRUE])
    assert len({image for image, _ in pool["too many texts"]}) == 1
    assert len({caption for _, caption in pool["too many texts"]}) == 20
    leaked = {caption for name, of in crawl.test_pairs().items() if "leaked" in name for _, caption in of}
    assert {caption for _, caption in pool["copy of a test image"]} <= leaked


def test_noise_takes_no_image_of_a_true_pair_but_where_it_says_so(pool: dict[str, list[Pair]]) -> None:
    true = {image for image, _ in pool[TRUE]}
    assert all(
        not true & {image for image, _ in of} for name, of in pool.items() if name not in (TRUE, "repeated pair")
    )
    assert {caption for _, caption in pool["near copy"]} <= {caption for _, caption in pool[TRUE]}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_has_the_caption_and_other_bytes(pool: dict[str, list[Pair]], how: str) -> None:
    pair = pool[TRUE][0]
    image, caption = crawl.copy(pair, Random(0), how)
    assert caption == pair[1]
    assert image != pair[0]
    assert min(size(image)) > 200


def test_true_pairs_pass_the_rules_on_texts(pool: dict[str, list[Pair]]) -> None:
    assert all(3 <= len(words_of(caption)) <= 20 for _, caption in pool[TRUE])
    assert max(Counter(caption for _, caption in pool[TRUE]).values()) <= 10


def test_precision_and_recall_are_of_what_was_dropped() -> None:
    pool, kept = Counter({TRUE: 100, "short": 10, "long": 40}), Counter({TRUE: 98, "short": 1, "long": 39})
    assert rules.against(pool, kept, {"short"}) == {"precision": 100 * 10 / 12, "recall": 90.0, "recall/short": 90.0}
    assert rules.against(pool, kept, {"short", "long"})["recall"] == 20.0
    with pytest.raises(AltalignError, match="drops nothing"):
        rules.against(pool, pool, {"short"})


def test_every_arm_has_its_sets_and_every_rule_an_arm() -> None:
    experiment = queue.read("rules")
    assert {name for job in plan.jobs(experiment) for name in job.sets} <= rules.SETS.keys()
    assert {*rules.RULES, *rules.OURS} <= experiment.arms.keys()
    named = {rule for kind in RECIPE["kinds"].values() for rule in kind["rules"]}
    assert named == {*rules.RULES, *rules.OURS, rules.ALWAYS}
    assert {name.partition("/")[2] for name in experiment.measures if name.startswith("recall/")} == COPIES.keys()
    rows = {job.arm: job.settings["data"]["runs"] for job in plan.jobs(experiment)}
    assert all(rows[rule] == [f"data/{rule}"] for rule in {*rules.RULES, *rules.OURS})


@pytest.mark.usefixtures("_small")
def test_all_rules_drop_what_they_are_meant_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("all", "none", "none-as-all"):
        Path("data", name).mkdir(parents=True)
        rules.SETS[name](tmp_path / "data" / name)
    jobs = {job.arm: job for job in plan.jobs(queue.read("rules")) if not job.seed}
    found, whole = rules.measured(jobs["all"], Path()), rules.measured(jobs["none"], Path())
    for kind in ("too short", "too long", "small picture", "elongated picture", "repeated pair"):
        assert found[f"recall/{kind}"] == 100, kind
    assert whole["recall/repeated pair"] == whole["precision"] == 100
    assert found["true"] > whole["true"]
    assert rules.measured(jobs["none-as-all"], Path())["pairs"] == found["pairs"] < whole["pairs"]
