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
from typing import Literal, TypeVar

import torch
from torch import Tensor

from altalign.errors import UnreadableError
from altalign.eval.image_sets import CaptionedImage

KS = (1, 5, 10)
SharedCaptions = Literal["own", "all"]

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
    shared_captions: SharedCaptions = "own",
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
        shared_captions: a caption that several images have is right for its `own` image alone, or for `all` of them.

    Returns:
        The metrics of `recalls`; `shared_captions`, how many captions another image has too; `undecodable`, the number
        of images that were left out; and their names.

    Raises:
        UnreadableError: there is no image, or none can be decoded.
    """
    images: list[Tensor] = []
    texts: list[Tensor] = []
    captions_of: list[int] = []
    undecodable: list[str] = []
    waiting: list[str] = []
    said: list[str] = []
    with torch.no_grad(), ThreadPoolExecutor(threads) as pool:
        for some in _batches(pairs, batch):
            decoded = list(zip(some, pool.map(partial(_pixels, decode), some), strict=True))
            undecodable += [pair.name for pair, pixels in decoded if pixels is None]
            whole = [(pair, pixels) for pair, pixels in decoded if pixels is not None]
            if whole:
                images.append(encode_image(torch.stack([pixels for _, pixels in whole])).float())
            captions_of += [len(pair.captions) for pair, _ in whole]
            waiting += (captions := [caption for pair, _ in whole for caption in pair.captions])
            said += captions
            while len(waiting) >= batch:
                texts.append(encode_text(waiting[:batch]).float())
                del waiting[:batch]
        if waiting:
            texts.append(encode_text(waiting).float())
        if not images:
            raise UnreadableError(_nothing(undecodable))
        owner = torch.repeat_interleave(torch.tensor(captions_of))
        same = _numbered(said)
        metrics = recalls(
            torch.cat(images), torch.cat(texts), owner, same_caption=same if shared_captions == "all" else None
        )
    shared = {"shared_captions": _shared(owner, same), "undecodable": len(undecodable)}
    return Retrieval({**metrics, **shared}, undecodable)


@torch.no_grad()
def recalls(
    images: Tensor, texts: Tensor, owner: Tensor, ks: Sequence[int] = KS, *, same_caption: Tensor | None = None
) -> dict[str, float]:
    """Recall@k of images by captions and of captions by images, in percent of the queries.

    A caption hits if its image is among the k best images; an image hits if any of its captions is among the k best
    captions. A candidate of another image with the same score comes first, so that a model with equal embeddings finds
    nothing; so does one whose score is not a number. A query whose own candidates have no score misses.

    Args:
        images: (n, d) float32.
        texts: (m, d) float32, on the same device.
        owner: int64 (m,), the row of each caption's image. Every image has a caption.
        ks: the values of k.
        same_caption: int64 (m,), a number for each caption, equal where captions are: a caption is then also of the
            images of those equal to it.

    Returns:
        `image_to_text_rK` and `text_to_image_rK` for every k; `rsum`, their sum; `mean_recall`, their mean;
        `chance_r1`,
        recall@1 of a random order (the same in both directions); `images` and `captions`, their numbers.

    Raises:
        ValueError: shapes or owners do not agree, or an image has no caption.
    """
    owner = owner.to(images.device)
    _check(images, texts, owner)
    own = torch.stack([owner, torch.arange(len(texts), device=images.device)])
    if same_caption is not None:
        own = _of_all(owner, same_caption.to(images.device))
    with _in_float32(images.device.type):
        ranks = {
            "image_to_text": _ranks(images, texts, *_sorted(own)),
            "text_to_image": _ranks(texts, images, *_sorted(own.flip(0))),
        }
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


def _of_all(owner: Tensor, same: Tensor) -> Tensor:
    """Images and the captions that they have or that are equal to one that they have: int64 (2, pairs), each once."""
    of, images = torch.stack([same, owner]).unique(dim=1)  # sorted by the number of the caption
    of = of.contiguous()
    first, after = torch.searchsorted(of, same), torch.searchsorted(of, same, right=True)
    captions = torch.repeat_interleave(after - first)
    places = first[captions] + torch.arange(len(captions), device=of.device) - _starts(after - first)[captions]
    return torch.stack([images[places], captions])


def _sorted(pairs: Tensor) -> Tensor:
    """Pairs (2, n) in the order of the first of each."""
    return pairs[:, pairs[0].argsort(stable=True)]


def _starts(numbers: Tensor) -> Tensor:
    return numbers.cumsum(0) - numbers


def _ranks(queries: Tensor, candidates: Tensor, query: Tensor, candidate: Tensor) -> Tensor:
    """Rank, from 1, of each query's best own candidate among those that are not its own, int64 (queries,).

    Which are its own, pairs of `query` and `candidate` say, sorted by query. It holds the scores of some queries at a
    time, against all candidates.
    """
    rows_at_a_time = max(1, _SCORES // len(candidates))
    ranks = []
    for begin, some in zip(range(0, len(queries), rows_at_a_time), queries.split(rows_at_a_time), strict=True):
        scores = some @ candidates.T
        first, after = torch.searchsorted(query, torch.tensor([begin, begin + len(some)], device=query.device)).tolist()
        rows, columns = query[first:after] - begin, candidate[first:after]
        own = scores[rows, columns]
        own = torch.where(own.isnan(), -torch.inf, own)
        best = torch.full((len(some), 1), -torch.inf, device=scores.device).scatter_reduce(
            0, rows[:, None], own[:, None], "amax"
        )
        scores[rows, columns] = -torch.inf  # so that they are not above the best
        before = len(candidates) - (scores < best).sum(1)
        ranks.append(torch.where(best[:, 0] > -torch.inf, 1 + before, _NEVER))
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
