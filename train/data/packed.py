"""Tars and tables that no curation has made, packed once into shards in the folder of a training run.

What reads shards then reads them too. What they have not is lineage: which pairs were dropped before, and why, nobody
can tell. An image's identity is the hash of its bytes. Rows without image or caption are left out and counted;
undecodable images are found in training.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import chain, islice
from typing import Any, ClassVar, Self

from altalign import storage
from altalign.data.key import image_id, sample_key
from altalign.data.schema import SCHEMA_VERSION, SampleRow
from altalign.data.shards import EXTENSIONS, ShardWriter, write_sidecar
from altalign.errors import UnreadableError, UsageError
from altalign.eval.class_names import Classes
from altalign.eval.sets import CaptionedImage, captioned_set, labelled_set
from altalign.filters.image_headers import sniff
from altalign.train.data import index
from altalign.train.settings.training import DataSettings, TrainConfig

CLASSES = "classes.json"

_MARK = "packed.json"
_AS_NOW = {"schema_version": SCHEMA_VERSION}  # with another one it is packed again
_IMAGES = 10_000  # of a shard

_Say = Callable[[str], None]


@dataclass(frozen=True)
class ClassNumbers:
    """Classes in the place of a tokenizer: the caption of a packed image is the number of its class."""

    WHAT: ClassVar = "classes"
    tokens_at_most: ClassVar = 1

    classes: Classes

    @classmethod
    def read(cls, path: str) -> Self:
        """Those that `write` has written. Raises UnreadableError: it has written none there."""
        values = storage.read_json(path)
        if not isinstance(values.get("names"), list):
            raise UnreadableError(f"{path}: no names of classes; delete the folder it is in, and it is made again")
        return cls(Classes(tuple(values["names"]), tuple(values["ids"])))

    def write(self, path: str) -> None:
        """Write names and ids as JSON."""
        storage.write_json(path, asdict(self.classes))

    @property
    def vocabulary(self) -> int:
        """How many classes there are."""
        return len(self.classes.names)

    @property
    def digest(self) -> str:
        """SHA-256 of the names."""
        return sha256(json.dumps(asdict(self.classes)).encode()).hexdigest()

    def encode(self, captions: Sequence[str]) -> list[list[int]]:
        """The number of each caption's class."""
        return [[int(caption)] for caption in captions]


def pack(folder: str, chosen: DataSettings, say: _Say) -> str:
    """Pack the tars and tables of the settings into a run folder, unless it was made of the same files.

    Raises UsageError where nothing is there, or a table has no such columns; UnreadableError where a file is damaged.
    """
    files = list[str]()
    for pattern in chosen.files:
        if not (paths := sorted(storage.find(pattern))):
            raise UsageError(f"[data] files: nothing is at {pattern!r}; give paths or globs of files")
        files += paths
    columns: dict[str, Any] = {"image_column": chosen.image_column, "caption_column": chosen.caption_column}
    source: dict[str, Any] = {**_AS_NOW, "files": {path: asdict(storage.stamp(path)) for path in files}, **columns}
    if index.read_mark(storage.join(folder, _MARK)).get("asked") != source:
        number = len(source["files"])
        say(f"packing {number:,} tars and tables; they have no lineage: what was dropped before them is not known")
        tars = [pattern for pattern in chosen.files if pattern.endswith(".tar")]
        tables = [pattern for pattern in chosen.files if pattern not in tars]
        sets = [captioned_set(tars, "webdataset")] if tars else []
        sets += [captioned_set(tables, "parquet", **columns)] if tables else []
        left_out = Counter[str]()
        for images in sets:
            left_out.update({reason: len(names) for reason, names in images.left_out.items()})
        _write(folder, source, chain.from_iterable(sets), left_out, say)
    return folder


def pack_classes(folder: str, config: TrainConfig, say: _Say) -> str:
    """The same of the images of `[classification] train`; a caption is the number of a class. Names are beside them.

    It is done again where the settings say something else; where files have changed, delete the folder.
    """
    chosen, column = config.classification, config.data.image_column
    source = {**_AS_NOW, "classes": chosen.train, "image_column": column, "label_column": chosen.label_column}
    source |= {"names": chosen.classes} if chosen.classes else {}
    if index.read_mark(storage.join(folder, _MARK)).get("asked") != source:
        say(f"packing the images of {chosen.train}")
        classes = Classes.named(chosen.classes) if chosen.classes else None
        columns: dict[str, Any] = {"image_column": column, "label_column": chosen.label_column}
        labelled = labelled_set(chosen.train, split="train", classes=classes, needs_names=False, **columns)
        of_set, left_out = labelled.images, Counter({why: len(names) for why, names in labelled.left_out.items()})
        rows = zip(of_set.read(range(len(of_set))), labelled.labels.tolist(), of_set.names, strict=True)
        images = (CaptionedImage(data, [str(label)], name) for data, label, name in rows)
        _write(folder, source, images, left_out, say, numbers=ClassNumbers(labelled.classes))
    return folder


def _write(
    folder: str,
    source: dict[str, Any],
    images: Iterable[CaptionedImage],
    left_out: Counter[str],
    say: _Say,
    *,
    numbers: ClassNumbers | None = None,
) -> None:
    """Write shards and what is beside them into an empty folder."""
    storage.delete(folder)
    if numbers is not None:
        numbers.write(storage.join(folder, CLASSES))
    shards, of_images = list[dict[str, Any]](), _rows(images, left_out)
    while first := list(islice(of_images, 1)):
        stem = storage.join(folder, "shards", f"{len(shards):05}")
        with storage.write(f"{stem}.tar") as file:
            writer, rows = ShardWriter(file), list[SampleRow]()
            for image, of_image in chain(first, islice(of_images, _IMAGES - 1)):
                rows += writer.write_all(image, of_image, [1 / len(of_image)] * len(of_image))
            writer.end()
        with storage.write(f"{stem}.parquet") as file:
            write_sidecar(rows, file, f"{len(shards):05}.tar")
        of_sidecar = sha256(storage.read_bytes(f"{stem}.parquet")).hexdigest()
        facts = {"rows": len(rows), "bytes": writer.bytes, "sha256": writer.sha256, "parquet_sha256": of_sidecar}
        shards.append({"name": f"{len(shards):05}.tar", **facts})
    if not shards:
        raise UnreadableError(f"[data] files: no image with a caption ({dict(left_out)}); look at the files")
    for reason, number in left_out.items():
        say(f"left out: {number:,} rows with {reason}")
    manifest = {"shards": shards, "pairs": sum(shard["rows"] for shard in shards), "schema_version": SCHEMA_VERSION}
    storage.write_json(storage.join(folder, "manifest.json"), manifest)
    storage.write_json(storage.join(folder, _MARK), {"asked": source, "left_out": left_out})


def _rows(images: Iterable[CaptionedImage], left_out: Counter[str]) -> Iterator[tuple[bytes, list[SampleRow]]]:
    """Images and rows of the side-car, one of each caption; counts what is no image."""
    for one in images:
        image_format = sniff(one.image)
        if image_format not in EXTENSIONS:
            left_out["no image by its first bytes"] += len(one.captions)
            continue
        digest = sha256(one.image).hexdigest()
        of_image = {"image_id": image_id(digest), "format": image_format, "bytes": len(one.image)}
        of_image |= {"sha256": digest, "found_sha256": digest, "source": "packed", "source_key": one.name}
        of_image |= dict.fromkeys(("image_url", "page_url", "extra", "preferences"))
        of_image |= dict.fromkeys(("width", "height", "tar_offset", "tar_bytes"), 0)  # it is not decoded here
        own = ({"key": sample_key(digest, each), "caption": each, "words": len(each.split())} for each in one.captions)
        yield one.image, [{**of_image, **of_pair} for of_pair in own]
