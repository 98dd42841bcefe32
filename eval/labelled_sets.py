"""Sets of images with a class each, as the user has them: folders, WebDataset, Parquet, `save_to_disk`. Needs no torch.

A class is a number; its name is what prompts say. Every image counts, also one whose bytes are there twice.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.errors import UnreadableError, UsageError
from altalign.eval import tables, tars
from altalign.eval.class_names import Classes
from altalign.eval.places import (
    IMAGES,
    NO_IMAGE,
    UNDECODABLE,
    Images,
    Place,
    digest,
    found,
    read_places,
    reading,
    reasons,
)
from altalign.eval.web_folders import shards_of

NO_LABEL, EMPTY_CLASS = "no label", "class without images"

_Row = tuple[str | None, Place, int | str | None]  # digest (None: no image), place, label: a number, or a name


@dataclass(frozen=True)
class LabelledSet:
    """Images, the class of each, and the names of the classes.

    Attributes:
        labels: numbers of classes, int64 (n,).
        left_out: names of rows, or of classes, by reason.
    """

    images: Images
    labels: npt.NDArray[np.int64]
    classes: Classes
    left_out: Mapping[str, Sequence[str]]

    def left_out_with(self, undecodable: Sequence[int]) -> dict[str, list[str]]:
        """What was left out when the set was listed, and these images."""
        names = [self.images.names[row] for row in undecodable]
        return reasons({**self.left_out, UNDECODABLE: names})


def labelled_set(
    path: str,
    *,
    split: str = "test",
    image_column: str = "image",
    label_column: str = "label",
    classes: Classes | None = None,
    only_own_classes: bool = False,
    needs_names: bool = True,
) -> LabelledSet:
    """The set at a path: a folder of CLIP_benchmark, one of class folders, one of `save_to_disk`, or files of tables.

    Args:
        path: a folder, a glob of Parquet files or of tars, or a list (`.txt`) of files and classes.
        split: the folder of CLIP_benchmark's tars.
        image_column: of tables: bytes, or a struct of `bytes` and `path`.
        label_column: of tables: a number of a class, or its name.
        classes: names of the classes; None: what the set says of them.
        only_own_classes: drop the classes that no image has, as ImageNet-R and ImageNet-A are scored.
        needs_names: refuse a set of whose classes only numbers are known.

    Raises:
        UsageError: nothing is there, or a label is no class.
        UnreadableError: a file is damaged, or no image is left.
    """
    rows, own = _rows(path, split, image_column, label_column)
    if classes and own and own.ids:
        classes = classes.in_folders(own.ids, path)
    if needs_names and not classes and not own:
        raise UsageError(f"{path}: nothing says what its classes are called; name a file of them in classes")
    return _listed(rows, classes or own, path, only_own_classes=only_own_classes)


def _listed(rows: Iterator[_Row], of: Classes | None, path: str, *, only_own_classes: bool) -> LabelledSet:
    identities, places, labels = list[str](), list[Place](), list[int | str]()
    left_out: dict[str, list[str]] = {NO_IMAGE: [], NO_LABEL: []}
    for identity, place, label in rows:
        if identity is None or label is None:
            left_out[NO_IMAGE if identity is None else NO_LABEL].append(place.name)
            continue
        identities.append(identity)
        places.append(place)
        labels.append(label)
    if not places:
        raise UnreadableError(f"{path}: no image with a label in it; look at its files and the names of columns")
    of = of or Classes.of_labels(labels)
    numbers = np.array([of.number(label, place.name) for label, place in zip(labels, places, strict=True)], np.int64)
    there = np.unique(numbers)
    if only_own_classes:
        numbers, of = np.searchsorted(there, numbers), of.only(there.tolist())
    else:
        missing = np.setdiff1d(np.arange(len(of.names)), there)
        left_out[EMPTY_CLASS] = [of.names[number] for number in missing]
    images = Images(
        identities, [place.name for place in places], lambda some: read_places([places[row] for row in some])
    )
    return LabelledSet(images, numbers, of, reasons(left_out))


def _rows(path: str, split: str, image_column: str, label_column: str) -> tuple[Iterator[_Row], Classes | None]:
    """Rows of a set, and the classes that it names."""
    if storage.kind(path) != "folder":
        files = list(found([path]))
        if path.endswith(".txt"):
            return _list_rows(path), None
        if all(file.endswith(".tar") for file in files):
            return _tar_rows(files), None
        return _table_rows(files, image_column, label_column), _classes_of_tables(files, label_column)
    if (shards := shards_of(path, split)) is not None:
        names = storage.join(path, "classnames.txt")
        return _tar_rows(shards), Classes.of_file(names) if storage.exists(names) else None
    if files := tables.files_of(path):
        return _table_rows(files, image_column, label_column), _classes_of_tables(files, label_column)
    return _folder_rows(path), Classes.of_folders(_class_folders(path))


# Folders of classes --------------------------------------------------------------------------------------------------


def _class_folders(folder: str) -> list[str]:
    names = sorted(each.name for each in Path(folder).iterdir() if each.is_dir() and not each.name.startswith("."))
    if not names:
        raise UsageError(f"{folder}: no folder of a class is in it; give a folder with one of each class, or a glob")
    return names


def _folder_rows(folder: str) -> Iterator[_Row]:
    for name in _class_folders(folder):
        for file in sorted(each for each in Path(folder, name).rglob("[!.]*") if each.is_file()):
            place = Place(str(file), name=str(file))
            is_image = file.suffix.lower().removeprefix(".") in IMAGES
            yield digest(b"".join(read_places([place]))) if is_image else None, place, name


# Lists of files ------------------------------------------------------------------------------------------------------


def listed(path: str) -> list[tuple[str, int | str]]:
    """The lines FILE CLASS of a list, as VTAB is given away; a file is relative to the list's folder.

    Raises:
        UnreadableError: it is no such list.
    """
    with reading(path, "a list of files and classes"):
        lines = storage.read_bytes(path).decode().splitlines()
    rows = list[tuple[str, int | str]]()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        file, _, label = line.strip().rpartition(" ")
        if not file:
            raise UnreadableError(
                f"{path}: line {number}: {line!r} is no file and class; write them with a space between"
            )
        rows.append((file, int(label) if label.isdecimal() else label))
    return rows


def beside(path: str, file: str) -> str:
    """The path of a file that a list names."""
    return file if storage.is_remote(file) else storage.join(storage.folder_of(path), file)


def classes_of_lists(paths: Sequence[str]) -> Classes:
    """The classes that lists of one task have together: some may have no image in a small part."""
    labels = [label for path in paths for _, label in listed(path)]
    if not labels:
        raise UnreadableError(f"{', '.join(paths)}: no line FILE CLASS; give whole lists")
    return Classes.of_labels(labels)


def _list_rows(path: str) -> Iterator[_Row]:
    for file, label in listed(path):
        place = Place(beside(path, file), name=file)
        yield digest(b"".join(read_places([place]))), place, label


# Tars ----------------------------------------------------------------------------------------------------------------


def _tar_rows(files: Sequence[str]) -> Iterator[_Row]:
    for path in files:
        for sample in tars.samples(path):
            identity, place = sample.image or (None, Place(path, 0, 0, f"{path}/{sample.key}"))
            label = sample.texts.get("cls", b"").decode("utf-8", "replace").strip()
            yield identity, place, int(label) if label.isdecimal() else label or None


# Tables --------------------------------------------------------------------------------------------------------------


def _table_rows(files: Sequence[str], image_column: str, label_column: str) -> Iterator[_Row]:
    for path in files:
        row = 0
        for batch in tables.batches_of(path, (image_column, label_column)):
            tables.check_images(path, image_column, batch.schema.field(image_column).type)
            labels = batch.column(label_column).to_pylist()
            for image, label in zip(tables.images_of(batch, image_column, path), labels, strict=True):
                if label is not None and not isinstance(label, int | str):
                    raise UsageError(f"{path}: column {label_column!r} holds no classes; name another label_column")
                place = Place(path, row, name=f"{path}#{row}", column=image_column)
                yield None if image is None else digest(image), place, label
                row += 1


def _classes_of_tables(files: Sequence[str], column: str) -> Classes | None:
    """The names that Hugging Face wrote beside the schema, or those that the column has itself, in all files."""
    schema = tables.schema_of(files[0])
    about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    names = about.get("info", {}).get("features", {}).get(column, {}).get("names")
    if names:
        return Classes(tuple(names))
    number = schema.get_field_index(column)
    kind: Any = schema.field(number).type if number >= 0 else pa.null()
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        return None
    batches = (batch for path in files for batch in tables.batches_of(path, (column,)))
    return Classes(tuple(sorted({one for batch in batches for one in batch.column(0).to_pylist() if one})))
