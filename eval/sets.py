"""Sets of images with captions, or with a class each, as the user has them. Needs no torch.

A set is listed once; the bytes of its images are read when they are needed. It is a glob of tars (WebDataset) or of
tables (Parquet), or a folder of CLIP_benchmark; with captions also Karpathy's JSON or a finished run,
with classes a folder of class folders or a list (`.txt`) of files and classes. Captioned rows of the same bytes (in a
run, of the same `image_id`) are one image, which has all their captions; with classes every image counts.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage, terminal
from altalign.errors import DamagedError, UnreadableError, UsageError, first_line
from altalign.eval import image_sources as sources
from altalign.eval.class_names import Classes
from altalign.eval.image_sources import IMAGES, NO_IMAGE, Images, Place, Sample, digest, paths_of, read_place
from altalign.eval.settings import Set

NO_CAPTION, NO_LABEL, EMPTY_CLASS = "no caption", "no label", "class without images"  # reasons to leave out
HeldOut = Callable[[int], "ImageSet"]  # from the largest number of images
Kind = Literal["webdataset", "parquet", "karpathy", "list", "folder"]


def kind_of(path: str, split: str) -> tuple[Kind, list[str]]:
    """What is at a path, and its files; of a folder that is no set of tars or tables, the folder.

    A folder is one of CLIP_benchmark's where SPLIT/nshards.txt says how many tars it has.
    """
    if storage.kind(path) == "folder":
        if storage.exists(mark := storage.join(path, split, "nshards.txt")):
            number = storage.read_bytes(mark).decode("utf-8", "replace").strip()
            if not number.isdecimal():
                raise UnreadableError(f"{mark}: {number[:40]!r} is no number of tars; bring the file back")
            return "webdataset", [storage.join(path, split, f"{each}.tar") for each in range(int(number))]
        if any(storage.exists(storage.join(path, name)) for name in ("state.json", "dataset_dict.json")):
            raise UsageError(f"{path}: of `save_to_disk`, which is not read; write Parquet with `to_parquet`")
        return "folder", [path]
    if path.endswith(".json"):
        return "karpathy", [path]
    files = list(paths_of([path]))
    if path.endswith(".txt"):
        return "list", files
    return "webdataset" if all(file.endswith(".tar") for file in files) else "parquet", files


# With captions -------------------------------------------------------------------------------------------------------


class CaptionedImage(NamedTuple):
    """An image file's bytes and its captions, at least one."""

    image: bytes
    captions: Sequence[str]
    name: str = ""  # for messages: FILE#ROW, FILE/MEMBER


@dataclass(frozen=True)
class ImageSet:
    """A set of captioned images in the order of their places; it can be iterated any number of times."""

    images: Images
    captions: Sequence[Sequence[str]]  # of each image, at least one
    left_out: Mapping[str, Sequence[str]]  # names of rows, by reason

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[CaptionedImage]:
        images = self.images.read(range(len(self.images)))
        return map(CaptionedImage, images, self.captions, self.images.names)

    def with_captions(self, *, at_most: int) -> "ImageSet":
        """The set with the first `at_most` captions of each image (0: all)."""
        return replace(self, captions=[some[: at_most or None] for some in self.captions])


def captioned_set(
    paths: Sequence[str],
    kind: Kind | None = None,
    *,
    split: str = "test",
    images: str = "",
    image_column: str = "image",
    caption_column: str = "caption",
    images_at_most: int = 0,
) -> ImageSet:
    """Images with captions, of paths of one kind (None: `kind_of` says it of the one path).

    `split` is of Karpathy's JSON and of CLIP_benchmark's folders; `images`, of the JSON, the folder of the images, or
    of the folders that it names. `images_at_most` (0: all) are chosen by the hash of their bytes, in a run of their
    `image_id`, in a JSON of their names.
    """
    if kind is None:
        kind, paths = kind_of(paths[0], split)
    if kind == "webdataset":
        rows = ((one.image, one.place, _captions(one)) for path in paths_of(paths) for one in sources.samples_of(path))
    elif kind == "karpathy":
        rows = _karpathy_rows(paths[0], images, split)
    elif kind == "folder":
        rows = (row for path in paths for row in _run_rows(path))
    else:
        rows = (row for path in paths_of(paths) for row in _captioned_rows(path, image_column, caption_column))
    listed, left_out = dict[str, tuple[str, Place, list[str]]](), dict[str, list[str]]()
    for identity, place, given in terminal.followed(rows, "reading", "rows"):
        captions = [caption for caption in given if caption.strip()]
        if identity is None or not captions:
            left_out.setdefault(NO_CAPTION if identity else NO_IMAGE, []).append(place.name)
        else:  # rows are of one image where their bytes are the same; in a JSON, where their names are
            key = place.name if kind == "karpathy" else identity
            listed.setdefault(key, (identity, place, []))[2].extend(captions)
    if not listed:
        why = ", ".join(f"{len(names):,} rows with {reason}" for reason, names in left_out.items()) or "no rows"
        names = ", ".join(paths)
        raise UnreadableError(f"{names}: no image with a caption ({why}); look at the files and the names of columns")
    chosen = set(sorted(listed, key=lambda key: sha256(key.encode()).digest())[: images_at_most or None])
    identities, places, captions = zip(*(one for key, one in listed.items() if key in chosen), strict=True)
    return ImageSet(Images.at(identities, places), captions, left_out)


def captioned(chosen: Set, held_out: HeldOut | None) -> ImageSet:
    """The images of a set's settings with the captions that are searched; `held_out` gives those a training kept."""
    if chosen.held_out:
        if held_out is None:
            raise UsageError("held_out: no training run is evaluated; give a path")
        pairs = held_out(chosen.images_at_most)
    else:
        names = ("split", "images", "image_column", "caption_column", "images_at_most")
        pairs = captioned_set([chosen.path], **{name: getattr(chosen, name) for name in names})
    return pairs.with_captions(at_most=chosen.captions_at_most)


_Row = tuple[str | None, Place, list[str]]  # identity (None: no image), place, captions


def _captioned_rows(path: str, image_column: str, caption_column: str) -> Iterator[_Row]:
    for identity, place, cell in sources.table_rows(path, image_column, caption_column):
        captions = [one for one in (cell if isinstance(cell, list) else [cell]) if one is not None]
        if wrong := next((one for one in captions if not isinstance(one, str)), None):
            why = f"column {caption_column!r} holds {type(wrong).__name__}, not captions or lists of them"
            raise UsageError(f"{path}: {why}; name another caption_column")
        yield identity, place, captions


def _captions(sample: Sample) -> list[str]:
    """`captions` (a list) or `caption` (a string, or a list) of KEY.json; where that gives none, lines of KEY.txt."""
    try:
        columns = json.loads(sample.texts.get("json", b"{}"))
    except (ValueError, RecursionError) as error:
        why = f"{sample.key}.json: not JSON ({error})"
        raise UnreadableError(f"{sample.place.path}: {why}; make the tar anew") from None
    columns = columns if isinstance(columns, dict) else {}
    lines = sample.texts.get("txt", b"").decode("utf-8", "replace").splitlines()
    given = columns.get("captions") or columns.get("caption") or lines
    captions = [given] if isinstance(given, str) else given
    return [one for one in captions if isinstance(one, str)] if isinstance(captions, list) else []


def _karpathy_rows(path: str, folder: str, split: str) -> Iterator[_Row]:
    try:
        chosen = [
            (each.get("filepath", ""), each["filename"], [one["raw"] for one in each["sentences"]])
            for each in storage.read_json(path).get("images") or []
            if each["split"] == split
        ]
    except (KeyError, TypeError, AttributeError) as error:
        why = f"no JSON of Karpathy's ({error!r} in an image)"
        raise UsageError(f"{path}: {why}; give dataset_coco.json as it is") from None
    if not chosen:
        raise UsageError(f"{path}: no image of split {split!r}; give another split, or a JSON of Karpathy's")
    for inner, name, captions in chosen:
        places = [storage.join(folder, inner, name) if inner else "", storage.join(folder, name)]
        existing = next((place for place in places if place and storage.exists(place)), None)
        place = Place(existing or places[-1], name=existing or places[-1])
        yield digest(read_place(place)) if existing else None, place, captions


def _run_rows(folder: str) -> Iterator[_Row]:
    """All pairs of a finished run, by their `image_id`."""
    storage.check(folder)
    manifest = storage.read_json(storage.join(folder, "manifest.json"))
    if not isinstance(manifest.get("shards"), list):
        raise UsageError(f"{folder}: no finished run; give the [run] folder of a curation, or finish it")
    for shard in manifest["shards"]:
        tar = storage.join(folder, "shards", shard["name"])
        sidecar = f"{tar.removesuffix('.tar')}.parquet"
        try:
            with storage.open_read(sidecar) as file:
                columns = ["key", "image_id", "caption", "tar_offset", "tar_bytes"]
                rows = pq.read_table(file, columns=columns, use_threads=False).to_pylist()
        except (OSError, pa.ArrowException) as error:
            repair = "`altalign curate` with --rerun write makes it anew"
            raise DamagedError(f"{sidecar}: not as it was written ({first_line(error)}); {repair}") from error
        for row in rows:
            place = Place(tar, row["tar_offset"], row["tar_bytes"], f"{tar}/{row['key']}")
            yield row["image_id"], place, [row["caption"]]


# With classes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledSet:
    """Images, the class of each, and the names of the classes, which are what prompts say."""

    images: Images
    labels: npt.NDArray[np.int64]  # numbers of classes, int64 (n,)
    classes: Classes
    left_out: Mapping[str, Sequence[str]]  # names of rows, or of classes, by reason


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
    """Images with a class each, of a folder, a glob of tables or of tars, or a list (`.txt`) of files and classes.

    `split` is the folder of CLIP_benchmark's tars, `classes` are in place of what the set says of them.
    `only_own_classes` drops those that no image has, as ImageNet-R and ImageNet-A are scored; `needs_names` refuses a
    set of whose classes only numbers are known.
    """
    kind, files = kind_of(path, split)
    own = _classes_of(kind, path, files, label_column)
    if classes and own and own.ids:
        classes = classes.in_folders(own.ids, path)
    whole, left_out = list[tuple[str, Place, int | str]](), {NO_IMAGE: list[str](), NO_LABEL: list[str]()}
    for identity, place, label in _labelled_rows(kind, path, files, image_column, label_column):
        if identity is None or label is None or label == "":
            left_out[NO_IMAGE if identity is None else NO_LABEL].append(place.name)
        else:
            whole.append((identity, place, label))
    if not whole:
        raise UnreadableError(f"{path}: no image with a label in it; look at its files and the names of columns")
    identities, places, labels = zip(*whole, strict=True)
    known = classes or own or Classes.of_labels(labels)
    if needs_names and not classes and not own and all(isinstance(label, int) for label in labels):
        raise UsageError(f"{path}: nothing says what its classes are called; name a file of them in classes")
    numbers = np.array([known.number(one, place.name) for one, place in zip(labels, places, strict=True)], np.int64)
    present = np.unique(numbers)
    if only_own_classes:
        numbers, known = np.searchsorted(present, numbers), known.only(present.tolist())
    else:
        missing = np.setdiff1d(np.arange(len(known.names)), present)
        left_out[EMPTY_CLASS] = [known.names[number] for number in missing]
    images = Images.at(identities, places)
    return LabelledSet(images, numbers, known, images.left_out([], left_out))


def _classes_of(kind: Kind, path: str, files: Sequence[str], column: str) -> Classes | None:
    """The classes that a set names: in a file, in folders, or of tables beside the schema, as Hugging Face's."""
    if kind == "webdataset":
        names = storage.join(path, "classnames.txt")
        is_named = storage.kind(path) == "folder" and storage.exists(names)
        return Classes.named(names) if is_named else None
    if kind == "folder":
        folders = _class_folders(path)
        return Classes(tuple(name.replace("_", " ") for name in folders), tuple(folders))
    if kind == "list":
        return None
    with sources.table(files[0]) as opened:
        about = json.loads((opened.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
    names = about.get("info", {}).get("features", {}).get(column, {}).get("names")
    return Classes(tuple(names)) if names else None


def _class_folders(folder: str) -> list[str]:
    names = sorted(each.name for each in Path(folder).iterdir() if each.is_dir() and not each.name.startswith("."))
    if not names:
        raise UsageError(f"{folder}: no folder of a class is in it; give a folder with one of each class, or a glob")
    return names


def _labelled_rows(
    kind: Kind, path: str, files: Sequence[str], image_column: str, label_column: str
) -> Iterator[tuple[str | None, Place, int | str | None]]:
    """Of each row the image's digest (None: no image), its place, and the number or the name of its class."""
    if kind == "webdataset":
        for sample in (sample for file in files for sample in sources.samples_of(file)):
            label = sample.texts.get("cls", b"").decode("utf-8", "replace").strip()
            yield sample.image, sample.place, int(label) if label.isdecimal() else label or None
    elif kind == "folder":
        for name in _class_folders(path):
            for file in sorted(each for each in Path(path, name).rglob("[!.]*") if each.is_file()):
                place = Place(str(file), name=str(file))
                is_image = file.suffix.lower().removeprefix(".") in IMAGES
                yield digest(read_place(place)) if is_image else None, place, name
    elif kind == "list":
        for file, label in lines_of(path):
            place = Place(beside(path, file), name=file)
            yield digest(read_place(place)), place, label
    else:
        for file in files:
            for identity, place, label in sources.table_rows(file, image_column, label_column):
                if label is not None and not isinstance(label, int | str):
                    raise UsageError(f"{file}: column {label_column!r} holds no classes; name another label_column")
                yield identity, place, label


def lines_of(path: str) -> list[tuple[str, int | str]]:
    """The lines FILE CLASS of a list, as VTAB is given away; a file is relative to the list's folder."""
    rows = list[tuple[str, int | str]]()
    for line in filter(None, map(str.strip, sources.text_lines(path))):
        file, _, label = line.rpartition(" ")
        if not file:
            raise UnreadableError(f"{path}: {line!r} is no file and class; write them with a space between")
        rows.append((file, int(label) if label.isdecimal() else label))
    return rows


def beside(path: str, file: str) -> str:
    """The path of a file that a list names."""
    return file if storage.is_remote(file) else storage.join(storage.folder_of(path), file)


def classes_of_lists(paths: Sequence[str]) -> Classes:
    """The classes that lists of one task have together: some may have no image in a small part."""
    labels = [label for path in paths for _, label in lines_of(path)]
    if not labels:
        raise UnreadableError(f"{', '.join(paths)}: no line FILE CLASS; give whole lists")
    return Classes.of_labels(labels)
