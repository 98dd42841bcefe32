"""Fetch outcomes of images, and measurements made while they are decoded."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from altalign import storage
from altalign.data.reasons import DropReason
from altalign.errors import AltalignError
from altalign.filters import pixels
from altalign.filters.blocked import BlockList
from altalign.machine import memory
from altalign.pipelines.images import block_lists, embedders, nsfw_model
from altalign.pipelines.run.units import files_named
from altalign.settings.curate import CurateConfig, ImageSettings


class Hooks(NamedTuple):
    """What looks at an image while it is decoded."""

    blocked: BlockList
    nsfw: nsfw_model.NsfwModel | None
    embedder: embedders.Embedder

    @property
    def short_side_px(self) -> int:
        """What they need of an image's short side, in pixels."""
        return max(
            self.embedder.short_side_px,
            self.blocked.short_side_px,
            self.nsfw.classifier.short_side_px if self.nsfw else 0,
        )

    @property
    def colour(self) -> bool:
        """Whether any of them looks at colours."""
        return self.nsfw is not None or self.embedder.colour


@lru_cache(maxsize=1)
def _hooks(blocked: tuple[str, ...], nsfw: str, embedder: str, _changed: tuple[storage.Stamp | None, ...]) -> Hooks:
    return Hooks(
        block_lists.load_block_lists(blocked), nsfw_model.load(nsfw) if nsfw else None, embedders.load(embedder)
    )


def hooks_of(config: CurateConfig) -> Hooks:
    """The hooks of these settings, loaded once a process.

    Raises:
        UsageError: a list or a model cannot be loaded.
    """
    changed = tuple(storage.stamp(name) if storage.exists(name) else None for name in files_named(config))
    return _hooks(tuple(config.image.blocked_hashes), config.image.nsfw.model, config.decontaminate.embedder, changed)


class Measured(NamedTuple):
    """What was measured of an image; None where it was not."""

    format: str | None = None
    width: int | None = None
    height: int | None = None
    damage: str | None = None
    is_blocked: bool | None = None
    nsfw_score: float | None = None
    found_sha256: str | None = None
    features: bytes | None = None  # what the embedder makes of it, int16; None also where it is flat


class Outcome(NamedTuple):
    """How fetching an image ended: why it failed (None: it did not), or the place and kind of its bytes in the blob."""

    reason: DropReason | None
    http_code: int | None = None
    offset: int = 0
    bytes: int = 0
    measured: Measured = Measured()


def measure(data: bytes, *, url: str | None, config: ImageSettings, hooks: Hooks) -> Measured:
    """Decode an image once and measure all that the image rules ask for. `url` names it in errors.

    Raises:
        AltalignError: there is too little memory for it.
    """
    colour, most = hooks.colour, config.pixels_at_most
    with enough_memory(url, data, colour=colour, pixels_at_most=most, short_side_px=hooks.short_side_px):
        decoded = pixels.decode(data, pixels_at_most=most, colour=colour, short_side_px=hooks.short_side_px)
        digest = hashlib.sha256(data).hexdigest() if data else None
        features = hooks.embedder.features(decoded.pixels) if decoded.pixels is not None else None
        return Measured(
            format=decoded.format,
            width=_bounded(decoded.width),
            height=_bounded(decoded.height),
            damage=decoded.damage if decoded.format else None,
            is_blocked=hooks.blocked.blocks(data=data, found_sha256=digest or "", pixels=decoded.pixels),
            nsfw_score=hooks.nsfw.score(decoded.pixels) if hooks.nsfw and decoded.pixels is not None else None,
            found_sha256=digest,
            features=None if features is None else features.tobytes(),
        )


def decoded(data: bytes, *, name: str, config: ImageSettings, hooks: Hooks) -> pixels.Decoded:
    """An image that is none of the pool, decoded as those of the pool are. `name` is its name in errors.

    Raises:
        AltalignError: there is too little memory for it.
    """
    most = config.pixels_at_most
    with enough_memory(name, data, colour=hooks.colour, pixels_at_most=most, short_side_px=hooks.short_side_px):
        return pixels.decode(data, pixels_at_most=most, colour=hooks.colour, short_side_px=hooks.short_side_px)


def _bounded(side: int | None) -> int | None:
    """A side in pixels that a column holds; a header may lie up to 2^32, and every rule says of both the same."""
    return None if side is None else min(side, 2**31 - 1)


@contextmanager
def enough_memory(
    url: str | None, data: bytes, *, colour: bool, pixels_at_most: int | None = None, short_side_px: int = 0
) -> Iterator[None]:
    """Around decoding an image that needs `pixels.peak_bytes`: a large one waits until other threads need less.

    Raises:
        AltalignError: there is too little memory for it. That is no verdict: on another machine it would be another.
    """
    try:
        needed = (
            0
            if memory.is_ample()
            else pixels.peak_bytes(data, colour=colour, pixels_at_most=pixels_at_most, short_side_px=short_side_px)
        )
        with memory.reserved(needed):
            yield
    except MemoryError as error:
        header = pixels.decode(data, pixels_at_most=0, colour=False)
        size = f" of {header.width:,} x {header.height:,} pixels" if header.width and header.height else ""
        repair = "give it more, or set [engine] workers or [image] pixels_at_most lower"
        said = f"no memory to decode an image{size} ({len(data):,} bytes)"
        raise AltalignError(
            f"{url or 'an image without a URL'}: {said}{f': {error}' if str(error) else ''}; {repair}"
        ) from error


def columns(measured: Sequence[Measured]) -> dict[str, Any]:
    """What was measured, an Arrow array each."""
    kinds = (pa.string(), pa.int32(), pa.int32(), pa.string(), pa.bool_(), pa.float32(), pa.string(), pa.binary())
    values = zip(*measured, strict=True) if measured else ([] for _ in kinds)
    return {
        name: pa.array(list(column), kind) for name, kind, column in zip(Measured._fields, kinds, values, strict=True)
    }
