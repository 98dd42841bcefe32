"""JPEGs that the device decodes which trains, by torchcodec: nvJPEG on a GPU, libjpeg-turbo on a CPU.

Workers read the bytes and draw what is random; other formats, and what nvJPEG does not do as curation does, they decode
themselves. A crop of a resized image, flipped or not, is two products with matrices of weights, for many images at a
time: bilinear with antialias as `augment.resize`, within a level of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from altalign.errors import UsageError, bring
from altalign.train.data import augment
from altalign.train.data.batches import Batch
from altalign.train.settings import DataSettings

_PIXELS_AT_MOST = 1 << 24  # of an image, and of images that are resized together: 200 MB in float32
_COLOURS = ("RGB", "L")  # of Pillow
_END_OF_IMAGE = b"\xff\xd9"  # decoders fill up what is cut off, and do not say so
_NO_TRANSFORM = 0  # Adobe's mark of a JPEG that holds RGB


class Part(NamedTuple):
    """A rectangle of an image, resized to a square, and the crop of that which a tower sees; all in pixels."""

    top: int
    left: int
    height: int
    width: int
    resized: int
    crop_top: int
    crop_left: int
    is_flipped: bool


class Undecoded(NamedTuple):
    """A JPEG, and the part of it that is seen."""

    data: bytes
    part: Part


def check_installed(settings: DataSettings) -> None:
    """Refuse the setting where the package is missing.

    Raises:
        UsageError: it is.
    """
    if settings.decode_on == "device" and find_spec("torchcodec") is None:
        raise UsageError(
            f'[data] decode_on = "device" needs torchcodec, not installed here; {bring("torchcodec")}, or leave the '
            "setting out"
        )


def undecoded(data: bytes, settings: DataSettings, *, seed: int, epoch: int, key: str) -> Undecoded | None:
    """What a device decodes of an image; None where a worker has to.

    What is drawn is what `augment.training_pixels` draws.
    """
    header = augment.header_of_jpeg(data)
    if header is None or not data.endswith(_END_OF_IMAGE):
        return None
    image, (height, width), orientation = header
    is_plain = image.mode in _COLOURS and image.info.get("adobe_transform") != _NO_TRANSFORM and orientation == 1
    if not is_plain or height * width > _PIXELS_AT_MOST:
        return None
    places = settings.resize_px - settings.crop_px + 1
    left, top, is_flipped = augment.chosen(places, seed=seed, epoch=epoch, key=key)
    part = Part(0, 0, height, width, settings.resize_px, top, left, is_flipped and settings.flip)
    if settings.crop_area_at_least:
        with augment.of_torchvision(seed, epoch, key) as transforms:
            area = augment.area_of(transforms, settings.crop_px, settings.crop_area_at_least)
            of = area.make_params([torch.empty(3, height, width, device="meta")])
        sides = of["top"], of["left"], of["height"], of["width"]
        part = Part(*sides, settings.crop_px, 0, 0, part.is_flipped)
    return Undecoded(data, part)


class Decoder:
    """Decodes on a device, beside what that computes for training."""

    def __init__(self, device: torch.device, crop_px: int) -> None:
        self._device, self._crop_px = device, crop_px
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def completed(self, batch: Batch, images: Mapping[int, Undecoded]) -> Batch:
        """A batch that has the images of the other pairs alone, with these at their places, all on the device.

        Raises:
            UndecodableError: one does not decode whole.
        """
        if not images:
            return batch
        decoded = self.pixels(list(images.values()))
        seen = decoded.new_empty(len(batch), self._crop_px, self._crop_px, 3).permute(0, 3, 1, 2)
        seen[[*images]] = decoded
        seen[[place for place in range(len(batch)) if place not in images]] = batch.images.to(self._device)
        return replace(batch, images=seen)

    def pixels(self, images: Sequence[Undecoded]) -> torch.Tensor:
        """What a tower sees of each: uint8 (n, 3, crop_px, crop_px) on the device, channels last in memory.

        Raises:
            UndecodableError: one does not decode whole.
        """
        with torch.cuda.stream(self._stream):
            shape = len(images), self._crop_px, self._crop_px, 3
            seen = torch.empty(shape, dtype=torch.uint8, device=self._device).permute(0, 3, 1, 2)
            for places in _alike(images):
                some = [images[place] for place in places]
                seen[places] = resized(self._decoded(some), [one.part for one in some], self._crop_px)
        if self._stream is not None:
            self._stream.synchronize()  # in the loader's thread: no step waits
            seen.record_stream(torch.cuda.default_stream(self._device))  # which reads it
        return seen

    def _decoded(self, images: Sequence[Undecoded]) -> list[torch.Tensor]:
        try:
            return self._decode_jpeg([image.data for image in images], mode="RGB", device=self._device)
        except RuntimeError:  # of one of them, and it is not said of which
            return [self._as_workers_do(image.data) for image in images]

    def _as_workers_do(self, data: bytes) -> torch.Tensor:
        return torch.from_numpy(augment.decode(data).copy()).permute(2, 0, 1).to(self._device)

    @cached_property
    def _decode_jpeg(self) -> Any:
        return import_module("torchcodec.decoders").decode_jpeg  # two seconds, and not there for everybody


def _alike(images: Sequence[Undecoded]) -> Iterator[list[int]]:
    """Places of images that are resized together: of similar sizes, so that little is padded."""
    sizes = [(image.part.height, image.part.width) for image in images]
    places: list[int] = []
    height = width = 0
    for place in sorted(range(len(images)), key=lambda place: sizes[place]):
        height, width = max(height, sizes[place][0]), max(width, sizes[place][1])
        if places and (len(places) + 1) * height * width > _PIXELS_AT_MOST:
            yield places
            places, (height, width) = [], sizes[place]
        places.append(place)
    if places:
        yield places


def resized(images: Sequence[torch.Tensor], parts: Sequence[Part], crop_px: int) -> torch.Tensor:
    """The parts of images (3, height, width), uint8 each: uint8 (n, 3, crop_px, crop_px)."""
    height, width = max(part.height for part in parts), max(part.width for part in parts)
    device = images[0].device
    padded = torch.zeros(len(images), 3, height, width, device=device)
    for row, image, part in zip(padded, images, parts, strict=True):
        row[:, : part.height, : part.width] = image[
            :, part.top : part.top + part.height, part.left : part.left + part.width
        ]
    numbers = torch.tensor(parts, device=device).float()
    heights, widths, sides, tops, lefts, flips = numbers[:, 2:].T[:, :, None, None]
    down, across = (_weights(*of, crop_px) for of in ((heights, sides, tops, height), (widths, sides, lefts, width)))
    across = torch.where(flips.bool(), across.flip(1), across)
    seen = down[:, None] @ padded @ across.mT[:, None]
    return seen.round_().clamp_(0, 255).byte()


def _weights(lengths: torch.Tensor, sides: torch.Tensor, firsts: torch.Tensor, size: int, count: int) -> torch.Tensor:
    """How much each of `size` pixels has of `count` of a row that is resized: float32 (n, count, size).

    Lengths, sides and firsts are (n, 1, 1): of the row, of what it is resized to, and the first that is wanted of that.
    """
    scale = lengths / sides
    centres = (firsts + torch.arange(count, device=lengths.device)[:, None] + 0.5) * scale
    places = torch.arange(size, device=lengths.device) + 0.5
    near = (1 - (places - centres).abs() / scale.clamp(min=1)).clamp(min=0) * (places < lengths)
    return near / near.sum(2, keepdim=True)
