"""Reads inputs: web archives, their metadata, tables, WebDataset tars and folders, each in stretches (`Stretch`).

A broken record, line or row costs that one; a file that cannot be read at all is an `UnreadableError` with its name.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from altalign import storage
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines.read import folder, webdataset
from altalign.pipelines.read.pages import warc
from altalign.pipelines.read.pages.warc import Captured, captured, look_for_images
from altalign.pipelines.read.stretches import Stretch
from altalign.pipelines.read.tables import lines, table
from altalign.settings.curate import InputSettings

__all__ = ["Captured", "Stretch", "captured", "check", "is_direct", "listed", "look_for_images", "may_be_empty", "read"]


def listed(places: Sequence[str], settings: InputSettings) -> list[str]:
    """The files, or folders of images, that an input reads of what its globs give: sorted, each once.

    A folder stands for what is in it where the kind says so.
    """
    if settings.kind == "webdataset":
        return webdataset.listed(places)
    if settings.kind == "table":
        return sorted(
            {
                path
                for place in places
                for path in (table.saved_files(place) if storage.kind(place) == "folder" else [place])
            }
        )
    return sorted(set(places))


def may_be_empty(path: str, settings: InputSettings) -> bool:
    """Whether it is as it should be that no candidate comes of a file: a side-car of images that all came."""
    return settings.kind == "webdataset" and lines.is_named_as_table(path)


def check(paths: Sequence[str], settings: InputSettings) -> None:
    """Refuses, before any work, files that do not fit the settings of their input.

    A broken file passes; reading it raises the error.
    """
    if settings.kind == "folder":
        with suppress(UnreadableError):
            folder.check(paths, settings)
        return
    for path in paths:
        kind = storage.kind(path)
        if kind == "folder":
            repair = f"write {path.rstrip('/')}/* to read the files in it"
            raise UsageError(f"{path}: a folder, where a file is meant; {repair}")
        if kind == "missing":
            raise UsageError(f"{path}: no such file")
        is_side_car = settings.kind == "webdataset" and webdataset.is_side_car(path)
        if settings.kind != "table" and not is_side_car and lines.is_named_as_table(path):
            raise UsageError(f'{path}: a table by its name, and kind = "{settings.kind}"; set kind = "table"')
        with suppress(UnreadableError):
            if settings.kind == "table":
                table.check(path, settings)
            elif is_side_car:
                table.check(path, webdataset.as_table(settings))


def is_direct(path: str, settings: InputSettings) -> bool:
    """Whether the file is its own pool: a Parquet table without images, whose row groups are read where they are."""
    return settings.kind == "table" and table.is_direct(path, settings)


def read(path: str, settings: InputSettings, named: str = "", token: str = "") -> Iterator[Stretch]:
    """Yields all that a file holds, in order; rows name it as they are told to, or as it is named in its folder.

    `token` is the name by which pages address this robot, in lower case.
    """
    named = named or table.shown_name(storage.name(path))
    if settings.kind == "warc":
        return warc.read(path, token)
    if settings.kind == "wat":
        return warc.read_metadata(path, token)
    if settings.kind == "table":
        return table.read(path, settings, named)
    if settings.kind == "webdataset":
        reader = webdataset.read_side_car if may_be_empty(path, settings) else webdataset.read
        return reader(path, settings, named)
    raise ValueError(f"{path}: a folder is read in parts, by folder.read")
