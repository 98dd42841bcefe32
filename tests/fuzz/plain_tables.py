"""What a table of text holds, by its definition, in plain loops: every line is in a row, in a broken row, in the
header, or blank.
"""

from collections.abc import Iterator, Sequence

from altalign.pipelines.read.tables.lines import parse_json

LINES_AT_MOST = 1_000  # of a CSV row
Fields = tuple[int, list[str] | None]  # where a record begins, its fields or None where it is broken


def columns_at(text: bytes, form: str, line_bytes: int) -> list[str] | None:
    """Names in the header; None where it is broken; of a file without records no name."""
    for _, fields in _records(text, form, line_bytes):
        return fields
    return []


def rows(
    text: bytes, form: str, columns: Sequence[str], line_bytes: int
) -> tuple[list[tuple[str | None, ...]], list[int]]:
    """Values of the wanted columns, and where broken rows begin."""
    return _json_rows(text, columns, line_bytes) if form == "jsonl" else _field_rows(text, form, columns, line_bytes)


def objects(text: bytes, line_bytes: int) -> Iterator[tuple[int, object]]:
    """Where a line begins that is not blank, and its JSON value; None where it has none."""
    for offset, line in _lines(text, line_bytes):
        if line is None or (line and not line.isspace()):
            try:
                yield offset, None if line is None else parse_json(line)
            except ValueError:
                yield offset, None


def _field_rows(
    text: bytes, form: str, columns: Sequence[str], line_bytes: int
) -> tuple[list[tuple[str | None, ...]], list[int]]:
    kept, broken, names = [], [], None
    for offset, fields in _records(text, form, line_bytes):
        if names is None and fields is not None:
            names = fields
        elif fields is None or names is None or len(fields) != len(names):
            broken.append(offset)
        else:
            kept.append(tuple(fields[names.index(column)] if column else None for column in columns))
    return kept, broken


def _json_rows(text: bytes, columns: Sequence[str], line_bytes: int) -> tuple[list[tuple[str | None, ...]], list[int]]:
    kept, broken = [], []
    for offset, value in objects(text, line_bytes):
        values = tuple(value.get(column) if column else None for column in columns) if isinstance(value, dict) else (1,)
        several = [values]
        if len(values) > 1 and isinstance(values[1], list):  # the captions
            several = [(values[0], caption, *values[2:]) for caption in values[1] or [None]]
        if all(each is None or isinstance(each, str) for values in several for each in values):
            kept += several
        else:
            broken.append(offset)
    return kept, broken


def _records(text: bytes, form: str, line_bytes: int) -> Iterator[Fields]:
    lines = _lines(text, line_bytes)
    if form == "tsv":
        for offset, line in lines:
            if line is None:
                yield offset, None
            elif line.strip(" \r\n"):
                yield offset, line.removesuffix("\n").removesuffix("\r").split("\t")
        return
    at = 0
    while at < len(lines):
        fields, used = _csv_record([line for _, line in lines[at : at + LINES_AT_MOST + 1]], line_bytes)
        if used > 1 or fields is None or (lines[at][1] or "").strip():
            yield lines[at][0], fields
        at += used


def _lines(text: bytes, line_bytes: int) -> list[tuple[int, str | None]]:
    """Where each line begins, and the line; None where it is too long or no UTF-8."""
    lines, offset = [], 0
    for raw in text.split(b"\n"):
        raw += b"\n" if offset + len(raw) < len(text) else b""
        try:
            line = raw.decode() if len(raw) <= line_bytes else None
        except UnicodeDecodeError:
            line = None
        if raw:
            lines.append((offset, line.removeprefix("\ufeff") if line and not offset else line))
        offset += len(raw)
    return lines


def _csv_record(lines: Sequence[str | None], line_bytes: int) -> tuple[list[str] | None, int]:
    """Fields of the record that begins with the first line, and how many lines it has; one broken line where it is
    none.
    """
    fields, field, state, size = [], "", "start", 0
    for number, line in enumerate(lines):
        size += len(line or "")
        if line is None or size > line_bytes or number == LINES_AT_MOST:
            return None, 1
        for char in [*line, ""]:  # "" is the end of the line
            is_end = char in ("", "\r", "\n")
            if state == "quoted":
                state = "quote" if char == '"' else state
                field += char if char != '"' else ""
            elif state == "quote" and char == '"':
                field, state = field + char, "quoted"
            elif state == "ended":
                if not is_end:
                    return None, 1
            elif is_end:
                if fields or field or state != "start" or char == "":
                    fields.append(field)
                field, state = "", "ended"
            elif char == ",":
                fields.append(field)
                field, state = "", "field"
            elif state == "quote":
                return None, 1
            elif char == '"' and state in ("start", "field"):
                state = "quoted"
            else:
                field, state = field + char, "in"
        if state == "ended":
            return fields, number + 1
    return None, 1
