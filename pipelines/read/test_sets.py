"""Test sets: folders of images, Parquet files and WebDataset tars, in folders too; every image of them, by a name that a person finds it by.

A gap here would let copies of test images through, so what cannot be read stops the run. Left aside is only what is no image by its first
bytes and by its name (labels, lists, licences), and what a system hides.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, BinaryIO, cast

from altalign import storage
from altalign.curation import InputSettings, TestSet
from altalign.errors import UnreadableError, UsageError
from filters.image_headers import sniff
from pipelines import parquet
from pipelines.read import table, tars
from pipelines.read.found import readable

FILES_PER_PART = 256
_TABLES, _TARS = (".parquet", ".pq"), (".tar", ".tar.gz", ".tgz", ".tar.zst")
_HEAD_BYTES = 1 << 12  # of a file, to tell what it is

# Names of images, those too that cannot be decoded: whoever has such has to convert them.
_IMAGES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".avif", ".bmp", ".dib", ".tif", ".tiff",
    ".heic", ".heif", ".jp2", ".j2k", ".jxl", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".svg", ".ico", ".psd",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A part of a test set that is read at once: some files of images, a row group of a Parquet file, or a tar."""

    test_set: str
    paths: tuple[str, ...]
    root: str  # names of files begin behind it
    row_group: int | None = None
    column: str = ""

    def to_json(self) -> dict[str, Any]:
        """For a unit."""
        return {"test_set": self.test_set, "paths": list(self.paths), "root": self.root, "row_group": self.row_group, "column": self.column}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Part":
        """The inverse of `to_json`; other keys are left alone."""
        return cls(value["test_set"], tuple(value["paths"]), value["root"], value["row_group"], value["column"])


def parts(test_set: TestSet) -> list[Part]:
    """The parts of a test set, in the order of paths.

    Raises:
        UsageError: nothing is there, or it holds no image, or a table has not the column.
        UnreadableError: a Parquet file is broken.
    """
    root, files = _files(test_set)
    made: list[Part] = []
    images: list[str] = []
    others: list[str] = []
    for path in files:
        if path.lower().endswith(_TABLES):
            made += _parts_of_table(test_set, path, root)
        elif path.lower().endswith(_TARS):
            made.append(Part(test_set.name, (path,), root))
        elif _is_image(path):
            images.append(path)
        else:
            others.append(path)
    made += [Part(test_set.name, tuple(images[i : i + FILES_PER_PART]), root) for i in range(0, len(images), FILES_PER_PART)]
    if not made:
        what = f"{len(others):,} files that are none, such as {others[0]}" if others else "it is empty"
        raise UsageError(f"[decontaminate] test_sets: {test_set.path}: no image, Parquet file or tar in it ({what}); give the folder that holds them")
    return made


def images(part: Part) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every image of a part, in order.

    Raises:
        UnreadableError: a file, or a row of a table, cannot be read.
    """
    first = part.paths[0]
    if part.row_group is not None:
        yield from _images_of_table(part)
    elif first.lower().endswith(_TARS):
        yield from _images_of_tar(part, first)
    else:
        for path in part.paths:
            yield _name(part, path), _bytes(path)


def stamps(of: Sequence[Part]) -> Iterator[tuple[str, list[int]]]:
    """Every file of these parts once, with its size and time."""
    for path in dict.fromkeys(path for part in of for path in part.paths):
        yield path, storage.stamp(path).to_json()


def _files(test_set: TestSet) -> tuple[str, list[str]]:
    """The folder that names begin behind, and all files, sorted. One that a system hides is none."""
    storage.check_local(test_set.path)
    found = [test_set.path] if Path(test_set.path).exists() else sorted(glob(test_set.path, recursive=True))  # noqa: PTH207 - absolute patterns too
    if not found:
        raise UsageError(f"[decontaminate] test_sets: nothing is at {test_set.path!r} (from {Path.cwd()}); give paths relative to the working directory")
    files: list[str] = []
    for path in found:
        if not Path(path).is_dir():
            files.append(path)
            continue
        for folder, folders, names in os.walk(path, followlinks=True, onerror=_refuse):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            files += [storage.join(folder, name) for name in sorted(names) if not name.startswith(".")]
            if len(folder) > 4_000:
                raise UsageError(f"[decontaminate] test_sets: {test_set.path}: folders within folders without end; a link leads back to a folder above it")
    is_one_folder = len(found) == 1 and Path(found[0]).is_dir()
    return found[0] if is_one_folder else os.path.commonpath([str(Path(path).parent) for path in files]) if files else "", files


def _refuse(error: OSError) -> None:
    raise UnreadableError(f"{error.filename}: a folder of a test set cannot be read ({error.strerror}); its images would not be looked for") from error


def _is_image(path: str) -> bool:
    if path.lower().endswith(_IMAGES):
        return True
    try:
        with storage.open_read(path) as file:
            return sniff(file.read(_HEAD_BYTES)) is not None
    except OSError as error:
        raise UnreadableError(
            f"{path}: a file of a test set cannot be read ({error.strerror}); if it is an image, its copies would not be looked for"
        ) from error


def _name(part: Part, path: str) -> str:
    return os.path.relpath(path, part.root) if part.root else path


def _bytes(path: str) -> bytes:
    try:
        return storage.read_bytes(path)
    except OSError as error:
        raise UnreadableError(f"{path}: a test image cannot be read ({error.strerror}); its copies would not be looked for") from error


# Tables ------------------------------------------------------------------------------------------------------------------


def _settings(path: str, column: str) -> InputSettings:
    return InputSettings(kind="table", paths=[path], url_column="", image_column=column)


def _parts_of_table(test_set: TestSet, path: str, root: str) -> list[Part]:
    with parquet.reading(path) as file:
        names = file.schema_arrow.names
        if test_set.image_column not in names:
            raise UsageError(
                f'[decontaminate] test_sets: {path}: no column "{test_set.image_column}" (there are {", ".join(names[:10])}); '
                f'give {{name = "{test_set.name}", path = "{test_set.path}", image_column = "…"}}'
            )
        rows = parquet.rows_of_groups(file)
    return [Part(test_set.name, (path,), root, number, test_set.image_column) for number, count in enumerate(rows) if count]


def _images_of_table(part: Part) -> Iterator[tuple[str, bytes]]:
    path, number = part.paths[0], part.row_group or 0
    rows = parquet.row_groups(path)
    first = sum(rows[:number])
    for row, data in table.images(path, _settings(path, part.column), range(first, first + rows[number])):
        if not data:
            raise UnreadableError(f"{path}: row {row:,} of test set {part.test_set} has no image; remove the row, or give a column that has one in each")
        yield f"{_name(part, path)}#{row}", data


# Tars --------------------------------------------------------------------------------------------------------------------


def _images_of_tar(part: Part, path: str) -> Iterator[tuple[str, bytes]]:
    with readable(path, "tar"), storage.open_read(path) as file:
        try:
            with tars.opened(cast(BinaryIO, file)) as (tar, _):
                for member in tar:
                    if member.isfile() and not Path(member.name).name.startswith("."):
                        data = tars.content(tar, member, member.size)
                        if member.name.lower().endswith(_IMAGES) or sniff(data) is not None:
                            yield f"{_name(part, path)}/{member.name}", data
                    cast(Any, tar).members.clear()  # tarfile keeps all it has met
        except tars.ReadError as error:
            raise UnreadableError(f"{path}: a tar of test set {part.test_set} cannot be read ({error}); its images would not be looked for") from error
