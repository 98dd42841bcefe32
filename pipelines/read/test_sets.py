"""Reads every image of test sets: folders of images, Parquet files and WebDataset tars, also inside folders.

Each image has a name by which a person can find it. A gap here would let copies of test images through, so what cannot
be read stops the run. Left aside is only what is no image by its first bytes and by its name (labels, lists, licences),
and what a system hides.
"""

import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from altalign import storage
from altalign.data.shards import IMAGE_NAMES
from altalign.errors import UnreadableError, UsageError
from altalign.filters.image_headers import sniff
from altalign.pipelines.read import tar_members
from altalign.pipelines.read.folder import visible_below
from altalign.pipelines.read.stretches import ADVICE, readable
from altalign.pipelines.read.tables import table
from altalign.settings.curate import InputSettings, TestSet
from altalign.storage import parquet

FILES_PER_PART = 256
_TABLES = (".parquet", ".pq")
_HEAD_BYTES = 1 << 12  # the first bytes of a file, which tell its format
_LARGE_BYTES = 1 << 27  # a larger member of a tar is read whole only where its name is an image's
_WOULD = "would not be looked for"

# names of files that may hold images but are not read here, also in pieces (.zip.001)
_ARCHIVE = re.compile(
    r"\.(zip|7z|rar|tar\.bz2|tbz2|tar\.xz|txz|arrow|feather|lmdb|mdb|tfrecords?|h5|hdf5)(\.?\d+|-\d+-of-\d+)?$",
    re.IGNORECASE,
)


class Part(NamedTuple):
    """A part of a test set that is read at once: some files of images, a row group of a Parquet file, or a tar."""

    test_set: str
    paths: list[str]
    root: str  # names of files begin behind it
    row_group: int | None = None
    column: str = ""

    def name(self, path: str) -> str:
        """A file's name in the set."""
        if storage.is_remote(path):
            return path.removeprefix(f"{self.root}/")
        return _as_text(os.path.relpath(path, self.root) if self.root else path)


def parts(test_set: TestSet) -> list[Part]:
    """The parts of a test set, in the order of paths."""
    root, files = _files(test_set)
    made, images, others = list[Part](), list[str](), list[str]()
    for path in files:
        if _ends(path, _TABLES):
            made += _parts_of_table(test_set, path, root)
        elif _ends(path, tar_members.NAMES):
            made.append(Part(test_set.name, [path], root))
        else:
            (images if _is_image(path) else others).append(path)
    firsts = range(0, len(images), FILES_PER_PART)
    made += [Part(test_set.name, images[i : i + FILES_PER_PART], root) for i in firsts]
    if not made:
        without = others or files  # files: tables without a row
        what = f"{len(without):,} files that hold none, such as {without[0]}" if without else "it is empty"
        raise _refused(test_set.path, f"no image, Parquet file or tar in it ({what}); give the folder that holds them")
    return made


def images(part: Part) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every image of a part, in order."""
    first = part.paths[0]
    if part.row_group is not None:
        yield from _images_of_table(part, first, part.row_group)
    elif _ends(first, tar_members.NAMES):
        yield from _images_of_tar(part, first)
    else:
        for path, data in zip(part.paths, storage.each(_bytes, part.paths, place=first), strict=True):
            yield part.name(path), data


def stamps(every: Sequence[Part]) -> Iterator[tuple[str, list[int | str]]]:
    """Yields every file of these parts once, with its size and time of change."""
    paths = list(dict.fromkeys(path for part in every for path in part.paths))
    found = storage.each(storage.stamp, paths, place=next(filter(storage.is_remote, paths), ""))
    yield from zip(paths, (stamp.to_json() for stamp in found), strict=True)


def _refused(path: str, why: str) -> UsageError:
    return UsageError(f"[decontaminate] test_sets: {path}: {why}")


def _ends(path: str, endings: tuple[str, ...]) -> bool:
    return path.lower().endswith(endings)


def _as_text(name: str) -> str:
    """The name with bytes that are no UTF-8 written out."""
    return name.encode("utf-8", "backslashreplace").decode()


@contextmanager
def _read_whole() -> Iterator[None]:
    """Around the readers of inputs: their errors advise to skip a broken file, which test sets cannot do."""
    try:
        yield
    except UnreadableError as error:
        own = "; repair it, or take it out of the test set"
        raise UnreadableError(str(error).replace(ADVICE, own)) from error


# Files ----------------------------------------------------------------------------------------------------------------


def _files(test_set: TestSet) -> tuple[str, list[str]]:
    """The folder that names are relative to, and all files, sorted, each once; hidden files are left out."""
    storage.check_input(test_set.path)
    try:
        places = sorted(storage.find(test_set.path))
    except OSError as error:
        raise _refused(test_set.path, f"cannot be reached ({error.strerror}); make it readable") from None
    if not places:
        what = f"nothing is at {test_set.path!r} (from {Path.cwd()}); give paths relative to the working directory"
        raise UsageError(f"[decontaminate] test_sets: {what}")
    files = dict[str, None]()
    for place in places:
        try:
            kind = storage.kind(place)
            below = visible_below(place) if kind == "folder" else [("", kind == "file")]
            for name, is_file in below:
                path = storage.join(place, name) if name else place
                if not is_file:
                    what = "in a test set, and no file (a link that leads nowhere, a pipe or a device)"
                    raise UnreadableError(f"{path}: {what}; put it right, or take it out of the set")
                files[path] = None
        except OSError as error:
            what = f"a folder of a test set cannot be read ({error.strerror})"
            where = str(error.filename or place).rstrip("/")
            raise UnreadableError(f"{where}: {what}; its images {_WOULD}") from error
    if len(places) == 1 and [*files] != places:
        return places[0], [*files]
    common = os.path.commonprefix([*files])  # noqa: RUF071 - up to the last of its slashes
    return common.rpartition("/")[0], [*files]


def _is_image(path: str) -> bool:
    if _ends(path, IMAGE_NAMES):
        return True
    if _ARCHIVE.search(path):
        raise _refused(path, f"images in it {_WOULD}; unpack it (or make Parquet of it), or take it out of the set")
    return sniff(_bytes(path, _HEAD_BYTES)) is not None


def _bytes(path: str, at_most: int = 0) -> bytes:
    try:
        if not at_most:
            return storage.read_bytes(path)
        with storage.open_read(path) as file:
            return file.read(at_most)
    except OSError as error:
        what = f"a file of a test set cannot be read ({error.strerror}); if it is an image, its copies {_WOULD}"
        raise UnreadableError(f"{path}: {what}") from error


# Tables ---------------------------------------------------------------------------------------------------------------


def _parts_of_table(test_set: TestSet, path: str, root: str) -> list[Part]:
    column = test_set.image_column
    with _read_whole():
        schema, rows = table.schema_of(path), parquet.row_groups(path)
    if (times := schema.names.count(column)) != 1:
        repair = f'give {{name = "{test_set.name}", path = "{test_set.path}", image_column = "…"}}'
        existing = ", ".join(schema.names[:10])
        raise _refused(path, f'{times or "no"} columns "{column}" (there are {existing}); {repair}')
    table.check_images(path, schema, column)
    return [Part(test_set.name, [path], root, number, column) for number, count in enumerate(rows) if count]


def _images_of_table(part: Part, path: str, number: int) -> Iterator[tuple[str, bytes]]:
    with _read_whole():
        rows = parquet.row_groups(path)
        first = sum(rows[:number])
        settings = InputSettings(kind="table", paths=[path], url_column="", image_column=part.column)
        for row, data in table.images(path, settings, range(first, first + rows[number])):
            if not data:
                raise UnreadableError(f"{path}: row {row:,} of test set {part.test_set} has no image; remove the row")
            yield f"{part.name(path)}#{row}", data


# Tars -----------------------------------------------------------------------------------------------------------------


def _images_of_tar(part: Part, path: str) -> Iterator[tuple[str, bytes]]:
    end, has_images = 0, False
    with _read_whole(), readable(path, "tar"), storage.open_read(path) as file:
        try:
            with tar_members.opened(cast(BinaryIO, file)) as (tar, _):
                for member in tar:
                    cast(Any, tar).members.clear()  # tarfile keeps all it has met
                    end, name = tar.offset, member.name
                    if any(each.startswith(".") and each not in (".", "..") for each in name.split("/")):
                        continue
                    if (member.issym() or member.islnk()) and _ends(name, IMAGE_NAMES):
                        repair = "make the tar anew with --dereference --hard-dereference"
                        raise UnreadableError(f"{path}: {name}: a link, where an image is meant; {repair}")
                    data = _image_of(tar, member, path) if member.isfile() else None
                    if data is not None:
                        has_images = True
                        yield f"{part.name(path)}/{_as_text(name)}", data
                if has_images and tar.offset == end:
                    what = "it ends without zeros, as one does that is cut between two files; make it anew"
                    raise tar_members.ReadError(what)
        except tar_members.ReadError as error:
            what = f"a tar of test set {part.test_set} cannot be read ({error}); its images {_WOULD}"
            raise UnreadableError(f"{path}: {what}") from error
    if not has_images:
        raise UnreadableError(f"{path}: a tar of test set {part.test_set} that holds no image; take it out of the set")


def _image_of(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> bytes | None:
    """The bytes of a member that is an image by its name or its first bytes."""
    is_named, place = _ends(member.name, IMAGE_NAMES), f"{path}: {member.name}"
    if is_named and member.issparse():
        raise UnreadableError(f"{place}: an image that is stored with holes; make the tar anew without --sparse")
    if not is_named and (_ARCHIVE.search(member.name) or _ends(member.name, (*_TABLES, *tar_members.NAMES))):
        raise UnreadableError(f"{place}: images in it {_WOULD}; unpack it, or take it out of the set")
    data = tar_members.content(tar, member, member.size if is_named or member.size <= _LARGE_BYTES else _HEAD_BYTES)
    if not is_named and sniff(data) is None:
        return None
    if len(data) < member.size:
        repair = "give it a name that says so, such as .jpg, or take it out of the set"
        raise UnreadableError(f"{place}: an image of {member.size:,} bytes; {repair}")
    return data
