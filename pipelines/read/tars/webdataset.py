"""WebDataset tars (.tar, .tar.gz, .tar.zst): neighbouring members with the same name up to the first dot are a sample.

A sample gives its first image member, the caption from `.txt` or else from `.json`, and from `.json` the `url` and the
values that are kept. No more of a member is read than a limit: an image is cut there, as one in a web archive is; a
longer text breaks its sample.
"""

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc

from altalign import extras, storage
from altalign.curation import InputSettings
from altalign.pipelines.read.pages.warc import IMAGE_BYTES
from altalign.pipelines.read.stretches import (
    LINE_BYTES,
    STRETCH_BYTES,
    STRETCH_ROWS,
    Stretch,
    batch,
    kept,
    readable,
    unreadable,
)
from altalign.pipelines.read.tables import columns, table
from altalign.pipelines.read.tables.lines import parse_json
from altalign.pipelines.read.tars import tar_members
from altalign.schema import BROKEN, IMAGE_PLACE
from altalign.shards import BESIDE, IMAGE_NAMES
from altalign.terminal import shown

_IMAGES = tuple(name[1:] for name in IMAGE_NAMES)
_READ = (*_IMAGES, "txt", "json")


class _SampleError(ValueError):
    """The sample cannot be read."""


@dataclass(slots=True)
class _Sample:
    name: str = ""
    extra: str | None = None
    url: str | None = None
    caption: str | None = None
    caption_of_json: str | None = None
    offset: int = 0  # where the image's bytes begin in the tar
    length: int = 0  # bytes of the image, at most IMAGE_BYTES; 0: there is none
    data: bytes | None = None  # the image's bytes where the tar is compressed, or where there are none
    extensions: set[str] = field(default_factory=set)  # those of its members that are read

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        texts = (self.name, self.extra, self.url, self.caption, self.caption_of_json)
        return len(self.data or b"") + sum(len(text or "") for text in texts)


def read(path: str, settings: InputSettings, named: str) -> Iterator[Stretch]:
    """Yields all samples of a tar, in the order of their first members; their names begin with this one.

    Raises:
        UnreadableError: the file is no tar, or is cut off.
    """
    if storage.stamp(path).size == 0:
        return
    with readable(path, "tar"), storage.open_read(path) as file:
        samples: list[_Sample] = []
        broken: list[tuple[str, int, str]] = []
        size = 0
        for offset, sample in _samples(path, file, settings.keep_columns):
            if isinstance(sample, str):
                broken.append((path, offset, sample))
            elif sample.extensions:
                samples.append(sample)
                size += sample.size
            if size > STRETCH_BYTES or len(samples) + len(broken) >= STRETCH_ROWS:
                yield _found(samples, broken, file, settings, named)
                samples, broken, size = [], [], 0
        yield _found(samples, broken, file, settings, named)


def _samples(path: str, file: BinaryIO, keep: Sequence[str]) -> Iterator[tuple[int, _Sample | str]]:
    """Yields offset and content of each sample, or what is wrong with it."""
    behind, beside = list[str](), list[tarfile.TarInfo | None]()
    try:
        with tar_members.opened(file) as (tar, is_compressed):
            for name, members in groupby(_members(tar, behind, beside), key=itemgetter(0)):
                offset, sample, error, others = -1, _Sample(name), "", []
                for _, extension, member in members:
                    offset = member.offset if offset < 0 else offset
                    try:
                        is_used = _add(sample, tar, member, extension.lower(), keep, is_compressed=is_compressed)
                        if member.isfile() and not is_used:
                            others.append(member.name)
                    except _SampleError as problem:
                        error = str(problem)
                if others and not sample.extensions:
                    error = f"no image, .txt or .json of one name before the first dot, but {', '.join(others[:3])}"
                yield offset, shown(error) if error else sample  # a name may be no UTF-8
            if beside and beside[0]:
                count = f"{len(beside):,} left out, such as {beside[0].name}"
                yield beside[0].offset, shown(f"files of attributes, as macOS adds them: {count}")
            if behind:
                yield tar.offset, f"behind the end of the tar is something else ({behind[0]})"
    except tarfile.TarError as error:
        if str(error) == "empty file":
            return
        unreadable(path, f"cannot be read as tar ({error})")


def _members(
    tar: tarfile.TarFile, behind: list[str], beside: list[tarfile.TarInfo | None]
) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """Yields name of the sample, extension and member, up to the end of the file.

    Zeros end a tar, and other tars may follow it. An error on anything else behind them goes to `behind`. Files of
    attributes, one beside each member, would tear samples apart: they go to `beside`.
    """
    try:
        for member in tar:
            if not BESIDE.search(member.name):
                yield *_split(member.name), member
            elif member.isfile():
                beside.append(None if beside else member)  # the first, and how many there are
            cast(Any, tar).members.clear()  # tarfile keeps all it has met
    except tar_members.BehindTheEndError as error:
        behind.append(str(error))


def _add(
    sample: _Sample,
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    extension: str,
    keep: Sequence[str],
    *,
    is_compressed: bool,
) -> bool:
    """Add a member to its sample; returns whether samples have such members."""
    if extension not in _READ or not member.isfile():
        return False
    if member.issparse():
        raise _SampleError(f"{member.name}: a sparse member")
    if extension in sample.extensions:
        raise _SampleError(f"{member.name}: a second .{extension} of one sample; two samples may not have one name")
    sample.extensions.add(extension)
    if extension in _IMAGES:
        if not sample.length:
            sample.offset, sample.length = member.offset_data, min(member.size, IMAGE_BYTES)
            is_copied = is_compressed or not sample.length
            sample.data = tar_members.content(tar, member, sample.length) if is_copied else None
        return True
    if member.size > LINE_BYTES:
        raise _SampleError(f"{member.name}: longer than {LINE_BYTES >> 20} MiB")
    content = tar_members.content(tar, member, member.size)
    if extension == "txt":
        try:
            sample.caption = content.decode().removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise _SampleError(f"{member.name}: not UTF-8 (byte {error.start})") from None
        return True
    try:
        value = parse_json(content)
    except ValueError as error:
        raise _SampleError(f"{member.name}: no JSON: {error}") from None
    if not isinstance(value, dict):
        raise _SampleError(f"{member.name}: {type(value).__name__}, where an object is meant")
    sample.url, sample.caption_of_json = (_text(member.name, value, name) for name in ("url", "caption"))
    sample.extra = extras.encode({name: value.get(name) for name in keep}) if keep else None
    return True


def _text(member: str, value: Mapping[str, object], name: str) -> str | None:
    text = value.get(name)
    if not (text is None or isinstance(text, str)):
        raise _SampleError(f"{member}: {name} is no string but {type(text).__name__}")
    return text


def _found(
    samples: list[_Sample], broken: list[tuple[str, int, str]], file: BinaryIO, settings: InputSettings, named: str
) -> Stretch:
    captions = [sample.caption_of_json if sample.caption is None else sample.caption for sample in samples]
    texts = [
        (sample.url, caption, None, f"{named}#{table.shown_name(sample.name)}", sample.extra)
        for sample, caption in zip(samples, captions, strict=True)
    ]
    plain = columns.candidates_of(*columns.string_columns(texts), settings=settings)
    is_known = plain["image_identity"].is_valid().to_pylist()
    # of a member without a byte decoding says so, but an address may lead to its image
    has_image = [
        bool(sample.length) or (sample.data is not None and not known)
        for sample, known in zip(samples, is_known, strict=True)
    ]
    hashes: list[str | None] = [
        _sha256(sample, file) if image and not known else None
        for sample, image, known in zip(samples, has_image, is_known, strict=True)
    ]
    rows = columns.in_hand(plain, hashes)
    in_hand = [sample for sample, is_there in zip(samples, has_image, strict=True) if is_there]
    places = [
        pc.filter(rows["image_identity"], pa.array(has_image, pa.bool_())),
        pa.array([None if sample.data is not None else sample.offset for sample in in_hand], pa.int64()),
        pa.array([None if sample.data is not None else sample.length for sample in in_hand], pa.int64()),
        pa.array([sample.data for sample in in_hand], pa.large_binary()),
    ]
    return Stretch(
        kept(rows),
        batch(broken, BROKEN),
        pa.record_batch(places, schema=IMAGE_PLACE),
        0 if file.closed else file.tell(),
    )


def _sha256(sample: _Sample, file: BinaryIO) -> str:
    if sample.data is not None:
        return sha256(sample.data).hexdigest()
    file.seek(sample.offset)
    hashed = sha256()
    left = sample.length
    while left and (piece := file.read(min(left, tar_members.PIECE_BYTES))):
        hashed.update(piece)
        left -= len(piece)
    return hashed.hexdigest()


def _split(name: str) -> tuple[str, str]:
    """The name of a member's sample, with its folders, and the extension."""
    folder, _, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return f"{folder}/{stem}" if folder else stem, extension
