"""A model that knows its images: an image's bytes and a text begin with the place of the 1 in their embedding."""

from collections.abc import Sequence

import torch

from altalign.eval.encoded import Encoder
from altalign.eval.image_sources import Images

WIDTH = 10


def decode(data: bytes) -> torch.Tensor:
    if not data.startswith(b"image"):
        raise ValueError("no image")
    return torch.tensor([int(data.removeprefix(b"image"))], dtype=torch.uint8)


def one_hot(numbers: Sequence[int]) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(numbers), WIDTH).float()


def encode_image(images: torch.Tensor) -> torch.Tensor:
    return one_hot(images[:, 0].long().tolist()).bfloat16()


def encode_text(texts: Sequence[str]) -> torch.Tensor:
    return one_hot([int(text.split()[0]) for text in texts])


ENCODER = Encoder(decode, encode_image, encode_text)


def images_of(content: Sequence[bytes]) -> Images:
    names = [f"file/{number}" for number in range(len(content))]
    return Images([f"{data!r}" for data in content], names, lambda rows: (content[row] for row in rows))
