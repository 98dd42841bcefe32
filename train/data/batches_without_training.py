"""Pairs in batches with their pixels, where nothing is trained: losses, captions and concepts of every pair."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from altalign.train.data.augment import UndecodableError
from altalign.train.data.samples import Samples, key_of


class Decoded(NamedTuple):
    """Some pairs: keys of 32 hex digits, captions, whether each image can be decoded, and pixels of those that can.

    Pixels are (k, …), of no dimension but the first where k = 0.
    """

    keys: list[str]
    captions: list[str]
    is_whole: list[bool]
    pixels: torch.Tensor


def decoded(
    decode: Callable[[bytes], torch.Tensor],
    samples: Samples,
    numbers: npt.NDArray[np.int64],
    *,
    size: int,
    threads: int,
    undecodable: tuple[type[Exception], ...] = (UndecodableError,),
) -> Iterator[Decoded]:
    """Yields the pairs of these numbers, `size` at a time; `undecodable` is what `decode` raises of an image."""

    def of_image(data: bytes) -> torch.Tensor | None:
        try:
            return decode(data)
        except undecodable:
            return None

    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(numbers), size):
            rows = samples.pairs(numbers[first : first + size])
            read = samples.read(rows)
            pixels = list(pool.map(of_image, [image for image, _ in read]))
            whole = [one for one in pixels if one is not None]
            yield Decoded(
                [key_of(row) for row in rows],
                [caption for _, caption in read],
                [one is not None for one in pixels],
                torch.stack(whole) if whole else torch.empty(0),
            )
