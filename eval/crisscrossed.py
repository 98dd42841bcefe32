"""Crisscrossed Captions (CxC, Parekh et al., arXiv 2004.15020): ratings of pairs within and across modalities.

Retrieval has COCO's own pairs and those that raters gave at least `POSITIVE` of 5, in four directions. Correlation is
of ratings and cosines: of captions (STS), of images (SIS), of a caption and an image (SITS). A query is what the first
column of a file has.
"""

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from altalign import storage
from altalign.errors import UnreadableError
from altalign.eval.correlation import sampled_spearman
from altalign.eval.encoded import Features
from altalign.eval.outcomes import Outcomes, Result
from altalign.eval.retrieval import KS, ranks_of_pairs
from altalign.eval.sets import ImageSet

POSITIVE = 3.0
SAMPLES = 1_000  # of each correlation
Task = Literal["sts", "sis", "sits"]
CaptionIds = Mapping[str, Sequence[str]]  # of each image, by its file name
COLUMNS = {"sts": ("caption1", "caption2"), "sis": ("image1", "image2"), "sits": ("caption", "image")}


@dataclass(frozen=True)
class Ratings:
    """Rated pairs by the rows of their embeddings."""

    pairs: Tensor  # int64 (2, n): captions, images, or captions and images
    rating: Tensor  # float64 (n,), from 0 to 5
    missing: int = 0  # rated pairs of captions or images that the set has not

    @property
    def positive(self) -> Tensor:
        """The pairs that are right answers to each other: int64 (2, m)."""
        return self.pairs[:, self.rating >= POSITIVE]


def crisscrossed(
    images: Tensor, texts: Tensor, owner: Tensor, ratings: Mapping[Task, Ratings], *, samples: int, seed: int = 0
) -> tuple[Outcomes, dict[str, float]]:
    """Outcomes of the four searches, a row an image, and the three correlations.

    Args:
        images: embeddings (n, width) of length 1.
        texts: embeddings (m, width) of length 1.
        owner: int64 (m,), the row of each caption's image.
        ratings: of all three kinds.
        samples: of each correlation.
        seed: of the samples.

    Returns:
        outcomes, and times 100 `sts`, `sis` and `sits`, means over the samples, `…_std`, `mean_correlation` of the
        three, and `…_missing`, the rated pairs that the set has not.
    """
    captions = torch.arange(len(owner))
    of_coco = torch.cat([torch.stack([captions, owner]), ratings["sits"].positive], dim=1).to(images.device)
    of_one = owner.argsort(stable=True).split(owner.bincount().tolist())
    together = torch.cat([torch.cartesian_prod(rows, rows) for rows in of_one]).T
    alike = _both(torch.cat([together, ratings["sts"].positive], dim=1)).to(images.device)
    by_text = {
        "text_to_image": ranks_of_pairs(texts, images, of_coco).cpu(),
        "text_to_text": ranks_of_pairs(texts, texts, alike, same=True).cpu(),
    }
    images_alike = _both(ratings["sis"].positive).to(images.device)
    outcomes = {
        "image_to_text_rank": ranks_of_pairs(images, texts, of_coco.flip(0)).cpu().numpy(),
        "image_to_image_rank": ranks_of_pairs(images, images, images_alike, same=True).cpu().numpy(),
    }
    for direction, found in by_text.items():
        outcomes[f"{direction}_queries"] = owner.bincount((found > 0).double()).long().numpy()
        for k in KS:
            is_hit = (found > 0) & (found <= k)
            outcomes[f"{direction}_hits_{k}"] = owner.bincount(is_hit.double()).long().numpy()
    return outcomes, _correlations(images, texts, ratings, samples, seed)


def _correlations(
    images: Tensor, texts: Tensor, ratings: Mapping[Task, Ratings], samples: int, seed: int
) -> dict[str, float]:
    sides = {"sts": (texts, texts), "sis": (images, images), "sits": (texts, images)}
    found: dict[str, float] = {}
    for task in get_args(Task):
        rows, (first, second) = ratings[task].pairs, sides[task]
        cosines = (first[rows[0]].double() * second[rows[1]]).sum(1)
        mean, deviation = sampled_spearman(rows[0], cosines.cpu(), ratings[task].rating, samples=samples, seed=seed)
        found |= {task: 100 * mean, f"{task}_std": 100 * deviation, f"{task}_missing": ratings[task].missing}
    return {**found, "mean_correlation": sum(found[task] for task in get_args(Task)) / 3}


def measured(outcomes: Outcomes) -> dict[str, float]:
    """DIRECTION_rK in percent of the queries that have a right answer."""
    found: dict[str, float] = {}
    for direction in ("image_to_text", "image_to_image"):
        ranks = outcomes[f"{direction}_rank"]
        for k in KS:
            found[f"{direction}_r{k}"] = 100 * float(((ranks > 0) & (ranks <= k)).sum() / max(1, (ranks > 0).sum()))
    for direction in ("text_to_image", "text_to_text"):
        queries = max(1, outcomes[f"{direction}_queries"].sum())
        for k in KS:
            found[f"{direction}_r{k}"] = 100 * float(outcomes[f"{direction}_hits_{k}"].sum() / queries)
    return found


def of_set(
    of: ImageSet, features: Features, *, ids: CaptionIds, folder: str, split: str, samples: int = SAMPLES
) -> Result:
    """The model on a set of MSCOCO's images and the ratings in a folder: `sts_SPLIT.csv`, plain or gzipped, and so on.

    Raises UnreadableError: a file is not there, or of another set; or no image can be decoded.
    """
    encoded = features.of_images(of.files)
    rows = encoded.rows.tolist()
    whole = [of.images[row] for row in rows]
    owner = torch.repeat_interleave(torch.tensor([len(image.captions) for image in whole]))
    texts = features.of_texts([caption for image in whole for caption in image.captions])
    names = [image.place.name.rpartition("/")[2] for image in whole]
    said = [one for name, image in zip(names, whole, strict=True) for one in ids[name][: len(image.captions)]]
    ratings: dict[Task, Ratings] = {
        task: read_ratings(_file(folder, f"{task}_{split}.csv"), task, said, names) for task in get_args(Task)
    }
    outcomes, facts = crisscrossed(encoded.embeddings, texts, owner, ratings, samples=samples)
    numbers = {
        "images": len(whole),
        "captions": len(said),
        "image_to_image_queries": int((outcomes["image_to_image_rank"] > 0).sum()),
        "text_to_text_queries": int(outcomes["text_to_text_queries"].sum()),
    }
    left_out = of.files.left_out(encoded.undecodable, of.left_out)
    return Result(measured(outcomes), {**facts, **numbers}, outcomes, rows, left_out)


def read_ids(path: str) -> CaptionIds:
    """The ids of the captions of each image, by its file name, of Karpathy's JSON.

    Raises UnreadableError: it is no such JSON.
    """
    try:
        images = storage.read_json(path)["images"]
        return {
            image["filename"]: [
                f"COCO_val2014:sentid:{one['sentid']}" for one in image["sentences"] if one["raw"].strip()
            ]
            for image in images
        }
    except (KeyError, TypeError) as error:
        raise UnreadableError(
            f"{path}: no JSON of Karpathy's splits with sentid ({error!r}); give dataset_coco.json"
        ) from None


def _file(folder: str, name: str) -> str:
    gzipped = storage.join(folder, f"{name}.gz")
    return gzipped if storage.exists(gzipped) else storage.join(folder, name)


def read_ratings(path: str, task: Task, captions: Sequence[str], images: Sequence[str]) -> Ratings:
    """The ratings of a CSV, plain or gzipped.

    Raises UnreadableError: it is no such file, or none of its pairs is of the set.

    Args:
        path: of the file.
        task: which it is of.
        captions: their ids, `COCO_val2014:sentid:N`, in the order of the embeddings.
        images: their file names, `COCO_val2014_N.jpg`, likewise.
    """
    try:
        data = storage.read_bytes(path)
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
        rows = [
            (*(row[name] for name in COLUMNS[task]), float(row["agg_score"]))
            for row in csv.DictReader(io.StringIO(text))
        ]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UnreadableError(
            f"{path}: no CSV of CxC with {', '.join(COLUMNS[task])} and agg_score ({error}); give {task}_test.csv of it"
        ) from None
    places = [{name: row for row, name in enumerate(names)} for names in (captions, images)]
    of = [places[column.startswith("image")] for column in COLUMNS[task]]
    there = [
        (of[0][first], of[1][second], rating) for first, second, rating in rows if first in of[0] and second in of[1]
    ]
    if not there:
        raise UnreadableError(
            f"{path}: none of its {len(rows):,} pairs is of this set; its ids are COCO's sentid and filename, as in "
            "Karpathy's JSON"
        )
    first, second, rating = zip(*there, strict=True)
    return Ratings(torch.tensor([first, second]), torch.tensor(rating, dtype=torch.float64), len(rows) - len(there))


def _both(pairs: Tensor) -> Tensor:
    """Pairs within a modality, of which each is the other's: without an item and itself."""
    pairs = pairs[:, pairs[0] != pairs[1]]
    return torch.cat([pairs, pairs.flip(0)], dim=1)
