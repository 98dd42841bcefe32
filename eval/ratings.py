"""People's ratings beside a model's cosines: Crisscrossed Captions, and the similarity of words.

Crisscrossed Captions (CxC, Parekh et al., arXiv 2004.15020) rates pairs within and across modalities. Retrieval has
COCO's own pairs and those that raters gave at least `POSITIVE` of 5, in four directions. Correlation is of ratings and
cosines: of captions (STS), of images (SIS), of a caption and an image (SITS). A query is what the first column of a
file has; of SITS it is the image. SimLex-999 (ALIGN, appendix B, table 12) rates pairs of words.
"""

import csv
import gzip
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from altalign import storage
from altalign.errors import UnreadableError
from altalign.eval.encoded import ENCODED_TOGETHER, Features
from altalign.eval.image_sources import Images, text_lines
from altalign.eval.outcomes import Outcomes, Result
from altalign.eval.retrieval import KS, owners
from altalign.eval.search import ranks_of_pairs
from altalign.eval.sets import ImageSet

POSITIVE = 3.0
SAMPLES = 1_000  # of each correlation, as in the paper
Task = Literal["sts", "sis", "sits"]
CaptionIds = Mapping[str, Sequence[str]]  # of each image, by its file name
COLUMNS: Mapping[Task, tuple[str, str]] = {
    "sts": ("caption1", "caption2"),
    "sis": ("image1", "image2"),
    "sits": ("caption", "image"),
}
_OF_SIMLEX = {"word1", "word2", "POS", "SimLex999", "concQ", "SimAssoc333"}  # of the file as its authors give it
_PARTS = {"A": "adjectives", "N": "nouns", "V": "verbs"}


class Ratings(NamedTuple):
    """Rated pairs by the rows of their embeddings."""

    pairs: Tensor  # int64 (2, n): captions, images, or captions and images
    rating: Tensor  # float64 (n,), from 0 to 5
    missing: int = 0  # rated pairs of captions or images that the set has not

    @property
    def positive(self) -> Tensor:
        """The pairs that are right answers to each other: int64 (2, m)."""
        return self.pairs[:, self.rating >= POSITIVE]


def cxc(
    pairs: ImageSet, features: Features, *, ids: CaptionIds, folder: str, split: str, samples: int = SAMPLES
) -> Result:
    """The model on a set of MSCOCO's images and the ratings in a folder: `sts_SPLIT.csv`, or gzipped, and so on."""
    encoded = features.of_images(pairs.images)
    rows = encoded.rows.tolist()
    of_images = [pairs.captions[row] for row in rows]
    texts = features.of_texts([caption for some in of_images for caption in some])
    names = [pairs.images.names[row].rpartition("/")[2] for row in rows]
    captions = [one for name, some in zip(names, of_images, strict=True) for one in ids[name][: len(some)]]
    ratings = dict[Task, Ratings]()
    for task in COLUMNS:
        path = storage.join(folder, f"{task}_{split}.csv")
        path = f"{path}.gz" if storage.exists(f"{path}.gz") else path
        ratings[task] = read_ratings(path, task, captions, names)
    outcomes, facts = crisscrossed(encoded.embeddings, texts, owners(of_images), ratings, samples=samples)
    facts |= {
        "images": len(rows),
        "captions": len(captions),
        "image_to_image_queries": int((outcomes["image_to_image_rank"] > 0).sum()),
        "text_to_text_queries": int(outcomes["text_to_text_queries"].sum()),
    }
    left_out = pairs.images.left_out(encoded.undecodable, pairs.left_out)
    return Result(pairs.images, rows, outcomes, measured(outcomes), facts, left_out)


def crisscrossed(
    images: Tensor, texts: Tensor, owner: Tensor, ratings: Mapping[Task, Ratings], *, samples: int, seed: int = 0
) -> tuple[Outcomes, dict[str, float]]:
    """Outcomes of the four searches, a row an image, and the three correlations.

    Images (n, width) and texts (m, width) are embeddings of length 1; `owner`, int64 (m,), is the row of each caption's
    image. Times 100, `sts`, `sis` and `sits` are means over the samples, with `…_std`, `mean_correlation` of the three,
    and `…_missing`, the rated pairs that the set has not.
    """

    def both(pairs: Tensor) -> Tensor:
        """Pairs within a modality, of which each is the other's: without an item and itself."""
        pairs = pairs[:, pairs[0] != pairs[1]]
        return torch.cat([pairs, pairs.flip(0)], dim=1)

    of_coco = torch.cat([torch.stack([torch.arange(len(owner)), owner]), ratings["sits"].positive], dim=1)
    of_one = owner.argsort(stable=True).split(owner.bincount().tolist())
    together = torch.cat([torch.cartesian_prod(rows, rows) for rows in of_one]).T
    texts_alike = both(torch.cat([together, ratings["sts"].positive], dim=1))
    images_alike = both(ratings["sis"].positive)
    outcomes = {
        "image_to_text_rank": ranks_of_pairs(images, texts, of_coco.flip(0)).cpu().numpy(),
        "image_to_image_rank": ranks_of_pairs(images, images, images_alike, same=True).cpu().numpy(),
    }
    for direction, ranks in (
        ("text_to_image", ranks_of_pairs(texts, images, of_coco).cpu()),
        ("text_to_text", ranks_of_pairs(texts, texts, texts_alike, same=True).cpu()),
    ):
        outcomes[f"{direction}_queries"] = owner.bincount((ranks > 0).double()).long().numpy()
        for k in KS:
            is_hit = (ranks > 0) & (ranks <= k)
            outcomes[f"{direction}_hits_{k}"] = owner.bincount(is_hit.double()).long().numpy()
    sides = {"sts": (texts, texts), "sis": (images, images), "sits": (texts, images)}
    facts: dict[str, float] = {}
    for task, (first, second) in sides.items():
        of_task: Ratings = ratings[task]  # type: ignore[index]
        cosines = (first[of_task.pairs[0]].double() * second[of_task.pairs[1]]).sum(1).cpu()
        query = of_task.pairs[1 if task == "sits" else 0]
        mean, deviation = sampled_spearman(query, cosines, of_task.rating, samples=samples, seed=seed)
        facts |= {task: 100 * mean, f"{task}_std": 100 * deviation, f"{task}_missing": of_task.missing}
    return outcomes, {**facts, "mean_correlation": sum(facts[task] for task in sides) / 3}


def measured(outcomes: Outcomes) -> dict[str, float]:
    """DIRECTION_rK in percent of the queries that have a right answer."""
    recalls: dict[str, float] = {}
    for direction in ("image_to_text", "image_to_image"):
        ranks = outcomes[f"{direction}_rank"]
        for k in KS:
            recalls[f"{direction}_r{k}"] = 100 * float(((ranks > 0) & (ranks <= k)).sum() / max(1, (ranks > 0).sum()))
    for direction in ("text_to_image", "text_to_text"):
        queries = max(1, outcomes[f"{direction}_queries"].sum())
        for k in KS:
            recalls[f"{direction}_r{k}"] = 100 * float(outcomes[f"{direction}_hits_{k}"].sum() / queries)
    return recalls


def read_ids(path: str) -> CaptionIds:
    """The ids of the captions of each image, by its file name, of Karpathy's JSON."""
    try:
        return {
            image["filename"]: [
                f"COCO_val2014:sentid:{one['sentid']}" for one in image["sentences"] if one["raw"].strip()
            ]
            for image in storage.read_json(path)["images"]
        }
    except (KeyError, TypeError) as error:
        why = f"no JSON of Karpathy's splits with sentid ({error!r})"
        raise UnreadableError(f"{path}: {why}; give dataset_coco.json") from None


def read_ratings(path: str, task: Task, captions: Sequence[str], images: Sequence[str]) -> Ratings:
    """The ratings of a CSV, plain or gzipped.

    Captions are known by their ids, `COCO_val2014:sentid:N`, images by their file names, `COCO_val2014_N.jpg`, both in
    the order of the embeddings.
    """
    columns = COLUMNS[task]
    try:
        data = storage.read_bytes(path)
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
        lines = csv.DictReader(io.StringIO(text))
        rows = [(line[columns[0]], line[columns[1]], float(line["agg_score"])) for line in lines]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        why = f"no CSV of CxC with {', '.join(columns)} and agg_score ({error})"
        raise UnreadableError(f"{path}: {why}; give {task}_test.csv of it") from None
    places = [{name: row for row, name in enumerate(names)} for names in (captions, images)]
    one, other = (places[column.startswith("image")] for column in columns)
    known = [(one[first], other[second], rating) for first, second, rating in rows if first in one and second in other]
    if not known:
        why = f"none of its {len(rows):,} pairs is of this set"
        raise UnreadableError(f"{path}: {why}; its ids are COCO's sentid and filename, as in Karpathy's JSON")
    first, second, rating = zip(*known, strict=True)
    return Ratings(torch.tensor([first, second]), torch.tensor(rating, dtype=torch.float64), len(rows) - len(known))


# Spearman's rank correlation ------------------------------------------------------------------------------------------


def spearman(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation of the ranks of two vectors (n,), of equal values the mean; 0 where one has no order."""
    centred = list[Tensor]()
    for values in (a, b):
        _, place, counts = values.unique(return_inverse=True, return_counts=True)
        if values.isnan().any() or len(counts) < 2:
            return 0.0
        ranks = (counts.cumsum(0).double() - (counts - 1) / 2)[place]
        centred.append(ranks - ranks.mean())
    first, second = centred
    return float(first @ second / (first.norm() * second.norm()))


def sampled_spearman(
    query: Tensor, similarity: Tensor, rating: Tensor, *, samples: int, seed: int = 0
) -> tuple[float, float]:
    """Mean and standard deviation of Spearman's correlation over samples of the rated pairs.

    Each sample has half of the queries, and of each of them one of its rated pairs (CxC's paper). `query` has a number
    for the query of each pair, int64 (n,); the model's similarity and the raters' rating are (n,).
    """
    generator = torch.Generator().manual_seed(seed)
    order = query.argsort(stable=True)
    _, counts = query[order].unique_consecutive(return_counts=True)
    draws = (order[drawn(counts, generator)] for _ in range(samples))
    values = torch.tensor([spearman(similarity[rows], rating[rows]) for rows in draws], dtype=torch.float64)
    return float(values.mean()), float(values.std(unbiased=False))


def drawn(counts: Tensor, generator: torch.Generator) -> Tensor:
    """One of the pairs of each query in a random half of the queries, of which `counts` (queries,) has the numbers."""
    chosen = torch.randperm(len(counts), generator=generator)[: (len(counts) + 1) // 2]
    starts = counts.cumsum(0) - counts
    share = torch.rand(len(chosen), generator=generator, dtype=torch.float64)
    return starts[chosen] + (share * counts[chosen]).long()


# Words ----------------------------------------------------------------------------------------------------------------


class WordPair(NamedTuple):
    """Two words, how alike people find them, and the subsets that they are in."""

    first: str
    second: str
    rating: float
    subsets: tuple[str, ...] = ()


def word_similarity(pairs: Sequence[WordPair], encode_word: Callable[[list[str]], Tensor]) -> Result:
    """Cosines of the words of each pair, at least two, beside ratings; vectors are of any length."""
    words = sorted({word for pair in pairs for word in (pair.first, pair.second)})
    place = {word: number for number, word in enumerate(words)}
    firsts = range(0, len(words), ENCODED_TOGETHER)
    with torch.no_grad():
        encoded = [encode_word(words[first : first + ENCODED_TOGETHER]) for first in firsts]
    vectors = functional.normalize(torch.cat(encoded).double(), dim=1).cpu()
    first = vectors[[place[pair.first] for pair in pairs]]
    second = vectors[[place[pair.second] for pair in pairs]]
    outcomes = {"cosine": (first * second).sum(1).numpy(), "rating": np.array([pair.rating for pair in pairs])}
    facts = {"pairs": len(pairs)}
    for name in sorted({name for pair in pairs for name in pair.subsets}):
        outcomes[f"in_{name}"] = np.array([name in pair.subsets for pair in pairs])
        facts[f"pairs_{name}"] = int(outcomes[f"in_{name}"].sum())
    names = [f"{pair.first} {pair.second}" for pair in pairs]
    return Result(Images(names, names), range(len(pairs)), outcomes, measured_of_words(outcomes), facts)


def measured_of_words(outcomes: Outcomes) -> dict[str, float]:
    """Spearman's correlation of cosines and ratings, times 100: of all pairs, and of each subset."""
    members: dict[str, Any] = {"": slice(None)}
    members |= {name.replace("in_", "_", 1): of for name, of in outcomes.items() if name.startswith("in_")}
    cosines, ratings = (torch.from_numpy(outcomes[name]) for name in ("cosine", "rating"))
    return {f"spearman{name}": 100 * spearman(cosines[of], ratings[of]) for name, of in members.items()}


def read_word_pairs(path: str) -> list[WordPair]:
    """The pairs of SimLex-999 as its authors give it, with subsets; or of lines WORD, WORD, RATING without, by tabs."""
    lines = [line.split("\t") for line in text_lines(path) if line.strip() and not line.startswith("#")]
    pairs = list[WordPair]()
    try:
        if lines and set(lines[0]) >= _OF_SIMLEX:
            for row in (dict(zip(lines[0], line, strict=True)) for line in lines[1:]):
                hard = ("hard",) if row["SimAssoc333"] == "1" else ()  # the 333 pairs that are the most associated
                subsets = (_PARTS[row["POS"]], f"concreteness_q{row['concQ']}", *hard)
                pairs.append(WordPair(row["word1"], row["word2"], float(row["SimLex999"]), subsets))
        else:
            pairs = [WordPair(first, second, float(rating)) for first, second, rating in lines]
    except (ValueError, KeyError) as error:
        why = f"neither SimLex-999.txt nor lines of word, word, rating with tabs between ({error})"
        raise UnreadableError(f"{path}: {why}; give one of both") from None
    if len(pairs) < 2:
        raise UnreadableError(f"{path}: {len(pairs)} pairs of words, and a correlation wants two; give a whole file")
    return pairs
