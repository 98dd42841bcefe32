"""Reads every image of test sets: folders of images, Parquet files and WebDataset tars, also inside folders.

Each image has a name by which a person can find it.

A gap here would let copies of test images through, so what cannot be read stops the run. Left aside is only what is no
image by its first bytes and by its name (labels, lists, licences), and what a system hides.
"""

import os
import posixpath
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, cast

from altalign import storage
from altalign.data.shards import IMAGE_NAMES
from altalign.errors import UnreadableError, UsageError
from altalign.filters.image_headers import sniff
from altalign.pipelines.read import tar_members
from altalign.pipelines.read.stretches import ADVICE, readable
from altalign.pipelines.read.tables import table
from altalign.settings.curate import InputSettings, TestSet
from altalign.storage import parquet

FILES_PER_PART = 256
_TABLES = (".parquet", ".pq")
_HEAD_BYTES = 1 << 12  # the first bytes of a file, which tell its format
_LARGE_BYTES = 1 << 27  # a larger member of a tar is read whole only where its name is an image's

# names of files that may hold images but are not read here, also in pieces (.zip.001)
_ARCHIVE = re.compile(
    r"\.(zip|7z|rar|tar\.bz2|tbz2|tar\.xz|txz|arrow|feather|lmdb|mdb|tfrecords?|h5|hdf5)(\.?\d+|-\d+-of-\d+)?$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Part:
    """A part of a test set that is read at once: some files of images, a row group of a Parquet file, or a tar."""

    test_set: str
    paths: tuple[str, ...]
    root: str  # names of files begin behind it
    row_group: int | None = None
    column: str = ""

    def to_json(self) -> dict[str, object]:
        """The fields, for a unit."""
        return {**asdict(self), "paths": list(self.paths)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Part":
        """The inverse of `to_json`; other keys are left alone."""
        return cls(value["test_set"], tuple(value["paths"]), value["root"], value["row_group"], value["column"])


def parts(test_set: TestSet) -> list[Part]:
    """The parts of a test set, in the order of paths."""
    root, files = _files(test_set)
    made: list[Part] = []
    images: list[str] = []
    others: list[str] = []
    for path in files:
        if storage.name(path).lower().endswith(_TABLES):
            made += _parts_of_table(test_set, path, root)
        elif storage.name(path).lower().endswith(tar_members.NAMES):
            made.append(Part(test_set.name, (path,), root))
        elif _is_image(path):
            images.append(path)
        else:
            others.append(path)
    firsts = range(0, len(images), FILES_PER_PART)
    made += [Part(test_set.name, tuple(images[i : i + FILES_PER_PART]), root) for i in firsts]
    if not made:
        without = others or files  # files: tables without a row
        what = f"{len(without):,} files that hold none, such as {without[0]}" if without else "it is empty"
        why = f"no image, Parquet file or tar in it ({what}); give the folder that holds them"
        raise UsageError(f"[decontaminate] test_sets: {test_set.path}: {why}")
    return made


def images(part: Part) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every image of a part, in order."""
    first = part.paths[0]
    if part.row_group is not None:
        yield from _images_of_table(part)
    elif storage.name(first).lower().endswith(tar_members.NAMES):
        yield from _images_of_tar(part, first)
    else:
        for path, data in zip(part.paths, storage.each(_bytes, part.paths, place=first), strict=True):
            yield _name(part, path), data


def stamps(every: Sequence[Part]) -> Iterator[tuple[str, list[int | str]]]:
    """Yields every file of these parts once, with its size and time of change."""
    paths = list(dict.fromkeys(path for part in every for path in part.paths))
    of_store = next(filter(storage.is_remote, paths), "")
    yield from zip(
        paths, (stamp.to_json() for stamp in storage.each(storage.stamp, paths, place=of_store)), strict=True
    )


def _files(test_set: TestSet) -> tuple[str, list[str]]:
    """The folder that names are relative to, and all files, sorted, each once; hidden files are left out."""
    storage.check_input(test_set.path)
    try:
        places = sorted(storage.find(test_set.path))
    except OSError as error:
        what = f"cannot be reached ({error.strerror})"
        raise UsageError(f"[decontaminate] test_sets: {test_set.path}: {what}; make it readable") from None
    if not places:
        where, repair = f"{test_set.path!r} (from {Path.cwd()})", "give paths relative to the working directory"
        if storage.is_remote(test_set.path):
            where, repair = repr(test_set.path), "look at what is there, and whether it may be listed"
        raise UsageError(f"[decontaminate] test_sets: nothing is at {where}; {repair}")
    files: list[str] = []
    seen: set[tuple[int, int]] = set()
    for place in places:
        if storage.is_remote(place):
            below = storage.files_below(place) if storage.kind(place) == "folder" else [place]
            visible = (path for path in below if not _is_hidden(path.removeprefix(place)))
            # a folder's own files before its folders, as `_walk` has them
            files += sorted(visible, key=lambda path: [*((True, name) for name in path.split("/")[:-1]), (False, path)])
        elif Path(place).is_dir():
            files += _walk(place, seen)
        elif Path(place).is_file():
            files.append(place)
        else:
            raise _strange(place)
    files = list(dict.fromkeys(files))
    if len(places) == 1 and files != places:
        return places[0], files
    folders = [storage.folder_of(path).split("/") for path in files]
    common = takewhile(lambda names: len(set(names)) == 1, zip(*folders, strict=False))
    root = "/".join(names[0] for names in common)
    if root in ("", "."):
        root = "/" if files and files[0].startswith("/") else ""
    return root, files


def _walk(folder: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    """Every file below a folder, its own files first. Links are followed, but each folder is visited only once."""
    try:
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as entries:
            visible = sorted((each for each in entries if not each.name.startswith(".")), key=lambda each: each.name)
        folders = [entry for entry in visible if entry.is_dir()]
        files = [entry for entry in visible if not entry.is_dir()]
        strange = next((entry.path for entry in files if not entry.is_file()), None)
    except OSError as error:
        where = error.filename or folder
        what = f"a folder of a test set cannot be read ({error.strerror})"
        raise UnreadableError(f"{where}: {what}; its images would not be looked for") from error
    if strange is not None:
        raise _strange(strange)
    yield from (storage.join(folder, entry.name) for entry in files)
    for entry in folders:
        yield from _walk(storage.join(folder, entry.name), seen)


def _strange(path: str) -> UnreadableError:
    what = "in a test set, and no file (a link that leads nowhere, a pipe or a device)"
    return UnreadableError(f"{path}: {what}; put it right, or take it out of the set")


def _is_image(path: str) -> bool:
    if storage.name(path).lower().endswith(IMAGE_NAMES):
        return True
    if _ARCHIVE.search(path):
        repair = "unpack it (or make Parquet of it), or take it out of the set"
        raise UsageError(f"[decontaminate] test_sets: {path}: images in it would not be looked for; {repair}")
    try:
        with storage.open_read(path) as file:
            return sniff(file.read(_HEAD_BYTES)) is not None
    except OSError as error:
        risk = "if it is an image, its copies would not be looked for"
        raise UnreadableError(f"{path}: a file of a test set cannot be read ({error.strerror}); {risk}") from error


def _name(part: Part, path: str) -> str:
    if storage.is_remote(path):
        return path.removeprefix(f"{part.root}/")
    return _as_text(os.path.relpath(path, part.root) if part.root else path)


def _as_text(name: str) -> str:
    """The name with bytes that are no UTF-8 written out."""
    return name.encode("utf-8", "backslashreplace").decode()


def _bytes(path: str) -> bytes:
    try:
        return storage.read_bytes(path)
    except OSError as error:
        what = f"a test image cannot be read ({error.strerror})"
        raise UnreadableError(f"{path}: {what}; its copies would not be looked for") from error


# Tables ---------------------------------------------------------------------------------------------------------------


def _parts_of_table(test_set: TestSet, path: str, root: str) -> list[Part]:
    column = test_set.image_column
    with _read_whole(), parquet.reading(path) as file:
        names = file.schema_arrow.names
        if names.count(column) != 1:
            how_many, existing = "no" if column not in names else "more than one", ", ".join(names[:10])
            raise UsageError(
                f'[decontaminate] test_sets: {path}: {how_many} column "{column}" (there are {existing}); '
                f'give {{name = "{test_set.name}", path = "{test_set.path}", image_column = "…"}}'
            )
        table.check_images(path, file.schema_arrow, column)
        rows = parquet.rows_of_groups(file)
    return [Part(test_set.name, (path,), root, number, column) for number, count in enumerate(rows) if count]


def _images_of_table(part: Part) -> Iterator[tuple[str, bytes]]:
    path, number = part.paths[0], part.row_group or 0
    with _read_whole():
        rows = parquet.row_groups(path)
        first = sum(rows[:number])
        settings = InputSettings(kind="table", paths=[path], url_column="", image_column=part.column)
        for row, data in table.images(path, settings, range(first, first + rows[number])):
            if not data:
                repair = "remove the row, or give a column that has one in each"
                raise UnreadableError(f"{path}: row {row:,} of test set {part.test_set} has no image; {repair}")
            yield f"{_name(part, path)}#{row}", data


# Tars -----------------------------------------------------------------------------------------------------------------


def _images_of_tar(part: Part, path: str) -> Iterator[tuple[str, bytes]]:
    end = 0
    images, links = set[str](), dict[str, str]()  # names of images; of links, by what they lead to
    with _read_whole(), readable(path, "tar"), storage.open_read(path) as file:
        try:
            with tar_members.opened(cast(BinaryIO, file)) as (tar, _):
                for member in tar:
                    end, is_hidden = tar.offset, _is_hidden(member.name)
                    data = _image_of(tar, member, path) if member.isfile() and not is_hidden else None
                    if data is not None:
                        images.add(posixpath.normpath(member.name))
                        yield f"{_name(part, path)}/{_as_text(member.name)}", data
                    is_link = member.issym() or member.islnk()
                    if is_link and not is_hidden and member.name.lower().endswith(IMAGE_NAMES):
                        links[_target(member)] = member.name
                    cast(Any, tar).members.clear()  # tarfile keeps all it has met
                if images and tar.offset == end:
                    what = "it ends without zeros, as one does that is cut between two files; make it anew"
                    raise tar_members.ReadError(what)
        except tar_members.ReadError as error:
            what = f"a tar of test set {part.test_set} cannot be read ({error})"
            raise UnreadableError(f"{path}: {what}; its images would not be looked for") from error
    if lost := next((name for target, name in links.items() if target not in images), None):
        repair = "make it anew with --dereference, or take the link out of the set"
        raise UnreadableError(f"{path}: {lost}: a link to what is no image of this tar; {repair}")
    if not images:
        raise UnreadableError(f"{path}: a tar of test set {part.test_set} that holds no image; take it out of the set")


def _target(link: tarfile.TarInfo) -> str:
    """What a link in a tar leads to: a symbolic one from its own folder, a hard one from the root."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(link.name) if link.issym() else "", link.linkname))


def _image_of(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> bytes | None:
    """The bytes of a member that is an image by its name or its first bytes."""
    is_named = member.name.lower().endswith(IMAGE_NAMES)
    if is_named and member.issparse():
        raise UnreadableError(
            f"{path}: {member.name}: an image that is stored with holes; make the tar anew without --sparse"
        )
    if not is_named and (_ARCHIVE.search(member.name) or member.name.lower().endswith((*_TABLES, *tar_members.NAMES))):
        raise UnreadableError(
            f"{path}: {member.name}: images in it would not be looked for; unpack it, or take it out of the set"
        )
    data = tar_members.content(tar, member, member.size if is_named or member.size <= _LARGE_BYTES else _HEAD_BYTES)
    if not is_named and sniff(data) is None:
        return None
    if len(data) < member.size:
        repair = "give it a name that says so, such as .jpg, or take it out of the set"
        raise UnreadableError(f"{path}: {member.name}: an image of {member.size:,} bytes; {repair}")
    return data


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


@contextmanager
def _read_whole() -> Iterator[None]:
    """Around the readers of inputs: their errors advise to skip a broken file, which test sets cannot do."""
    try:
        yield
    except UnreadableError as error:
        own = "; repair it, or take it out of the test set"
        raise UnreadableError(str(error).replace(ADVICE, own)) from error
