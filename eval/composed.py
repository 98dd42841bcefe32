"""Retrieval by an image plus or minus a text (ALIGN section 7, figure 5)."""

import json
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from altalign.errors import UnreadableError
from altalign.eval.encoded import Features
from altalign.eval.image_sources import Images, text_lines
from altalign.eval.outcomes import Outcomes, Result
from altalign.eval.search import in_float32, ranked

TEXT_WEIGHT = 2.0  # footnote 4: the best beside images of weight 1; 1 and 1 work too


class Query(NamedTuple):
    """An image plus or minus a text, and what should be found; the images by their names."""

    image: str
    text: str
    sign: int
    target: str = ""


def composed(images: Images, queries: Sequence[Query], features: Features) -> Result:
    """Search the images of a set by queries; the rows are those of the queries' images."""
    encoded = features.of_images(images)
    rows = encoded.rows.tolist()
    place = {images.names[row].rpartition("/")[2]: number for number, row in enumerate(rows)}
    for name in (name for query in queries for name in (query.image, query.target) if name):
        if name not in place:
            raise UnreadableError(f"{name}: named by a query, and no image of the set that can be decoded; correct it")
    vectors, texts = encoded.embeddings, features.of_texts([query.text for query in queries])
    own = torch.tensor([place[query.image] for query in queries], device=vectors.device)
    targets = torch.tensor([place.get(query.target, -1) for query in queries], device=vectors.device)
    sign = torch.tensor([query.sign for query in queries], device=vectors.device)
    ranks = search(queries_of(vectors[own], texts, sign), vectors, own, targets)
    outcomes = {"rank": ranks.cpu().numpy()}
    facts = {"queries": len(queries), "images": len(rows), "with_target": int((targets >= 0).sum())}
    of_queries, left_out = [rows[one] for one in own.tolist()], images.left_out(encoded.undecodable, {})
    return Result(images, of_queries, outcomes, measured(outcomes), facts, left_out)


def queries_of(images: Tensor, texts: Tensor, sign: Tensor) -> Tensor:
    """Queries (n, width), of length 1, of embeddings (n, width); `sign` (n,) is -1 where a text is taken away."""
    images, texts = functional.normalize(images, dim=1), functional.normalize(texts, dim=1)
    return functional.normalize(images + TEXT_WEIGHT * sign[:, None].to(texts) * texts, dim=1)


def search(queries: Tensor, candidates: Tensor, own: Tensor, targets: Tensor) -> Tensor:
    """Rank, from 1, of each query's target among the candidates, of which its own image is none: int64 (n,).

    Queries are float32 (n, width), candidates (m, width); `own` and `targets`, int64 (n,), are rows of candidates, -1
    where nobody says what should be found: then the rank is 0. Ties as in `ranked`.
    """
    with in_float32(queries.device.type):
        scores = (queries @ candidates.T).scatter(1, own[:, None], -torch.inf)
    is_target = torch.arange(len(candidates), device=targets.device) == targets[:, None]
    return ranked(scores, is_target).masked_fill(targets < 0, 0)


def measured(outcomes: Outcomes) -> dict[str, float]:
    """Recall@k in percent of the queries with a target."""
    ranks = outcomes["rank"]
    queries = max(1, (ranks > 0).sum())
    return {f"r{k}": 100 * float(((ranks > 0) & (ranks <= k)).sum() / queries) for k in (1, 5, 10)}


def read_queries(path: str) -> list[Query]:
    """Queries of a file of JSON Lines: `image`, `text`, `sign` ("+" or "-"), and perhaps `target`."""
    queries = list[Query]()
    for number, line in enumerate(text_lines(path), start=1):
        try:
            value = json.loads(line)
            sign = {"+": 1, "-": -1}[value.get("sign", "+")]
            queries.append(Query(str(value["image"]), str(value["text"]), sign, str(value.get("target") or "")))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            repair = 'write {"image": "a.jpg", "text": "snow", "sign": "+"}'
            raise UnreadableError(f"{path}: line {number}: no query ({error}); {repair}") from None
    if not any(query.target for query in queries):
        raise UnreadableError(f"{path}: no query with a target; write one a line, one at least with a target")
    return queries
