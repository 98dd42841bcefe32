"""Choices between captions, and between images, that differ in few words: SugarCrepe and Winoground.

A model chooses right where its score of the right one is higher: a tie is wrong, and so is a score that is no number.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from altalign import storage
from altalign.errors import UnreadableError
from altalign.eval.encoded import Features
from altalign.eval.image_sources import NO_FILE, files_in, paths_of, text_lines
from altalign.eval.outcomes import Outcomes, Result


def caption_choices(images: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
    """Whether each image is nearer to its caption than to a wrong one (SugarCrepe, arXiv 2306.14610): bool (n,)."""
    return (images * right).sum(1) > (images * wrong).sum(1)


def pair_choices(images: Tensor, captions: Tensor) -> dict[str, Tensor]:
    """Winoground's scores (Thrush et al., arXiv 2204.03162, section 3) of each example: bool (n,).

    `text`: each image is nearer to its own caption; `image`: each caption is nearer to its own image; `group`: both.
    Images and captions are embeddings (n, 2, width), the first caption of the first image.
    """
    scores = images @ captions.mT  # (n, images, captions)
    own, others = scores.diagonal(dim1=1, dim2=2), scores.flip(2).diagonal(dim1=1, dim2=2)
    text = (own > others).all(1)
    image = (own > scores.flip(1).diagonal(dim1=1, dim2=2)).all(1)
    return {"text": text, "image": image, "group": text & image}


class Choice(NamedTuple):
    """An example: one image, a caption and a wrong one; or two images, and the caption of each."""

    images: tuple[str, ...]
    captions: tuple[str, str]
    file: str = ""


def choices(examples: Sequence[Choice], folder: str, features: Features) -> Result:
    """Choices among images of a folder and their captions; the rows are those of the examples' first images."""
    images, missing = files_in(folder, [name for example in examples for name in example.images])
    encoded = features.of_images(images)
    rows = encoded.rows.tolist()
    place = {images.names[row]: number for number, row in enumerate(rows)}
    whole = [example for example in examples if all(name in place for name in example.images)]
    if not whole:
        raise UnreadableError(f"{folder}: no example has its images there; give their folder")
    vectors = encoded.embeddings[torch.tensor([[place[name] for name in example.images] for example in whole])]
    captions = features.of_texts([caption for example in whole for caption in example.captions])
    captions = captions.reshape(len(whole), 2, -1)
    if len(whole[0].images) == 1:
        right = caption_choices(vectors[:, 0], captions[:, 0], captions[:, 1]).cpu().numpy()
        outcomes: Outcomes = {"right": right, "file": np.array([example.file for example in whole])}
    else:
        outcomes = {name: is_right.cpu().numpy() for name, is_right in pair_choices(vectors, captions).items()}
    first = [rows[place[example.images[0]]] for example in whole]
    left_out = images.left_out(encoded.undecodable, {NO_FILE: missing})
    return Result(images, first, outcomes, measured(outcomes), {"examples": len(whole)}, left_out)


def read_examples(patterns: str) -> list[Choice]:
    """Examples of SugarCrepe's JSON files, or of Winoground's examples.jsonl."""
    examples = list[Choice]()
    for path in paths_of([patterns]):
        file = path.rpartition("/")[2].rpartition(".")[0]
        try:
            if path.endswith(".jsonl"):
                for one in (json.loads(line) for line in text_lines(path) if line.strip()):
                    names = [name if "." in name else f"{name}.png" for name in (one["image_0"], one["image_1"])]
                    examples.append(Choice(tuple(names), (one["caption_0"], one["caption_1"])))
            else:
                for one in storage.read_json(path).values():
                    examples.append(Choice((one["filename"],), (one["caption"], one["negative_caption"]), file))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"neither a file of SugarCrepe nor Winoground's examples.jsonl ({error!r})"
            raise UnreadableError(f"{path}: {why}; give one of both") from None
    if len({len(example.images) for example in examples}) != 1:
        raise UnreadableError(f"{patterns}: no examples, or SugarCrepe's and Winoground's; give those of one")
    return examples


def measured(outcomes: Outcomes) -> dict[str, float]:
    """Right choices in percent: of each kind, and of SugarCrepe's, in the names of files, their mean."""
    shares = {name: 100 * float(is_right.mean()) for name, is_right in outcomes.items() if is_right.dtype == bool}
    if "file" not in outcomes:
        return shares
    right, file = outcomes["right"], outcomes["file"]
    of_files = {f"right/{name}": 100 * float(right[file == name].mean()) for name in np.unique(file)}
    return {**shares, **of_files, "mean_of_files": sum(of_files.values()) / len(of_files)}
