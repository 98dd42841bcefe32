"""What is measured of an image while it is decoded, and what looks at it: block lists, a classifier, an embedder."""

import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.errors import AltalignError, UsageError, bring
from altalign.filters import model_inputs, pixels
from altalign.filters.blocked import BlockList
from altalign.machine import memory
from altalign.models import onnx
from altalign.pipelines.images import embedders
from altalign.pipelines.run.units import files_named
from altalign.settings.curate import CurateConfig, FetchSettings, ImageSettings

_SIDE_AT_MOST = 2**31 - 1

Stamps: TypeAlias = "tuple[storage.Stamp | None, ...]"  # of files, by which a cache knows that one has changed


class Hooks(NamedTuple):
    """What looks at an image while it is decoded."""

    blocked: BlockList
    nsfw: "NsfwModel | None"
    embedder: embedders.Embedder

    @property
    def short_side_px(self) -> int:
        """What they need of an image's short side, in pixels."""
        of_nsfw = self.nsfw.graph.input.short_side_px if self.nsfw else 0
        return max(self.embedder.short_side_px, self.blocked.short_side_px, of_nsfw)

    @property
    def colour(self) -> bool:
        """Whether any of them looks at colours."""
        return self.nsfw is not None or self.embedder.colour


def hooks_of(config: CurateConfig) -> Hooks:
    """The hooks of these settings, loaded once a process."""
    changed, model = _stamps(files_named(config)), config.image.nsfw.model
    return _hooks(tuple(config.image.blocked_hashes), model, config.decontaminate.embedder, changed)


@lru_cache(maxsize=1)
def _hooks(blocked: tuple[str, ...], model: str, embedder: str, _changed: Stamps) -> Hooks:
    return Hooks(load_block_lists(blocked), load_nsfw_model(model) if model else None, embedders.load(embedder))


def _stamps(paths: Sequence[str]) -> Stamps:
    return tuple(storage.stamp(path) if storage.exists(path) else None for path in paths)


class Measured(NamedTuple):
    """What was measured of an image; None where it was not."""

    format: str | None = None
    width: int | None = None
    height: int | None = None
    damage: str | None = None
    is_blocked: bool | None = None
    nsfw_score: float | None = None
    found_sha256: str | None = None


def measure(data: bytes, *, url: str | None, config: ImageSettings, hooks: Hooks) -> tuple[Measured, pixels.Decoded]:
    """Decode an image once and measure all that the image rules ask for. `url` names it in errors."""
    decoded_once = decoded(data, name=url, config=config, hooks=hooks)
    digest, of_pixels = hashlib.sha256(data).hexdigest() if data else None, decoded_once.pixels
    measured = Measured(
        format=decoded_once.format,
        # a header may lie up to 2^32, which no column holds; every rule says of both the same
        width=None if decoded_once.width is None else min(decoded_once.width, _SIDE_AT_MOST),
        height=None if decoded_once.height is None else min(decoded_once.height, _SIDE_AT_MOST),
        damage=decoded_once.damage if decoded_once.format else None,
        is_blocked=hooks.blocked.blocks(data=data, found_sha256=digest or "", pixels=of_pixels),
        nsfw_score=hooks.nsfw.score(of_pixels) if hooks.nsfw and of_pixels is not None else None,
        found_sha256=digest,
    )
    return measured, decoded_once


def decoded(data: bytes, *, name: str | None, config: ImageSettings, hooks: Hooks) -> pixels.Decoded:
    """An image as all that look at it need it. `name` is its name in errors."""
    most = config.pixels_at_most
    with enough_memory(name, data, colour=hooks.colour, pixels_at_most=most, short_side_px=hooks.short_side_px):
        return pixels.decode(data, pixels_at_most=most, colour=hooks.colour, short_side_px=hooks.short_side_px)


@contextmanager
def enough_memory(
    url: str | None, data: bytes, *, colour: bool, pixels_at_most: int | None = None, short_side_px: int = 0
) -> Iterator[None]:
    """Around decoding an image that needs `pixels.peak_bytes`: a large one waits until other threads need less.

    Raises:
        AltalignError: there is too little memory for it. That is no verdict: on another machine it would be another.
    """
    try:
        needed = 0
        if not memory.is_ample():
            needed = pixels.peak_bytes(data, colour=colour, pixels_at_most=pixels_at_most, short_side_px=short_side_px)
        with memory.reserved(needed):
            yield
    except MemoryError as error:
        header = pixels.decode(data, pixels_at_most=0, colour=False)
        size = f" of {header.width:,} x {header.height:,} pixels" if header.width and header.height else ""
        repair = "give it more, or set [engine] workers or [image] pixels_at_most lower"
        what = f"no memory to decode an image{size} ({len(data):,} bytes){f': {error}' if str(error) else ''}"
        raise AltalignError(f"{url or 'an image without a URL'}: {what}; {repair}") from error


def columns(measured: Sequence[Measured]) -> dict[str, Any]:
    """What was measured, an Arrow array each."""
    kinds = (pa.string(), pa.int32(), pa.int32(), pa.string(), pa.bool_(), pa.float32(), pa.string())
    values = zip(*measured, strict=True) if measured else ([] for _ in kinds)
    return {
        name: pa.array(list(column), kind) for name, kind, column in zip(Measured._fields, kinds, values, strict=True)
    }


def load_block_lists(paths: Sequence[str]) -> BlockList:
    """Read `[image] blocked_hashes`."""
    block_list = BlockList.parse((path, _text(path, "[image] blocked_hashes")) for path in paths)
    if len(block_list.pdq) and importlib.util.find_spec("pdqhash") is None:
        what = f"lists {len(block_list.pdq)} PDQ hashes and the package pdqhash is missing"
        raise UsageError(f"[image] blocked_hashes {what}; {bring('pdq')}")
    return block_list


def blocked_urls(settings: FetchSettings) -> BlockList:
    """Reads `[fetch] blocked_urls`, once a process."""
    return _blocked_urls(tuple(settings.blocked_urls), _stamps(settings.blocked_urls))


@lru_cache(maxsize=1)
def _blocked_urls(paths: tuple[str, ...], _changed: Stamps) -> BlockList:
    return BlockList.parse(((path, _text(path, "[fetch] blocked_urls")) for path in paths), of_urls=True)


def _text(path: str, setting: str) -> str:
    try:
        return Path(storage.mappable(path)).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{setting}: {path}: cannot be read ({error.strerror}); give paths relative to the working directory"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{setting}: {path}: not text (byte {error.start})") from None


@dataclass(frozen=True, eq=False)
class NsfwModel:
    """A classifier of pornographic images; `graph.input` is the TOML beside its file."""

    graph: onnx.ImageGraph[model_inputs.Classifier]

    def score(self, image: npt.NDArray[np.uint8]) -> float:
        """The score of one image (uint8[height, width, 3]), 0 to 1, alone: in a batch its last bits would be others."""
        (output, *_) = self.graph.run(self.graph.prepare(image))
        return model_inputs.score(output, self.graph.input)


def load_nsfw_model(path: str) -> NsfwModel:
    """Load `[image.nsfw] model`, an ONNX file with a TOML of its name beside it, and try it on a gray image."""
    model = NsfwModel(onnx.image_graph(path, f"[image.nsfw] model = {path!r}", model_inputs.Classifier, extra="nsfw"))
    try:
        model.graph.tried(model.score)
    except IndexError:
        wrong = f"output_index = {model.graph.input.output_index}: the model has fewer outputs"
        raise UsageError(f"{model.graph.toml} {wrong}") from None
    return model
