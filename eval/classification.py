"""Classes by prompts (zero-shot, ALIGN section 5.2) and by neighbours (kNN, ALIGN tables 8 to 10).

Zero-shot: an image belongs to the class whose prompts it is nearest to. A class is the mean of the embeddings of its
prompts, each of length 1, scaled to length 1 (CLIP's prompt ensembles). kNN is no vote: a query is right at k if its
label is among those of its k nearest images.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from altalign.eval.encoded import EncodedImages, Features
from altalign.eval.outcomes import Outcomes, Result
from altalign.eval.search import ranks_of_labels
from altalign.eval.sets import LabelledSet


def zero_shot(labelled: LabelledSet, features: Features, *, templates: Sequence[str]) -> Result:
    """Classify a set by prompts: every class's name in every template. Raises as `Features.of_images`."""
    encoded = features.of_images(labelled.images)
    prompts = [[each.replace("{}", name) for each in templates] for name in labelled.classes.names]
    return classified(labelled, encoded, encoded.embeddings, features.of_ensembles(prompts), {})


def classified(
    labelled: LabelledSet, encoded: EncodedImages, vectors: Tensor, classes: Tensor, facts: Mapping[str, float]
) -> Result:
    """What a classifier makes of a set, by products of vectors (n, width) of decoded images and of classes."""
    labels = labelled.labels[encoded.rows]
    ranks = ranks_of_labels(vectors, classes, torch.from_numpy(labels), torch.arange(len(classes)))
    outcomes: Outcomes = {"label": labels, "rank": ranks.numpy()}
    about = {"images": len(labels), "classes": len(classes), "chance_top1": 100 / len(classes), **facts}
    left_out = labelled.images.left_out(encoded.undecodable, labelled.left_out)
    return Result(labelled.images, encoded.rows.tolist(), outcomes, measured(outcomes), about, left_out)


def measured(outcomes: Outcomes) -> dict[str, float]:
    """top1 and top5 in percent of the images; mean_per_class: the mean of each class's top1."""
    ranks, labels = outcomes["rank"], outcomes["label"]
    hits, images = np.bincount(labels, ranks <= 1), np.bincount(labels)
    return {
        "top1": 100 * float(np.mean(ranks <= 1)),
        "top5": 100 * float(np.mean(ranks <= 5)),
        "mean_per_class": 100 * float(np.mean(hits[images > 0] / images[images > 0])),
    }


def knn(labelled: LabelledSet, index: LabelledSet, features: Features) -> Result:
    """Search the nearest images of an index for each image of a set; both number their classes in one way."""
    queries, nearest = features.of_images(labelled.images), features.of_images(index.images)
    labels, others = labelled.labels[queries.rows], index.labels[nearest.rows]
    sides = queries.embeddings, nearest.embeddings, torch.from_numpy(labels), torch.from_numpy(others)
    outcomes: Outcomes = {"label": labels, "rank": ranks_of_labels(*sides).numpy()}
    facts = {"images": len(labels), "index_images": len(others), "classes": len(index.classes.names)}
    left_out = labelled.images.left_out(queries.undecodable, labelled.left_out)
    of_index = index.images.left_out(nearest.undecodable, index.left_out)
    left_out |= {f"index: {why}": some for why, some in of_index.items()}
    return Result(labelled.images, queries.rows.tolist(), outcomes, measured_neighbours(outcomes), facts, left_out)


def measured_neighbours(outcomes: Outcomes) -> dict[str, float]:
    """r1 and r10 in percent of the images."""
    return {f"r{k}": 100 * float(np.mean(outcomes["rank"] <= k)) for k in (1, 10)}
