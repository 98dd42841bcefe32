"""Image-text retrieval with several captions per image: recall@k in percent, both ways (ALIGN tables 2 and 3).

In several languages, one by one and on average: Multi30K (ALIGN section 8, table 11) and XM3600.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from altalign.errors import UnreadableError
from altalign.eval.encoded import Features
from altalign.eval.image_sources import NO_FILE, Images, files_in, text_lines
from altalign.eval.outcomes import EXAMPLES, Example, Outcomes, Result, shown
from altalign.eval.search import nearest, ranks_of_pairs
from altalign.eval.sets import ImageSet

KS = (1, 5, 10)


class Ranks(NamedTuple):
    """Rank, from 1, of each query's best own candidate among those that are not its own: int64 (queries,)."""

    of_images: Tensor
    of_texts: Tensor


def retrieval(pairs: ImageSet, features: Features, *, shared_captions: Literal["own", "all"] = "own") -> Result:
    """Search a set in both directions; a caption of several images is right for its `own` alone, or for `all`."""
    encoded = features.of_images(pairs.images)
    rows = encoded.rows.tolist()
    of_images = [pairs.captions[row] for row in rows]
    captions, owner = list(chain.from_iterable(of_images)), owners(of_images)
    numbers: dict[str, int] = {}  # equal where captions are
    same = torch.tensor([numbers.setdefault(caption, len(numbers)) for caption in captions])
    images, texts = encoded.embeddings, features.of_texts(captions)
    both = ranks(images, texts, owner, same_caption=same if shared_captions == "all" else None)
    outcomes = outcomes_of(both, owner)
    of_one_image = torch.stack([same, owner]).unique(dim=1)[0]
    facts = {
        "chance_r1": 100 / len(rows),
        "images": len(rows),
        "captions": len(captions),
        "shared_captions": int((of_one_image.bincount()[same] > 1).sum()),
        "undecodable": len(encoded.undecodable),
    }
    examples = list[Example]()
    directions = ((images, texts, both.of_images, rows, captions), (texts, images, both.of_texts, captions, rows))
    for queries, candidates, of_queries, names, answers in directions:
        chosen = shown(list(map(str, names)), of_queries.tolist(), at_most=EXAMPLES)
        for query, places in zip(chosen, nearest(queries[chosen], candidates), strict=True):
            examples.append(Example(names[query], tuple(answers[one] for one in places), int(of_queries[query])))
    left_out = pairs.images.left_out(encoded.undecodable, pairs.left_out)
    return Result(measured(outcomes), facts, outcomes, rows, left_out, examples)


def owners(captions: Sequence[Sequence[str]]) -> Tensor:
    """The row of each caption's image, where each image has a list of them: int64 (captions,)."""
    return torch.repeat_interleave(torch.tensor([len(some) for some in captions]))


def ranks(images: Tensor, texts: Tensor, owner: Tensor, *, same_caption: Tensor | None = None) -> Ranks:
    """Search images, (n, d) float32, by captions, (m, d), and captions by images.

    A caption hits if its image is among the k best images; an image hits if any of its captions is among the k best
    captions. `owner`, int64 (m,), is the row of each caption's image; every image has a caption. `same_caption`, int64
    (m,), has a number for each caption, equal where captions are: a caption is then also of the images of those equal
    to it.
    """
    if images.ndim != 2 or texts.ndim != 2 or images.shape[1] != texts.shape[1] or owner.shape != texts.shape[:1]:
        shapes = f"images {tuple(images.shape)}, texts {tuple(texts.shape)}, owner {tuple(owner.shape)}"
        raise ValueError(f"{shapes}: not (n, d), (m, d), (m,)")
    if owner.unique().tolist() != list(range(len(images))):
        raise ValueError(f"owner: not every row of {len(images)} images, and no other number, is in it")
    own = torch.stack([owner, torch.arange(len(texts), device=owner.device)])
    if same_caption is not None:
        images_of, same = defaultdict[int, set[int]](set), same_caption.tolist()
        for number, image in zip(same, owner.tolist(), strict=True):
            images_of[number].add(image)
        own = torch.tensor([(image, caption) for caption, one in enumerate(same) for image in images_of[one]]).T
    own = own.to(images.device)
    return Ranks(ranks_of_pairs(images, texts, own), ranks_of_pairs(texts, images, own.flip(0)))


def outcomes_of(both: Ranks, owner: Tensor) -> Outcomes:
    """A row an image: the rank of its best caption, how many captions it has, and how many of them find it."""
    by_text, owner = both.of_texts.cpu(), owner.cpu()
    hits = {f"text_to_image_hits_{k}": torch.bincount(owner, (by_text <= k).double()).long().numpy() for k in KS}
    return {"image_to_text_rank": both.of_images.cpu().numpy(), "captions": owner.bincount().numpy(), **hits}


def measured(outcomes: Outcomes) -> dict[str, float]:
    """`image_to_text_rK` and `text_to_image_rK` in percent of the queries; `rsum`, their sum; `mean_recall`, mean."""
    by_image, captions = outcomes["image_to_text_rank"], outcomes["captions"].sum()
    recalls = {f"image_to_text_r{k}": 100 * float((by_image <= k).mean()) for k in KS}
    recalls |= {f"text_to_image_r{k}": 100 * float(outcomes[f"text_to_image_hits_{k}"].sum() / captions) for k in KS}
    total = sum(recalls.values())
    return {**recalls, "rsum": total, "mean_recall": total / len(recalls)}


# Languages ------------------------------------------------------------------------------------------------------------


class Multilingual(NamedTuple):
    """Names of images, and for each language the captions of each image, at least one."""

    names: Sequence[str]
    captions: Mapping[str, Sequence[Sequence[str]]]


def multilingual(pairs: Multilingual, folder: str, features: Features) -> tuple[Images, Result]:
    """Search the images of a folder's files in every language, and the captions by the images."""
    images, missing = files_in(folder, pairs.names)
    if not len(images):
        why = f"none of {len(pairs.names):,} images is there ({missing[0]})"
        raise UnreadableError(f"{folder}: {why}; give their folder")
    encoded = features.of_images(images)
    place = {name: number for number, name in enumerate(pairs.names)}
    numbers = [place[images.names[row]] for row in encoded.rows.tolist()]
    outcomes: dict[str, npt.NDArray[Any]] = {}
    for language, captions in pairs.captions.items():
        own = [captions[number] for number in numbers]
        texts, owner = features.of_texts(list(chain.from_iterable(own))), owners(own)
        columns = outcomes_of(ranks(encoded.embeddings, texts, owner), owner)
        outcomes |= {f"{language}/{name}": column for name, column in columns.items()}
    left_out = images.left_out(encoded.undecodable, {NO_FILE: missing})
    facts = {"images": len(numbers), "languages": len(pairs.captions)}
    return images, Result(measured_by_language(outcomes), facts, outcomes, encoded.rows.tolist(), left_out)


def measured_by_language(outcomes: Outcomes) -> dict[str, float]:
    """The metrics of retrieval in each language as LANGUAGE/METRIC, and their means; ALIGN's mR is `mean_recall`."""
    columns: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for name, column in outcomes.items():
        language, _, metric = name.partition("/")
        columns.setdefault(language, {})[metric] = column
    by_language = {language: measured(own) for language, own in columns.items()}
    each = {f"{language}/{name}": value for language, own in by_language.items() for name, value in own.items()}
    names = next(iter(by_language.values()))
    return {**{name: sum(own[name] for own in by_language.values()) / len(by_language) for name in names}, **each}


def read_lines(images: str, captions: Mapping[str, Sequence[str]]) -> Multilingual:
    """Multi30K: the names of the images, a line each, and files of captions in that order, by language."""
    names = [line.split("#")[0].strip() for line in text_lines(images)]
    by_language: dict[str, list[list[str]]] = {}
    for language, files in captions.items():
        columns = [text_lines(file) for file in files]
        for file, column in zip(files, columns, strict=True):
            if len(column) != len(names):
                raise UnreadableError(f"{file}: {len(column):,} lines, and {images} has {len(names):,}; give its own")
        by_language[language] = [list(some) for some in zip(*columns, strict=True)]
    return Multilingual(names, by_language)


def read_xm3600(path: str, languages: Sequence[str]) -> Multilingual:
    """XM3600's captions.jsonl: these languages, or all."""
    try:
        rows = [json.loads(line) for line in text_lines(path)]
        all_of_them = {key for row in rows for key, each in row.items() if isinstance(each, dict) and "caption" in each}
        chosen = languages or sorted(all_of_them)
        by_language = {language: [row[language]["caption"] for row in rows] for language in chosen}
        names = [f"{Path(row['image/key']).name}.jpg" for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"no captions.jsonl of XM3600 with these languages ({error!r})"
        raise UnreadableError(f"{path}: {why}; give one") from None
    if not by_language or not all(all(captions) for captions in by_language.values()):
        raise UnreadableError(f"{path}: an image without a caption in a language; leave the language out")
    return Multilingual(names, by_language)
