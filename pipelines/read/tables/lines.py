"""Tables of text: CSV (RFC 4180), TSV and JSON Lines; a row that cannot be read costs only that row.

CSV has a header row, doubles quotes inside quotes, and is UTF-8 with or without a byte order mark; lines end with LF or
CR LF. TSV has a header row and no quoting. A line that is not UTF-8 is a broken row. Lines of white space are no rows.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any, BinaryIO, Literal, NamedTuple

import orjson

from altalign import storage
from altalign.data import extras
from altalign.errors import UsageError
from altalign.pipelines.read.stretches import LINE_BYTES, decompressed, readable, unreadable

Form = Literal["parquet", "arrow", "csv", "tsv", "jsonl"]

BINARY = ("parquet", "arrow")
_FORMS: dict[str, Form] = {
    **{".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow"},
    **{".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"},
}
_TOO_LONG = f"longer than {LINE_BYTES >> 20} MiB"
_LINES_AT_MOST = 1_000  # in a CSV row
_PATIENCE = 16  # so many times over a file may be read in search of closing quotes
_LINE_COST = 64  # reading a line again costs about as much as reading so many bytes
_REPEATED_BYTES = 16 * LINE_BYTES  # a list of captions may repeat the URLs of its row up to so many bytes
_OBJECTS_CHECKED = 1_000
_NAMES_AT_MOST = 1_000  # JSON keys that are noted beside the needed ones


class Row(NamedTuple):
    """The values of the needed columns, None where a JSON object lacks one, and of kept ones (`extras.encode`)."""

    values: tuple[str | None, ...]
    extra: str | None  # None: no columns are kept
    number: int  # of the row in the table, from 0; one that cannot be read counts
    size: int  # bytes in the file, at least


class Bad(NamedTuple):
    """A row that cannot be read: where it begins, in bytes of the decompressed text, and why."""

    offset: int
    error: str


_Line = tuple[int, str | Bad]  # where it begins, and its text
_Record = tuple[int, list[str] | str, int]  # where it begins, its fields or what is wrong with it, and its size


# Files ----------------------------------------------------------------------------------------------------------------


def form_of(path: str) -> Form:
    """The format of a table, from the name of its file."""
    name = PurePath(storage.name(path))
    compressed = name.suffix.lower() in (".gz", ".zst")
    form = _FORMS.get((PurePath(name.stem) if compressed else name).suffix.lower())
    if form is None or (compressed and form in BINARY):
        endings = ".parquet, .arrow, .csv, .tsv or .jsonl, the last three also in .gz or .zst after that"
        raise UsageError(f"{path}: not the name of a table; it should end in {endings}")
    return form


def is_named_as_table(path: str) -> bool:
    """Whether the name of a file is that of a table."""
    with suppress(UsageError):
        return bool(form_of(path))
    return False


def is_empty(path: str) -> bool:
    """Whether a table has no bytes; such a file has no rows."""
    with readable(path, "a table"):
        return storage.stamp(path).size == 0


def opened(path: str) -> BinaryIO:
    """A table of text, decompressed where its first bytes say so, whatever its name is."""
    return decompressed(storage.open_read(path))[0]


# Rows -----------------------------------------------------------------------------------------------------------------


def names_of(path: str, needed: Sequence[str]) -> tuple[list[str], str]:
    """The columns of a table of text, and what messages call them; of JSON Lines the keys of the first objects.

    Of the keys all needed ones are among them, others up to a limit; of a table without rows there are none.
    """
    form, names, seen = form_of(path), set[str](), 0
    with readable(path, form.upper()), opened(path) as file:
        if form != "jsonl":
            header = next((fields for _, fields, _ in _records(file, form)), [])
            if isinstance(header, str):
                unreadable(path, f"its header row cannot be read ({header})")
            return header, "column"
        for _, line in _lines(file):
            with suppress(ValueError):
                value = None if isinstance(line, Bad) else parse_json(line)
                if isinstance(value, dict):
                    seen += 1
                    names.update(name for name in value if name in needed or len(names) < _NAMES_AT_MOST)
            if seen == _OBJECTS_CHECKED:
                break
    return sorted(names), f"key in the first {seen} objects"


def rows(file: BinaryIO, form: Form, columns: Sequence[str], *, many: str, keep: Sequence[str]) -> Iterator[Row | Bad]:
    """Yields the rows of a file in order; it has all `columns` ("" gives None), and those to `keep`.

    A JSON object that has a list as its value of `many` is a row for each item.
    """
    number = 0
    if form == "jsonl":
        for offset, line in _lines(file):
            if isinstance(line, Bad):
                yield line
            elif not line or line.isspace():
                continue
            else:
                yield from _rows_of_json(offset, line, number, columns, many, keep)
            number += 1
        return
    records = _records(file, form)
    names = next((fields for _, fields, _ in records if isinstance(fields, list)), None)
    if names is None:
        return
    places = [names.index(name) if name else None for name in columns]
    kept = {name: names.index(name) for name in keep}
    for number, (offset, fields, size) in enumerate(records):
        if isinstance(fields, str):
            yield Bad(offset, fields)
        elif len(fields) != len(names):
            yield Bad(offset, f"{len(fields)} fields, where the header has {len(names)}")
        else:
            extra = extras.encode({name: fields[place] for name, place in kept.items()}) if kept else None
            yield Row(tuple(None if place is None else fields[place] for place in places), extra, number, size)


def _rows_of_json(
    offset: int, line: str, number: int, columns: Sequence[str], many: str, keep: Sequence[str]
) -> Iterator[Row | Bad]:
    """A row for each item of a list of captions, or for the one caption; a row that has none gives one too."""
    try:
        value = parse_json(line)
    except ValueError as error:
        yield Bad(offset, f"no JSON: {error}")
        return
    if not isinstance(value, dict):
        yield Bad(offset, f"{type(value).__name__}, where an object is meant")
        return
    captions = value.get(many)
    items = (captions or [None]) if isinstance(captions, list) else [captions]
    others = {name: value.get(name) for name in columns if name and name != many}
    for name in filter(None, columns):
        if wrong := wrong_type(name, items if name == many else [others[name]]):
            yield Bad(offset, wrong)
            return
    extra = extras.encode({name: value.get(name) for name in keep}) if keep else None
    of_each = sum(len(each) for each in others.values() if each) + len(extra or "")
    if len(items) * of_each > _REPEATED_BYTES:
        what = "URLs and kept columns" if extra else "URLs"
        yield Bad(offset, f"{len(items):,} captions, which would repeat {of_each:,} bytes of {what} each")
        return
    for item in items:
        row = tuple(item if name == many else others.get(name) for name in columns)
        yield Row(row, extra, number, of_each + len(item or ""))


def wrong_type(name: str, values: Sequence[object]) -> str:
    """What is wrong with values of a JSON object that have to be texts, or null; "" where nothing is."""
    wrong = next((each for each in values if not (each is None or isinstance(each, str))), None)
    return "" if wrong is None else f"{name} is no string but {type(wrong).__name__}"


def parse_json(text: str | bytes) -> Any:
    """A value of JSON, also NaN and half surrogate pairs (U+FFFD); ValueError if it is none, or nested too deeply."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        value = json.loads(text if isinstance(text, str) else text.decode(errors="replace"))
        whole_pairs = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
        return json.loads(whole_pairs.decode("utf-16", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError:  # of int
        raise ValueError("a number of too many digits") from None


# Lines ----------------------------------------------------------------------------------------------------------------


def _lines(file: BinaryIO) -> Iterator[_Line]:
    """Yields the lines of a file; one beyond LINE_BYTES or not in UTF-8 is a `Bad`."""
    start = 0
    while line := file.readline(LINE_BYTES + 1):
        size, text = len(line), Bad(start, _TOO_LONG)
        if size <= LINE_BYTES:
            try:
                text = line.decode().removeprefix("" if start else "\ufeff")
            except UnicodeDecodeError as error:
                text = Bad(start, f"not UTF-8 (byte {start + error.start}); convert the file")
        while size > LINE_BYTES and line and not line.endswith(b"\n"):
            line = file.readline(1 << 20)
            size += len(line)
        yield start, text
        start += size


def _records(file: BinaryIO, form: Form) -> Iterator[_Record]:
    """Yields the records of a CSV or TSV, its header first."""
    if form == "csv":
        yield from _csv(_lines(file))
        return
    for offset, line in _lines(file):
        if isinstance(line, Bad):
            yield offset, line.error, 0
        elif line.strip(" \r\n"):
            yield offset, line.removesuffix("\n").removesuffix("\r").split("\t"), len(line)


def _csv(lines: Iterator[_Line]) -> Iterator[_Record]:
    """Yields the records of a CSV.

    An unclosed quote must not swallow the rows below it: all lines of its record but the first are read again. A
    hostile file could be read as often as it has lines, so patience ends: from then on a quote has to be closed on its
    line.
    """
    record, again = list[_Line](), list[_Line]()  # lines of the record, and those to read again, the next last
    size = seen = cost_of_reading_again = 0

    def next_line() -> str | None:
        nonlocal size, seen
        if record and cost_of_reading_again > _PATIENCE * (LINE_BYTES + seen):
            raise csv.Error("a quote is not closed on its line, and too many above never were")
        if len(record) == _LINES_AT_MOST:
            raise csv.Error(f"of more than {_LINES_AT_MOST:,} lines; is a quote not closed?")
        entry = again.pop() if again else next(lines, None)
        if entry is None:
            return None
        record.append(entry)
        seen, (_, line) = max(seen, entry[0]), entry
        if isinstance(line, Bad):
            raise csv.Error(line.error)
        size += len(line)
        if size > LINE_BYTES:
            raise csv.Error(f"{_TOO_LONG}; is a quote not closed?")
        return line

    csv.field_size_limit(max(csv.field_size_limit(), LINE_BYTES))  # the limit holds for the process, and is low
    reader = csv.reader(iter(next_line, None), strict=True)
    while True:
        record.clear()
        size = 0
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield record[0][0], str(error), 0
            if len(record) > 1:
                cost_of_reading_again += size + _LINE_COST * len(record)
                again += record[:0:-1]
            reader = csv.reader(iter(next_line, None), strict=True)
            continue
        offset, first = record[0]
        if len(record) > 1 or str(first).strip():
            yield offset, fields, size
