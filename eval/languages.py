"""Retrieval in several languages: Multi30K (ALIGN section 8, table 11) and XM3600, one by one and on average."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from altalign.errors import UnreadableError
from altalign.eval import retrieval
from altalign.eval.encoded import Features
from altalign.eval.image_sources import NO_FILE, Images, files_in, text_lines
from altalign.eval.outcomes import Outcomes, Result


@dataclass(frozen=True)
class Captioned:
    """Names of images, and for each language the captions of each image, at least one."""

    names: Sequence[str]
    captions: Mapping[str, Sequence[Sequence[str]]]


def of_set(of: Captioned, folder: str, features: Features) -> tuple[Images, Result]:
    """Search the images of a folder's files in every language, and the captions by the images.

    Raises UnreadableError: no image is there, or none can be decoded.
    """
    images, missing = files_in(folder, of.names)
    if not len(images):
        raise UnreadableError(f"{folder}: none of {len(of.names):,} images is there ({missing[0]}); give their folder")
    encoded = features.of_images(images)
    place = {name: number for number, name in enumerate(of.names)}
    numbers = [place[images.names[row]] for row in encoded.rows.tolist()]
    outcomes: dict[str, npt.NDArray[Any]] = {}
    for language, captions in of.captions.items():
        own = [captions[number] for number in numbers]
        owner = torch.repeat_interleave(torch.tensor([len(some) for some in own]))
        texts = features.of_texts(list(chain.from_iterable(own)))
        found = retrieval.outcomes_of(retrieval.ranks(encoded.embeddings, texts, owner), owner)
        outcomes |= {f"{language}/{name}": column for name, column in found.items()}
    left_out = images.left_out(encoded.undecodable, {NO_FILE: missing})
    facts = {"images": len(numbers), "languages": len(of.captions)}
    return images, Result(measured(outcomes), facts, outcomes, encoded.rows.tolist(), left_out)


def measured(outcomes: Outcomes) -> dict[str, float]:
    """The metrics of retrieval in each language as LANGUAGE/METRIC, and their means; ALIGN's mR is `mean_recall`."""
    by_language: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for name, column in outcomes.items():
        language, _, of = name.partition("/")
        by_language.setdefault(language, {})[of] = column
    found = {language: retrieval.measured(columns) for language, columns in by_language.items()}
    each = {f"{language}/{name}": value for language, of in found.items() for name, value in of.items()}
    means = {name: sum(of[name] for of in found.values()) / len(found) for name in next(iter(found.values()))}
    return {**means, **each}


def read_lines(images: str, captions: Mapping[str, Sequence[str]]) -> Captioned:
    """Multi30K: the names of the images, a line each, and files of captions in that order, by language.

    Raises UnreadableError: a file is not there, or has another number of lines.
    """
    names = [line.split("#")[0].strip() for line in text_lines(images)]
    found: dict[str, list[list[str]]] = {}
    for language, files in captions.items():
        columns = [text_lines(file) for file in files]
        for file, column in zip(files, columns, strict=True):
            if len(column) != len(names):
                raise UnreadableError(f"{file}: {len(column):,} lines, and {images} has {len(names):,}; give its own")
        found[language] = [list(some) for some in zip(*columns, strict=True)]
    return Captioned(names, found)


def read_xm3600(path: str, languages: Sequence[str]) -> Captioned:
    """XM3600's captions.jsonl: these languages, or all.

    Raises UnreadableError: it is no such file, or an image has no caption in a language.
    """
    try:
        rows = [json.loads(line) for line in text_lines(path)]
        chosen = languages or sorted(
            {key for row in rows for key, of in row.items() if isinstance(of, dict) and "caption" in of}
        )
        found = {language: [row[language]["caption"] for row in rows] for language in chosen}
        names = [f"{Path(row['image/key']).name}.jpg" for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableError(
            f"{path}: no captions.jsonl of XM3600 with these languages ({error!r}); give one"
        ) from None
    if not found or not all(all(captions) for captions in found.values()):
        raise UnreadableError(f"{path}: an image without a caption in a language; leave the language out")
    return Captioned(names, found)
