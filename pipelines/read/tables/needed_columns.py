"""The columns of a table that settings name: which are read, and whether the table has them as they are meant."""

import difflib
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UsageError
from altalign.pipelines.read.stretches import readable, unreadable
from altalign.pipelines.read.tables import arrow, footers, lines
from altalign.pipelines.read.tables.lines import BINARY, form_of, is_empty, opened
from altalign.settings.curate import InputSettings
from altalign.storage import parquet
from altalign.terminal import shown

_COLUMN_SETTINGS = ("url_column", "caption_column", "page_url_column", "image_column")
_DELIMITERS = ";\t|,"
_OBJECTS_CHECKED = 1_000
# how many columns a message compares with a wrong name and shows, and how many characters of each
_NAMES_COMPARED, _NAMES_SHOWN, _NAME_SHOWN = 1_000, 10, 60


def columns(settings: InputSettings) -> list[str]:
    """The columns that `candidates` needs, each once."""
    return list(dict.fromkeys([*text_columns(settings), *settings.keep_columns]))


def text_columns(settings: InputSettings) -> list[str]:
    """The columns that `candidates` needs without names, each once."""
    return list(dict.fromkeys(name for name in url_caption_page(settings) if name))


def url_caption_page(settings: InputSettings) -> tuple[str, str, str]:
    """The columns of URL, caption and page URL; "" where settings name none."""
    return settings.url_column, settings.caption_column, settings.page_url_column


def check(path: str, settings: InputSettings) -> None:
    """Refuse a table without the columns that settings name. Only the footer of Parquet is read."""
    form = form_of(path)
    if form not in BINARY and settings.image_column:
        what = f'image_column = "{settings.image_column}", but only Parquet and Arrow tables hold images'
        raise UsageError(f"{path}: {what}; leave it empty and fetch the images by URL")
    if is_empty(path):
        return
    if form == "parquet":
        with parquet.reading(path) as table:
            check_schema(path, table.schema_arrow, settings)
        return
    if form == "arrow":
        with arrow.reading(path) as table:
            check_schema(path, table.schema, settings)
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


def check_images(path: str, table: pq.ParquetFile, column: str) -> None:
    """Refuse an open Parquet table if `images` cannot read this column, which it has."""
    _check_bytes(path, table.schema_arrow, column)
    check_pages(path, table, [column])


def check_schema(path: str, schema: pa.Schema, settings: InputSettings) -> None:
    """Refuse a table without the columns that settings name, or with others than they mean."""
    _check_names(path, settings, schema.names, "column")
    for name in text_columns(settings):
        kind: Any = schema.field(name).type
        may_be_list = name == settings.caption_column
        if not _is_text(kind.value_type if may_be_list and parquet.is_list(kind) else kind):
            meant = "strings (or lists of them) are meant" if may_be_list else "strings are meant"
            what = f"column {name} is of type {kind}, where {meant}"
            raise UsageError(f"{path}: {what}; name another column or convert this one")
    for name in settings.keep_columns:
        if _holds_bytes(schema.field(name).type):
            raise UsageError(f"{path}: column {name} (keep_columns) holds bytes, which JSON cannot; leave it out")
    if settings.image_column:
        _check_bytes(path, schema, settings.image_column)


def _check_bytes(path: str, schema: pa.Schema, column: str) -> None:
    kind = schema.field(column).type
    if not _is_bytes(kind):
        meant = "bytes (or a struct whose field bytes holds them) are meant"
        raise UsageError(f"{path}: column {column} is of type {kind}, where {meant}; name another column")


def check_pages(path: str, table: pq.ParquetFile, names: Collection[str]) -> list[footers.Pages]:
    """The pages of these columns of an open table.

    Raises:
        pa.ArrowInvalid: a flat column has not one value a row, of which Arrow would silently give fewer rows; or a page
            claims more bytes than it has, or unpacks to far more, which Arrow would allocate first.
    """
    leaves = [table.schema.column(number) for number in range(len(table.schema))]
    flat = {number: leaf.name for number, leaf in enumerate(leaves) if leaf.max_repetition_level == 0}
    needed = {  # a name may hold a point itself
        number
        for number, leaf in enumerate(leaves)
        if any(leaf.path == name or leaf.path.startswith(f"{name}.") for name in names)
    }
    with storage.open_read(path) as file:
        chunks = footers.chunks(file)
        for chunk in chunks:
            if chunk.column in flat and chunk.values != chunk.rows:
                values = f"{chunk.values} values of {flat[chunk.column]}"
                raise pa.ArrowInvalid(f"{values} in row group {chunk.group}, which has {chunk.rows} rows")
        return footers.check_pages(file, chunks, needed)


def _check_names(path: str, settings: InputSettings, names: Sequence[str], what: str) -> None:
    needed = ["caption_column"] if settings.image_column else ["url_column", "caption_column"]
    by_setting = [(name, getattr(settings, name)) for name in _COLUMN_SETTINGS]
    for setting, name in [*by_setting, *(("keep_columns", name) for name in settings.keep_columns)]:
        if not name:
            if setting in needed:
                existing = ", ".join(map(_shown, names[:_NAMES_SHOWN]))
                raise UsageError(f"{path}: {setting} is empty; name a column, there are {existing}")
        elif name not in names and len(names) == 1 and (other := next((c for c in _DELIMITERS if c in names[0]), "")):
            what = f"its columns are separated by {other!r}, where .csv has a comma and .tsv a tab"
            raise UsageError(f"{path}: {what}; {'name it .tsv' if other == chr(9) else 'convert it'}")
        elif name not in names:
            near = difflib.get_close_matches(name, names[:_NAMES_COMPARED], 3) or names[:_NAMES_SHOWN]
            hint = f"; did you mean {' or '.join(map(_shown, near))}?" if near else ""
            raise UsageError(f'{path}: no {what} "{name}" ({setting}){hint}')
        elif (times := list(names).count(name)) > 1:
            raise UsageError(f'{path}: the {what} "{name}" ({setting}) is there {times} times; rename one')


def _shown(name: str) -> str:
    """A name from a file, shortened and safe for a message of one line."""
    return shown(name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}…")


def _is_text(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    of_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(is_kind(kind) for is_kind in of_text)


def _is_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and _is_bytes(kind.field(index).type)
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _holds_bytes(kind: Any) -> bool:
    """Whether values of this type hold bytes, which JSON has no word for."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    of_fields = (_holds_bytes(kind.field(number).type) for number in range(kind.num_fields))
    return _is_bytes(kind) or pa.types.is_fixed_size_binary(kind) or any(of_fields)
