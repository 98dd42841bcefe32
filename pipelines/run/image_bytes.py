"""Where the bytes of images are, in input files and in the blobs of fetch units, and how they are read."""

import os
from collections.abc import Iterator, Sequence
from functools import cache
from typing import assert_never

import pyarrow as pa

from altalign import storage
from altalign.data.stages import damaged
from altalign.pipelines import read
from altalign.pipelines.run import image_tables
from altalign.pipelines.run.image_places import Kind
from altalign.pipelines.run.text_tables import COPIED_IMAGES, FOLDER_FILES
from altalign.pipelines.run.units import Run
from altalign.storage import parquet
from altalign.storage.ranges import Range, Ranges


class _Copy(Range):
    """A record of an archive that cannot be read at an offset, copied with what its headers say."""

    __slots__ = ()


def places_in_files(run: Run, images: pa.Table) -> list[Range | None]:
    """Where input files have each image (columns `place_*`), None where none has it, or only its row is too large.

    Records of a WARC have no length.
    """
    gathered = cache(lambda file: image_tables.GATHERED_INDEX.array(run, run.files[file].name))
    files_of = cache(lambda file: FOLDER_FILES.read(run, run.files[file].name))
    ranges = list[Range | None]()
    columns = (parquet.values(images, f"place_{name}") for name in ("file", "kind", "offset", "length"))
    for file, kind, offset, length in zip(*columns, strict=True):
        if file is None:
            ranges.append(None)
            continue
        source = run.files[file]
        match Kind(kind):
            case Kind.ROW:
                path, index = image_tables.GATHERED_IMAGES.path(run, source.name), gathered(file)
                place = index[index["row"].searchsorted(offset) :][:1]
                if place["row"].tolist() != [offset]:
                    raise damaged(run.folder, path, f"row {offset:,} is not there")
                start, size = int(place["offset"][0]), int(place["length"][0])
                ranges.append(None if size < 0 else Range(path, start, size))
            case Kind.COPIED:
                of_copy = _Copy if run.config.input[source.input].kind == "warc" else Range
                ranges.append(of_copy(COPIED_IMAGES.path(run, source.name), offset, length))
            case Kind.RANGE:
                ranges.append(Range(source.path, offset, length))
            case Kind.RECORD:
                ranges.append(Range(source.path, offset, None))
            case Kind.FILE:
                assert source.part is not None
                entry = files_of(file).slice(offset, 1).to_pylist()[0]
                stamp = storage.Stamp(entry["size"], entry["time_ns"], entry["digest"])
                ranges.append(Range(storage.join(source.part.folder, os.fsdecode(entry["name"])), 0, length, stamp))
            case unknown:
                assert_never(unknown)
    return ranges


def whole_files(run: Run, images: pa.Table) -> list[int]:
    """The input files that images lie in; a file of a folder is looked at when it is read."""
    files = images["place_file"].unique().drop_null().to_numpy().tolist()
    return [file for file in files if run.files[file].part is None]


def places_as_stored(run: Run, unit: str, images: pa.Table) -> list[Range]:
    """Where the bytes for shards are of images (`STORED_IMAGE`) of a fetch unit."""
    return _places(run, unit, images, images["stored_at"].is_valid().to_pylist())


def places_as_found(run: Run, unit: str, images: pa.Table) -> list[Range]:
    """Where the bytes as found are of images (`STORED_IMAGE`) of a fetch unit; of the web those for shards."""
    return _places(run, unit, images, images["place_file"].is_null().to_pylist())


def _places(run: Run, unit: str, images: pa.Table, is_in_blob: Sequence[bool | None]) -> list[Range]:
    blob, ranges = image_tables.IMAGES.path(run, unit), list[Range]()
    places = zip(parquet.values(images, "stored_at"), parquet.values(images, "bytes"), strict=True)
    for in_file, (stored_at, size), in_blob in zip(places_in_files(run, images), places, is_in_blob, strict=True):
        place = Range(blob, stored_at, size) if in_blob else in_file
        assert place is not None  # its bytes were read there
        ranges.append(place)
    return ranges


def captured_each(places: Sequence[Range | None], token: str = "") -> Iterator[read.Captured | None]:
    """Yields what is at each place in order, None where there is none.

    `token` is the name by which headers that an archive keeps address this robot.
    """
    with Ranges(places) as ranges:
        for place in ranges:
            yield None if place is None else _captured(place, ranges, token)


def read_each(places: Sequence[Range | None]) -> Iterator[bytes | None]:
    """Yields the bytes at each place in order, None where there is none."""
    return (None if each is None else each.data for each in captured_each(places))


def read_one(place: Range) -> bytes:
    """The bytes at a place."""
    return next(iter(data for data in read_each([place]) if data is not None))


def _captured(place: Range, ranges: Ranges, token: str) -> read.Captured:
    if place.length is not None:
        data = ranges.read(place)
        return read.Captured.of_copy(data) if isinstance(place, _Copy) else read.Captured(data)
    opened = ranges.opened(place.path) if storage.is_remote(place.path) else None  # it was asked ahead
    return read.captured(place.path, place.offset, opened, token=token) or read.Captured(b"")
