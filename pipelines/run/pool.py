"""The pool as the text passes read it: units of about 500,000 candidates, in input order."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from altalign import storage, terminal
from altalign.data.schema import CANDIDATE
from altalign.errors import UnreadableError, UsageError
from altalign.machine import interrupts
from altalign.pipelines import read
from altalign.pipelines.read.tables import table
from altalign.pipelines.run.text_tables import CANDIDATES, EXTRACTED, POOL_SIZE, PoolUnit
from altalign.pipelines.run.units import ROWS_PER_UNIT, InputFile, Run
from altalign.storage import parquet
from altalign.storage.ranges import changed
from altalign.terminal import shown

BYTES_PER_ROW = 2 << 10  # most pools have rows of a few hundred
ROWS_OF_LARGE = 1_000_000_000  # candidates, above which fetch units grow with the pool
ENLARGED_AT_MOST = 32  # times: 131,072 images, whose bytes may be 7 GB


def units(run: Run) -> list[PoolUnit]:
    """Ranges of row groups of the files of the pool, in input order, of about `ROWS_PER_UNIT` candidates each."""
    pool_units: list[PoolUnit] = []
    for name, facts in run.all_facts(EXTRACTED):
        row, of_file = 0, list[PoolUnit]()
        for number, rows in enumerate(facts.row_groups):
            if of_file and of_file[-1]["rows"] + rows <= ROWS_PER_UNIT:
                of_file[-1]["last"] = number
                of_file[-1]["rows"] += rows
            else:
                unit = PoolUnit(name=f"{name}-{number:05d}", order=len(pool_units) + len(of_file), file=int(name))
                unit |= {"direct": facts.direct, "first": number, "last": number, "row": row, "rows": rows}
                of_file.append({**unit, "rows_at_once": facts.rows_at_once})
            row += rows
        pool_units += of_file
    return pool_units


def write_size(run: Run) -> None:
    """Write the number of candidates to a file, so that no unit has to read all marks for it."""
    every = [facts for _, facts in run.all_facts(EXTRACTED)]
    size = {"rows": sum(sum(facts.row_groups) for facts in every), "bytes": sum(facts.bytes for facts in every)}
    storage.write_json(POOL_SIZE.path(run), size)


def rows(run: Run) -> int:
    """How many candidates the pool has."""
    return storage.read_json(POOL_SIZE.path(run))["rows"]


def partitions(run: Run, rows_per_partition: int, *, at_least: int, at_most: int) -> int:
    """How many partitions to make, a power of two, so that each gets about this many of the pool's rows.

    Where rows are long, it gets fewer.
    """
    size = storage.read_json(POOL_SIZE.path(run))
    needed = max(1, size["rows"] // rows_per_partition, size["bytes"] // (rows_per_partition * BYTES_PER_ROW))
    return int(np.clip(1 << int(needed - 1).bit_length(), at_least, at_most))


def enlarged(run: Run) -> int:
    """How many times as large as others the fetch units of a very large pool are, so that files stay few."""
    needed = max(1, -(-rows(run) // ROWS_OF_LARGE))
    return min(1 << (needed - 1).bit_length(), ENLARGED_AT_MOST)


def stamp(run: Run, file: int) -> list[int | str]:
    """Size and time of change of an input file, or its digest in the store; of a part of a folder, of all its files.

    UnreadableError: the file is gone.
    """
    path, part = run.files[file].path, run.files[file].part
    try:
        return (part.stamp if part else storage.stamp(path)).to_json()
    except FileNotFoundError:
        raise UnreadableError(
            f"{path}: gone since the run began; put it back and run the same command again, it continues"
        ) from None


@contextmanager
def reading(run: Run, files: Iterable[int], before: list[int | str] | None = None) -> Iterator[None]:
    """A block that reads input files: where one has changed, that is the error, whatever else a reader met in it.

    Offsets and rows would name other images. `before` is the stamp where extract has not ended.

    Raises:
        UnreadableError: size or time of change of a file is another, or it is gone.
    """

    def check() -> None:
        for file in files:
            if stamp(run, file) != (before or run.facts_of(EXTRACTED, run.files[file].name).stamp):
                raise changed(run.files[file].path)

    try:
        yield
    except Exception:
        check()
        raise
    check()


def candidates(run: Run, unit: PoolUnit, *, texts_alone: bool = False) -> Iterator[pa.RecordBatch]:
    """Yields the candidates of a unit as batches of `schema.CANDIDATE`, in order.

    With `texts_alone`, only `image_identity` and `caption` need be there, and have their values.
    """
    source, row = run.files[unit["file"]], unit["row"]
    settings = run.config.input[source.input]
    if unit["direct"]:
        path, of_file = source.path, [unit["file"]]
        columns = table.text_columns(settings) if texts_alone else table.columns(settings)
    else:
        path, of_file = CANDIDATES.path(run, source.name), []
        columns = ("image_identity", "caption") if texts_alone else CANDIDATE.names
    groups = unit["first"], unit["last"]
    with reading(run, of_file):
        for batch in parquet.read_row_groups(path, *groups, columns, rows_at_once=unit["rows_at_once"]):
            interrupts.check()
            if not unit["direct"]:
                yield batch
            else:
                numbers = pa.array(np.arange(row, row + batch.num_rows))
                names = None if texts_alone else table.row_names(source.named, numbers)
                yield table.candidates(batch, settings, names)
            row += batch.num_rows


def sources(run: Run, files: "pa.ChunkedArray[Any]") -> pa.StringArray:
    """The `source` of each row, by the number of its file."""
    numbers = files.combine_chunks().dictionary_encode()
    names = [run.source_of(file) for file in numbers.dictionary.to_numpy().tolist()]
    return pa.array(names, pa.string()).take(numbers.indices)


def name_empty_files(run: Run, is_empty: Callable[[InputFile], bool]) -> None:
    """Name the files that hold nothing; UsageError where no file of an input holds anything."""
    for number, settings in enumerate(run.config.input):
        files = [file for file in run.files if file.input == number and not read.may_be_empty(file.path, settings)]
        if not (empty := [file.path for file in files if is_empty(file)]):
            continue
        others = f" and {len(empty) - 1:,} more" * (len(empty) > 1)
        message = f"{empty[0]}{others}: no row, record or page in it (0 bytes, or a header alone)"
        if len(empty) == len(files):
            raise UsageError(f"{message}; nothing comes of input {settings.source}: name other [input] paths")
        terminal.stderr().print(shown(message), soft_wrap=True)
