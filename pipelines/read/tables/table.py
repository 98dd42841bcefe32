"""Tables: Parquet, Arrow, CSV, TSV and JSON Lines, the last three also compressed (.gz, .zst).

Text passes read a Parquet table of one caption a row, without images, straight from its row groups (`is_direct`,
`candidates`); every other table is read once, by `read`.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Any, BinaryIO, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage
from altalign.curation import InputSettings
from altalign.errors import UsageError
from altalign.filters import captions, urls
from altalign.pipelines.files import parquet
from altalign.pipelines.read.compressed import Compression, decompressed
from altalign.pipelines.read.found import (
    STRETCH_BYTES,
    STRETCH_ROWS,
    Found,
    Gatherer,
    as_found,
    kept,
    readable,
    unreadable,
)
from altalign.pipelines.read.tables import arrow, caption_lists, footers, kept_columns, lines
from altalign.schema import CANDIDATE, IMAGE_PLACE
from altalign.terminal import shown

Form = Literal["parquet", "arrow", "csv", "tsv", "jsonl"]

_FORMS: dict[str, Form] = {
    **{".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow"},
    **{".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"},
}
_COLUMN_SETTINGS = ("url_column", "caption_column", "page_url_column", "image_column")
_BINARY = ("parquet", "arrow")
_DELIMITERS = ";\t|,"
_GZIP = b"\x1f\x8b"
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
_OBJECTS_CHECKED = 1_000
# how many columns a message compares with a wrong name and shows, and how many characters of each
_NAMES_COMPARED, _NAMES_SHOWN, _NAME_SHOWN = 1_000, 10, 60


def form_of(path: str) -> Form:
    """The format of a table, from the name of its file.

    Raises:
        UsageError: the name has no ending of a table.
    """
    name = PurePath(storage.name(path))
    compressed = name.suffix.lower() in _COMPRESSIONS
    form = _FORMS.get((PurePath(name.stem) if compressed else name).suffix.lower())
    if form is None or (compressed and form in _BINARY):
        endings = (
            "it should end in .parquet, .arrow, .csv, .tsv or .jsonl, the last three also in .gz or .zst after that"
        )
        raise UsageError(f"{path}: not the name of a table; {endings}")
    return form


def is_named_as_table(path: str) -> bool:
    """Whether the name of a file is that of a table."""
    try:
        form_of(path)
    except UsageError:
        return False
    return True


def is_direct(path: str, settings: InputSettings) -> bool:
    """Whether the text passes read this table's row groups: Parquet without images, with one caption a row."""
    if form_of(path) != "parquet" or settings.image_column or _is_empty(path):
        return False
    with parquet.reading(path) as table:
        caption = table.schema_arrow.get_field_index(settings.caption_column)
        return caption < 0 or not caption_lists.is_list(table.schema_arrow.field(caption).type)


def columns(settings: InputSettings) -> list[str]:
    """The columns that `candidates` needs, each once."""
    return list(dict.fromkeys([*text_columns(settings), *settings.keep_columns]))


def text_columns(settings: InputSettings) -> list[str]:
    """The columns that `texts` needs, each once."""
    return list(dict.fromkeys(name for name in _wanted(settings) if name))


def check(path: str, settings: InputSettings) -> None:
    """Refuse a table without the columns that settings name. Only the footer of Parquet is read.

    Raises:
        UsageError: a column is missing, there twice or of another type; or settings want images of a table of text.
        UnreadableError: the file is broken.
    """
    form = form_of(path)
    if form not in _BINARY and settings.image_column:
        what = f'image_column = "{settings.image_column}", but only Parquet and Arrow tables hold images'
        raise UsageError(f"{path}: {what}; leave it empty and fetch the images by URL")
    if _is_empty(path):
        return
    if form == "parquet":
        with parquet.reading(path) as table:
            _check_parquet(path, table, settings)
        return
    if form == "arrow":
        with arrow.reading(path) as table:
            _check_schema(path, table.schema, settings)
        return
    with readable(path, form.upper()), opened(path) as file:
        if form == "jsonl":
            names, objects = lines.names_of_first_objects(file, _OBJECTS_CHECKED, columns(settings))
            if objects:
                _check_names(path, settings, sorted(names), f"key in the first {objects} objects")
            return
        header = lines.header(file, form)
    if isinstance(header, lines.Bad):
        unreadable(path, f"its header row cannot be read ({header.error})")
    if header is not None:
        _check_names(path, settings, header, "column")


def read(path: str, settings: InputSettings) -> Iterator[Found]:
    """Yields all rows of a table.

    Raises:
        UnreadableError: the file is broken as a whole.
        UsageError: as `check`.
    """
    form = form_of(path)
    if form in _BINARY:
        if not _is_empty(path):
            yield from (read_parquet if form == "parquet" else _read_arrow)(path, settings)
        return
    check(path, settings)
    if _is_empty(path):
        return
    gatherer = Gatherer(path, lambda rows: kept(from_columns(*string_columns(rows), settings=settings)))
    file_name = _file_name(path)
    with readable(path, form.upper()), opened(path) as file:
        for row in lines.rows(file, form, _wanted(settings), many=settings.caption_column, keep=settings.keep_columns):
            if isinstance(row, lines.Bad):
                gatherer.broken(row.offset, row.error)
            else:
                gatherer.row((*row.values, f"{file_name}#{row.number}", row.extra), size=row.size)
            if gatherer.full:
                yield gatherer.take()
    yield gatherer.take()


def row_groups(path: str, settings: InputSettings) -> list[int]:
    """How many rows each row group of a Parquet table has; `columns(settings)` will be read from it.

    Raises:
        UnreadableError: the file is no Parquet, or its footer contradicts itself.
    """
    with parquet.reading(path) as table:
        _check_pages(path, table, _checked_chunks(path, table), columns(settings))
        return parquet.rows_of_groups(table)


def candidates(batch: pa.RecordBatch, settings: InputSettings, names: pa.StringArray) -> pa.RecordBatch:
    """The candidates in rows of a Parquet table.

    Args:
        batch: n rows with `columns(settings)`.
        settings: which column is what, and whether captions still hold character references.
        names: of these rows (`row_names`).

    Returns:
        `schema.CANDIDATE`, n rows: cleaned captions, and trimmed URLs, without their fragment where they are valid.
    """
    extra = kept_columns.as_json(batch, settings.keep_columns)
    return from_columns(*_texts(batch, settings), names, extra, settings=settings)


def row_names(path: str, rows: npt.NDArray[np.int64]) -> pa.StringArray:
    """The names of n rows (their numbers, from 0) of a table: `FILE#ROW`."""
    numbers: Any = pa.array(rows).cast(pa.string())
    return cast(pa.StringArray, pc.binary_join_element_wise(pa.scalar(_file_name(path)), numbers, "#"))


def texts(batch: pa.RecordBatch, settings: InputSettings) -> pa.RecordBatch:
    """The same without names and kept columns: these are null."""
    none = _nulls(batch.num_rows)
    return from_columns(*_texts(batch, settings), none, none, settings=settings)


def _texts(batch: pa.RecordBatch, settings: InputSettings) -> tuple[pa.StringArray, pa.StringArray, pa.StringArray]:
    none = _nulls(batch.num_rows)
    url, caption, page_url = (_strings(batch.column(name)) if name else none for name in _wanted(settings))
    return url, caption, urls.valid_utf8(page_url)


def _nulls(rows: int) -> pa.StringArray:
    return cast(pa.StringArray, pa.nulls(rows, pa.string()))


def _file_name(path: str) -> str:
    return shown_name(storage.name(path))


def shown_name(name: str) -> str:
    """A name that may not be UTF-8, as text."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def from_columns(
    url: pa.StringArray,
    caption: pa.StringArray,
    page_url: pa.StringArray,
    source_key: pa.StringArray,
    extra: pa.StringArray,
    *,
    settings: InputSettings,
) -> pa.RecordBatch:
    """`schema.CANDIDATE` from columns as they were found."""
    caption = cast(pa.StringArray, caption.fill_null(""))
    if settings.decode_entities:
        caption = captions.decode_entities(caption)
    image_url, is_valid = urls.table_urls(url)
    identity = _only_where(is_valid, image_url)
    columns = [image_url, identity, captions.clean(caption), page_url, source_key, extra]
    return pa.record_batch(columns, schema=CANDIDATE)


def in_hand(plain: pa.RecordBatch, sha256_hex: Sequence[str | None]) -> pa.RecordBatch:
    """`schema.CANDIDATE` for candidates whose images are in the input.

    An image without a valid URL gets its identity from the SHA-256 of its bytes (None: there are no bytes).
    """
    identity = pc.coalesce(plain["image_identity"], pa.array(sha256_hex, pa.string()))
    return plain.set_column(CANDIDATE.get_field_index("image_identity"), CANDIDATE.field("image_identity"), identity)


def images(path: str, settings: InputSettings, rows: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Yields row and bytes of the images in these rows (rising numbers) of a Parquet or Arrow table.

    Of Parquet only row groups that hold such rows are read, each once.

    Raises:
        UnreadableError: the file is broken.
    """
    wanted = np.fromiter(rows, np.int64)
    if form_of(path) == "arrow":
        with arrow.reading(path) as table:
            stretches = (batch.column(0) for batch in table.stretches([settings.image_column]))
            yield from _images_of(stretches, wanted, row=0)
        return
    with parquet.reading(path) as table:
        rows_of_groups = parquet.rows_of_groups(table)
        starts = np.cumsum([0, *rows_of_groups])
        for number in np.unique(np.searchsorted(starts, wanted, side="right") - 1).tolist():
            row, column_path = int(starts[number]), _image_path(table, settings)
            size = _rows_a_batch(table)
            batches = table.iter_batches(size, row_groups=[number], columns=[column_path], use_threads=False)
            stretches = (batch.column(0) for batch in parquet.exactly(batches, rows_of_groups[number]))
            yield from _images_of(stretches, wanted, row=row)


def _images_of(columns: Iterable[Any], wanted: npt.NDArray[np.int64], *, row: int) -> Iterator[tuple[int, bytes]]:
    """Yields the wanted rows of a column that comes in parts, from this row on."""
    for part in columns:
        column = _binary(part)
        first, last = np.searchsorted(wanted, [row, row + len(column)])
        for each in wanted[first:last].tolist():
            yield each, cast(bytes, column[each - row].as_py())
        row += len(column)


def check_images(path: str, table: pq.ParquetFile, column: str) -> None:
    """Refuse an open Parquet table if `images` cannot read this column, which it has.

    Raises:
        UsageError: the column is of another type.
        pa.ArrowInvalid: the file contradicts itself; `parquet.reading` names it.
    """
    _check_bytes(path, table.schema_arrow, column)
    _check_pages(path, table, _checked_chunks(path, table), [column])


def read_parquet(path: str, settings: InputSettings, *, named_by: str = "") -> Iterator[Found]:
    """Yields all rows of a Parquet table that is not empty; a column (`named_by`) may hold their names.

    Raises:
        UnreadableError: the file is broken as a whole.
        UsageError: as `check`.
    """
    with parquet.reading(path) as table:
        rows = sum(parquet.rows_of_groups(table))
        names = list(dict.fromkeys(filter(None, [*columns(settings), named_by])))
        _check_pages(path, table, _check_parquet(path, table, settings), [*names, settings.image_column])
        if not settings.image_column:
            batches = table.iter_batches(STRETCH_ROWS, columns=names, use_threads=False)
            yield from _found(path, parquet.exactly(batches, rows), settings, named_by)
            return
        with_images = [*names, _image_path(table, settings)]
        batches = table.iter_batches(_rows_a_batch(table), columns=with_images, use_threads=False)
        yield from _found(path, parquet.exactly(batches, rows), settings)


def _read_arrow(path: str, settings: InputSettings) -> Iterator[Found]:
    with arrow.reading(path) as table:
        _check_schema(path, table.schema, settings)
        images = [settings.image_column] if settings.image_column else []
        yield from _found(path, table.stretches([*columns(settings), *images]), settings)


def _found(
    path: str, batches: Iterable[pa.RecordBatch], settings: InputSettings, named_by: str = ""
) -> Iterator[Found]:
    """What is in the rows of a table, which come in parts."""
    row = 0
    for part in (part for batch in batches for part in caption_lists.stretches(batch, settings.caption_column)):
        if settings.image_column:
            yield _found_in_hand(path, part, row, settings)
        else:
            each, row_of = caption_lists.a_row_each(part, settings.caption_column)
            names = _strings(each.column(named_by)) if named_by else row_names(path, row + row_of)
            yield as_found(candidates(each, settings, names))
        row += part.num_rows


def _found_in_hand(path: str, batch: pa.RecordBatch, first_row: int, settings: InputSettings) -> Found:
    image = _binary(batch.column(settings.image_column))
    has_bytes = np.asarray(pc.binary_length(image).fill_null(0)) > 0
    each, row_of = caption_lists.a_row_each(batch.select(columns(settings)), settings.caption_column)
    plain = candidates(each, settings, row_names(path, first_row + row_of))
    first = np.searchsorted(row_of, np.arange(batch.num_rows))  # of each row of the table, its first candidate
    is_known = plain["image_identity"].is_valid().to_numpy(zero_copy_only=False)[first]
    hashed = [
        sha256(image[row].as_buffer()).hexdigest() if has_bytes[row] and not is_known[row] else None
        for row in range(batch.num_rows)
    ]
    rows = in_hand(plain, [hashed[row] for row in row_of.tolist()])
    at = np.flatnonzero(has_bytes)
    place = [
        pc.take(rows["image_identity"], pa.array(first[at], pa.int64())),
        pa.array(at + first_row, pa.int64()),
        pa.nulls(len(at), pa.int64()),
        pa.nulls(len(at), pa.large_binary()),
    ]
    return as_found(rows, pa.record_batch(place, schema=IMAGE_PLACE))


def _rows_a_batch(table: pq.ParquetFile) -> int:
    """How many rows of images have about STRETCH_BYTES, by the row group with the largest mean."""
    groups = [table.metadata.row_group(i) for i in range(table.num_row_groups)]
    a_row = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
    return int(np.clip(STRETCH_BYTES // max(1, a_row), 1, STRETCH_ROWS))


def _image_path(table: pq.ParquetFile, settings: InputSettings) -> str:
    """Parquet's name for the column that holds the bytes; in a struct that is a field."""
    is_struct = pa.types.is_struct(table.schema_arrow.field(settings.image_column).type)
    return f"{settings.image_column}.bytes" if is_struct else settings.image_column


def _binary(column: Any) -> pa.BinaryArray:
    """A column of bytes, or the field `bytes` of a struct."""
    return pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column


def _strings(column: Any) -> pa.StringArray:
    """Any column of strings as plain strings."""
    return cast(pa.StringArray, column if pa.types.is_string(column.type) else column.cast(pa.string(), safe=False))


def _only_where(mask: npt.NDArray[np.bool_], texts: pa.StringArray) -> pa.StringArray:
    """The same texts, null where the mask (bool[n]) does not hold; they share their bytes."""
    bits = np.packbits(np.concatenate([np.zeros(texts.offset, bool), mask]), bitorder="little")
    offsets, data = cast(list[pa.Buffer], texts.buffers()[1:])
    return pa.StringArray.from_buffers(len(texts), offsets, data, pa.py_buffer(bits.data), -1, texts.offset)


def string_columns(rows: Sequence[tuple[Any, ...]]) -> list[pa.StringArray]:
    """The columns of rows (URL, caption, page URL, name, extra)."""
    values = zip(*rows, strict=True) if rows else [[]] * 5
    return [cast(pa.StringArray, pa.array(list(column), pa.string())) for column in values]


def _wanted(settings: InputSettings) -> tuple[str, str, str]:
    return settings.url_column, settings.caption_column, settings.page_url_column


def _check_parquet(path: str, table: pq.ParquetFile, settings: InputSettings) -> footers.Chunks:
    """`check` for an open table; returns its column chunks."""
    chunks = _checked_chunks(path, table)
    _check_schema(path, table.schema_arrow, settings)
    return chunks


def _check_schema(path: str, schema: pa.Schema, settings: InputSettings) -> None:
    """Refuse a table without the columns that settings name, or with others than they mean."""
    _check_names(path, settings, schema.names, "column")
    for name in text_columns(settings):
        kind: Any = schema.field(name).type
        may_be_list = name == settings.caption_column
        if not _is_text(kind.value_type if may_be_list and caption_lists.is_list(kind) else kind):
            meant = "strings (or lists of them) are meant" if may_be_list else "strings are meant"
            what = f"column {name} is of type {kind}, where {meant}"
            raise UsageError(f"{path}: {what}; name another column or convert this one")
    for name in settings.keep_columns:
        if kept_columns.has_bytes(schema.field(name).type):
            raise UsageError(f"{path}: column {name} (keep_columns) holds bytes, which JSON cannot; leave it out")
    if settings.image_column:
        _check_bytes(path, schema, settings.image_column)


def _check_bytes(path: str, schema: pa.Schema, column: str) -> None:
    kind = schema.field(column).type
    if not _is_bytes(kind):
        meant = "bytes (or a struct whose field bytes holds them) are meant"
        raise UsageError(f"{path}: column {column} is of type {kind}, where {meant}; name another column")


def _checked_chunks(path: str, table: pq.ParquetFile) -> footers.Chunks:
    """Refuse a footer in which a flat column has not one value a row: Arrow would silently give fewer rows."""
    flat = {number for number in range(len(table.schema)) if table.schema.column(number).max_repetition_level == 0}
    with storage.open_read(path) as file:
        chunks = footers.chunks(file)
    for chunk in chunks:
        if chunk.column in flat and chunk.values != chunk.rows:
            values = f"{chunk.values} values of {table.schema.column(chunk.column).name}"
            raise pa.ArrowInvalid(f"{values} in row group {chunk.group}, which has {chunk.rows} rows")
    return chunks


def _check_pages(path: str, table: pq.ParquetFile, chunks: footers.Chunks, names: Collection[str]) -> None:
    """Refuse a file if a page of these columns claims more bytes than it has: Arrow would allocate them first."""

    def is_wanted(number: int) -> bool:  # a name may hold a point itself
        of_column = table.schema.column(number).path
        return any(of_column == name or of_column.startswith(f"{name}.") for name in names)

    wanted = {number for number in range(len(table.schema)) if is_wanted(number)}
    with storage.open_read(path) as file:
        footers.check_pages(file, chunks, wanted)


def _check_names(path: str, settings: InputSettings, names: Sequence[str], what: str) -> None:
    needed = ["caption_column"] if settings.image_column else ["url_column", "caption_column"]
    by_setting = [(name, getattr(settings, name)) for name in _COLUMN_SETTINGS]
    for setting, name in [*by_setting, *(("keep_columns", name) for name in settings.keep_columns)]:
        if not name:
            if setting in needed:
                there = ", ".join(map(_shown, names[:_NAMES_SHOWN]))
                raise UsageError(f"{path}: {setting} is empty; name a column, there are {there}")
        elif name not in names and len(names) == 1 and (other := next((c for c in _DELIMITERS if c in names[0]), "")):
            what = f"its columns are separated by {other!r}, where .csv has a comma and .tsv a tab"
            raise UsageError(f"{path}: {what}; convert it")
        elif name not in names:
            near = difflib.get_close_matches(name, names[:_NAMES_COMPARED], 3) or names[:_NAMES_SHOWN]
            hint = f"; did you mean {' or '.join(map(_shown, near))}?" if near else ""
            raise UsageError(f'{path}: no {what} "{name}" ({setting}){hint}')
        elif (times := list(names).count(name)) > 1:
            raise UsageError(f'{path}: the {what} "{name}" ({setting}) is there {times} times; rename one')


def _shown(name: str) -> str:
    """A name from a file, shortened and safe for a message of one line."""
    return shown(name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}…")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    of_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(is_kind(kind) for is_kind in of_text)


def _is_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and _is_bytes(kind.field(index).type)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_empty(path: str) -> bool:
    with readable(path, "a table"):
        return storage.stamp(path).size == 0


def opened(path: str) -> BinaryIO:
    """A table of text, decompressed."""
    name = PurePath(storage.name(path))
    file, compression = storage.open_read(path), _COMPRESSIONS.get(name.suffix.lower())
    begins = file.read(len(_GZIP))
    file.seek(0)
    meant = ""
    if begins == _GZIP and compression is None:
        meant = f"gzip by its first bytes: rename it to {name.name}.gz"
    if begins != _GZIP and compression == "gzip" and begins.isascii() and begins.decode("ascii").isprintable():
        meant = f"not gzip by its first bytes: rename it to {name.stem}"
    if meant:
        file.close()
        unreadable(path, meant)
    return decompressed(file, compression) if compression else file
