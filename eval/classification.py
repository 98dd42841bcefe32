"""Classes by prompts (zero-shot, ALIGN section 5.2) and by neighbours (kNN, ALIGN tables 8 to 10).

Zero-shot: an image belongs to the class whose prompts it is nearest to. A class is the mean of the embeddings of its
prompts, each of length 1, scaled to length 1 (CLIP's prompt ensembles). kNN is no vote: a query is right at k if its
label is among those of its k nearest images.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from altalign.eval import search
from altalign.eval.encoded import EncodedImages, Features
from altalign.eval.outcomes import EXAMPLES, Example, Outcomes, Result, shown
from altalign.eval.sets import LabelledSet

Numbers = npt.NDArray[np.int64]


def zero_shot(labelled: LabelledSet, features: Features, *, templates: Sequence[str]) -> Result:
    """Classify a set by prompts: every class's name in every template. Raises as `Features.of_images`."""
    encoded = features.of_images(labelled.images)
    names = labelled.classes.names
    classes = features.of_ensembles([[each.replace("{}", name) for each in templates] for name in names])
    return classified(labelled, encoded, encoded.embeddings, classes, {})


def classified(
    labelled: LabelledSet, encoded: EncodedImages, vectors: Tensor, classes: Tensor, facts: Mapping[str, float]
) -> Result:
    """What a classifier makes of a set, by products of vectors (n, width) of decoded images and of classes."""
    names, labels, rows = labelled.classes.names, labelled.labels[encoded.rows], encoded.rows.tolist()
    ranks, first = ranked(vectors, classes, torch.from_numpy(labels))
    outcomes: Outcomes = {"label": labels, "rank": ranks, "predicted": first[:, 0]}
    examples = [
        Example(rows[place], tuple(names[one] for one in first[place]), int(ranks[place]), names[labels[place]])
        for place in shown([labelled.images.names[row] for row in rows], ranks.tolist(), at_most=EXAMPLES)
    ]
    about = {"images": len(labels), "classes": len(names), "chance_top1": 100 / len(names), **facts}
    left_out = labelled.images.left_out(encoded.undecodable, labelled.left_out)
    return Result(measured(outcomes), about, outcomes, rows, left_out, examples, names)


def measured(outcomes: Outcomes) -> dict[str, float]:
    """top1 and top5 in percent of the images; mean_per_class: the mean of each class's top1."""
    ranks, labels = outcomes["rank"], outcomes["label"]
    hits, images = np.bincount(labels, ranks <= 1), np.bincount(labels)
    return {
        "top1": 100 * float(np.mean(ranks <= 1)),
        "top5": 100 * float(np.mean(ranks <= 5)),
        "mean_per_class": 100 * float(np.mean(hits[images > 0] / images[images > 0])),
    }


def ranked(images: Tensor, classes: Tensor, labels: Tensor) -> tuple[Numbers, Numbers]:
    """Rank, from 1, of each image's class, int64 (n,); and its first classes, int64 (n, 3), or as many as there are."""
    ranks, first = [], []
    for rows, scores in search.scores_of(images, classes):
        own = labels[rows].to(scores.device)[:, None]
        rank = search.ranked(scores, torch.zeros_like(scores, dtype=torch.bool).scatter(1, own, value=True))
        others = scores.scatter(1, own, -torch.inf).nan_to_num(nan=torch.inf, neginf=-torch.inf)
        best = others.topk(min(search.SHOWN, len(classes)), dim=1).indices
        place = 1 + torch.arange(best.shape[1], device=best.device)  # the right class is put in behind those before it
        shifted = best.gather(1, (place - 1 - (place > rank[:, None]).long()).clamp(min=0))
        ranks.append(rank)
        first.append(torch.where(place == rank[:, None], own, shifted))
    return torch.cat(ranks).cpu().numpy(), torch.cat(first).cpu().numpy()


# Neighbours -----------------------------------------------------------------------------------------------------------


def knn(labelled: LabelledSet, index: LabelledSet, features: Features) -> Result:
    """Search the nearest images of an index for each image of a set; both number their classes in one way."""
    queries, found = features.of_images(labelled.images), features.of_images(index.images)
    labels, others = labelled.labels[queries.rows], index.labels[found.rows]
    ranks = neighbours(queries.embeddings, found.embeddings, torch.from_numpy(labels), torch.from_numpy(others))
    outcomes: Outcomes = {"label": labels, "rank": ranks}
    names, rows = index.classes.names, queries.rows.tolist()
    places = shown([labelled.images.names[row] for row in rows], ranks.tolist(), at_most=EXAMPLES)
    examples = [
        Example(rows[place], tuple(names[others[one]] for one in some), int(ranks[place]), names[labels[place]])
        for place, some in zip(places, search.nearest(queries.embeddings[places], found.embeddings), strict=True)
    ]
    facts = {"images": len(labels), "index_images": len(others), "classes": len(names)}
    left_out = labelled.images.left_out(queries.undecodable, labelled.left_out)
    of_index = index.images.left_out(found.undecodable, index.left_out)
    left_out |= {f"index: {why}": some for why, some in of_index.items()}
    return Result(measured_neighbours(outcomes), facts, outcomes, rows, left_out, examples, names)


def measured_neighbours(outcomes: Outcomes) -> dict[str, float]:
    """r1 and r10 in percent of the images."""
    return {f"r{k}": 100 * float(np.mean(outcomes["rank"] <= k)) for k in (1, 10)}


def neighbours(queries: Tensor, index: Tensor, labels: Tensor, others: Tensor) -> Numbers:
    """Rank, from 1, of the nearest image of a query's label among those of other labels: int64 (n,)."""
    others = others.to(index.device)
    ranks = [
        search.ranked(scores, labels[rows].to(index.device)[:, None] == others)
        for rows, scores in search.scores_of(queries, index)
    ]
    return torch.cat(ranks).cpu().numpy()
