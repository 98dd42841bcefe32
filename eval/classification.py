"""Classes by prompts (zero-shot, ALIGN section 5.2) and by neighbours (kNN, ALIGN tables 8 to 10).

Zero-shot: an image belongs to the class whose prompts it is nearest to. A class is the mean of the embeddings of its
prompts, each of length 1, scaled to length 1 (CLIP's prompt ensembles). kNN is no vote: a query is right at k if its
label is among those of its k nearest images. Of equal scores the right answer comes last, so that a model with equal
embeddings finds nothing.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from altalign.eval.encoded import NEVER, EncodedImages, Features, in_float32
from altalign.eval.outcomes import Example, Outcomes, Result, shown
from altalign.eval.sets import LabelledSet

Numbers = npt.NDArray[np.int64]

KS = (1, 10)  # of neighbours
_SCORES = 1 << 24  # scores that are held, 64 MiB
_EXAMPLES, _SHOWN = 12, 3


def zero_shot(labelled: LabelledSet, features: Features, *, templates: Sequence[str]) -> Result:
    """Classify a set by prompts: every class's name in every template. Raises as `Features.of_images`."""
    encoded = features.of_images(labelled.images)
    names = labelled.classes.names
    classes = features.of_ensembles([[each.replace("{}", name) for each in templates] for name in names])
    return classified(labelled, encoded, encoded.embeddings, classes)


def classified(
    labelled: LabelledSet,
    encoded: EncodedImages,
    vectors: Tensor,
    classes: Tensor,
    facts: Mapping[str, float] = MappingProxyType({}),
) -> Result:
    """What a classifier makes of a set; the score of a class is the product of its vector and the image's.

    Vectors are float32 (n, width), of the images that could be decoded; classes are float32 (classes, width).
    """
    names, labels = labelled.classes.names, labelled.labels[encoded.rows]
    ranks, first = ranked(vectors, classes, torch.from_numpy(labels))
    outcomes: Outcomes = {"label": labels, "rank": ranks, "predicted": first[:, 0]}
    rows = encoded.rows.tolist()
    examples = [
        Example(rows[place], tuple(names[one] for one in first[place]), int(ranks[place]), names[labels[place]])
        for place in shown([labelled.images.names[row] for row in rows], ranks.tolist(), at_most=_EXAMPLES)
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


@torch.no_grad()
def ranked(images: Tensor, classes: Tensor, labels: Tensor) -> tuple[Numbers, Numbers]:
    """Rank, from 1, of each image's class, int64 (n,); and its first classes, int64 (n, 3), or as many as there are.

    A score that is not a number comes first, and the right class is never found with one. Images are float32
    (n, width), classes float32 (classes, width), labels int64 (n,).
    """
    ranks, first = [], []
    at_a_time = max(1, _SCORES // len(classes))
    with in_float32(images.device.type):
        for some, own in zip(images.split(at_a_time), labels.to(images.device).split(at_a_time), strict=True):
            scores = some @ classes.T
            right = scores.gather(1, own[:, None])
            others = scores.scatter(1, own[:, None], -torch.inf).nan_to_num(nan=torch.inf, neginf=-torch.inf)
            before = torch.where(right[:, 0].isnan(), NEVER - 1, (others >= right).sum(1))
            ranks.append(1 + before)
            best = others.topk(min(_SHOWN, len(classes)), dim=1).indices
            place = torch.arange(best.shape[1], device=best.device)  # the right class is put in behind those before it
            shifted = best.gather(1, (place - (place > before[:, None]).long()).clamp(min=0))
            first.append(torch.where(place == before[:, None], own[:, None], shifted))
    return torch.cat(ranks).cpu().numpy(), torch.cat(first).cpu().numpy()


# Neighbours -----------------------------------------------------------------------------------------------------------


def knn(labelled: LabelledSet, index: LabelledSet, features: Features) -> Result:
    """Search the nearest images of an index for each image of a set; both number their classes in one way.

    Raises as `Features.of_images`.
    """
    queries, nearest = features.of_images(labelled.images), features.of_images(index.images)
    labels, others = labelled.labels[queries.rows], index.labels[nearest.rows]
    ranks = neighbours(queries.embeddings, nearest.embeddings, torch.from_numpy(labels), torch.from_numpy(others))
    outcomes: Outcomes = {"label": labels, "rank": ranks}
    names, rows = index.classes.names, queries.rows.tolist()
    places = shown([labelled.images.names[row] for row in rows], ranks.tolist(), at_most=_EXAMPLES)
    best = (queries.embeddings[places] @ nearest.embeddings.T).topk(min(_SHOWN, len(others)), dim=1).indices
    examples = [
        Example(rows[place], tuple(names[others[one]] for one in some), int(ranks[place]), names[labels[place]])
        for place, some in zip(places, best.tolist(), strict=True)
    ]
    facts = {"images": len(labels), "index_images": len(others), "classes": len(names)}
    left_out = labelled.images.left_out(queries.undecodable, labelled.left_out)
    of_index = index.images.left_out(nearest.undecodable, index.left_out)
    left_out |= {f"index: {why}": names for why, names in of_index.items()}
    return Result(measured_neighbours(outcomes), facts, outcomes, rows, left_out, examples, names)


def measured_neighbours(outcomes: Outcomes) -> dict[str, float]:
    """r1 and r10 in percent of the images."""
    return {f"r{k}": 100 * float(np.mean(outcomes["rank"] <= k)) for k in KS}


@torch.no_grad()
def neighbours(queries: Tensor, index: Tensor, labels: Tensor, others: Tensor) -> Numbers:
    """Rank, from 1, of the nearest image of a query's label among those of other labels.

    Queries are float32 (n, width) with labels int64 (n,), the index float32 (m, width) with labels int64 (m,). It
    holds the scores of some queries at a time, against the whole index.
    """
    order, labels, others = others.argsort(stable=True), labels.cpu(), others.cpu()
    first, after = (torch.searchsorted(others[order], labels, right=right).tolist() for right in (False, True))
    order, ranks = order.to(queries.device), torch.full((len(queries),), NEVER)
    at_a_time = max(1, _SCORES // len(index))
    with in_float32(queries.device.type):
        for begin in range(0, len(queries), at_a_time):
            for place, scores in enumerate(queries[begin : begin + at_a_time] @ index.T, start=begin):
                own = scores[order[first[place] : after[place]]]
                own = own[~own.isnan()]
                if len(own):
                    best = own.amax()
                    own_numbers = after[place] - first[place]
                    below = (scores < best).sum() - (own < best).sum()
                    ranks[place] = 1 + len(scores) - own_numbers - below
    return ranks.numpy()
