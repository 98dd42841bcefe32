"""Tars and tables that no curation has made, packed once into shards in the folder of a training run.

What reads shards then reads them too: their order, what is held out and what is decoded work as they do of a curated
run. What they have not is lineage: which pairs were dropped before, and why, nobody can tell. An image's identity is
the hash of its bytes. Rows without image or caption are left out and counted; undecodable images are found in training.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from itertools import chain

from altalign import storage
from altalign.data.key import image_id, sample_key
from altalign.data.schema import SCHEMA_VERSION
from altalign.data.shards import EXTENSIONS, ShardWriter, write_sidecar
from altalign.errors import UnreadableError, UsageError
from altalign.eval.class_names import Classes
from altalign.eval.sets import CaptionedImage, ImageSet, captioned_set, labelled_set
from altalign.filters.image_headers import sniff
from altalign.train.data.class_numbers import ClassNumbers
from altalign.train.settings.training import DataSettings, TrainConfig

CLASSES = "classes.json"

_PAIRS = 10_000  # of a shard
_NOT_AN_IMAGE = "no image by its first bytes"


def pack(folder: str, chosen: DataSettings, say: Callable[[str], None]) -> str:
    """Pack the tars and tables of the settings into a run folder, unless it was made of the same files.

    Raises:
        UsageError: nothing is there, or a table has no such columns.
        UnreadableError: a file is damaged, or there is nothing to train on.
    """
    files = {path: asdict(storage.stamp(path)) for path in _files(chosen)}
    asked = {"files": files, "image_column": chosen.image_column, "caption_column": chosen.caption_column}
    if _known(storage.join(folder, "packed.json")).get("asked") == asked:
        return folder
    say(f"packing {len(files):,} tars and tables; they have no lineage: what was dropped before them is not known")
    storage.delete(folder)
    sets = list(_sets(chosen))
    left_out = dict[str, int]()
    for reason, names in chain.from_iterable(one.left_out.items() for one in sets):
        left_out[reason] = left_out.get(reason, 0) + len(names)
    _write(folder, asked, chain.from_iterable(sets), left_out, say)
    return folder


def pack_classes(folder: str, config: TrainConfig, say: Callable[[str], None]) -> str:
    """The same of the images of `[classification] train`; a caption is the number of a class. Names are beside them.

    It is done again where the settings say something else; where files have changed, delete the folder.
    """
    chosen, column = config.classification, config.data.image_column
    asked = {"classes": chosen.train, "image_column": column, "label_column": chosen.label_column}
    asked |= {"names": chosen.classes} if chosen.classes else {}
    if _known(storage.join(folder, "packed.json")).get("asked") == asked:
        return folder
    say(f"packing the images of {chosen.train}")
    storage.delete(folder)
    of = labelled_set(
        chosen.train,
        split="train",
        image_column=column,
        label_column=chosen.label_column,
        classes=Classes.named(chosen.classes) if chosen.classes else None,
        needs_names=False,
    )
    ClassNumbers(of.classes).write(storage.join(folder, CLASSES))
    images = (
        CaptionedImage(data, [str(label)], name)
        for data, label, name in zip(
            of.images.read(range(len(of.images))), of.labels.tolist(), of.images.names, strict=True
        )
    )
    _write(folder, asked, images, {reason: len(names) for reason, names in of.left_out.items()}, say)
    return folder


def _write(
    folder: str,
    asked: Mapping[str, object],
    images: Iterable[CaptionedImage],
    left_out: dict[str, int],
    say: Callable[[str], None],
) -> None:
    """Write shards and what is beside them."""
    pairs, shards = _pairs(images, left_out), []
    while shard := _shard(folder, len(shards), pairs):
        shards.append(shard)
    if not shards:
        raise UnreadableError(f"[data] files: no image with a caption ({left_out}); look at the files")
    for reason, number in left_out.items():
        say(f"left out: {number:,} rows with {reason}")
    pairs_of_all = sum(shard["rows"] for shard in shards)
    manifest = {"shards": shards, "pairs": pairs_of_all, "schema_version": SCHEMA_VERSION}
    storage.write_json(storage.join(folder, "manifest.json"), manifest)
    storage.write_json(storage.join(folder, "packed.json"), {"asked": asked, "left_out": left_out})


def _known(mark: str) -> dict[str, object]:
    try:
        return storage.read_json(mark)
    except UnreadableError:  # it is made again
        return {}


def _files(chosen: DataSettings) -> Iterator[str]:
    for pattern in chosen.files:
        found = sorted(storage.find(pattern))
        if not found:
            raise UsageError(f"[data] files: nothing is at {pattern!r}; give paths or globs of files")
        yield from found


def _sets(chosen: DataSettings) -> Iterator[ImageSet]:
    tars = [pattern for pattern in chosen.files if pattern.endswith(".tar")]
    tables = [pattern for pattern in chosen.files if pattern not in tars]
    if tars:
        yield captioned_set(tars, "webdataset")
    if tables:
        yield captioned_set(tables, "parquet", image_column=chosen.image_column, caption_column=chosen.caption_column)


def _pairs(images: Iterable[CaptionedImage], left_out: dict[str, int]) -> Iterator[tuple[bytes, dict[str, object]]]:
    """Images and the rows of their captions."""
    for one in images:
        image_format = sniff(one.image)
        if image_format not in EXTENSIONS:
            left_out[_NOT_AN_IMAGE] = left_out.get(_NOT_AN_IMAGE, 0) + len(one.captions)
            continue
        digest = sha256(one.image).hexdigest()
        for caption in one.captions:
            yield (
                one.image,
                {
                    "key": sample_key(digest, caption),
                    "image_id": image_id(digest),
                    "image_url": None,
                    "caption": caption,
                    "page_url": None,
                    "source_key": one.name,
                    "extra": None,
                    "source": "packed",
                    "width": 0,  # it is not decoded here
                    "height": 0,
                    "format": image_format,
                    "bytes": len(one.image),
                    "sha256": digest,
                    "found_sha256": digest,
                    "words": len(caption.split()),
                    "tar_offset": 0,
                    "tar_bytes": 0,
                },
            )


def _shard(folder: str, number: int, pairs: Iterator[tuple[bytes, Mapping[str, object]]]) -> dict[str, object]:
    """Write the next pairs; gives what the manifest says of them, nothing where there are none."""
    first = next(pairs, None)
    if first is None:
        return {}
    stem = storage.join(folder, "shards", f"{number:05}")
    with storage.write(f"{stem}.tar") as file:
        writer = ShardWriter(file)
        rows = [writer.write(*first)]
        rows += [writer.write(*pair) for pair, _ in zip(pairs, range(_PAIRS - 1), strict=False)]
        writer.end()
    with storage.write(f"{stem}.parquet") as file:
        write_sidecar(rows, file)
    return {
        "name": f"{number:05}.tar",
        "rows": len(rows),
        "bytes": writer.bytes,
        "sha256": writer.sha256,
        "parquet_sha256": sha256(storage.read_bytes(f"{stem}.parquet")).hexdigest(),
    }
