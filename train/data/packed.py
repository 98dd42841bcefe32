"""Tars and tables that no curation has made, packed once into shards in the folder of a training run.

What reads shards then reads them too: their order, what is held out and what is decoded work as they do of a curated
run. What they have not is lineage: which pairs were dropped before, and why, nobody can tell. An image's identity is
the hash of its bytes. Rows without image or caption are left out and counted; undecodable images are found in training.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from hashlib import sha256
from itertools import chain
from typing import Any

from altalign import storage
from altalign.errors import UnreadableError, UsageError
from altalign.eval import image_sets
from altalign.eval.image_sets import CaptionedImage, ImageSet
from altalign.filters.image_headers import sniff
from altalign.key import image_id, sample_key
from altalign.schema import SCHEMA_VERSION
from altalign.shards import EXTENSIONS, ShardWriter, write_sidecar
from altalign.train.settings import DataSettings

_PAIRS = 10_000  # of a shard
_NOT_AN_IMAGE = "no image by its first bytes"


def pack(folder: str, chosen: DataSettings, say: Callable[[str], None]) -> str:
    """Make a run folder of the tars and tables of the settings, or leave it where it is of these files already.

    Raises:
        UsageError: nothing is there, or a table has no such columns.
        UnreadableError: a file is damaged, or there is nothing to train on.
    """
    files = {path: asdict(storage.stamp(path)) for path in _files(chosen)}
    asked = {"files": files, "image_column": chosen.image_column, "caption_column": chosen.caption_column}
    mark = storage.join(folder, "packed.json")
    if _known(mark).get("asked") == asked:
        return folder
    say(f"packing {len(files):,} tars and tables; they have no lineage: what was dropped before them is not known")
    storage.delete(folder)
    sets = list(_sets(chosen))
    left_out = {reason: sum(one.left_out.get(reason, 0) for one in sets) for one in sets for reason in one.left_out}
    pairs = _pairs(chain.from_iterable(sets), left_out)
    shards = []
    while shard := _shard(folder, len(shards), pairs):
        shards.append(shard)
    if not shards:
        raise UnreadableError(f"[data] tars, tables: no image with a caption ({left_out}); look at the files")
    for reason, rows in left_out.items():
        say(f"left out: {rows:,} rows with {reason}")
    pairs_of_all = sum(shard["rows"] for shard in shards)
    manifest = {"shards": shards, "pairs": pairs_of_all, "schema_version": SCHEMA_VERSION}
    storage.write_json(storage.join(folder, "manifest.json"), manifest)
    storage.write_json(mark, {"asked": asked, "left_out": left_out})
    return folder


def _known(mark: str) -> dict[str, Any]:
    try:
        return storage.read_json(mark)
    except UnreadableError:  # it is made again
        return {}


def _files(chosen: DataSettings) -> Iterator[str]:
    for setting, patterns in (("tars", chosen.tars), ("tables", chosen.tables)):
        for pattern in patterns:
            found = sorted(storage.find(pattern))
            if not found:
                raise UsageError(f"[data] {setting}: nothing is at {pattern!r}; give paths or globs of files")
            yield from found


def _sets(chosen: DataSettings) -> Iterator[ImageSet]:
    if chosen.tars:
        yield image_sets.webdataset_set(chosen.tars)
    if chosen.tables:
        yield image_sets.parquet_set(
            chosen.tables, image_column=chosen.image_column, caption_column=chosen.caption_column
        )


def _pairs(images: Iterable[CaptionedImage], left_out: dict[str, int]) -> Iterator[tuple[bytes, dict[str, Any]]]:
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


def _shard(folder: str, number: int, pairs: Iterator[tuple[bytes, dict[str, Any]]]) -> dict[str, Any]:
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
