"""What training sees of some pairs: their images and captions in several epochs, as augmentation makes them."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import torch
from PIL import Image

from altalign.pages import frame
from altalign.train.data import as_trained
from altalign.train.data.augment import UndecodableError
from altalign.train.data.samples import Samples, key_of
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.exchange.encoders import Encoders
from altalign.train.settings.training import TrainConfig

PAIRS, EPOCHS = 6, 4
SOURCES_AT_MOST = 8
_SIDE_PX = 160  # of the pictures on the page, at most
Decode = Callable[[bytes], torch.Tensor]


@dataclass(frozen=True)
class Seen:
    """An image (a data URI) and a caption, as a tower sees them; a note, and a caption that a model wrote."""

    image: str
    caption: str
    note: str = ""
    written: str = ""


def of_pairs(
    config: TrainConfig, samples: Samples, tokenizer: CaptionTokenizer, encoders: Encoders
) -> list[tuple[str, list[Seen]]]:
    """Pairs of the sources in turn: the source; the pair as evaluation sees it, and as training does in epochs."""
    found = list[tuple[str, list[Seen]]]()
    for source, number in in_turn(samples.sources):
        (pair,) = rows = samples.pairs(np.array([number], np.int64))
        ((image, caption),) = samples.read(rows)
        try:
            whole = Seen(picture_of(encoders.decode(image)), caption, "in evaluation")
            epochs = [_seen(config, tokenizer, image, caption, epoch, key_of(pair)) for epoch in range(EPOCHS)]
        except UndecodableError:  # training has named it
            continue
        found.append((source, [whole, *epochs]))
    return found


def in_turn(sources: Mapping[str, int]) -> list[tuple[str, int]]:
    """The first pairs of the largest sources in turn: source, and number in `Samples`, whose order is of hashes."""
    first, begins = 0, dict[str, int]()
    for name, pairs in sources.items():
        begins[name] = first
        first += pairs
    largest = sorted(sources, key=lambda name: (-sources[name], name))
    names = sorted(largest[:SOURCES_AT_MOST])
    return [(name, begins[name] + at) for at in range(PAIRS) for name in names if at < sources[name]][:PAIRS]


def _seen(config: TrainConfig, tokenizer: CaptionTokenizer, image: bytes, caption: str, epoch: int, key: str) -> Seen:
    drawn = {"seed": config.run.seed, "epoch": epoch, "key": key}
    pieces = as_trained.tokens([caption], tokenizer, config.data, seed=config.run.seed, epochs=[epoch], keys=[key])[0]
    return Seen(
        picture_of(as_trained.pixels(image, config.data, **drawn)), tokenizer.shown(pieces), f"epoch {epoch + 1}"
    )


def gallery(samples: Samples, decode: Decode, pairs: Iterable[tuple[int, str, str]]) -> list[Seen]:
    """Pairs by number, note and written caption, as evaluation sees them, less those that cannot be decoded."""
    found = list[Seen]()
    for number, note, written in pairs:
        ((image, caption),) = samples.read(samples.pairs(np.array([number], np.int64)))
        with suppress(UndecodableError):
            found.append(Seen(picture_of(decode(image)), caption, note, written))
    return found


def picture_of(pixels: torch.Tensor) -> str:
    """The data URI of a picture of uint8 (3, height, width) for a page."""
    picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    picture.thumbnail((_SIDE_PX, _SIDE_PX))
    data = BytesIO()
    picture.save(data, "WEBP", quality=80)
    return frame.data_uri(data.getvalue())
