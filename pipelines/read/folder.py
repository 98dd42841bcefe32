"""Folders of images: every image is a candidate, or as many as it has captions.

Captions are beside an image (`.txt`, or else `.json`), in a table of file names, or in the names themselves. Files are
taken in the order of their names and cut into parts, which are units. Hidden files and folders are left out, links are
followed.
"""

import hashlib
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import Any, NamedTuple

from altalign import storage
from altalign.data.shards import IMAGE_NAMES
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines.read import webdataset
from altalign.pipelines.read.pages.warc import IMAGE_BYTES
from altalign.pipelines.read.stretches import LINE_BYTES, Gatherer, Stretch, unreadable
from altalign.pipelines.read.tables import columns, table
from altalign.pipelines.read.tar_members import sha256_of
from altalign.pipelines.read.webdataset import OF_NOTHING, STATS, SampleError
from altalign.settings.curate import InputSettings
from altalign.storage import Stamp, parquet
from altalign.terminal import shown

IMAGES_PER_PART = 16_384
_GONE = Stamp(-1, 0)
_ROWS_LOOKED_AT = 1_000  # of a table of captions, in search of a file that is there

_Caption = tuple[str | None, str | None]  # its text, and what is kept with it (`extra`)
_Sample = tuple[int, str | None, Sequence[_Caption]]  # number of an image in its part, URL, captions


@dataclass(frozen=True, slots=True)
class FolderPart:
    """The files of a folder whose names without extension are from `begin` on and before `end` (None: to the last).

    `stamp` tells whether one of them, or the table of their captions, has changed.
    """

    folder: str
    begin: str
    end: str | None
    stamp: Stamp

    def has(self, stem: str) -> bool:
        """Whether a name without extension belongs to it."""
        return self.begin <= stem and (self.end is None or stem < self.end)


class File(NamedTuple):
    """A file of a folder: its name in it, with folders, and what tells that it has not changed."""

    name: str
    stamp: Stamp


# Files ----------------------------------------------------------------------------------------------------------------


def parts(folder: str, settings: InputSettings) -> list[FolderPart]:
    """The parts of a folder, in the order of names, of about `IMAGES_PER_PART` images each."""
    names = _names(folder, settings)
    if not any(map(is_image, names)):
        others = f"{len(names):,} texts, such as {shown(names[0])}" if names else "no file of such a name"
        raise UsageError(f"{folder}: no image in it ({others}); name a folder that holds .jpg, .png or other images")
    firsts, images = [0], 0
    for number, name in enumerate(names):
        if images >= IMAGES_PER_PART and _stem(name) != _stem(names[number - 1]):
            firsts.append(number)
            images = 0
        images += is_image(name)
    made, ends = list[FolderPart](), [*firsts[1:], len(names)]
    for first, last in zip(firsts, ends, strict=True):
        begin, end = _stem(names[first]) if first else "", _stem(names[last]) if last < len(names) else None
        made.append(FolderPart(folder, begin, end, _stamp(_files(folder, names[first:last]), settings)))
    return made


def files(part: FolderPart, settings: InputSettings) -> list[File]:
    """The files of a part, in order: images and, where captions are beside them, those."""
    of_part = list(_files(part.folder, [name for name in _names(part.folder, settings, part) if part.has(_stem(name))]))
    if _stamp(of_part, settings) != part.stamp:
        raise UnreadableError(f"{part.folder}: changed since the run began; run the same command again, it says how")
    return of_part


def row_names(folder: str, settings: InputSettings, named: str) -> Iterator[str]:
    """Yields the names of the rows of a folder that has this name, as `read` gives them."""
    return (_in(named, name) for name in _names(folder, settings) if is_image(name))


def visible_below(folder: str, begin: str = "", end: str | None = None) -> Iterator[tuple[str, bool]]:
    """Yields the names of what is below a folder, its own first, and whether each is a file (no pipe, no dead link).

    Hidden files and folders are left out; links are followed, but not into a folder that they are in. Of
    folders on a disk those are left out in which no name can be from `begin` to `end`. Raises OSError.
    """
    if not storage.is_remote(folder):
        yield from _walk(folder, "", (), begin, end)
        return
    paths = [path.removeprefix(f"{folder.rstrip('/')}/").split("/") for path in storage.files_below(folder)]
    visible = [path for path in paths if not any(name.startswith(".") for name in path)]
    for path in sorted(visible, key=lambda path: [*((True, name) for name in path[:-1]), (False, path[-1])]):
        yield "/".join(path), True


def _walk(
    folder: str, inside: str, above: tuple[tuple[int, int], ...], begin: str, end: str | None
) -> Iterator[tuple[str, bool]]:
    place = os.path.join(folder, inside)  # noqa: PTH118 - a million of them
    status = os.stat(place)  # noqa: PTH116
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    with os.scandir(place) as entries:
        visible = [(each.is_dir(), each.name, each.is_file()) for each in entries if not each.name.startswith(".")]
    for is_folder, name, is_file in sorted(visible):
        below = f"{inside}{name}/"
        if is_folder and begin < f"{inside}{name}0" and (end is None or below < end):  # "0" follows "/"
            yield from _walk(folder, below, (*above, here), begin, end)
        elif not is_folder:
            yield f"{inside}{name}", is_file


def _names(folder: str, settings: InputSettings, part: FolderPart | None = None) -> list[str]:
    """Names of the files that count, in order: by name without extension, then by the whole name.

    Of a `part` all of its own, and few others.
    """
    beside = () if settings.captions or settings.caption_pattern else (".txt", ".json")
    begin, end = (part.begin, part.end) if part else ("", None)
    try:
        below = [name for name, _ in visible_below(folder, begin, end)]
    except OSError as error:
        what = f"a folder of an input cannot be read ({error.strerror})"
        raise UsageError(f"{shown(error.filename or folder)}: {what}; make it readable, or take it out") from None
    counting = (name for name in below if name.lower().endswith((*IMAGE_NAMES, *beside)) and not name.endswith(STATS))
    return sorted(counting, key=lambda name: (_stem(name), name))


def _files(folder: str, names: Sequence[str]) -> Iterator[File]:
    def stamp(name: str) -> Stamp:
        try:
            return storage.stamp(storage.join(folder, name))
        except FileNotFoundError:
            return _GONE

    return map(File, names, storage.each(stamp, names, place=folder))


def _stamp(of_part: Iterable[File], settings: InputSettings) -> Stamp:
    """The sum of sizes, and a digest of names and stamps; the table of captions belongs to it."""
    size, digest = 0, hashlib.sha256()
    if settings.captions:
        digest.update(repr(storage.stamp(settings.captions).to_json()).encode())
    for name, now in of_part:
        size += max(0, now.size)
        digest.update(f"{name}\0{now.size}\0{now.time_ns}\0{now.digest}\0".encode("utf-8", "surrogateescape"))
    return Stamp(size, 0, digest.hexdigest()[:32])


def is_image(name: str) -> bool:
    """Whether a file has the name of an image."""
    return name.lower().endswith(IMAGE_NAMES)


def _stem(name: str) -> str:
    """A name of the folder without its ending."""
    return name.rpartition(".")[0]


def _in(named: str, name: str) -> str:
    return f"{named}{'/' * bool(named)}{table.shown_name(name)}"


# Samples --------------------------------------------------------------------------------------------------------------


def check(folders: Sequence[str], settings: InputSettings) -> None:
    """Refuse, before any work, a table of captions that does not fit."""
    if not settings.captions:
        return
    if len(folders) > 1:
        what = f"captions = {settings.captions!r} belongs to one folder, and paths name {len(folders)}"
        raise UsageError(f"[input] {what}; give each an [[input]] of its own")
    if storage.kind(settings.captions) != "file":
        raise UsageError(f"[input] captions = {settings.captions!r}: no such file; give the path of a table")
    try:
        table.check(settings.captions, _of_table(settings))
    except UsageError as error:
        raise UsageError(str(error).replace("url_column", "file_column")) from None
    names = [name for name, _ in islice(_rows_of_table(settings), _ROWS_LOOKED_AT)]
    if names and not any(storage.exists(storage.join(folders[0], posixpath.normpath(name))) for name in names):
        what = f"none of its first {len(names):,} files is in {folders[0]}, such as {shown(names[0])}"
        raise UsageError(f'{settings.captions}: {what}; column "{settings.file_column}" has to hold paths inside it')


def read(part: FolderPart, of_part: Sequence[File], settings: InputSettings, named: str = "") -> Iterator[Stretch]:
    """Yields the candidates of a part; their names begin with that of the folder, where it has one.

    The place of an image is its number in `of_part` (`files`), as offset, and its length.
    """
    gatherer = Gatherer(part.folder, partial(columns.extracted, settings))
    for number, url, captions in _samples(part, of_part, settings, gatherer):
        file = of_part[number]
        name = storage.join(part.folder, file.name)
        try:
            if not file.name.isprintable() or any("\ud800" <= character <= "\udfff" for character in file.name):
                raise SampleError("a name that is not UTF-8 or holds control characters; rename the file")
            if file.stamp == _GONE:
                raise FileNotFoundError(2, "a link that leads nowhere", name)
            identity, sha256 = webdataset.identity_of(url, partial(_sha256, name, file.stamp))
        except (SampleError, OSError) as error:
            what = _what(error)
            if isinstance(error, OSError) and not settings.skip_unreadable:
                unreadable(name, what)
            gatherer.broken(0, what, path=shown(name))
        else:
            for caption, extra in captions:
                size = len(url or "") + len(caption or "") + len(extra or "")
                gatherer.row((url, caption, None, _in(named, file.name), extra, sha256), size=size)
            if identity is not None and file.stamp.size:
                gatherer.place(identity, number, min(file.stamp.size, IMAGE_BYTES), None)
            elif identity == OF_NOTHING:  # decoding drops it: no image, but no fault of an address
                gatherer.place(OF_NOTHING, None, None, b"")
        if gatherer.full:
            yield gatherer.take()
    yield gatherer.take()


def _what(error: SampleError | OSError) -> str:
    return f"cannot be read ({error.strerror or error})" if isinstance(error, OSError) else str(error)


def _sha256(path: str, stamp: Stamp) -> str:
    if not stamp.size:  # which may be a pipe, that nobody writes to
        return OF_NOTHING
    with storage.open_read(path) as file:
        return sha256_of(file, min(stamp.size, IMAGE_BYTES))


def _samples(
    part: FolderPart, of_part: Sequence[File], settings: InputSettings, gatherer: Gatherer
) -> Iterator[_Sample]:
    """Yields every image; what is wrong with captions goes to the gatherer."""
    if settings.caption_pattern:
        for number, file in enumerate(of_part):
            match = re.fullmatch(settings.caption_pattern, file.name)
            yield number, None, [(match and re.sub("[_-]+", " ", match["caption"] or ""), None)]
    elif settings.captions:
        captions: dict[str, list[_Caption]] = {file.name: [] for file in of_part}
        for row, (name, caption) in enumerate(_rows_of_table(settings, gatherer if not part.begin else None)):
            path = posixpath.normpath(name)
            if path in captions:
                captions[path].append(caption)
            elif part.has(_stem(path)):
                gatherer.broken(row, f"{shown(name)}: no such image in {part.folder}", path=settings.captions)
        yield from ((number, None, captions[file.name] or [(None, None)]) for number, file in enumerate(of_part))
    else:
        for _, group in groupby(enumerate(of_part), key=lambda entry: _stem(entry[1].name)):
            yield from _beside(part.folder, list(group), settings, gatherer)


def _beside(
    folder: str, group: Sequence[tuple[int, File]], settings: InputSettings, gatherer: Gatherer
) -> Iterator[_Sample]:
    """Yields the images of a name with the texts of that name; a text that is broken breaks them."""
    url, extra, captions = None, None, dict[bool, Sequence[str | None]]()
    images = [number for number, file in group if is_image(file.name)]
    for file in (file for _, file in group if not is_image(file.name)):
        path = storage.join(folder, file.name)
        try:
            if not images:
                raise SampleError("a caption without an image of its name beside it")
            if file.stamp.size > LINE_BYTES:
                raise SampleError(f"longer than {LINE_BYTES >> 20} MiB")
            content = storage.read_bytes(path) if file.stamp.size else b""
            if file.name.lower().endswith(".txt"):
                captions[True] = [webdataset.text_of(content)]
            else:
                names = settings.url_column, settings.caption_column, settings.keep_columns
                url, captions[False], extra = webdataset.described(content, *names, may_be_list=True)
        except (SampleError, OSError) as error:
            gatherer.broken(0, _what(error), path=shown(path))
            return
    of_each = [(text, extra) for text in captions.get(True) or captions.get(False) or [None]]
    yield from ((number, url, of_each) for number in images)


def _of_table(settings: InputSettings) -> InputSettings:
    """Settings that read the table of captions: its files' names take the place of URLs."""
    of_columns: dict[str, Any] = {"caption_column": settings.caption_column, "keep_columns": settings.keep_columns}
    return InputSettings(kind="table", paths=[settings.captions], url_column=settings.file_column, **of_columns)


def _rows_of_table(settings: InputSettings, gatherer: Gatherer | None = None) -> Iterator[tuple[str, _Caption]]:
    """Yields file and caption of every row; what cannot be read goes to the gatherer."""
    for stretch in table.read(settings.captions, _of_table(settings), ""):
        if gatherer is not None:
            for record in stretch.broken.to_pylist():
                gatherer.broken(record["offset"], record["error"], path=record["file"])
        of_columns = (parquet.values(stretch.rows, name) for name in ("image_url", "caption", "extra"))
        for name, caption, extra in zip(*of_columns, strict=True):
            yield name or "", (caption, extra)
