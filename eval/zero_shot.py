"""Zero-shot classification: an image belongs to the class whose prompts it is nearest to (ALIGN, section 5.2).

A class is the mean of the embeddings of its prompts, each of length 1, scaled to length 1 (CLIP's prompt ensembles).
Classes of the same score as the right one come before it, so that a model with equal embeddings finds nothing.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from altalign.eval.encoded import EncodedImages, Features
from altalign.eval.outcomes import Example, Outcomes, Result, shown
from altalign.eval.precision import NEVER, in_float32
from altalign.eval.sets import LabelledSet

Numbers = npt.NDArray[np.int64]

_SCORES = 1 << 24  # scores that are held, 64 MiB
_EXAMPLES, _SHOWN = 12, 3


def zero_shot(of: LabelledSet, features: Features, *, templates: Sequence[str]) -> Result:
    """Classify a set by prompts: every class's name in every template.

    Raises UnreadableError: no image can be decoded.
    """
    encoded = features.of_images(of.images)
    names = of.classes.names
    classes = features.of_ensembles([[each.replace("{}", name) for each in templates] for name in names])
    return classified(of, encoded, encoded.embeddings, classes)


def classified(
    of: LabelledSet,
    encoded: EncodedImages,
    vectors: Tensor,
    classes: Tensor,
    facts: Mapping[str, float] = MappingProxyType({}),
) -> Result:
    """What a classifier makes of a set: the score of a class is the product of its vector and the image's.

    Args:
        of: the set.
        encoded: which images could be decoded.
        vectors: of those images, float32 (n, width).
        classes: float32 (classes, width).
        facts: more numbers to report.
    """
    names, labels = of.classes.names, of.labels[encoded.rows]
    ranks, first = ranked(vectors, classes, torch.from_numpy(labels))
    outcomes: Outcomes = {"label": labels, "rank": ranks, "predicted": first[:, 0]}
    rows = encoded.rows.tolist()
    examples = [
        Example(rows[place], tuple(names[one] for one in first[place]), int(ranks[place]), names[labels[place]])
        for place in shown([of.images.names[row] for row in rows], ranks.tolist(), at_most=_EXAMPLES)
    ]
    about = {"images": len(labels), "classes": len(names), "chance_top1": 100 / len(names), **facts}
    return Result(measured(outcomes), about, outcomes, rows, of.left_out_with(encoded.undecodable), examples, names)


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
    """Rank, from 1, of each image's class; and the first classes of each image, three where there are so many.

    Among equal scores the right class comes last. A score that is not a number comes first, and the right class is
    never found with one.

    Args:
        images: float32 (n, width).
        classes: float32 (classes, width).
        labels: int64 (n,).

    Returns:
        int64 (n,), int64 (n, shown).
    """
    ranks, found = [], []
    at_a_time = max(1, _SCORES // len(classes))
    with in_float32(images.device.type):
        for some, own in zip(images.split(at_a_time), labels.to(images.device).split(at_a_time), strict=True):
            scores = some @ classes.T
            right = scores.gather(1, own[:, None])
            others = scores.scatter(1, own[:, None], -torch.inf).nan_to_num(nan=torch.inf, neginf=-torch.inf)
            before = torch.where(right[:, 0].isnan(), NEVER - 1, (others >= right).sum(1))
            ranks.append(1 + before)
            best = others.topk(min(_SHOWN, len(classes)), dim=1).indices
            found.append(_with_right(best, own, before))
    return torch.cat(ranks).cpu().numpy(), torch.cat(found).cpu().numpy()


def _with_right(best: Tensor, own: Tensor, before: Tensor) -> Tensor:
    """The first of the other classes (n, shown), with the right class put in behind those before it."""
    place = torch.arange(best.shape[1], device=best.device)
    shifted = best.gather(1, (place - (place > before[:, None]).long()).clamp(min=0))
    return torch.where(place == before[:, None], own[:, None], shifted)
