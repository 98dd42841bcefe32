"""Tables: Parquet, Arrow, CSV, TSV and JSON Lines, the last three also compressed (.gz, .zst).

Text passes read a Parquet table of one caption a row, without images, straight from its row groups (`is_direct`,
`candidates`); every other table is read once, by `read`.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from hashlib import sha256
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage
from altalign.data.schema import IMAGE_PLACE
from altalign.pipelines.read.stretches import STRETCH_ROWS, Gatherer, Stretch, as_stretch, readable
from altalign.pipelines.read.tables import arrow, columns, footers, lines, needed_columns
from altalign.pipelines.read.tables.lines import BINARY, form_of, is_empty
from altalign.pipelines.read.tables.needed_columns import check_pages, url_caption_page
from altalign.settings.curate import InputSettings
from altalign.storage import parquet


def is_direct(path: str, settings: InputSettings) -> bool:
    """Whether the text passes read this table's row groups: Parquet without images, with one caption a row."""
    if form_of(path) != "parquet" or settings.image_column or is_empty(path):
        return False
    with parquet.reading(path) as table:
        caption = table.schema_arrow.get_field_index(settings.caption_column)
        return caption < 0 or not parquet.is_list(table.schema_arrow.field(caption).type)


def read(path: str, settings: InputSettings, named: str) -> Iterator[Stretch]:
    """Yields all rows of a table; their names begin with this one."""
    form = form_of(path)
    if form in BINARY:
        if not is_empty(path):
            yield from (read_parquet if form == "parquet" else _read_arrow)(path, settings, named)
        return
    needed_columns.check(path, settings)
    if is_empty(path):
        return
    gatherer = Gatherer(path, partial(columns.extracted, settings))
    many, keep = settings.caption_column, settings.keep_columns
    with readable(path, form.upper()), lines.opened(path) as file:
        for row in lines.rows(file, form, url_caption_page(settings), many=many, keep=keep):
            if isinstance(row, lines.Bad):
                gatherer.broken(row.offset, row.error)
            else:
                gatherer.row((*row.values, f"{named}#{row.number}", row.extra, None), size=row.size)
            if gatherer.full:
                yield gatherer.take()
    yield gatherer.take()


class Direct(NamedTuple):
    """A Parquet table whose row groups the text passes read; the fields are those of `ExtractFacts`."""

    row_groups: list[int]
    rows_at_once: int
    bytes: int


def direct(path: str, settings: InputSettings) -> Direct | None:
    """How the text passes read a table that `is_direct`; None for one with texts so long that they have to be cut."""
    with parquet.reading(path) as table, storage.open_read(path) as file:
        pages = check_pages(path, table, needed_columns.columns(settings))
        size = footers.sizes(file, table, pages, rows_at_most=parquet.ROWS_PER_BATCH)
        groups, is_short = parquet.rows_of_groups(table), size.rows == parquet.ROWS_PER_BATCH
        size_of_all = 0 if is_short else sum(groups) * footers.BATCH_BYTES // size.rows
        return None if size.dictionaries else Direct(groups, size.rows, size_of_all)


def candidates(batch: pa.RecordBatch, settings: InputSettings, names: pa.StringArray | None) -> pa.RecordBatch:
    """The candidates in n rows with `needed_columns.columns`: `schema.CANDIDATE`, n rows.

    Captions are cleaned; URLs are trimmed, and without their fragment where they are valid. Without names (`row_names`)
    only `text_columns` are needed, and names and kept columns are null.
    """
    none = cast(pa.StringArray, pa.nulls(batch.num_rows, pa.string()))
    url, caption, page_url = (batch.column(name) if name else none for name in url_caption_page(settings))
    extra = none if names is None else columns.kept_as_json(batch, settings.keep_columns)
    return columns.candidates_of(url, caption, page_url, none if names is None else names, extra, settings=settings)


def row_names(named: str, rows: Any) -> pa.StringArray:
    """The names of n rows (their numbers from 0, or their own names) of a file: `FILE#ROW`."""
    return cast(pa.StringArray, pc.binary_join_element_wise(pa.scalar(named), rows.cast(pa.string()), "#"))


def shown_name(name: str) -> str:
    """A name that may not be UTF-8, as text."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def images(path: str, settings: InputSettings, rows: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Yields row and bytes of the images in these rows (rising numbers) of a Parquet or Arrow table.

    Of Parquet only row groups that hold such rows are read, each once.
    """
    numbers = np.fromiter(rows, np.int64)
    if form_of(path) == "arrow":
        with arrow.reading(path) as table:
            stretches = (batch.column(0) for batch in table.stretches([settings.image_column]))
            yield from _images_of(stretches, numbers, row=0)
        return
    with parquet.reading(path) as table:
        rows_of_groups, image = parquet.rows_of_groups(table), _image_path(table, settings)
        pages = check_pages(path, table, [settings.image_column])
        starts = np.cumsum([0, *rows_of_groups])
        for group in np.unique(np.searchsorted(starts, numbers, side="right") - 1).tolist():
            of_group = [each for each in pages if each.chunk.group == group]
            batches = _batches(path, table, of_group, [image], image, [group])
            stretches = (batch.column(0) for batch in parquet.exactly(batches, rows_of_groups[group]))
            yield from _images_of(stretches, numbers, row=int(starts[group]))


def _images_of(parts: Iterable[object], numbers: npt.NDArray[np.int64], *, row: int) -> Iterator[tuple[int, bytes]]:
    """Yields the rows of these numbers of a column that comes in parts, from this row on."""
    for part in parts:
        column = _binary(part)
        first, last = np.searchsorted(numbers, [row, row + len(column)])
        for each in numbers[first:last].tolist():
            yield each, cast(bytes, column[each - row].as_py())
        row += len(column)


def read_parquet(path: str, settings: InputSettings, named: str, *, named_by: str = "") -> Iterator[Stretch]:
    """Yields all rows of a Parquet table that is not empty; a column (`named_by`) may hold their names in it."""
    with parquet.reading(path) as table:
        rows = sum(parquet.rows_of_groups(table))
        needed_columns.check_schema(path, table.schema_arrow, settings)
        names = list(dict.fromkeys(filter(None, [*needed_columns.columns(settings), named_by])))
        image = _image_path(table, settings) if settings.image_column else ""
        pages = check_pages(path, table, [*names, settings.image_column])
        batches = _batches(path, table, pages, [*names, *filter(None, [image])], image)
        yield from _stretches(named, parquet.exactly(batches, rows), settings, named_by)


def _read_arrow(path: str, settings: InputSettings, named: str) -> Iterator[Stretch]:
    with arrow.reading(path) as table:
        needed_columns.check_schema(path, table.schema, settings)
        images = [settings.image_column] if settings.image_column else []
        yield from _stretches(named, table.stretches([*needed_columns.columns(settings), *images]), settings)


def _stretches(
    named: str, batches: Iterable[pa.RecordBatch], settings: InputSettings, named_by: str = ""
) -> Iterator[Stretch]:
    """The rows of a table, which come in batches."""
    row = 0
    for batch in batches:
        names = list(dict.fromkeys(filter(None, [*needed_columns.columns(settings), named_by])))
        for piece in columns.caption_pieces(batch.select(names), settings.caption_column):
            of_rows = columns.strings(piece.rows.column(named_by)) if named_by else pa.array(row + piece.row_of)
            plain = candidates(piece.rows, settings, row_names(named, of_rows))
            if settings.image_column:
                yield _in_hand(plain, batch.column(settings.image_column), piece, row)
            else:
                yield as_stretch(plain)
        row += batch.num_rows


def _in_hand(plain: pa.RecordBatch, images: object, piece: columns.Piece, first_row: int) -> Stretch:
    """Candidates with the images of their rows in a batch; a place goes with a row's first candidate."""
    column, row_of = cast(Any, _binary(images)), piece.row_of
    is_dictionary = pa.types.is_dictionary(column.type)
    image = columns.Values(column.dictionary, column.indices) if is_dictionary else columns.Values(column, None)
    sizes = np.asarray(pc.binary_length(image.values).fill_null(-1))
    values = row_of if image.of_rows is None else image.of_rows.fill_null(0).to_numpy()[row_of]
    is_known = plain["image_identity"].is_valid().to_numpy(zero_copy_only=False)
    # of an image without a byte decoding says so, but an address may lead to it
    has_bytes = image.flags(sizes > 0)[row_of] | image.flags(sizes == 0)[row_of] & ~is_known
    digest = cache(lambda value: sha256(image.values[value].as_buffer()).hexdigest())
    needs_digest = (has_bytes & ~is_known).tolist()
    digests = [digest(value) if needs else None for value, needs in zip(values.tolist(), needs_digest, strict=True)]
    rows, at = columns.in_hand(plain, digests), np.flatnonzero(has_bytes & piece.is_first)
    place = [
        pc.take(rows["image_identity"], pa.array(at, pa.int64())),
        pa.array(row_of[at] + first_row, pa.int64()),
        pa.nulls(len(at), pa.int64()),
        pa.nulls(len(at), pa.large_binary()),
    ]
    return as_stretch(rows, pa.record_batch(place, schema=IMAGE_PLACE))


def _batches(
    path: str,
    table: pq.ParquetFile,
    pages: Sequence[footers.Pages],
    names: Sequence[str],
    image: str,
    groups: list[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of these columns in batches of a bounded size; long values of dictionaries are not repeated in them."""
    with storage.open_read(path) as file:
        size = footers.sizes(file, table, pages, image=image, rows_at_most=STRETCH_ROWS)
        if size.dictionaries:
            table = pq.ParquetFile(
                file, metadata=table.metadata, read_dictionary=size.dictionaries, pre_buffer=False, buffer_size=1 << 20
            )
        batches = table.iter_batches(size.rows, row_groups=groups, columns=list(names), use_threads=False)
        yield from map(parquet.plain, batches)


def _image_path(table: pq.ParquetFile, settings: InputSettings) -> str:
    """Parquet's name for the column that holds the bytes; in a struct that is a field."""
    is_struct = pa.types.is_struct(table.schema_arrow.field(settings.image_column).type)
    return f"{settings.image_column}.bytes" if is_struct else settings.image_column


def _binary(column: Any) -> pa.BinaryArray:
    """A column of bytes, or the field `bytes` of a struct."""
    return pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column
