"""Sets of captioned images for evaluation: Parquet tables, WebDataset tars, or finished runs of ours. Needs no torch.

A set is listed once: captions, and where each image is. Its images are read in each iteration. Rows or samples with the
same bytes (in a run, the same `image_id`) are one image, which has all their captions.
"""

import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import DamagedError, UnreadableError, UsageError
from altalign.shards import EXTENSIONS

NO_IMAGE, NO_CAPTION = "no image", "no caption"  # reasons to leave out a row

_IMAGES = {*EXTENSIONS.values(), "jpeg", "tif"}
_ROWS = 256  # rows of a table that are held: tens of megabytes of images


@dataclass(frozen=True)
class CaptionedImage:
    """An image file's bytes and its captions, at least one."""

    image: bytes
    captions: list[str]
    name: str = ""  # for messages: FILE#ROW, FILE/MEMBER


@dataclass(frozen=True)
class Place:
    """Where an image's bytes are: in a file, at an offset (bytes), or in a row of a table (length None)."""

    path: str
    offset: int
    length: int | None
    name: str


@dataclass
class Listed:
    """An image of a set: where it is, and its captions."""

    identity: str
    place: Place
    captions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ImageSet:
    """A set of captioned images in the order of their places; it can be iterated any number of times."""

    images: Sequence[Listed]
    read: Callable[[Sequence[Place]], Iterator[bytes]]
    left_out: Mapping[str, int]  # rows by reason

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[CaptionedImage]:
        for image, data in zip(self.images, self.read([image.place for image in self.images]), strict=True):
            yield CaptionedImage(data, image.captions, image.place.name)


def with_captions(
    images: Iterable[CaptionedImage], *, at_most: int = 0, repeated: bool = True
) -> Iterator[CaptionedImage]:
    """The images with the first `at_most` of their captions (0: all), each once where not `repeated`."""
    for image in images:
        captions = image.captions if repeated else list(dict.fromkeys(image.captions))
        yield replace(image, captions=captions[: at_most or None])


def parquet_set(
    patterns: Sequence[str], *, image_column: str = "image", caption_column: str = "caption", images_at_most: int = 0
) -> ImageSet:
    """Images of Parquet tables.

    Args:
        patterns: paths or globs of tables.
        image_column: bytes, or Hugging Face's struct of `bytes` and `path`.
        caption_column: a string, or a list of strings.
        images_at_most: take this many, chosen by the hash of their bytes; 0: all.

    Raises:
        UsageError: nothing is there, or it has no such columns.
        UnreadableError: a table is damaged, or nothing of the set is left.
    """
    rows = (row for path in _found(patterns) for row in _table_rows(path, image_column, caption_column))
    return _listed(rows, lambda places: _read_rows(places, image_column), images_at_most, patterns)


def webdataset_set(patterns: Sequence[str], *, images_at_most: int = 0) -> ImageSet:
    """Images of WebDataset tars: a sample is an image and its captions, the members of one name up to its first dot.

    Captions are `captions` (a list) or `caption` (a string, or a list) of KEY.json, or, where that gives none, the
    lines of KEY.txt.

    Args:
        patterns: paths or globs of tars, not compressed.
        images_at_most: take this many, chosen by the hash of their bytes; 0: all.

    Raises:
        UsageError: nothing is there.
        UnreadableError: a tar is damaged, or nothing of the set is left.
    """
    rows = (row for path in _found(patterns) for row in _tar_rows(path))
    return _listed(rows, read_places, images_at_most, patterns)


def run_set(folders: Sequence[str], *, images_at_most: int = 0) -> ImageSet:
    """All pairs of finished run folders; pairs of one `image_id` are one image.

    Args:
        folders: run folders of `altalign curate`.
        images_at_most: take this many, chosen by the hash of their `image_id`; 0: all.

    Raises:
        UsageError: a folder is no finished run.
        DamagedError: a side-car is not as it was written.
        UnreadableError: nothing of the set is left.
    """
    rows = (row for folder in folders for row in _run_rows(folder))
    return _listed(rows, read_places, images_at_most, folders)


def read_places(places: Sequence[Place]) -> Iterator[bytes]:
    """The bytes at each place of a file, in order.

    Raises:
        UnreadableError: a file ends before an image does, or cannot be read.
    """
    for place in places:
        with _reading(place.path, "tar"):
            data = storage.read_range(place.path, place.offset, place.length or 0)
        if len(data) != place.length:
            why = "it was changed since it was listed, or is cut: give a whole one"
            raise UnreadableError(f"{place.path}: ends within {place.name}; {why}")
        yield data


# Listing -------------------------------------------------------------------------------------------------------------

_Row = tuple[str | None, Place, list[str]]  # identity (None: no image), place, captions


def _listed(
    rows: Iterable[_Row],
    read: Callable[[Sequence[Place]], Iterator[bytes]],
    images_at_most: int,
    patterns: Sequence[str],
) -> ImageSet:
    """The set of chosen images, each at its first place and with the captions of all its rows."""
    images: dict[str, Listed] = {}
    left_out: Counter[str] = Counter()
    for identity, place, captions in rows:
        captions = [caption for caption in captions if caption.strip()]
        if identity is None:
            left_out[NO_IMAGE] += 1
        elif not captions:
            left_out[NO_CAPTION] += 1
        else:
            images.setdefault(identity, Listed(identity, place)).captions.extend(captions)
    if not images:
        why = ", ".join(f"{number:,} rows with {reason}" for reason, number in left_out.items()) or "no rows"
        raise UnreadableError(
            f"{', '.join(patterns)}: no image with a caption ({why}); look at the files and the names of columns"
        )
    chosen = set(images)
    if 0 < images_at_most < len(images):
        chosen = set(sorted(images, key=lambda identity: sha256(identity.encode()).digest())[:images_at_most])
    return ImageSet([image for identity, image in images.items() if identity in chosen], read, left_out)


def _found(patterns: Sequence[str]) -> Iterator[str]:
    """The files of globs, each once, sorted within a glob."""
    seen: set[str] = set()
    for pattern in patterns:
        storage.check(pattern)
        paths = sorted(storage.find(pattern))
        if not paths:
            repair = "give paths relative to the working directory, or globs"
            raise UsageError(f"nothing is at {pattern!r}; {repair}")
        for path in paths:
            if storage.kind(path) == "folder":
                repair = f"give its files, as a glob: {storage.join(path, '*')}"
                raise UsageError(f"{path}: a folder; {repair}")
            if path not in seen:
                seen.add(path)
                yield path


@contextmanager
def _reading(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, tarfile.TarError, UnicodeDecodeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UnreadableError(f"{path}: cannot be read as {what} ({reason}); give a whole one") from error


# Tables --------------------------------------------------------------------------------------------------------------


def _table_rows(path: str, image_column: str, caption_column: str) -> Iterator[_Row]:
    row = 0
    for batch in _batches_of(path, (image_column, caption_column)):
        captions = batch.column(caption_column).to_pylist()
        for image, caption in zip(_image_bytes(batch, image_column, path), captions, strict=True):
            said = [caption] if isinstance(caption, str) else [one for one in caption or () if one is not None]
            yield None if image is None else _digest(image), Place(path, row, None, f"{path}#{row}"), said
            row += 1


def _read_rows(places: Sequence[Place], image_column: str) -> Iterator[bytes]:
    """The images of rows; places are in the order of files and rows."""
    wanted: dict[str, list[int]] = {}
    for place in places:
        wanted.setdefault(place.path, []).append(place.offset)
    for path, rows in wanted.items():
        first, next_row = 0, iter([*rows, -1])
        row = next(next_row)
        for batch in _batches_of(path, (image_column,)):
            images = _image_bytes(batch, image_column, path)
            while first <= row < first + len(batch):
                yield images[row - first] or b""
                row = next(next_row)
            first += len(batch)
            if row == -1:
                break


def _batches_of(path: str, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """These columns of a table, some rows at a time."""
    with _reading(path, "Parquet"), storage.open_read(path) as file:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        for number, column in enumerate(columns):
            if names.count(column) != 1:
                wrong = "more than one" if column in names else "no"
                given = ", ".join(names[:10])
                raise UsageError(f"{path}: {wrong} column {column!r} (there are {given}); name another")
            _check_type(path, column, table.schema_arrow.field(column).type, is_image=number == 0)
        yield from table.iter_batches(batch_size=_ROWS, columns=list(columns), use_threads=False)


def _check_type(path: str, column: str, type_: pa.DataType, *, is_image: bool) -> None:
    if is_image:
        of = type_.field("bytes").type if pa.types.is_struct(type_) and type_.get_field_index("bytes") >= 0 else type_
        if not (pa.types.is_binary(of) or pa.types.is_large_binary(of)):
            raise UsageError(f"{path}: column {column!r} is {type_}, not bytes of images; name another image_column")
        return
    of = type_
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_dictionary(type_):
        of = type_.value_type
    if not (pa.types.is_string(of) or pa.types.is_large_string(of)):
        raise UsageError(
            f"{path}: column {column!r} is {type_}, not captions or lists of them; name another caption_column"
        )


def _image_bytes(batch: pa.RecordBatch, column: str, path: str) -> list[bytes | None]:
    """Bytes of each row's image; None where there are none."""
    values = batch.column(column).to_pylist()
    with _reading(path, "Parquet"):
        return [(value["bytes"] if isinstance(value, dict) else value) or None for value in values]


# Tars ----------------------------------------------------------------------------------------------------------------


@dataclass
class _Found:
    """The members of one sample."""

    key: str
    image: tuple[str, Place] | None = None  # digest, place
    txt: str = ""
    columns: dict[str, Any] = field(default_factory=dict)

    def row(self, path: str) -> _Row:
        listed = self.columns.get("captions") or self.columns.get("caption") or self.txt.splitlines()
        captions = (
            [one for one in ([listed] if isinstance(listed, str) else listed) if isinstance(one, str)]
            if isinstance(listed, list | str)
            else []
        )
        identity, place = self.image or (None, Place(path, 0, 0, f"{path}/{self.key}"))
        return identity, place, captions


def _tar_rows(path: str) -> Iterator[_Row]:
    found = _Found("")
    with _reading(path, "tar"), storage.open_read(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all it has met
            folder, _, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            key = f"{folder}/{stem}" if folder else stem
            if not member.isfile() or not stem:
                continue
            if key != found.key and found.key:
                yield found.row(path)
            if key != found.key:
                found = _Found(key)
            _add(found, path, file, member, extension.lower())
        file.seek(tar.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile ends there without a word
            raise tarfile.ReadError(f"no header of a member, nor zeros, at {tar.offset:,}: it is damaged, or cut")
    if found.key:
        yield found.row(path)


def _add(found: _Found, path: str, file: BinaryIO, member: tarfile.TarInfo, extension: str) -> None:
    """Take what a member says of its sample."""
    if extension not in {*_IMAGES, "txt", "json"}:
        return
    file.seek(member.offset_data)
    data = file.read(member.size)
    if len(data) != member.size:
        raise tarfile.ReadError(f"it ends within {member.name}")
    if extension == "txt":
        found.txt = data.decode("utf-8", "replace")
    elif extension == "json":
        try:
            columns = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise UnreadableError(f"{path}: {member.name}: not JSON ({error}); make the tar anew") from None
        found.columns = columns if isinstance(columns, dict) else {}
    elif found.image is None:
        found.image = (_digest(data), Place(path, member.offset_data, member.size, f"{path}/{member.name}"))


# Runs ----------------------------------------------------------------------------------------------------------------


def _run_rows(folder: str) -> Iterator[_Row]:
    storage.check(folder)
    manifest = storage.read_json(storage.join(folder, "manifest.json"))
    if not isinstance(manifest.get("shards"), list):
        raise UsageError(
            f"{folder}: no finished run (it has no manifest.json); give the [run] folder of a curation, or finish it"
        )
    for shard in manifest["shards"]:
        tar = storage.join(folder, "shards", shard["name"])
        sidecar = f"{tar.removesuffix('.tar')}.parquet"
        try:
            with storage.open_read(sidecar) as file:
                table = pq.read_table(
                    file, columns=["key", "image_id", "format", "caption", "tar_offset", "tar_bytes"], use_threads=False
                )
            rows = table.to_pylist()
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise DamagedError(
                f"{sidecar}: not as it was written ({reason}); `altalign curate` with --rerun write makes it anew"
            ) from error
        for row in rows:
            place = Place(tar, row["tar_offset"], row["tar_bytes"], f"{tar}/{row['key']}")
            yield row["image_id"], place, [row["caption"]]


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()
