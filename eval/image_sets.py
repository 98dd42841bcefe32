"""Sets of captioned images for evaluation: tables, WebDataset tars, Karpathy's JSON, finished runs. Needs no torch.

A set is listed once: captions, and where each image is. Its images are read in each iteration. Rows or samples with the
same bytes (in a run, the same `image_id`) are one image, which has all their captions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import DamagedError, UnreadableError, UsageError, first_line
from altalign.eval import tables, tars
from altalign.eval.places import NO_IMAGE, Images, Place, digest, found, read_places
from altalign.eval.tars import Sample

NO_CAPTION = "no caption"  # a reason to leave out a row


@dataclass(frozen=True)
class CaptionedImage:
    """An image file's bytes and its captions, at least one."""

    image: bytes
    captions: list[str]
    name: str = ""  # for messages: FILE#ROW, FILE/MEMBER


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
    left_out: Mapping[str, Sequence[str]]  # names of rows, by reason
    read: Callable[[Sequence[Place]], Iterator[bytes]] = read_places

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[CaptionedImage]:
        for image, data in zip(self.images, self.read([image.place for image in self.images]), strict=True):
            yield CaptionedImage(data, image.captions, image.place.name)

    def with_captions(self, *, at_most: int = 0, repeated: bool = True) -> "ImageSet":
        """The set with the first `at_most` captions of each image (0: all), each once where not `repeated`."""
        chosen = [
            replace(
                image,
                captions=(image.captions if repeated else list(dict.fromkeys(image.captions)))[: at_most or None],
            )
            for image in self.images
        ]
        return replace(self, images=chosen)

    @property
    def files(self) -> Images:
        """The images without their captions."""
        return Images(
            [image.identity for image in self.images],
            [image.place.name for image in self.images],
            lambda rows: self.read([self.images[row].place for row in rows]),
        )


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
    rows = (row for path in found(patterns) for row in _table_rows(path, image_column, caption_column))
    return _listed(rows, images_at_most, patterns)


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
    rows = (row for path in found(patterns) for row in _tar_rows(path))
    return _listed(rows, images_at_most, patterns)


def karpathy_set(path: str, *, images: str, split: str, images_at_most: int = 0) -> ImageSet:
    """Images of a JSON of Karpathy's splits (MSCOCO, Flickr30K), with all their sentences; images stay apart.

    Args:
        path: the JSON.
        images: the folder of the images, or of the folders that the JSON names (`filepath`).
        split: take the images of this one.
        images_at_most: take this many, chosen by the hash of their names; 0: all.

    Raises:
        UsageError: the JSON is none of these, or has no image of the split.
        UnreadableError: no image is there.
    """
    return _listed(_karpathy_rows(path, images, split), images_at_most, [path], by_name=True)


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
    return _listed(rows, images_at_most, folders)


# Listing -------------------------------------------------------------------------------------------------------------

_Row = tuple[str | None, Place, list[str]]  # identity (None: no image), place, captions


def _listed(rows: Iterable[_Row], images_at_most: int, patterns: Sequence[str], *, by_name: bool = False) -> ImageSet:
    """The set of chosen images, each at its first place and with the captions of all its rows.

    Rows are of one image where their bytes are the same; with `by_name`, where their names are.
    """
    images: dict[str, Listed] = {}
    left_out: dict[str, list[str]] = {}
    for identity, place, captions in rows:
        captions = [caption for caption in captions if caption.strip()]
        if identity is None:
            left_out.setdefault(NO_IMAGE, []).append(place.name)
        elif not captions:
            left_out.setdefault(NO_CAPTION, []).append(place.name)
        else:
            key = place.name if by_name else identity
            images.setdefault(key, Listed(identity, place)).captions.extend(captions)
    if not images:
        why = ", ".join(f"{len(names):,} rows with {reason}" for reason, names in left_out.items()) or "no rows"
        raise UnreadableError(
            f"{', '.join(patterns)}: no image with a caption ({why}); look at the files and the names of columns"
        )
    chosen = set(images)
    if 0 < images_at_most < len(images):
        chosen = set(sorted(images, key=lambda identity: sha256(identity.encode()).digest())[:images_at_most])
    return ImageSet([image for identity, image in images.items() if identity in chosen], left_out)


# Tables --------------------------------------------------------------------------------------------------------------


def _table_rows(path: str, image_column: str, caption_column: str) -> Iterator[_Row]:
    row = 0
    for batch in tables.batches_of(path, (image_column, caption_column)):
        tables.check_images(path, image_column, batch.schema.field(image_column).type)
        _check_captions(path, caption_column, batch.schema.field(caption_column).type)
        captions = batch.column(caption_column).to_pylist()
        for image, caption in zip(tables.images_of(batch, image_column, path), captions, strict=True):
            said = [caption] if isinstance(caption, str) else [one for one in caption or () if one is not None]
            place = Place(path, row, name=f"{path}#{row}", column=image_column)
            yield None if image is None else digest(image), place, said
            row += 1


def _check_captions(path: str, column: str, type_: pa.DataType) -> None:
    of = type_
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_dictionary(type_):
        of = type_.value_type
    if not (pa.types.is_string(of) or pa.types.is_large_string(of)):
        raise UsageError(
            f"{path}: column {column!r} is {type_}, not captions or lists of them; name another caption_column"
        )


# Tars ----------------------------------------------------------------------------------------------------------------


def _tar_rows(path: str) -> Iterator[_Row]:
    for sample in tars.samples(path):
        identity, place = sample.image or (None, Place(path, 0, 0, f"{path}/{sample.key}"))
        yield identity, place, _captions(sample, path)


def _captions(sample: Sample, path: str) -> list[str]:
    columns: dict[str, object] = sample.columns(path)
    given = columns.get("captions") or columns.get("caption") or sample.txt.splitlines()
    listed = [given] if isinstance(given, str) else given
    return [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []


# Karpathy's JSON -----------------------------------------------------------------------------------------------------


def _karpathy_rows(path: str, folder: str, split: str) -> Iterator[_Row]:
    entries = storage.read_json(path).get("images")
    try:
        chosen = [
            (each.get("filepath", ""), each["filename"], [one["raw"] for one in each["sentences"]])
            for each in entries or []
            if each["split"] == split
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: no JSON of Karpathy's ({error!r} in an image); give dataset_coco.json as it is"
        ) from None
    if not chosen:
        raise UsageError(f"{path}: no image of split {split!r}; give another split, or a JSON of Karpathy's")
    for inner, name, captions in chosen:
        places = [storage.join(folder, inner, name) if inner else "", storage.join(folder, name)]
        there = next((place for place in places if place and storage.exists(place)), None)
        place = Place(there or places[-1], name=there or places[-1])
        yield digest(b"".join(read_places([place]))) if there else None, place, captions


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
            reason = first_line(error)
            raise DamagedError(
                f"{sidecar}: not as it was written ({reason}); `altalign curate` with --rerun write makes it anew"
            ) from error
        for row in rows:
            place = Place(tar, row["tar_offset"], row["tar_bytes"], f"{tar}/{row['key']}")
            yield row["image_id"], place, [row["caption"]]
