import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from torch.nn.functional import normalize

from altalign.errors import UnreadableError
from altalign.eval.encoded import Features
from altalign.eval.ratings import (
    COLUMNS,
    POSITIVE,
    Ratings,
    Task,
    WordPair,
    crisscrossed,
    cxc,
    drawn,
    measured,
    read_ids,
    read_ratings,
    read_word_pairs,
    sampled_spearman,
    spearman,
    word_similarity,
)
from altalign.eval.sets import captioned_set
from tests.eval.one_hot import ENCODER

IMAGES, CAPTIONS = 12, 30


@pytest.fixture
def case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[Task, Ratings]]:
    """Random embeddings, ratings of random pairs."""
    generator = torch.Generator().manual_seed(5)
    images = normalize(torch.randn(IMAGES, 6, generator=generator), dim=1)
    owner = torch.arange(CAPTIONS) % IMAGES
    texts = normalize(images[owner] + 0.8 * torch.randn(CAPTIONS, 6, generator=generator), dim=1)
    sizes: dict[Task, tuple[int, int]] = {
        "sts": (CAPTIONS, CAPTIONS),
        "sis": (IMAGES, IMAGES),
        "sits": (CAPTIONS, IMAGES),
    }
    ratings = {}
    for task, (first, second) in sizes.items():
        pairs = torch.stack([torch.randint(size, (60,), generator=generator) for size in (first, second)])
        if task != "sits":
            pairs = pairs[:, pairs[0] != pairs[1]]
        rating = (torch.rand(pairs.shape[1], generator=generator, dtype=torch.float64) * 5).round(decimals=2)
        ratings[task] = Ratings(pairs, rating)
    return images, texts, owner, ratings


def slow_recall(
    queries: torch.Tensor, candidates: torch.Tensor, right: dict[int, set[int]], k: int, *, same: bool
) -> float:
    """A plain loop over queries that have a right answer; ties are against the model."""
    hits = 0
    for query, own in right.items():
        score = {
            place: float(queries[query] @ candidates[place])
            for place in range(len(candidates))
            if not (same and place == query)
        }
        best = max(score[place] for place in own)
        hits += sum(value >= best for place, value in score.items() if place not in own) < k
    return 100 * hits / len(right)


def linked(pairs: Iterator[tuple[int, int]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for first, second in pairs:
        found.setdefault(first, set()).add(second)
    return found


def good(ratings: Ratings) -> list[tuple[int, int]]:
    return [
        (first, second)
        for first, second, rating in zip(*ratings.pairs.tolist(), ratings.rating.tolist(), strict=True)
        if rating >= POSITIVE
    ]


def test_all_tasks_are_those_of_plain_loops(
    case: tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[Task, Ratings]],
) -> None:
    images, texts, owner, ratings = case
    outcomes, facts = crisscrossed(images, texts, owner, ratings, samples=20, seed=1)
    found = {**facts, **measured(outcomes)}
    found |= {
        f"{direction}_queries": (outcomes[f"{direction}_rank"] > 0).sum()
        for direction in ("image_to_text", "image_to_image")
    }
    found |= {
        f"{direction}_queries": outcomes[f"{direction}_queries"].sum()
        for direction in ("text_to_image", "text_to_text")
    }
    of_coco = [(caption, int(owner[caption])) for caption in range(CAPTIONS)]
    captions = [(a, b) for a in range(CAPTIONS) for b in range(CAPTIONS) if a != b and owner[a] == owner[b]] + good(
        ratings["sts"]
    )
    images_alike = good(ratings["sis"])
    searches = {
        "text_to_image": (texts, images, linked(iter(of_coco + good(ratings["sits"]))), False),
        "image_to_text": (images, texts, linked((b, a) for a, b in of_coco + good(ratings["sits"])), False),
        "text_to_text": (texts, texts, linked(pair for a, b in captions for pair in ((a, b), (b, a))), True),
        "image_to_image": (images, images, linked(pair for a, b in images_alike for pair in ((a, b), (b, a))), True),
    }
    for direction, (queries, candidates, right, same) in searches.items():
        assert found[f"{direction}_queries"] == len(right)
        for k in (1, 5, 10):
            expected = slow_recall(queries, candidates, right, k, same=same)
            assert found[f"{direction}_r{k}"] == pytest.approx(expected), (direction, k)
    for task, (first, second) in {"sts": (texts, texts), "sis": (images, images), "sits": (texts, images)}.items():
        of = ratings[task]
        cosines = torch.tensor(
            [
                sum(x * y for x, y in zip(first[a].tolist(), second[b].tolist(), strict=True))
                for a, b in of.pairs.T.tolist()
            ],
            dtype=torch.float64,
        )
        query = of.pairs[1] if task == "sits" else of.pairs[0]  # images query captions
        mean, deviation = sampled_spearman(query, cosines, of.rating, samples=20, seed=1)
        assert (found[task], found[f"{task}_std"]) == pytest.approx((100 * mean, 100 * deviation))
    assert found["mean_correlation"] == pytest.approx((found["sts"] + found["sis"] + found["sits"]) / 3)


@pytest.mark.parametrize(("captions_of_an_image", "expected"), [(3, 0.0), (1, 100.0)])
def test_images_are_the_queries_of_sits(captions_of_an_image: int, expected: float) -> None:
    """Half of two images is one, with one pair, which has no order; half of six images is three, in perfect order."""
    number = 6 // captions_of_an_image
    angle = torch.arange(6) / 6
    texts = torch.stack([angle.cos(), angle.sin()], 1)
    images = torch.tensor([[1.0, 0.0]]).expand(number, 2)
    owner = torch.arange(6) // captions_of_an_image
    of = Ratings(torch.stack([torch.arange(6), owner]), torch.linspace(5, 0, 6).double())
    other = Ratings(torch.tensor([[0], [1]]), torch.tensor([5.0]).double())
    _, facts = crisscrossed(images, texts, owner, {"sts": other, "sis": other, "sits": of}, samples=10)
    assert (facts["sits"], facts["sits_std"]) == pytest.approx((expected, 0))


def test_a_query_is_no_answer_to_itself(
    case: tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[Task, Ratings]],
) -> None:
    """Else every image would find itself first, and its recall@1 would be 0."""
    _, texts, owner, ratings = case
    alike = normalize(torch.eye(IMAGES // 2, 6).repeat_interleave(2, 0) + 1e-3 * torch.randn(IMAGES, 6), dim=1)
    pairs = torch.stack([torch.arange(0, IMAGES, 2), torch.arange(1, IMAGES, 2)])
    ratings = {**ratings, "sis": Ratings(pairs, torch.full((IMAGES // 2,), 4.0, dtype=torch.float64))}
    assert measured(crisscrossed(alike, texts, owner, ratings, samples=2)[0])["image_to_image_r1"] == 100


def written(path: Path, task: Task, rows: list[str], *, gzipped: bool) -> str:
    data = "\n".join([",".join((*COLUMNS[task], "agg_score", "sampling_method")), *rows, ""]).encode()
    path.write_bytes(gzip.compress(data) if gzipped else data)
    return str(path)


@pytest.mark.parametrize("gzipped", [False, True])
def test_ratings_are_read_and_those_of_others_counted(tmp_path: Path, *, gzipped: bool) -> None:
    captions, images = ["COCO_val2014:sentid:3", "COCO_val2014:sentid:9"], ["COCO_val2014_1.jpg"]
    rows = [f"{captions[1]},{images[0]},2.5,c2i_original", f"{captions[0]},COCO_val2014_2.jpg,5,c2i_original"]
    of = read_ratings(written(tmp_path / "sits.csv", "sits", rows, gzipped=gzipped), "sits", captions, images)
    assert (of.pairs.tolist(), of.rating.tolist(), of.missing) == ([[1], [0]], [2.5], 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"caption,image\na,b\n", "no CSV of CxC with caption, image and agg_score"),
        (b"caption,image,agg_score\na,b,much\n", "no CSV of CxC"),
        (b"\x1f\x8bcut", "no CSV of CxC"),
        (b"caption,image,agg_score\na,b,3\n", "none of its 1 pairs is of this set"),
    ],
)
def test_another_file_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "sits.csv").write_bytes(content)
    with pytest.raises(UnreadableError, match=message) as caught:
        read_ratings(str(tmp_path / "sits.csv"), "sits", ["c"], ["i"])
    assert "\n" not in str(caught.value)


def test_queries_without_a_right_answer_are_none(
    case: tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[Task, Ratings]],
) -> None:
    images, texts, owner, ratings = case
    low = Ratings(ratings["sis"].pairs, torch.linspace(0, 2, ratings["sis"].pairs.shape[1]).double())
    outcomes, facts = crisscrossed(images, texts, owner, {**ratings, "sis": low}, samples=2)
    assert not outcomes["image_to_image_rank"].any()
    assert measured(outcomes)["image_to_image_r1"] == 0
    assert not any(math.isnan(value) for value in {**measured(outcomes), **facts}.values())


def test_a_set_of_coco_is_measured_with_its_ratings(tmp_path: Path) -> None:
    names = [f"COCO_val2014_{number}.jpg" for number in range(3)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(f"image{number}".encode())
    sentences = [
        [{"raw": f"{number} {word}", "sentid": 10 * number + place} for place, word in enumerate("ab")]
        for number in range(3)
    ]
    images = [
        {"filename": name, "split": "test", "sentences": said, "sentids": [], "imgid": number}
        for number, (name, said) in enumerate(zip(names, sentences, strict=True))
    ]
    (tmp_path / "coco.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    ids = [f"COCO_val2014:sentid:{one['sentid']}" for said in sentences for one in said]
    rows = {
        "sts": [f"{ids[0]},{ids[1]},5,x", f"{ids[0]},{ids[2]},0,x", f"{ids[3]},{ids[2]},4,x", f"{ids[4]},{ids[1]},1,x"],
        "sis": [f"{names[0]},{names[1]},4,x", f"{names[2]},{names[1]},1,x"],
        "sits": [f"{ids[0]},{names[0]},5,x", f"{ids[2]},{names[0]},1,x", f"{ids[5]},lost.jpg,3,x"],
    }
    for task, lines in rows.items():
        written(tmp_path / f"{task}_test.csv", task, lines, gzipped=False)  # type: ignore[arg-type]
    of = captioned_set([str(tmp_path / "coco.json")], images=str(tmp_path))
    given = {"folder": str(tmp_path), "split": "test", "samples": 3}
    found = cxc(of, Features(ENCODER, batch=2), ids=read_ids(str(tmp_path / "coco.json")), **given)
    assert (
        found.metrics["image_to_text_r1"]
        == found.metrics["text_to_image_r1"]
        == found.metrics["text_to_text_r1"]
        == 100
    )
    assert (found.facts["captions"], found.facts["image_to_image_queries"], found.facts["sits_missing"]) == (6, 2, 1)


# Spearman's rank correlation ------------------------------------------------------------------------------------------


def slow_ranks(values: list[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def slow_spearman(a: list[float], b: list[float]) -> float:
    """Pearson's formula over ranks, a term at a time."""
    first, second = slow_ranks(a), slow_ranks(b)
    mean = (len(a) + 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(first, second, strict=True))
    spreads = [math.sqrt(sum((x - mean) ** 2 for x in ranks)) for ranks in (first, second)]
    return covariance / (spreads[0] * spreads[1])


def some(number: int, kinds: int, seed: int) -> torch.Tensor:
    return torch.randint(kinds, (number,), generator=torch.Generator().manual_seed(seed)).double()


@given(st.integers(3, 40), st.integers(2, 50), st.integers(0, 9))
def test_spearman_is_that_of_a_plain_loop_and_of_scipy(number: int, kinds: int, seed: int) -> None:
    a, b = some(number, kinds, seed), some(number, kinds, seed + 100)
    if len(a.unique()) > 1 and len(b.unique()) > 1:
        assert spearman(a, b) == pytest.approx(slow_spearman(a.tolist(), b.tolist()))
        assert spearman(a, b) == pytest.approx(spearmanr(a.numpy(), b.numpy()).statistic)


def test_what_has_no_order_has_no_correlation() -> None:
    assert spearman(torch.ones(4), torch.arange(4.0)) == 0
    assert spearman(torch.tensor([1.0, float("nan"), 2.0]), torch.arange(3.0)) == 0


def rated(number: int = 300, queries: int = 60) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    query = torch.randint(queries, (number,), generator=generator) * 7  # numbers need not follow each other
    rating = torch.rand(number, generator=generator, dtype=torch.float64) * 5
    return query, rating + torch.randn(number, generator=generator), rating.round(decimals=1)


def test_the_sampled_bootstrap_is_that_of_plain_loops() -> None:
    query, similarity, rating = rated()
    found = sampled_spearman(query, similarity, rating, samples=25, seed=4)
    rows_of = {
        name: [row for row, one in enumerate(query.tolist()) if one == name] for name in sorted(set(query.tolist()))
    }
    counts, generator = torch.tensor([len(rows) for rows in rows_of.values()]), torch.Generator().manual_seed(4)
    in_order = [row for rows in rows_of.values() for row in rows]
    values = []
    for _ in range(25):
        rows = [in_order[place] for place in drawn(counts, generator).tolist()]
        values.append(slow_spearman([float(similarity[row]) for row in rows], [float(rating[row]) for row in rows]))
    mean = sum(values) / len(values)
    assert found == pytest.approx((mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))))


def test_a_sample_has_half_of_the_queries_and_one_pair_of_each() -> None:
    counts = torch.tensor([1, 3, 2, 5, 1, 4, 7])
    ends = counts.cumsum(0)
    seen = set()
    for seed in range(200):
        rows = drawn(counts, torch.Generator().manual_seed(seed))
        owners = torch.bucketize(rows, ends, right=True)
        assert len(owners.unique()) == len(rows) == 4
        seen |= set(rows.tolist())
    assert seen == set(range(int(counts.sum())))


def test_a_model_that_orders_as_raters_do_has_one_in_every_sample() -> None:
    query, _, rating = rated()
    assert sampled_spearman(query, rating.exp(), rating, samples=10) == pytest.approx((1, 0), abs=1e-12)
    assert sampled_spearman(query, -rating, rating, samples=10) == pytest.approx((-1, 0), abs=1e-12)


# Words ----------------------------------------------------------------------------------------------------------------


VECTORS = {"old": [1.0, 0.0, 2.0], "new": [3.0, 1.0, 0.0], "hard": [0.5, 1.0, 1.0], "run": [0.0, -1.0, 2.0]}
PAIRS = [
    WordPair("old", "new", 1.5, ("adjectives", "hard")),
    WordPair("old", "hard", 4.0, ("adjectives",)),
    WordPair("new", "hard", 2.0, ("adjectives", "hard")),
    WordPair("run", "old", 3.0),
]
AUTHORS = "word1\tword2\tPOS\tSimLex999\tconc(w1)\tconc(w2)\tconcQ\tAssoc(USF)\tSimAssoc333\tSD(SimLex)\n"


def test_correlation_is_that_of_a_plain_loop_of_all_and_of_subsets() -> None:
    asked = []

    def encode(words: list[str]) -> torch.Tensor:
        asked.append(words)
        return torch.tensor([VECTORS[word] for word in words])

    result = word_similarity(PAIRS, encode)
    found = {**result.metrics, **result.facts}

    def cosine(pair: WordPair) -> float:
        a, b = VECTORS[pair.first], VECTORS[pair.second]
        lengths = [sum(x * x for x in vector) ** 0.5 for vector in (a, b)]
        return sum(x * y for x, y in zip(a, b, strict=True)) / (lengths[0] * lengths[1])

    def expected(pairs: list[WordPair]) -> float:
        return 100 * slow_spearman([cosine(pair) for pair in pairs], [pair.rating for pair in pairs])

    assert found["spearman"] == pytest.approx(expected(PAIRS))
    assert found["spearman_adjectives"] == pytest.approx(expected(PAIRS[:3]))
    assert found["spearman_hard"] == pytest.approx(expected([PAIRS[0], PAIRS[2]]))
    assert (found["pairs"], found["pairs_adjectives"], found["pairs_hard"]) == (4, 3, 2)
    assert sorted(word for words in asked for word in words) == sorted(VECTORS)


def read_text(folder: Path, text: str) -> list[WordPair]:
    (folder / "simlex.txt").write_text(text)
    return read_word_pairs(str(folder / "simlex.txt"))


def test_the_authors_file_has_subsets(tmp_path: Path) -> None:
    text = AUTHORS + "old\tnew\tA\t1.58\t2.72\t2.81\t2\t7.25\t1\t0.41\nbook\ttext\tN\t6.35\t4.9\t4.93\t4\t1.0\t0\t1.2\n"
    assert read_text(tmp_path, text) == [
        WordPair("old", "new", 1.58, ("adjectives", "concreteness_q2", "hard")),
        WordPair("book", "text", 6.35, ("nouns", "concreteness_q4")),
    ]


def test_three_columns_have_none(tmp_path: Path) -> None:
    text = "# SimLex-999\n# Word 1\tWord 2\tHuman (mean)\nold\tnew\t1.58\nsmart\tclever\t9.2\n"
    assert read_text(tmp_path, text) == [WordPair("old", "new", 1.58), WordPair("smart", "clever", 9.2)]


@pytest.mark.parametrize("text", ["old new 1.5\n", "old\tnew\tmuch\n", "", "old\tnew\t1\n"])
def test_another_file_of_words_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnreadableError, match="simlex") as caught:
        read_text(tmp_path, text)
    assert "\n" not in str(caught.value)
