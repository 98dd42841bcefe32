"""kNN by image features: whether a query's label is among those of its k nearest images (ALIGN, tables 8 to 10).

It is no vote. An image of another label with the same score comes before one of the query's own.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from altalign.eval.encoded import Features
from altalign.eval.outcomes import Example, Outcomes, Result, shown
from altalign.eval.precision import NEVER, in_float32
from altalign.eval.sets import LabelledSet

KS = (1, 10)

_SCORES = 1 << 24  # scores that are held, 64 MiB
_EXAMPLES, _SHOWN = 12, 3


def knn(of: LabelledSet, index: LabelledSet, features: Features) -> Result:
    """Search the nearest images of an index for each image of a set; both number their classes in one way.

    Raises UnreadableError: no image of one of them can be decoded.
    """
    queries, nearest = features.of_images(of.images), features.of_images(index.images)
    labels, others = of.labels[queries.rows], index.labels[nearest.rows]
    ranks = neighbours(queries.embeddings, nearest.embeddings, torch.from_numpy(labels), torch.from_numpy(others))
    outcomes: Outcomes = {"label": labels, "rank": ranks}
    names = index.classes.names
    rows = queries.rows.tolist()
    places = shown([of.images.names[row] for row in rows], ranks.tolist(), at_most=_EXAMPLES)
    some = (queries.embeddings[places] @ nearest.embeddings.T).topk(min(_SHOWN, len(others)), dim=1).indices
    examples = [
        Example(rows[place], tuple(names[others[one]] for one in found), int(ranks[place]), names[labels[place]])
        for place, found in zip(places, some.tolist(), strict=True)
    ]
    facts = {"images": len(labels), "index_images": len(others), "classes": len(names)}
    left_out = {
        **of.left_out_with(queries.undecodable),
        **{f"index: {why}": names for why, names in index.left_out_with(nearest.undecodable).items()},
    }
    return Result(measured(outcomes), facts, outcomes, rows, left_out, examples, names)


def measured(outcomes: Outcomes) -> dict[str, float]:
    """r1 and r10 in percent of the images."""
    return {f"r{k}": 100 * float(np.mean(outcomes["rank"] <= k)) for k in KS}


@torch.no_grad()
def neighbours(queries: Tensor, index: Tensor, labels: Tensor, others: Tensor) -> npt.NDArray[np.int64]:
    """Rank, from 1, of the nearest image of a query's label among those of other labels.

    Holds the scores of some queries at a time, against the whole index.

    Args:
        queries: float32 (n, width).
        index: float32 (m, width).
        labels: of the queries, int64 (n,).
        others: of the index, int64 (m,).
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
