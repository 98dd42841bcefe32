"""Embeddings of a set by a model, and the folder that keeps them: a second task on the same set encodes nothing.

KEY.npz has them, float32 (n, width), and the numbers of images that cannot be decoded; a damaged one is made anew.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from altalign import storage, terminal
from altalign.errors import UnreadableError, UsageError
from altalign.eval.image_sources import Images


@dataclass(frozen=True)
class Sharing:
    """What processes that evaluate together know: each decodes its own of a batch, and all have the pixels of all."""

    own: Callable[[int], range]  # the places of a batch of n images that this process decodes
    # all of a batch of n, from what this process has made of its own. A collective
    exchanged: Callable[[Sequence[Tensor | None], int], list[Tensor | None]]


@dataclass(frozen=True)
class Encoder:
    """A model in evaluation mode, as evaluators know it."""

    # from an image file's bytes to pixels of one shape for all; raises ValueError or OSError. It is called in threads
    decode: Callable[[bytes], Tensor]
    encode_image: Callable[[Tensor], Tensor]  # embeddings (n, width), of length 1, of n such pixels
    encode_text: Callable[[list[str]], Tensor]  # embeddings (n, width), of length 1, of n texts
    digest: str = ""  # of all that embeddings depend on beside the inputs: weights, tokenizer, preprocessing, precision
    # vectors (n, width) of n words, for their similarity, where those of `encode_text` are not meant
    encode_word: Callable[[list[str]], Tensor] | None = None
    # `decode` of pixels in hand: uint8 (height, width, 3), RGB, upright and on white
    of_pixels: Callable[[Any], Tensor] | None = None
    short_side_px: int = 0  # what `of_pixels` scales the short side to, at most; 0: not known
    has_texts: bool = True  # whether there is a text tower; `encode_text` raises UsageError where there is none
    device: str = "cpu"  # where embeddings are
    # captions of n such pixels, of images with these n identities, where the model writes any
    write: Callable[[Tensor, Sequence[str]], list[str]] | None = None
    sharing: Sharing | None = None  # where several processes evaluate together
    # features (n, width) of n such pixels before any projection, of any length, where the model tells them
    image_features: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class EncodedImages:
    """Embeddings of the images of a set that can be decoded."""

    embeddings: Tensor  # float32 (n, width)
    rows: np.ndarray[tuple[int], np.dtype[np.int64]]  # the number of each in its set, int64 (n,), rising
    undecodable: list[int]  # the numbers of the others


ENCODED_TOGETHER = 256  # images, or captions: few enough for any device


class Features:
    """What a model makes of images and texts, a batch at a time."""

    def __init__(self, encoder: Encoder, *, batch: int, threads: int = 1, folder: str = "") -> None:
        """Features that are kept in a local folder (empty: nowhere); `threads` decode images."""
        self.encoder, self._batch, self._threads, self._folder = encoder, batch, threads, folder

    def of_images(self, images: Images) -> EncodedImages:
        """Embeddings of the images of a set. Raises UnreadableError: there is none, or none can be decoded."""
        embeddings, undecodable = self._kept("images", images.identities, lambda: self._encoded_images(images))
        rows = np.setdiff1d(np.arange(len(images)), undecodable)
        if not len(rows):
            raise UnreadableError(_nothing(images))
        return EncodedImages(embeddings, rows, undecodable)

    def before_projection(self) -> "Features":
        """The same with the image tower's own features for embeddings. Raises UsageError: there are none."""
        if (tower := self.encoder.image_features) is None:
            raise UsageError('this model gives no features before its projection; set features = "embeddings"')
        encoder = replace(self.encoder, encode_image=tower, digest=f"{self.encoder.digest} before the projection")
        return Features(encoder, batch=self._batch, threads=self._threads, folder=self._folder)

    def of_texts(self, texts: Sequence[str]) -> Tensor:
        """Embeddings (n, width) of n texts."""
        return self._kept("texts", texts, lambda: (self._encoded_texts(texts), []))[0]

    def of_ensembles(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Of each list of prompts the mean of their embeddings, scaled to length 1: (lists, width)."""

        def encoded() -> tuple[Tensor, list[int]]:
            sizes = torch.tensor([len(some) for some in prompts])
            each = self._encoded_texts(list(chain.from_iterable(prompts)))
            owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(each.device)
            sums = each.new_zeros(len(sizes), each.shape[1]).index_add_(0, owner, each)
            return functional.normalize(sums, dim=1), []  # the length of a mean is that of its sum

        return self._kept("ensembles", [json.dumps(list(some)) for some in prompts], encoded)[0]

    @torch.no_grad()
    def captions_of(self, images: Images) -> dict[int, str]:
        """The caption that the model writes of each image of a set that can be decoded, by its number."""
        if self.encoder.write is None:
            raise UsageError("this model writes no captions; give a training run with a [captioner]")
        written = dict[int, str]()
        for first, decoded in self._decoded(images):
            whole = {first + place: pixels for place, pixels in enumerate(decoded) if pixels is not None}
            if whole:
                identities = [images.identities[row] for row in whole]
                captions = self.encoder.write(torch.stack(list(whole.values())), identities)
                written |= dict(zip(whole, captions, strict=True))
        if not written:
            raise UnreadableError(_nothing(images))
        return written

    @torch.no_grad()
    def _encoded_images(self, images: Images) -> tuple[Tensor, list[int]]:
        embeddings, filled, undecodable = torch.empty(0, 0), 0, list[int]()
        for first, decoded in self._decoded(images):
            undecodable += [first + place for place, pixels in enumerate(decoded) if pixels is None]
            whole = [pixels for pixels in decoded if pixels is not None]
            if not whole:
                continue
            encoded = self.encoder.encode_image(torch.stack(whole)).float()
            if not filled:  # once: the sum of all batches and a copy of it would be twice as much
                embeddings = encoded.new_empty(len(images), encoded.shape[1])
            embeddings[filled : filled + len(encoded)] = encoded
            filled += len(encoded)
        return embeddings[:filled], undecodable

    def _decoded(self, images: Images) -> Iterator[tuple[int, list[Tensor | None]]]:
        """Batches of pixels with the number of the first; one batch is decoded while another is encoded."""
        sharing = self.encoder.sharing
        batches = [range(first, min(first + self._batch, len(images))) for first in range(0, len(images), self._batch)]
        shares = batches
        if sharing is not None:
            places = [sharing.own(len(batch)) for batch in batches]
            shares = [batch[own.start : own.stop] for batch, own in zip(batches, places, strict=True)]
        data = images.read([number for share in shares for number in share])

        def pixels(image: bytes) -> Tensor | None:
            try:
                return self.encoder.decode(image)
            except (ValueError, OSError):
                return None

        with ThreadPoolExecutor(self._threads) as pool:
            waiting = (
                (batch, [pool.submit(pixels, next(data)) for _ in share])
                for batch, share in zip(batches, shares, strict=True)
            )
            now = next(waiting, None)
            with terminal.progress_bar("images", len(images), "images") as advance:
                while now is not None:
                    after = next(waiting, None)
                    own = [future.result() for future in now[1]]
                    yield now[0].start, own if sharing is None else sharing.exchanged(own, len(now[0]))
                    advance(len(now[0]))
                    now = after

    @torch.no_grad()
    def _encoded_texts(self, texts: Sequence[str]) -> Tensor:
        batches = [list(texts[first : first + self._batch]) for first in range(0, len(texts), self._batch)]
        embeddings = list[Tensor]()
        with terminal.progress_bar("texts", len(texts), "texts") as advance:
            for batch in batches:
                embeddings.append(self.encoder.encode_text(batch).float())
                advance(len(batch))
        return torch.cat(embeddings)

    def _kept(
        self, kind: str, inputs: Sequence[str], encode: Callable[[], tuple[Tensor, list[int]]]
    ) -> tuple[Tensor, list[int]]:
        """Embeddings and the numbers of inputs without one, of the folder where they are there."""
        if not self._folder:
            return encode()
        key = sha256(json.dumps([self.encoder.digest, kind, list(inputs)]).encode()).hexdigest()[:32]
        path = storage.join(self._folder, f"{key}.npz")
        try:
            # a zip, which has a checksum of each array
            with Path(storage.mappable(path)).open("rb") as file, np.load(file) as kept:
                return torch.from_numpy(kept["embeddings"]).to(self.encoder.device), kept["undecodable"].tolist()
        except (OSError, EOFError, ValueError, KeyError, RuntimeError, BadZipFile, UnreadableError):
            embeddings, undecodable = encode()  # not there, or damaged
        with storage.write(path) as file:
            np.savez(file, embeddings=embeddings.cpu().numpy(), undecodable=np.array(undecodable, np.int64))
        return embeddings, undecodable


def _nothing(images: Images) -> str:
    if not len(images):
        return "no image is in the set; look at its paths and columns"
    return f"{images.names[0]}: cannot be decoded, nor any of {len(images):,} images; give a column or files of images"
