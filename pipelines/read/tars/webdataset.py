"""WebDataset tars (.tar, .tar.gz, .tar.zst): neighbouring members with the same name up to the first dot are a sample.

A sample gives its first image member, the caption from `.txt` or else from `.json`, and from `.json` the `url` and the
values that are kept. No more of a member is read than a limit: an image is cut there, as one in a web archive is; a
longer text breaks its sample.
"""

import hashlib
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, BinaryIO, cast

from altalign import storage
from altalign.data.shards import BESIDE, IMAGE_NAMES
from altalign.pipelines.read import samples
from altalign.pipelines.read.pages.warc import IMAGE_BYTES
from altalign.pipelines.read.samples import SampleError
from altalign.pipelines.read.stretches import LINE_BYTES, Gatherer, Stretch, readable, unreadable
from altalign.pipelines.read.tables import table
from altalign.pipelines.read.tars import tar_members
from altalign.settings.curate import InputSettings
from altalign.terminal import shown

_IMAGES = tuple(name[1:] for name in IMAGE_NAMES)
_READ = (*_IMAGES, "txt", "json")


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
    gatherer = Gatherer(path, partial(samples.finish, settings))
    with readable(path, "tar"), storage.open_read(path) as file:
        for offset, sample in _samples(path, file, settings.keep_columns):
            if isinstance(sample, str):
                gatherer.broken(offset, sample)
            elif sample.extensions:
                _gather(sample, file, f"{named}#{table.shown_name(sample.name)}", gatherer)
            gatherer.read = 0 if file.closed else file.tell()
            if gatherer.full:
                yield gatherer.take()
        yield gatherer.take()


def _gather(sample: _Sample, file: BinaryIO, name: str, gatherer: Gatherer) -> None:
    """Add a sample that has this name, and the place of its image."""
    caption = sample.caption_of_json if sample.caption is None else sample.caption

    def sha256() -> str | None:
        if sample.data is not None or not sample.length:
            return None if sample.data is None else hashlib.sha256(sample.data).hexdigest()
        file.seek(sample.offset)
        return samples.sha256_of(file, sample.length)

    identity, digest = samples.identity(sample.url, sha256)
    gatherer.row((sample.url, caption, None, name, sample.extra, digest), size=sample.size)
    # of a member without a byte decoding says so, but an address may lead to its image
    if identity is not None and (sample.length or (sample.data is not None and digest is not None)):
        is_copied = sample.data is not None
        offset, length = (None, None) if is_copied else (sample.offset, sample.length)
        gatherer.place(identity, offset, length, sample.data)


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
                    except SampleError as problem:
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
        raise SampleError(f"{member.name}: a sparse member")
    if extension in sample.extensions:
        raise SampleError(f"{member.name}: a second .{extension} of one sample; two samples may not have one name")
    sample.extensions.add(extension)
    if extension in _IMAGES:
        if not sample.length:
            sample.offset, sample.length = member.offset_data, min(member.size, IMAGE_BYTES)
            is_copied = is_compressed or not sample.length
            sample.data = tar_members.content(tar, member, sample.length) if is_copied else None
        return True
    if member.size > LINE_BYTES:
        raise SampleError(f"{member.name}: longer than {LINE_BYTES >> 20} MiB")
    content = tar_members.content(tar, member, member.size)
    try:
        if extension == "txt":
            sample.caption = samples.text(content)
        else:
            described = samples.described(content, "url", "caption", keep, may_be_list=False)
            sample.url, (sample.caption_of_json,), sample.extra = described
    except SampleError as error:
        raise SampleError(f"{member.name}: {error}") from None
    return True


def _split(name: str) -> tuple[str, str]:
    """The name of a member's sample, with its folders, and the extension."""
    folder, _, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return f"{folder}/{stem}" if folder else stem, extension
