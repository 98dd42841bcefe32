"""WebDataset tars (.tar, .tar.gz, .tar.zst): neighbouring members with the same name up to the first dot are a sample.

A sample gives its first image member, the caption from `.txt` or else from `.json`, and from `.json` the `url` and the
values that are kept. No more of a member is read than a limit: an image is cut there, as one in a web archive is; a
longer text breaks its sample.

img2dataset leaves two things beside its tars: statistics (`00000_stats.json`), and side-cars (`00000.parquet`). A tar
holds the images that came. Its side-car has a row for each URL that was asked for, with a status; those that did not
come are candidates without an image, which the web may have now.
"""

import hashlib
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data import extras
from altalign.data.schema import CANDIDATE
from altalign.data.shards import BESIDE, IMAGE_NAMES
from altalign.errors import UnreadableError
from altalign.filters import bounds, one_url
from altalign.pipelines.read import tar_members
from altalign.pipelines.read.pages.warc import IMAGE_BYTES
from altalign.pipelines.read.stretches import LINE_BYTES, Gatherer, Stretch, as_stretch, readable, unreadable
from altalign.pipelines.read.tables import columns, table
from altalign.pipelines.read.tables.lines import parse_json, wrong_type
from altalign.settings.curate import InputSettings
from altalign.storage import parquet
from altalign.terminal import shown

OF_NOTHING = hashlib.sha256().hexdigest()  # an image without a byte
STATS = "_stats.json"
_IMAGES = tuple(name[1:] for name in IMAGE_NAMES)
_NAME = "key"  # a column of side-cars; of an image that came, its members in the tar have this name
_COLUMNS = {_NAME, "status", "url"}
_CAME = "success"


@dataclass(slots=True)
class _Sample:
    name: str = ""
    begin: int = 0  # of its first member in the tar
    url: str | None = None
    caption: str | None = None
    caption_of_json: str | None = None
    extra: str | None = None
    offset: int = 0  # where the image's bytes begin in the tar
    length: int = 0  # bytes of the image, at most IMAGE_BYTES; 0: there is none
    data: bytes | None = None  # the image's bytes where the tar is compressed, or where there are none
    extensions: set[str] = field(default_factory=set)  # those of its members that are read
    other: str = ""  # one of its other members
    error: str = ""


def read(path: str, settings: InputSettings, named: str) -> Iterator[Stretch]:
    """Yields all samples of a tar, in the order of their first members; their names begin with this one."""
    if storage.stamp(path).size == 0:
        return
    gatherer = Gatherer(path, partial(columns.extracted, settings))
    with readable(path, "tar"), storage.open_read(path) as file:
        for sample in _samples(path, file, settings.keep_columns):
            if sample.other and not sample.extensions:
                sample.error = f"no image, .txt or .json of one name before the first dot, but {sample.other}"
            if sample.error:
                gatherer.broken(sample.begin, shown(sample.error))  # a name may be no UTF-8
            elif sample.extensions:
                _gather(sample, file, f"{named}#{table.shown_name(sample.name)}", gatherer)
            if gatherer.full:
                yield gatherer.take()
        yield gatherer.take()


def _gather(sample: _Sample, file: BinaryIO, name: str, gatherer: Gatherer) -> None:
    """Add a sample that has this name, and the place of its image."""
    caption, data = sample.caption_of_json if sample.caption is None else sample.caption, sample.data

    def sha256() -> str | None:
        if data is not None or not sample.length:
            return None if data is None else hashlib.sha256(data).hexdigest()
        file.seek(sample.offset)
        return tar_members.sha256_of(file, sample.length)

    identity, digest = identity_of(sample.url, sha256)
    texts = (sample.name, sample.extra, sample.url, sample.caption, sample.caption_of_json)
    size = len(data or b"") + sum(len(text or "") for text in texts)
    gatherer.row((sample.url, caption, None, name, sample.extra, digest), size=size)
    # of a member without a byte decoding says so, but an address may lead to its image
    if identity is not None and (sample.length or (data is not None and digest is not None)):
        offset, length = (sample.offset, sample.length) if data is None else (None, None)
        gatherer.place(identity, offset, length, data)


def _samples(path: str, file: BinaryIO, keep: Sequence[str]) -> Iterator[_Sample]:
    """Yields each sample, without files of attributes, as macOS adds them, which would tear samples apart."""
    sample = _Sample()
    try:
        with tar_members.opened(file) as (tar, is_compressed):
            for member in tar:
                cast(Any, tar).members.clear()  # tarfile keeps all it has met
                if BESIDE.search(member.name):
                    continue
                folder, _, base = member.name.rpartition("/")
                stem, _, extension = base.partition(".")
                name = f"{folder}/{stem}" if folder else stem
                if name != sample.name:
                    yield sample
                    sample = _Sample(name, member.offset)
                try:
                    _add(sample, tar, member, extension.lower(), keep, is_compressed=is_compressed)
                except SampleError as error:
                    sample.error = f"{member.name}: {error}"
            yield sample
    except tarfile.TarError as error:
        if str(error) != "empty file":
            unreadable(path, f"cannot be read as tar ({error})")


def _add(
    sample: _Sample,
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    extension: str,
    keep: Sequence[str],
    *,
    is_compressed: bool,
) -> None:
    if not member.isfile():
        return
    if extension not in (*_IMAGES, "txt", "json"):
        sample.other = member.name
        return
    if member.issparse():
        raise SampleError("a sparse member")
    if extension in sample.extensions:
        raise SampleError(f"a second .{extension} of one sample; two samples may not have one name")
    sample.extensions.add(extension)
    if extension in _IMAGES:
        if not sample.length:
            sample.offset, sample.length = member.offset_data, min(member.size, IMAGE_BYTES)
            is_copied = is_compressed or not sample.length
            sample.data = tar_members.content(tar, member, sample.length) if is_copied else None
        return
    if member.size > LINE_BYTES:
        raise SampleError(f"longer than {LINE_BYTES >> 20} MiB")
    content = tar_members.content(tar, member, member.size)
    if extension == "txt":
        sample.caption = text_of(content)
    else:
        of_json = described(content, "url", "caption", keep, may_be_list=False)
        sample.url, (sample.caption_of_json,), sample.extra = of_json


# What folders of images have too --------------------------------------------------------------------------------------


class SampleError(ValueError):
    """The sample cannot be read."""


def text_of(content: bytes) -> str:
    """The caption in a `.txt`; raises SampleError where it is not UTF-8."""
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise SampleError(f"not UTF-8 (byte {error.start}); convert the file") from None


def described(
    content: bytes, url: str, caption: str, keep: Sequence[str], *, may_be_list: bool
) -> tuple[str | None, list[str | None], str | None]:
    """URL, captions, and what is kept with them (`extra`), from a `.json` with these keys."""
    try:
        value = parse_json(content)
    except ValueError as error:
        raise SampleError(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise SampleError(f"{type(value).__name__}, where an object is meant")
    captions = value.get(caption)
    captions = captions if may_be_list and isinstance(captions, list) else [captions]
    if wrong := wrong_type(url, [value.get(url)]) or wrong_type(caption, captions):
        raise SampleError(wrong)
    return value.get(url), captions, extras.encode({name: value.get(name) for name in keep}) if keep else None


def identity_of(url: str | None, sha256: Callable[[], str | None]) -> tuple[str | None, str | None]:
    """The identity of an image, by its URL or else by its bytes, and their SHA-256 where it is that."""
    written, is_valid = ("", False) if url is None else one_url.parsed(url)
    if is_valid and len(written.encode()) <= bounds.URL_BYTES:
        return written, None
    digest = sha256()
    return digest, digest


# What img2dataset leaves beside tars ----------------------------------------------------------------------------------


def listed(places: Sequence[str]) -> list[str]:
    """The files that an input of tars reads of what its globs give, sorted; of folders, tars and their side-cars."""
    files = (path for place in places for path in (_inside(place) if storage.kind(place) == "folder" else [place]))
    return sorted({path for path in files if not path.endswith(STATS)})


def is_side_car(path: str) -> bool:
    """Whether a Parquet file is a side-car of img2dataset, by its columns."""
    if not path.endswith(".parquet"):
        return False
    try:
        with parquet.reading(path) as file:
            return _COLUMNS.issubset(file.schema_arrow.names)
    except UnreadableError:
        return False


def read_side_car(path: str, settings: InputSettings, named: str) -> Iterator[Stretch]:
    """Yields the candidates of a side-car whose images did not come; their names begin with this one."""
    at = CANDIDATE.get_field_index("page_url")
    for stretch in table.read(path, as_table(settings), named, named_by=_NAME):
        status = parquet.strings(stretch.rows, "page_url")
        rows = stretch.rows.filter(pc.not_equal(status.fill_null(""), pa.scalar(_CAME)))
        none = pa.nulls(rows.num_rows, pa.string())
        yield as_stretch(rows.select(CANDIDATE.names).set_column(at, CANDIDATE.field("page_url"), none))


def as_table(settings: InputSettings) -> InputSettings:
    """Settings that read a side-car: its status takes the place of a page's URL."""
    own: dict[str, Any] = {"keep_columns": settings.keep_columns, "decode_entities": settings.decode_entities}
    return InputSettings(kind="table", paths=settings.paths, page_url_column="status", **own)


def _inside(folder: str) -> list[str]:
    names = storage.names(folder)
    tars = [name for name in names if name.lower().endswith(tar_members.NAMES)]
    stems = {PurePath(name).name.split(".")[0] for name in tars}
    beside = [name for name in names if name.endswith(".parquet") and name.removesuffix(".parquet") in stems]
    is_theirs = bool(beside) and is_side_car(storage.join(folder, beside[0]))
    return [storage.join(folder, name) for name in (*tars, *(beside if is_theirs else []))]
