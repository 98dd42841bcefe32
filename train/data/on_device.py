"""JPEGs decoded by the device that trains, through torchcodec: nvJPEG on a GPU, libjpeg-turbo on a CPU.

Workers read the bytes and draw what is random; other formats they decode themselves, and JPEGs that a device may take
for something else than curation did. A crop of a resized image is two products with matrices of weights, for many
images at a time: bilinear with antialias as `augment.resize`, within a level of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

import torch
from PIL import ExifTags, Image

from altalign.errors import UsageError, bring, first_line
from altalign.filters.jpegs import encoded
from altalign.filters.readable import DECODER_ERRORS
from altalign.train.data import augment
from altalign.train.data.batches import Batch
from altalign.train.settings.data import DataSettings

_PIXELS_AT_MOST = 1 << 24  # of images that are resized together, and of one: 200 MB in float32
_BYTES_AT_MOST = 4 << 20  # of a JPEG, which waits in memory for the others of its batch
_END_OF_IMAGE = b"\xff\xd9"  # decoders fill up what is cut off, and do not say so


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
    """A JPEG, its height and width by its header, and the part of it that is seen."""

    data: bytes
    sides: tuple[int, int]
    part: Part


def check_installed(settings: DataSettings) -> None:
    """Raise UsageError where the setting asks for a package that is missing, or does not go with this torch."""
    if settings.decoding == "device":
        try:
            import_module("torchcodec.decoders")
        except (ImportError, OSError, RuntimeError) as error:
            raise UsageError(
                f'[data] decoding = "device" needs torchcodec for this torch, {torch.__version__} '
                f"({first_line(error)}); {bring('torchcodec')}, or leave the setting out"
            ) from None


def undecoded(data: bytes, settings: DataSettings, *, seed: int, epoch: int, key: str) -> Undecoded | None:
    """What a device decodes of an image, drawn as by `augment.training_pixels`; None where a worker has to."""
    opened = augment.opened_jpeg(data) if len(data) <= _BYTES_AT_MOST else None
    if opened is None or not data.endswith(_END_OF_IMAGE):
        return None
    image, width, height = opened
    if not _is_plain(image) or _area(height, width, settings.crop_px) > _PIXELS_AT_MOST:
        return None
    places = settings.resize_px - settings.crop_px + 1
    left, top, is_flipped = augment.chosen(places, seed=seed, epoch=epoch, key=key)
    seen, resized_px = (0, 0, height, width), settings.resize_px
    if settings.crop_area_at_least:
        with augment.of_torchvision(seed, epoch, key) as transforms:
            drawn = augment.drawn_part(transforms, settings, height, width)
        seen, resized_px = (drawn["top"], drawn["left"], drawn["height"], drawn["width"]), settings.crop_px
        top = left = 0
    return Undecoded(data, (height, width), Part(*seen, resized_px, top, left, is_flipped and settings.flip))


def _is_plain(image: Any) -> bool:
    """Whether every decoder takes the header of a JPEG, opened by Pillow, for the same: grey or YCbCr, and upright."""
    tag = int(ExifTags.Base.Orientation)
    try:
        orientation = image.getexif().get(tag)
    except DECODER_ERRORS:
        return False
    if isinstance(orientation, int):
        is_upright = orientation == 1
    else:  # torchcodec turns by EXIF too, and takes entries for numbers that are none, which Pillow passes over
        is_upright = not any(tag.to_bytes(2, order) in image.info.get("exif", b"") for order in ("big", "little"))
    # by Adobe's mark, or the names of the components of one without it
    is_rgb = image.info.get("adobe_transform") == 0 or [layer[0] for layer in image.layer] == [*b"RGB"]
    return image.mode in ("RGB", "L") and is_upright and not is_rgb


class Decoder:
    """Decodes on a device, beside its training. Raises UsageError: torchcodec cannot use the device."""

    def __init__(self, device: torch.device, crop_px: int) -> None:
        self._device, self._crop_px = device, crop_px
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._decode_jpeg: Any = import_module("torchcodec.decoders").decode_jpeg  # not there for everybody
        try:
            self._decode_jpeg([encoded(Image.new("RGB", (8, 8)), quality=90)], mode="RGB", device=device)
        except RuntimeError as error:
            why = first_line(error)
            raise UsageError(f'[data] decoding = "device": torchcodec cannot use {device}: {why}') from None

    def completed(self, batch: Batch, images: Mapping[int, Undecoded]) -> Batch:
        """A batch that has the images of the other pairs alone, with these at their places. Raises as `pixels`."""
        if not images:
            return batch
        seen = self.pixels(list(images.values()))
        if len(images) < len(batch):
            decoded, seen = seen, _channels_last(len(batch), self._crop_px)
            seen[[place for place in range(len(batch)) if place not in images]] = batch.images
            seen[[*images]] = decoded
        return replace(batch, images=seen)

    def pixels(self, images: Sequence[Undecoded]) -> torch.Tensor:
        """What a tower sees of each: uint8 (n, 3, crop_px, crop_px), channels last, in memory of the CPU.

        There they take the way of all others: a GPU holds those of a chunk at a time, and nothing waits for its steps.
        Raises UndecodableError: one does not decode whole.
        """
        with torch.cuda.stream(self._stream):
            seen = _channels_last(len(images), self._crop_px, device=self._device)
            for places in _alike(images, self._crop_px):
                some = [images[place] for place in places]
                seen[places] = resized(self._decoded(some), [one.part for one in some], self._crop_px)
            if self._stream is None:
                return seen
            # to other memory the copy took longer than all before it
            return _channels_last(len(images), self._crop_px, pin_memory=True).copy_(seen)

    def _decoded(self, images: Sequence[Undecoded]) -> list[torch.Tensor]:
        try:
            decoded = self._decode_jpeg([image.data for image in images], mode="RGB", device=self._device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            decoded = []
        if [one.shape[1:] for one in decoded] == [image.sides for image in images]:
            return decoded
        if len(images) > 1:  # it is not known which is not as its header says
            return [one for image in images for one in self._decoded([image])]
        as_workers_do = torch.from_numpy(augment.decode(images[0].data).copy())
        return [as_workers_do.permute(2, 0, 1).to(self._device)]


def _channels_last(count: int, side: int, **place: Any) -> torch.Tensor:
    return torch.empty(count, side, side, 3, dtype=torch.uint8, **place).permute(0, 3, 1, 2)


def _alike(images: Sequence[Undecoded], crop_px: int) -> Iterator[list[int]]:
    """Places of images that are resized together: of similar sizes, so that little is padded."""
    sizes = [(image.part.height, image.part.width) for image in images]
    places, height, width = list[int](), 0, 0
    for place in sorted(range(len(images)), key=lambda place: sizes[place]):
        height, width = max(height, sizes[place][0]), max(width, sizes[place][1])
        if places and (len(places) + 1) * _area(height, width, crop_px) > _PIXELS_AT_MOST:
            yield places
            places, (height, width) = [], sizes[place]
        places.append(place)
    if places:
        yield places


def _area(height: int, width: int, crop_px: int) -> int:
    """Pixels of the largest tensor on the way from an image to its crop."""
    return max(height, crop_px) * max(width, crop_px)


def resized(images: Sequence[torch.Tensor], parts: Sequence[Part], crop_px: int) -> torch.Tensor:
    """The parts of images (3, height, width), uint8 each: uint8 (n, 3, crop_px, crop_px)."""
    height, width = max(part.height for part in parts), max(part.width for part in parts)
    device = images[0].device
    padded = torch.zeros(len(images), 3, height, width, device=device)
    for row, image, part in zip(padded, images, parts, strict=True):
        rows, columns = slice(part.top, part.top + part.height), slice(part.left, part.left + part.width)
        row[:, : part.height, : part.width] = image[:, rows, columns]
    numbers = torch.tensor(parts, device=device).float()
    heights, widths, sides, tops, lefts, flips = numbers[:, 2:].T[:, :, None, None]

    def weights(lengths: torch.Tensor, firsts: torch.Tensor, size: int) -> torch.Tensor:
        """How much each of `size` pixels has of the crop's of a row that is resized: float32 (n, crop_px, size)."""
        scale = lengths / sides
        centres = (firsts + torch.arange(crop_px, device=device)[:, None] + 0.5) * scale
        places = torch.arange(size, device=device) + 0.5
        near = (1 - (places - centres).abs() / scale.clamp(min=1)).clamp(min=0) * (places < lengths)
        return near / near.sum(2, keepdim=True)

    across = weights(widths, lefts, width)
    across = torch.where(flips.bool(), across.flip(1), across)
    seen = weights(heights, tops, height)[:, None] @ padded @ across.mT[:, None]
    return seen.round_().clamp_(0, 255).byte()
