"""Arrow files that are cut, lie about their lengths, or hold lists of captions."""

import io
from collections.abc import Callable

import pyarrow as pa

from tests.hostile.cases import Case
from tests.hostile.files import IT, parquet

CAPTION = "a picture in a table"
END = b"\xff\xff\xff\xff\0\0\0\0"


def _stream(table: pa.Table, compression: str | None = None) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        stream.write_table(table)
    return file.getvalue()


def _file(name: str, about: str, build: Callable[[], bytes], error: str) -> Case:
    return Case(name, about, "table", ".arrow", build, exit_code=1, error=f"cannot be read as Arrow ({error})")


def _lists(name: str) -> pa.Table:
    """A table whose bad row has captions, one of them null; each neighbour has a list of one."""
    table = parquet(name, [{"url": IT, "caption": CAPTION}])
    captions = [[text] for text in table["caption"].to_pylist()]
    return table.set_column(1, "caption", pa.array([captions[0], [CAPTION, None], captions[2]]))


def _long_buffer(name: str) -> bytes:
    """A compressed buffer that says how long it will be: before the magic of its compression."""
    data = _stream(parquet(name, [{"url": IT, "caption": CAPTION * 100}]), "zstd")
    at = data.index(b"\x28\xb5\x2f\xfd") - 8
    return data[:at] + (1 << 50).to_bytes(8, "little") + data[at + 8 :]


CASES = [
    Case(
        "arrow-lists-of-captions",
        "Lists of captions, one with null",
        "table",
        ".arrow",
        lambda: _stream(_lists("arrow-lists-of-captions")),
        {"text_empty": 1},
        (CAPTION,),
    ),
    _file(
        "arrow-cut",
        "A stream without its last bytes",
        lambda: _stream(parquet("a")).removesuffix(END),
        "it ends without the mark of its end, as one that is cut does",
    ),
    _file("arrow-of-nul", "1 MB of NUL", lambda: bytes(1_000_000), "…"),
    _file("arrow-of-csv", "A CSV called `.arrow`", lambda: b"url,caption\nhttp://a/,b\n", "…"),
    _file(
        "arrow-buffer-of-1-pb",
        "A compressed buffer that says it has 1 PB",
        lambda: _long_buffer("a"),
        "buffers of … bytes that unpack to …",
    ),
    _file(
        "arrow-offsets-that-fall",
        "Strings that end before they begin",
        lambda: _stream(pa.table({"url": ["x"] * 2, "caption": _falling()})),
        "…",
    ),
    _file(
        "arrow-not-utf-8",
        "A caption that is not UTF-8: a data set cannot have it",
        lambda: _stream(pa.table({"url": ["x"], "caption": pa.array([b"\xff"]).cast(pa.string(), safe=False)})),
        "…",
    ),
]


def _falling() -> pa.StringArray:
    offsets = pa.array([0, 9, 3], pa.int32()).buffers()[1]
    return pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"a caption"))
