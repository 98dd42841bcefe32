"""Image-text retrieval with several captions per image: recall@k in percent, both ways.

ALIGN section 5.1, tables 2 and 3.

The evaluator knows a set of captioned images and how to encode it; its core, `ranks`, only knows embeddings.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from altalign.eval.encoded import Features
from altalign.eval.outcomes import Example, Outcomes, Result, shown
from altalign.eval.precision import NEVER, in_float32
from altalign.eval.sets import ImageSet

KS = (1, 5, 10)
SharedCaptions = Literal["own", "all"]

_SCORES = 1 << 24  # scores that are held, 64 MiB; more if one query has more candidates
_EXAMPLES, _SHOWN = 12, 3  # queries of each direction, and what is shown of each


class Ranks(NamedTuple):
    """Rank, from 1, of each query's best own candidate among those that are not its own: int64 (queries,)."""

    of_images: Tensor
    of_texts: Tensor


def retrieval(of: ImageSet, features: Features, *, shared_captions: SharedCaptions = "own") -> Result:
    """Search a set in both directions.

    Raises UnreadableError: there is no image, or none can be decoded.

    Args:
        of: images, each with at least one caption.
        features: of the model.
        shared_captions: a caption that several images have is right for its `own` image alone, or for `all` of them.
    """
    encoded = features.of_images(of.files)
    rows = encoded.rows.tolist()
    whole = [of.images[row] for row in rows]
    said = list(chain.from_iterable(image.captions for image in whole))
    owner = torch.repeat_interleave(torch.tensor([len(image.captions) for image in whole]))
    images, texts, same = encoded.embeddings, features.of_texts(said), _numbered(said)
    found = ranks(images, texts, owner, same_caption=same if shared_captions == "all" else None)
    outcomes = outcomes_of(found, owner)
    left_out = of.files.left_out(encoded.undecodable, of.left_out)
    facts = {
        "chance_r1": 100 / len(whole),
        "images": len(whole),
        "captions": len(said),
        "shared_captions": _shared(owner, same),
        "undecodable": len(encoded.undecodable),
    }
    examples = [
        *_examples(images, texts, found.of_images, rows, said),
        *_examples(texts, images, found.of_texts, said, rows),
    ]
    return Result(measured(outcomes), facts, outcomes, rows, left_out, examples)


def measured(outcomes: Outcomes) -> dict[str, float]:
    """`image_to_text_rK` and `text_to_image_rK` in percent of the queries; `rsum`, their sum; `mean_recall`, mean."""
    by_image, captions = outcomes["image_to_text_rank"], outcomes["captions"].sum()
    found = {f"image_to_text_r{k}": 100 * float((by_image <= k).mean()) for k in KS}
    found |= {f"text_to_image_r{k}": 100 * float(outcomes[f"text_to_image_hits_{k}"].sum() / captions) for k in KS}
    total = sum(found.values())
    return {**found, "rsum": total, "mean_recall": total / len(found)}


@torch.no_grad()
def ranks(images: Tensor, texts: Tensor, owner: Tensor, *, same_caption: Tensor | None = None) -> Ranks:
    """Search images by captions and captions by images.

    A caption hits if its image is among the k best images; an image hits if any of its captions is among the k best
    captions. A candidate of another image with the same score comes first, so that a model with equal embeddings finds
    nothing; so does one whose score is not a number. A query whose own candidates have no score misses.

    Raises ValueError: shapes or owners do not agree, or an image has no caption.

    Args:
        images: (n, d) float32.
        texts: (m, d) float32, on the same device.
        owner: int64 (m,), the row of each caption's image. Every image has a caption.
        same_caption: int64 (m,), a number for each caption, equal where captions are: a caption is then also of the
            images of those equal to it.
    """
    owner = owner.to(images.device)
    _check(images, texts, owner)
    own = torch.stack([owner, torch.arange(len(texts), device=images.device)])
    if same_caption is not None:
        own = _of_all(owner, same_caption.to(images.device))
    with in_float32(images.device.type):
        return Ranks(_ranks(images, texts, *_sorted(own)), _ranks(texts, images, *_sorted(own.flip(0))))


def outcomes_of(found: Ranks, owner: Tensor) -> Outcomes:
    """A row an image: the rank of its best caption, how many captions it has, and how many of them find it."""
    by_text, owner = found.of_texts.cpu(), owner.cpu()
    hits = {f"text_to_image_hits_{k}": torch.bincount(owner, (by_text <= k).double()).long().numpy() for k in KS}
    return {"image_to_text_rank": found.of_images.cpu().numpy(), "captions": owner.bincount().numpy(), **hits}


@torch.no_grad()
def _examples(
    queries: Tensor, candidates: Tensor, found: Tensor, names: Sequence[int | str], of: Sequence[int | str]
) -> list[Example]:
    """Right and wrong ones, as many of each where there are so many, chosen by hashes."""
    chosen = shown([str(name) for name in names], found.tolist(), at_most=_EXAMPLES)
    best = (queries[chosen] @ candidates.T).topk(min(_SHOWN, len(candidates)), dim=1).indices.tolist()
    return [
        Example(names[query], tuple(of[place] for place in places), int(found[query]))
        for query, places in zip(chosen, best, strict=True)
    ]


@torch.no_grad()
def ranks_of_pairs(queries: Tensor, candidates: Tensor, pairs: Tensor, *, same: bool = False) -> Tensor:
    """Rank, from 1, of each query's best right candidate, int64 (n,); 0 of a query that has none. Ties as in `ranks`.

    Args:
        queries: (n, d) float32.
        candidates: (m, d) float32.
        pairs: int64 (2, p), rows of queries and of candidates that are right for them.
        same: queries are the candidates, and no query is a candidate of its own.
    """
    with in_float32(queries.device.type):
        found = _ranks(queries, candidates, *_sorted(pairs.unique(dim=1)), same=same)
    has_none = torch.ones(len(queries), dtype=torch.bool, device=queries.device)
    has_none[pairs[0]] = False
    return found.masked_fill(has_none, 0)


def _of_all(owner: Tensor, same: Tensor) -> Tensor:
    """Images and the captions that they have or that are equal to one that they have: int64 (2, pairs), each once."""
    of, images = torch.stack([same, owner]).unique(dim=1)  # sorted by the number of the caption
    of = of.contiguous()
    first, after = torch.searchsorted(of, same), torch.searchsorted(of, same, right=True)
    counts = after - first
    captions = torch.repeat_interleave(counts)
    starts = counts.cumsum(0) - counts
    places = first[captions] + torch.arange(len(captions), device=of.device) - starts[captions]
    return torch.stack([images[places], captions])


def _sorted(pairs: Tensor) -> Tensor:
    """Pairs (2, n) in the order of the first of each."""
    return pairs[:, pairs[0].argsort(stable=True)]


def _ranks(queries: Tensor, candidates: Tensor, query: Tensor, candidate: Tensor, *, same: bool = False) -> Tensor:
    """Rank, from 1, of each query's best own candidate among those that are not its own, int64 (queries,)."""
    rows_at_a_time = max(1, _SCORES // len(candidates))
    ranks = []
    for begin, some in zip(range(0, len(queries), rows_at_a_time), queries.split(rows_at_a_time), strict=True):
        scores = some @ candidates.T
        if same:
            scores.diagonal(begin).fill_(-torch.inf)
        first, after = torch.searchsorted(query, torch.tensor([begin, begin + len(some)], device=query.device)).tolist()
        rows, columns = query[first:after] - begin, candidate[first:after]
        own = scores[rows, columns]
        own = torch.where(own.isnan(), -torch.inf, own)
        best = torch.full((len(some), 1), -torch.inf, device=scores.device).scatter_reduce(
            0, rows[:, None], own[:, None], "amax"
        )
        scores[rows, columns] = -torch.inf  # so that they are not above the best
        before = len(candidates) - (scores < best).sum(1)
        ranks.append(torch.where(best[:, 0] > -torch.inf, 1 + before, NEVER))
    return torch.cat(ranks)


def _numbered(captions: Sequence[str]) -> Tensor:
    """A number for each caption, equal where captions are: int64 (m,)."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(caption, len(numbers)) for caption in captions])


def _shared(owner: Tensor, same: Tensor) -> int:
    """How many captions another image has too."""
    of = torch.stack([same, owner]).unique(dim=1)[0]
    return int((of.bincount()[same] > 1).sum())


def _check(images: Tensor, texts: Tensor, owner: Tensor) -> None:
    if images.ndim != 2 or texts.ndim != 2 or images.shape[1] != texts.shape[1] or owner.shape != texts.shape[:1]:
        shapes = f"images {tuple(images.shape)}, texts {tuple(texts.shape)}, owner {tuple(owner.shape)}"
        raise ValueError(f"{shapes}: not (n, d), (m, d), (m,)")
    if not torch.equal(owner.unique(), torch.arange(len(images), device=owner.device)):
        raise ValueError(f"owner: not every row of {len(images)} images, and no other number, is in it")
