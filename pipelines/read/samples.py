"""Samples of folders and tars: an image in the input, with the texts beside it and the identity that it has."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from altalign.data import extras
from altalign.filters import bounds, one_url
from altalign.pipelines.read.stretches import kept
from altalign.pipelines.read.tables import columns
from altalign.pipelines.read.tables.lines import parse_json
from altalign.settings.curate import InputSettings

OF_NOTHING = hashlib.sha256().hexdigest()  # an image without a byte
_PIECE_BYTES = 1 << 20


class SampleError(ValueError):
    """The sample cannot be read."""


def text(content: bytes) -> str:
    """The caption in a `.txt`.

    Raises:
        SampleError: it is not UTF-8.
    """
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise SampleError(f"not UTF-8 (byte {error.start}); convert the file") from None


def described(
    content: bytes, url: str, caption: str, keep: Sequence[str], *, may_be_list: bool
) -> tuple[str | None, list[str | None], str | None]:
    """URL, captions, and what is kept with them (`extra`), from a `.json` with these keys.

    Raises:
        SampleError: it is no JSON object, or holds something other than texts there.
    """
    try:
        value = parse_json(content)
    except ValueError as error:
        raise SampleError(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise SampleError(f"{type(value).__name__}, where an object is meant")
    captions = value.get(caption)
    captions = captions if may_be_list and isinstance(captions, list) else [captions]
    for name, texts in ((url, [value.get(url)]), (caption, captions)):
        for each in texts:
            if not (each is None or isinstance(each, str)):
                raise SampleError(f"{name} is no string but {type(each).__name__}")
    return value.get(url), captions, extras.encode({name: value.get(name) for name in keep}) if keep else None


def identity(url: str | None, sha256: Callable[[], str | None]) -> tuple[str | None, str | None]:
    """The identity of an image, by its URL or else by its bytes, and their SHA-256 where it is that."""
    written, is_valid = ("", False) if url is None else one_url.parsed(url)
    if is_valid and len(written.encode()) <= bounds.URL_BYTES:
        return written, None
    digest = sha256()
    return digest, digest


def sha256_of(file: BinaryIO, length: int) -> str:
    """The SHA-256 of so many bytes from a file's position on."""
    hashed = hashlib.sha256()
    while length and (piece := file.read(min(length, _PIECE_BYTES))):
        hashed.update(piece)
        length -= len(piece)
    return hashed.hexdigest()


def finish(settings: InputSettings, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows of (URL, caption, page URL, name, extra, SHA-256) as `schema.EXTRACTED`."""
    plain = columns.candidates_of(*columns.string_columns([row[:5] for row in rows]), settings=settings)
    return kept(columns.in_hand(plain, [row[5] for row in rows]))
