"""Tables: Parquet, Arrow, CSV, TSV and JSON Lines, the last three also compressed (.gz, .zst).

Text passes read a Parquet table of one caption a row, without images, straight from its row groups (`is_direct`,
`candidates`); every other table is read once, by `read`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from hashlib import sha256
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage
from altalign.data.schema import IMAGE_PLACE
from altalign.errors import UsageError
from altalign.pipelines.read.stretches import (
    STRETCH_BYTES,
    STRETCH_ROWS,
    Gatherer,
    Stretch,
    as_stretch,
    readable,
)
from altalign.pipelines.read.tables import columns as of_columns
from altalign.pipelines.read.tables import footers, lines
from altalign.pipelines.read.tables.lines import BINARY, form_of, is_empty
from altalign.settings.curate import InputSettings
from altalign.storage import parquet
from altalign.terminal import shown

_COLUMN_SETTINGS = ("url_column", "caption_column", "page_url_column", "image_column")
_DELIMITERS = ";\t|,"
_ARROW = b"ARROW1"  # of the form with a footer; streams have none
_ARROW_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream
_TIMES_AT_MOST = 1_000  # its file, of a compressed buffer: it says how long it is, and may lie
_ARROW_ERRORS = (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError)  # and those of `readable`
_NAMES_SHOWN, _NAME_SHOWN = 10, 60  # of columns in a message, and how many characters of each


# Columns --------------------------------------------------------------------------------------------------------------


def columns(settings: InputSettings) -> list[str]:
    """The columns that `candidates` needs, each once."""
    return list(dict.fromkeys([*text_columns(settings), *settings.keep_columns]))


def text_columns(settings: InputSettings) -> list[str]:
    """The columns that `candidates` needs without names, each once."""
    return list(dict.fromkeys(filter(None, _url_caption_page(settings))))


def _url_caption_page(settings: InputSettings) -> tuple[str, str, str]:
    return settings.url_column, settings.caption_column, settings.page_url_column


def schema_of(path: str) -> pa.Schema:
    """The schema of a Parquet or Arrow table."""
    if form_of(path) == "arrow":
        with _arrow(path) as (schema, _):
            return schema
    with parquet.reading(path) as table:
        return table.schema_arrow


def check(path: str, settings: InputSettings) -> None:
    """Refuse a table without the columns that settings name, or with others than they mean; no row of it is read."""
    form = form_of(path)
    if form not in BINARY and settings.image_column:
        what = f'image_column = "{settings.image_column}", but only Parquet and Arrow tables hold images'
        raise UsageError(f"{path}: {what}; leave it empty and fetch the images by URL")
    if is_empty(path):
        return
    if form in BINARY:
        _check_schema(path, schema_of(path), settings)
        return
    names, what = lines.names_of(path, columns(settings))
    if names:
        _check_names(path, settings, names, what)


def _check_schema(path: str, schema: pa.Schema, settings: InputSettings) -> None:
    _check_names(path, settings, schema.names, "column")
    for name in text_columns(settings):
        kind: Any = schema.field(name).type
        may_be_list = name == settings.caption_column
        of_text = kind.value_type if may_be_list and parquet.is_list(kind) else kind
        of_text = of_text.value_type if pa.types.is_dictionary(of_text) else of_text
        if of_text not in (pa.string(), pa.large_string(), pa.string_view(), pa.null()):
            meant = "strings (or lists of them) are meant" if may_be_list else "strings are meant"
            what = f"column {name} is of type {kind}, where {meant}"
            raise UsageError(f"{path}: {what}; name another column or convert this one")
    for name in settings.keep_columns:
        if _holds_bytes(schema.field(name).type):
            raise UsageError(f"{path}: column {name} (keep_columns) holds bytes, which JSON cannot; leave it out")
    if settings.image_column:
        check_images(path, schema, settings.image_column)


def check_images(path: str, schema: pa.Schema, column: str) -> None:
    """Refuse a table if this column, which it has, holds no images."""
    kind: Any = schema.field(column).type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    if not _is_bytes(kind):
        meant = "bytes (or a struct whose field bytes holds them) are meant"
        raise UsageError(
            f"{path}: column {column} is of type {schema.field(column).type}, where {meant}; name another column"
        )


def _check_names(path: str, settings: InputSettings, names: Sequence[str], what: str) -> None:
    needed = ["caption_column"] if settings.image_column else ["url_column", "caption_column"]
    by_setting = [(name, getattr(settings, name)) for name in _COLUMN_SETTINGS]
    shortened = (name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}…" for name in names[:_NAMES_SHOWN])
    existing = f"there are {', '.join(map(shown, shortened))}"
    for setting, name in [*by_setting, *(("keep_columns", name) for name in settings.keep_columns)]:
        if not name:
            if setting in needed:
                raise UsageError(f"{path}: {setting} is empty; name a column, {existing}")
        elif name not in names and len(names) == 1 and (other := next((c for c in _DELIMITERS if c in names[0]), "")):
            what = f"its columns are separated by {other!r}, where .csv has a comma and .tsv a tab"
            raise UsageError(f"{path}: {what}; {'name it .tsv' if other == chr(9) else 'convert it'}")
        elif name not in names:
            raise UsageError(f'{path}: no {what} "{name}" ({setting}); {existing}')
        elif (times := list(names).count(name)) > 1:
            raise UsageError(f'{path}: the {what} "{name}" ({setting}) is there {times} times; rename one')


def _is_bytes(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view())


def _holds_bytes(kind: Any) -> bool:
    """Whether values of this type hold bytes, which JSON has no word for."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    of_fields = (_holds_bytes(kind.field(number).type) for number in range(kind.num_fields))
    return _is_bytes(kind) or pa.types.is_fixed_size_binary(kind) or any(of_fields)


# Rows -----------------------------------------------------------------------------------------------------------------


def is_direct(path: str, settings: InputSettings) -> bool:
    """Whether the text passes read this table's row groups: Parquet without images, with one caption a row."""
    if form_of(path) != "parquet" or settings.image_column or is_empty(path):
        return False
    schema = schema_of(path)
    caption = schema.get_field_index(settings.caption_column)
    return caption < 0 or not parquet.is_list(schema.field(caption).type)


class Direct(NamedTuple):
    """A Parquet table whose row groups the text passes read; the fields are those of `ExtractFacts`."""

    row_groups: list[int]
    rows_at_once: int
    bytes: int


def direct(path: str, settings: InputSettings) -> Direct | None:
    """How the text passes read a table that `is_direct`; None for one with texts so long that they have to be cut."""
    with parquet.reading(path) as table, storage.open_read(path) as file:
        chunks = footers.chunks_of(file, table, columns(settings))
        rows, with_long_values = footers.sizes(file, table, chunks, rows_at_most=parquet.ROWS_PER_BATCH)
        groups, is_short = parquet.rows_of_groups(table), rows == parquet.ROWS_PER_BATCH
        size = 0 if is_short else sum(groups) * footers.BATCH_BYTES // rows
        return None if with_long_values else Direct(groups, rows, size)


def candidates(batch: pa.RecordBatch, settings: InputSettings, names: pa.StringArray | None) -> pa.RecordBatch:
    """The candidates in n rows with `columns`: `schema.CANDIDATE`, n rows.

    Captions are cleaned; URLs are trimmed, and without their fragment where they are valid. Without names (`row_names`)
    only `text_columns` are needed, and names and kept columns are null.
    """
    none = cast(pa.StringArray, pa.nulls(batch.num_rows, pa.string()))
    names_of_texts = _url_caption_page(settings)
    url, caption, page = (of_columns.strings(batch.column(name)) if name else none for name in names_of_texts)
    extra = none if names is None else of_columns.kept_as_json(batch, settings.keep_columns)
    return of_columns.candidates_of(url, caption, page, none if names is None else names, extra, settings=settings)


def row_names(named: str, rows: Any) -> pa.StringArray:
    """The names of n rows (their numbers from 0, or their own names) of a file: `FILE#ROW`."""
    return cast(pa.StringArray, pc.binary_join_element_wise(pa.scalar(named), rows.cast(pa.string()), "#"))


def shown_name(name: str) -> str:
    """A name that may not be UTF-8, as text."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def read(path: str, settings: InputSettings, named: str, *, named_by: str = "") -> Iterator[Stretch]:
    """Yields all rows of a table; their names begin with this one, and a column (`named_by`) may hold their own."""
    check(path, settings)
    if is_empty(path):
        return
    if form_of(path) in BINARY:
        with readable(path, form_of(path).title()):  # indices of a dictionary may lead out of it
            yield from _read_binary(path, settings, named, named_by)
        return
    form, gatherer = form_of(path), Gatherer(path, partial(of_columns.extracted, settings))
    many, keep = settings.caption_column, settings.keep_columns
    with readable(path, form.upper()), lines.opened(path) as file:
        for row in lines.rows(file, form, _url_caption_page(settings), many=many, keep=keep):
            if isinstance(row, lines.Bad):
                gatherer.broken(row.offset, row.error)
            else:
                gatherer.row((*row.values, f"{named}#{row.number}", row.extra, None), size=row.size)
            if gatherer.full:
                yield gatherer.take()
    yield gatherer.take()


def _read_binary(path: str, settings: InputSettings, named: str, named_by: str) -> Iterator[Stretch]:
    image, names = settings.image_column, list(dict.fromkeys(filter(None, [*columns(settings), named_by])))
    for begin, batch in _parts(path, names, image):
        longest = max(of_columns.longest_of_dictionary(column)[0] for column in batch.columns)
        at_once = min(STRETCH_ROWS, max(1, STRETCH_BYTES // max(1, longest)))
        for first in range(begin, begin + batch.num_rows, at_once):
            rows = batch.slice(first - begin, at_once)
            pieces = of_columns.caption_pieces(rows.select(names), settings.caption_column, rows_at_most=at_once)
            images = of_columns.without_dictionary(rows.column(image)) if image else None
            for piece in pieces:
                of_rows = piece.rows.column(named_by) if named_by else pa.array(first + piece.row_of)
                plain = candidates(piece.rows, settings, row_names(named, of_rows))
                yield as_stretch(plain) if images is None else _in_hand(plain, images, piece, first)


def _in_hand(plain: pa.RecordBatch, images: pa.BinaryArray, piece: of_columns.Piece, first_row: int) -> Stretch:
    """Candidates with the images of their rows in a batch; a place goes with a row's first candidate."""
    sizes = np.asarray(pc.binary_length(images).fill_null(-1))[piece.row_of]
    is_known = plain["image_identity"].is_valid().to_numpy(zero_copy_only=False)
    # of an image without a byte decoding says so, but an address may lead to it
    has_bytes = (sizes > 0) | (sizes == 0) & ~is_known
    digest = cache(lambda row: sha256(cast(Any, images[row]).as_buffer()).hexdigest())
    needs_digest = (has_bytes & ~is_known).tolist()
    digests = [digest(row) if needs else None for row, needs in zip(piece.row_of.tolist(), needs_digest, strict=True)]
    rows, at = of_columns.in_hand(plain, digests), np.flatnonzero(has_bytes & piece.is_first)
    place = [
        pc.take(rows["image_identity"], pa.array(at, pa.int64())),
        pa.array(piece.row_of[at] + first_row, pa.int64()),
        pa.nulls(len(at), pa.int64()),
        pa.nulls(len(at), pa.large_binary()),
    ]
    return as_stretch(rows, pa.record_batch(place, schema=IMAGE_PLACE))


def images(path: str, settings: InputSettings, rows: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Yields row and bytes of the images in these rows (rising numbers) of a Parquet or Arrow table."""
    numbers, column = np.fromiter(rows, np.int64), settings.image_column
    for begin, batch in _parts(path, [], column, numbers):
        data = batch.column(column)
        first, last = np.searchsorted(numbers, [begin, begin + len(data)])
        for row in numbers[first:last].tolist():
            yield row, cast(bytes, data[row - begin].as_py())


def _parts(
    path: str, names: Sequence[str], image: str, numbers: "np.ndarray | None" = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields parts of a bounded size of these columns of a Parquet or Arrow table, and the first row of each.

    Of a struct that holds images there is its field `bytes`.
    Of Parquet only row groups that hold rows of these numbers are read, each once.
    """
    if form_of(path) == "arrow":
        row = 0
        with _arrow(path) as (_, batches):
            for batch in batches:
                rows = batch.select([*names, *filter(None, [image])])
                rows.validate(full=True)
                yield row, _plain(rows, image)
                row += rows.num_rows
        return
    with parquet.reading(path) as table, storage.open_read(path) as file:
        is_struct = bool(image) and pa.types.is_struct(table.schema_arrow.field(image).type)
        of_image = f"{image}.bytes" if is_struct else image
        paths = [*names, *filter(None, [of_image])]
        chunks, rows_of_groups = footers.chunks_of(file, table, paths), parquet.rows_of_groups(table)
        starts = np.cumsum([0, *rows_of_groups])
        needed = [list(range(len(rows_of_groups)))]
        if numbers is not None:
            needed = [[group] for group in np.unique(np.searchsorted(starts, numbers, side="right") - 1).tolist()]
        for groups in needed:
            row, of_groups = int(starts[groups[0]]) if groups else 0, [each for each in chunks if each.group in groups]
            rows, kept = footers.sizes(file, table, of_groups, image=of_image, rows_at_most=STRETCH_ROWS)
            reader = pq.ParquetFile(file, metadata=table.metadata, read_dictionary=kept, buffer_size=1 << 20)
            batches = reader.iter_batches(rows, row_groups=groups, columns=paths, use_threads=False)
            for batch in parquet.exactly(batches, sum(rows_of_groups[group] for group in groups)):
                yield row, _plain(batch, image)
                row += batch.num_rows


def _plain(batch: pa.RecordBatch, image: str) -> pa.RecordBatch:
    batch = parquet.plain(batch)
    if not image or not pa.types.is_struct(batch.schema.field(image).type):
        return batch
    data: Any = pc.struct_field(batch.column(image), "bytes")
    return batch.set_column(batch.schema.get_field_index(image), image, data)


# Arrow IPC, as Hugging Face's `save_to_disk` leaves it: streams in a folder, which `state.json` lists -----------------


@contextmanager
def _arrow(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The schema and the record batches of an Arrow file."""
    with readable(path, "Arrow"), pa.memory_map(storage.mappable(path)) as file:
        try:
            if file.read(len(_ARROW)) == _ARROW:
                of_file = pa.ipc.open_file(file)
                yield of_file.schema, map(of_file.get_batch, range(of_file.num_record_batches))
                return
            file.seek(max(0, file.size() - len(_ARROW_END)))
            if file.read() != _ARROW_END:
                raise pa.ArrowInvalid("it ends without the mark of its end, as one that is cut does")
            file.seek(0)
            stream = pa.ipc.open_stream(file)
            yield stream.schema, iter(stream)
        except _ARROW_ERRORS as error:
            raise pa.ArrowInvalid(str(error)) from error
        except pa.ArrowMemoryError as error:
            claimed = re.search(r"size (\d+)", str(error))
            if claimed is None or int(claimed[1]) < _TIMES_AT_MOST * file.size():
                raise  # the machine's memory
            raise pa.ArrowInvalid(f"a buffer that says it has {int(claimed[1]):,} bytes") from error


def saved_files(folder: str) -> Sequence[str]:
    """The files of a data set that was saved to a folder, in order; of any other folder, the folder itself."""
    splits = storage.read_json(storage.join(folder, "dataset_dict.json")).get("splits")
    if isinstance(splits, list) and splits:
        names = ", ".join(shown(str(name)) for name in splits)
        one = f"{folder.rstrip('/')}/{splits[0]}"
        raise UsageError(f"{folder}: a data set of splits ({names}); name one, such as {one}")
    state = storage.join(folder, "state.json")
    entries = storage.read_json(state).get("_data_files")
    if not isinstance(entries, list):
        return [folder]
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    if wrong := [name for name in names if not isinstance(name, str) or "/" in name]:
        raise UsageError(f"{state}: {wrong[0]!r} is no name of a file; save the data set anew")
    return [storage.join(folder, str(name)) for name in names]
