"""Image-text retrieval with several captions per image: recall@k in percent, both ways.

ALIGN section 5.1, tables 2 and 3.

The evaluator knows a set of captioned images and how to encode it; its core, `recalls`, only knows embeddings.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from altalign.errors import UnreadableError
from altalign.eval.image_sets import CaptionedImage

KS = (1, 5, 10)

_SCORES = 1 << 24  # scores that are held, 64 MiB; more if one query has more candidates
_NEVER = torch.iinfo(torch.int64).max  # rank of a query whose own candidates have no score
_T = TypeVar("_T")


@dataclass(frozen=True)
class Retrieval:
    """The result of evaluating a set."""

    metrics: dict[str, float]
    undecodable: list[str]  # names of images that were left out, with their captions


def retrieval(
    pairs: Iterable[CaptionedImage],
    *,
    decode: Callable[[bytes], Tensor],
    encode_image: Callable[[Tensor], Tensor],
    encode_text: Callable[[list[str]], Tensor],
    batch: int,
    threads: int = 1,
) -> Retrieval:
    """Encode a set and search it in both directions.

    Args:
        pairs: images, each with at least one caption; an image comes once.
        decode: turns an image file's bytes into pixels, of one shape for all, and raises ValueError or OSError if they
            are no image. It is called in threads.
        encode_image: turns pixels (n, …) into embeddings (n, d) of length 1.
        encode_text: turns n captions into embeddings (n, d) of length 1.
        batch: number of images, or captions, that are encoded at a time.
        threads: number of images that are decoded at a time.

    Returns:
        The metrics of `recalls` and `undecodable`, the number of images that were left out; and their names.

    Raises:
        UnreadableError: there is no image, or none can be decoded.
    """
    images: list[Tensor] = []
    texts: list[Tensor] = []
    captions_of: list[int] = []
    undecodable: list[str] = []
    waiting: list[str] = []
    with torch.no_grad(), ThreadPoolExecutor(threads) as pool:
        for some in _batches(pairs, batch):
            decoded = list(zip(some, pool.map(partial(_pixels, decode), some), strict=True))
            undecodable += [pair.name for pair, pixels in decoded if pixels is None]
            whole = [(pair, pixels) for pair, pixels in decoded if pixels is not None]
            if whole:
                images.append(encode_image(torch.stack([pixels for _, pixels in whole])).float())
            captions_of += [len(pair.captions) for pair, _ in whole]
            waiting += [caption for pair, _ in whole for caption in pair.captions]
            while len(waiting) >= batch:
                texts.append(encode_text(waiting[:batch]).float())
                del waiting[:batch]
        if waiting:
            texts.append(encode_text(waiting).float())
        if not images:
            raise UnreadableError(_nothing(undecodable))
        owner = torch.repeat_interleave(torch.tensor(captions_of))
        metrics = recalls(torch.cat(images), torch.cat(texts), owner)
    return Retrieval({**metrics, "undecodable": len(undecodable)}, undecodable)


@torch.no_grad()
def recalls(images: Tensor, texts: Tensor, owner: Tensor, ks: Sequence[int] = KS) -> dict[str, float]:
    """Recall@k of images by captions and of captions by images, in percent of the queries.

    A caption hits if its image is among the k best images; an image hits if any of its captions is among the k best
    captions. A candidate of another image with the same score comes first, so that a model with equal embeddings finds
    nothing; so does one whose score is not a number. A query whose own candidates have no score misses.

    Args:
        images: (n, d) float32.
        texts: (m, d) float32, on the same device.
        owner: int64 (m,), the row of each caption's image. Every image has a caption.
        ks: the values of k.

    Returns:
        `image_to_text_rK` and `text_to_image_rK` for every k; `rsum`, their sum; `mean_recall`, their mean;
        `chance_r1`,
        recall@1 of a random order (the same in both directions); `images` and `captions`, their numbers.

    Raises:
        ValueError: shapes or owners do not agree, or an image has no caption.
    """
    owner = owner.to(images.device)
    _check(images, texts, owner)
    own = torch.arange(len(images), device=images.device)
    with _in_float32(images.device.type):
        ranks = {"image_to_text": _ranks(images, texts, own, owner), "text_to_image": _ranks(texts, images, owner, own)}
    found = {f"{direction}_r{k}": 100 * (of <= k).double().mean().item() for direction, of in ranks.items() for k in ks}
    total = sum(found.values())
    return {
        **found,
        "rsum": total,
        "mean_recall": total / len(found),
        "chance_r1": 100 / len(images),
        "images": len(images),
        "captions": len(texts),
    }


def _ranks(queries: Tensor, candidates: Tensor, owners: Tensor, owners_of_candidates: Tensor) -> Tensor:
    """Rank, from 1, of each query's best own candidate among those of other owners, int64 (queries,).

    It holds the scores of some queries at a time, against all candidates.
    """
    sorted_owners, order = owners_of_candidates.sort(stable=True)
    rows_at_a_time = max(1, _SCORES // len(candidates))
    ranks = []
    for some, of in zip(queries.split(rows_at_a_time), owners.split(rows_at_a_time), strict=True):
        scores = some @ candidates.T
        first, after = torch.searchsorted(sorted_owners, of), torch.searchsorted(sorted_owners, of, right=True)
        numbers = after - first
        rows = torch.repeat_interleave(numbers)
        columns = order[first[rows] + torch.arange(len(rows), device=rows.device) - (numbers.cumsum(0) - numbers)[rows]]
        own = scores[rows, columns]
        own = torch.where(own.isnan(), -torch.inf, own)
        best = torch.full((len(some), 1), -torch.inf, device=scores.device).scatter_reduce(
            0, rows[:, None], own[:, None], "amax"
        )
        scores[rows, columns] = -torch.inf  # so that they are not above the best
        before = len(candidates) - (scores < best).sum(1)
        ranks.append(torch.where(best[:, 0] > -torch.inf, 1 + before, _NEVER))
    return torch.cat(ranks)


def _check(images: Tensor, texts: Tensor, owner: Tensor) -> None:
    if images.ndim != 2 or texts.ndim != 2 or images.shape[1] != texts.shape[1] or owner.shape != texts.shape[:1]:
        shapes = f"images {tuple(images.shape)}, texts {tuple(texts.shape)}, owner {tuple(owner.shape)}"
        raise ValueError(f"{shapes}: not (n, d), (m, d), (m,)")
    if not torch.equal(owner.unique(), torch.arange(len(images), device=owner.device)):
        raise ValueError(f"owner: not every row of {len(images)} images, and no other number, is in it")


@contextmanager
def _in_float32(device: str) -> Iterator[None]:
    """Computes products in float32, whatever training has set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _batches(things: Iterable[_T], size: int) -> Iterator[list[_T]]:
    rest = iter(things)
    while some := list(islice(rest, size)):
        yield some


def _pixels(decode: Callable[[bytes], Tensor], pair: CaptionedImage) -> Tensor | None:
    try:
        return decode(pair.image)
    except (ValueError, OSError):
        return None


def _nothing(undecodable: Sequence[str]) -> str:
    if not undecodable:
        return "no image with a caption is in the set; look at its paths and columns"
    return (
        f"{undecodable[0]}: cannot be decoded, nor can any of the set's {len(undecodable):,} images; "
        "give a column or files of images"
    )
