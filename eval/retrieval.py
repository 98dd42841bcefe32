"""Image-text retrieval with several captions per image: recall@k in percent, both ways (ALIGN table 1).

In several languages, one by one and on average: Multi30K (ALIGN section 8, table 11) and XM3600.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from altalign.errors import UnreadableError
from altalign.eval.encoded import Features
from altalign.eval.image_sources import NO_FILE, files_in, text_lines
from altalign.eval.outcomes import Outcomes, Result
from altalign.eval.search import ranks_of_pairs
from altalign.eval.sets import ImageSet

KS = (1, 5, 10)


def retrieval(pairs: ImageSet, features: Features) -> Result:
    """Search a set in both directions; a caption is right for its own image alone."""
    encoded = features.of_images(pairs.images)
    rows = encoded.rows.tolist()
    outcomes = searched(encoded.embeddings, [pairs.captions[row] for row in rows], features)
    facts = {
        "chance_r1": 100 / len(rows),
        "images": len(rows),
        "captions": int(outcomes["captions"].sum()),
        "undecodable": len(encoded.undecodable),
    }
    left_out = pairs.images.left_out(encoded.undecodable, pairs.left_out)
    return Result(pairs.images, rows, outcomes, measured(outcomes), facts, left_out)


def searched(images: Tensor, captions: Sequence[Sequence[str]], features: Features) -> Outcomes:
    """The outcomes of images, (n, width), and the captions of each, at least one."""
    return outcomes_of(images, features.of_texts(list(chain.from_iterable(captions))), owners(captions))


def owners(captions: Sequence[Sequence[str]]) -> Tensor:
    """The row of each caption's image, where each image has a list of them: int64 (captions,)."""
    return torch.repeat_interleave(torch.tensor([len(some) for some in captions]))


def outcomes_of(images: Tensor, texts: Tensor, owner: Tensor) -> Outcomes:
    """A row an image: the rank of its best caption, how many captions it has, and how many of them find it.

    Images are (n, width) float32, captions (m, width); `owner`, int64 (m,), is the row of each caption's image; every
    image has one. A caption hits if its image is among the k best images; an image hits if any of its captions is among
    the k best captions.
    """
    own = torch.stack([owner, torch.arange(len(texts))])
    by_text = ranks_of_pairs(texts, images, own.flip(0)).cpu()
    hits = {f"text_to_image_hits_{k}": torch.bincount(owner, (by_text <= k).double()).long().numpy() for k in KS}
    by_image = ranks_of_pairs(images, texts, own).cpu().numpy()
    return {"image_to_text_rank": by_image, "captions": owner.bincount().numpy(), **hits}


def measured(outcomes: Outcomes) -> dict[str, float]:
    """`image_to_text_rK` and `text_to_image_rK` in percent of the queries; `rsum`, their sum; `mean_recall`, mean."""
    by_image, captions = outcomes["image_to_text_rank"], outcomes["captions"].sum()
    recalls = {f"image_to_text_r{k}": 100 * float((by_image <= k).mean()) for k in KS}
    recalls |= {f"text_to_image_r{k}": 100 * float(outcomes[f"text_to_image_hits_{k}"].sum() / captions) for k in KS}
    total = sum(recalls.values())
    return {**recalls, "rsum": total, "mean_recall": total / len(recalls)}


# Languages ------------------------------------------------------------------------------------------------------------

Languages = Mapping[str, Sequence[Sequence[str]]]  # of each language, the captions of each image, at least one


def multilingual(names: Sequence[str], languages: Languages, folder: str, features: Features) -> Result:
    """Search the images of a folder's files in every language, and the captions by the images."""
    images, missing = files_in(folder, names)
    if not len(images):
        raise UnreadableError(f"{folder}: none of {len(names):,} images is there ({missing[0]}); give their folder")
    encoded = features.of_images(images)
    place, rows = {name: number for number, name in enumerate(names)}, encoded.rows.tolist()
    outcomes: dict[str, npt.NDArray[Any]] = {}
    for language, captions in languages.items():
        own = [captions[place[images.names[row]]] for row in rows]
        columns = searched(encoded.embeddings, own, features)
        outcomes |= {f"{language}/{name}": column for name, column in columns.items()}
    facts = {"images": len(rows), "languages": len(languages)}
    left_out = images.left_out(encoded.undecodable, {NO_FILE: missing})
    return Result(images, rows, outcomes, measured_by_language(outcomes), facts, left_out)


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


def read_lines(images: str, captions: Mapping[str, Sequence[str]]) -> tuple[list[str], Languages]:
    """Multi30K: the names of the images, a line each, and files of captions in that order, by language."""
    names = [line.split("#")[0].strip() for line in text_lines(images)]
    by_language = {language: [text_lines(file) for file in files] for language, files in captions.items()}
    for language, columns in by_language.items():
        for file, column in zip(captions[language], columns, strict=True):
            if len(column) != len(names):
                raise UnreadableError(f"{file}: {len(column):,} lines, and {images} has {len(names):,}; give its own")
    return names, {language: list(zip(*columns, strict=True)) for language, columns in by_language.items()}


def read_xm3600(path: str, languages: Sequence[str]) -> tuple[list[str], Languages]:
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
    return names, by_language
