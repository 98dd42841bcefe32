"""Images of the input's own files: ranged reads of WARC and tar files, and of folders and Parquet files.

Rows of Parquet tables are gathered first, in one pass over each table, so that no row group is read twice.
"""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, assert_never

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.pvalue import PCollection, PValue

from altalign import storage
from altalign.data.reasons import DropReason
from altalign.data.stages import damaged
from altalign.pipelines import read
from altalign.pipelines.engine.jobs import create
from altalign.pipelines.engine.map_units import pooled
from altalign.pipelines.images import measuring
from altalign.pipelines.images.measuring import Outcome
from altalign.pipelines.read.tables import table
from altalign.pipelines.run import image_tables, pool
from altalign.pipelines.run.image_places import Kind
from altalign.pipelines.run.text_tables import COPIED_IMAGES, FOLDER_FILES, GROUPED, GROUPED_SURVIVORS
from altalign.pipelines.run.units import Run, Unit, map_unit
from altalign.storage import parquet
from altalign.storage.ranges import Range, Ranges

# Gathering rows of tables --------------------------------------------------------------------------------------------


def gather(run: Run, file: int, rows: npt.NDArray[np.int64]) -> image_tables.GatherFacts:
    """Copy the images of these rows (rising numbers) of a table to a blob, with an index of row, offset and length.

    One of more than `fetch.bytes_at_most` is not copied; its length is below zero.
    """
    source = run.files[file]
    index, end = list[tuple[int, int, int]](), 0
    with pool.reading(run, [file]), storage.write(image_tables.GATHERED_IMAGES.path(run, source.name)) as blob:
        for row, data in table.images(source.path, run.config.input[source.input], rows.tolist()) if len(rows) else ():
            if len(data) > run.config.fetch.bytes_at_most:
                index.append((row, end, -1))
                continue
            blob.write(data)
            index.append((row, end, len(data)))
            end += len(data)
    image_tables.GATHERED_INDEX.save(run, np.array(index, image_tables.ROW_INDEX), source.name)
    return image_tables.GatherFacts(len(index), end)


def plan_gather(run: Run) -> list[Unit]:
    """One unit a table of images."""
    has_images = [settings.kind == "table" and settings.image_column for settings in run.config.input]
    return [Unit(name=file.name) for file in run.files if has_images[file.input]]


def row_places(run: Run, name: str) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yields each table of images that a partition of survivors needs: its file number, and the rows, rising."""
    columns = [f"place_{field}" for field in ("file", "kind", "offset")]
    for batch in parquet.read_whole(GROUPED_SURVIVORS.path(run, name), columns):
        is_row = batch["place_kind"].to_numpy(zero_copy_only=False) == Kind.ROW
        places = (batch[name].to_numpy(zero_copy_only=False) for name in ("place_file", "place_offset"))
        files, rows = (place[is_row].astype(np.int64) for place in places)
        for file in np.unique(files).tolist():
            yield file, np.unique(rows[files == file])


def in_hand(run: Run, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Whether each image is in a tar, a table or a folder, bool[n]. Those of web archives have URLs, all of them."""
    holds_images = np.array([settings.has_images for settings in run.config.input])
    files = rows["place_file"].combine_chunks()
    inputs = np.array([run.files[file].input for file in files.fill_null(0).to_numpy().tolist()], np.int64)
    return files.is_valid().to_numpy(zero_copy_only=False) & holds_images[inputs]


class GatherTables(beam.PTransform[Any, Any]):
    """Units of tables in, names of gathered tables out."""

    def __init__(self, run: Run):
        super().__init__()
        self._run = run

    def expand(self, input_or_inputs: PCollection[Any]) -> PValue:
        """GatherTables the surviving images of every table."""
        grouped = input_or_inputs.pipeline | "NamePartitions" >> create(self._run, self._run.finished(GROUPED.step))
        rows = pooled(self._run, self._rows, at_once=1).with_output_types(tuple[int, bytes])
        none = beam.Map(lambda unit: (int(unit["name"]), b"")).with_output_types(tuple[int, bytes])
        every = (grouped | "NameRows" >> rows, input_or_inputs | "NameTables" >> none) | beam.Flatten()
        return every | "GroupByTable" >> beam.GroupByKey() | "GatherImages" >> pooled(self._run, self._gather)

    def _rows(self, partition: str) -> Iterator[tuple[int, bytes]]:
        for file, rows in row_places(self._run, partition):
            yield file, rows.tobytes()

    def _gather(self, element: tuple[int, Iterable[bytes]]) -> Iterator[int]:
        file, parts = element
        numbers = np.unique(np.frombuffer(b"".join(parts), np.int64))
        unit = Unit(name=self._run.files[file].name)
        map_unit(self._run, image_tables.GATHERED, unit, lambda run, _: gather(run, file, numbers))
        yield file


# Reading -------------------------------------------------------------------------------------------------------------


def fetch_images(run: Run, unit: image_tables.FetchUnit, rows: pa.Table) -> list[Outcome]:
    """Read and measure the images of a unit (one row of `PLACED_SURVIVOR` each); their bytes go to its blob."""
    hooks, outcomes, end = measuring.hooks_of(run.config), [], 0
    with storage.write(image_tables.IMAGES.path(run, unit["name"])) as blob, pool.reading(run, whole_files(run, rows)):
        for url, data in zip(rows["image_url"].to_pylist(), image_bytes(run, rows), strict=True):
            if isinstance(data, DropReason):
                outcomes.append(Outcome(data))
                continue
            measured = measuring.measure(data, url=url, config=run.config.image, hooks=hooks)
            blob.write(data)
            outcomes.append(Outcome(None, None, end, len(data), measured))
            end += len(data)
    return outcomes


def image_bytes(run: Run, rows: pa.Table) -> Iterator[bytes | DropReason]:
    """Yields the bytes of each image, read at its place; the reason for one that no file has, or that is too large."""
    has_place = rows["place_file"].is_valid().to_pylist()
    with Ranges(_ranges(run, rows)) as ranges:
        for place, is_there in zip(ranges, has_place, strict=True):
            if place is None:
                yield DropReason.ROW_TOO_LARGE if is_there else DropReason.NOT_IN_ARCHIVE
            elif place.length is None:
                opened = ranges.opened(place.path) if storage.is_remote(place.path) else None  # it was asked ahead
                yield read.image_bytes(place.path, place.offset, opened) or b""
            else:
                yield ranges.read(place)


def whole_files(run: Run, rows: pa.Table) -> list[int]:
    """The input files that these images lie in; a file of a folder is looked at when it is read."""
    files = rows["place_file"].unique().drop_null().to_numpy().tolist()
    return [file for file in files if run.files[file].part is None]


def _ranges(run: Run, rows: pa.Table) -> list[Range | None]:
    """Where the bytes of each image are, None where there are none; records of a WARC have no length."""

    @cache
    def gathered(file: int) -> npt.NDArray[np.void]:
        return image_tables.GATHERED_INDEX.array(run, run.files[file].name)

    @cache
    def files_of(file: int) -> pa.Table:
        return FOLDER_FILES.read(run, run.files[file].name)

    def whole_file(file: int, number: int, length: int) -> Range:
        part = run.files[file].part
        assert part is not None
        entry = files_of(file).slice(number, 1).to_pylist()[0]
        stamp = storage.Stamp(entry["size"], entry["time_ns"], entry["digest"])
        return Range(storage.join(part.folder, os.fsdecode(entry["name"])), 0, length, stamp)

    def range_of(file: int | None, kind: int, offset: int, length: int) -> Range | None:
        if file is None:
            return None
        source = run.files[file]
        match Kind(kind):
            case Kind.ROW:
                images = image_tables.GATHERED_IMAGES.path(run, source.name)
                place = gathered(file)[np.searchsorted(gathered(file)["row"], offset) :][:1]
                if place["row"].tolist() != [offset]:
                    raise damaged(run.folder, images, f"row {offset:,} is not there")
                start, size = int(place["offset"][0]), int(place["length"][0])
                return None if size < 0 else Range(images, start, size)
            case Kind.COPIED:
                return Range(COPIED_IMAGES.path(run, source.name), offset, length)
            case Kind.RANGE:
                return Range(source.path, offset, length)
            case Kind.RECORD:
                return Range(source.path, offset, None)
            case Kind.FILE:
                return whole_file(file, offset, length)
            case unknown:
                assert_never(unknown)

    columns = (parquet.values(rows, f"place_{name}") for name in ("file", "kind", "offset", "length"))
    return list(map(range_of, *columns))
