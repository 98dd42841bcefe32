"""Parquet whose footer, pages, counts or types are broken."""

import io
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.cases import NONE, Case, after, before
from tests.hostile.files import IT, NEIGHBOURS, host, parquet, signed, written

CAPTION = "a picture in a table"
ROW = {"url": IT, "caption": CAPTION}
IMAGES = 'image_column = "image"\n'
ROWS = 1_000  # a varint of two bytes in a footer: of 2,000, zigzag


def _case(
    name: str,
    about: str,
    build: Callable[[], bytes],
    *kept: str,
    dropped: Mapping[str, int] = NONE,
    error: str = "",
    settings: str = "",
) -> Case:
    return Case(name, about, "table", ".parquet", build, dropped, kept, error=error, settings=settings)


def _file(
    name: str, about: str, build: Callable[[], bytes], error: str, settings: str = "", exit_code: int = 1
) -> Case:
    return Case(name, about, "table", ".parquet", build, exit_code=exit_code, error=error, settings=settings)


def _many(name: str) -> pa.Table:
    """A thousand rows."""
    return parquet(
        name,
        [{"url": f"{host(name)}/{number}.png", "caption": f"picture number {number}"} for number in range(ROWS - 2)],
    )


def _footer(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A file with its footer changed, and the footer's length right again."""
    length = int.from_bytes(data[-8:-4], "little")
    footer = change(data[-8 - length : -8])
    return data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def _rows_changed(which: set[int], value: int) -> Callable[[bytes], bytes]:
    """A footer in which some of its counts say something else: 0 the file's rows, 1 and 3 the columns' values, 5 the
    row group's rows.
    """
    old, new = _varint(2 * ROWS), _varint(2 * value if value >= 0 else -2 * value - 1)

    def change(footer: bytes) -> bytes:
        parts = footer.split(old)
        return parts[0] + b"".join((new if number in which else old) + part for number, part in enumerate(parts[1:]))

    return change


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def _plain(name: str) -> bytes:
    """A thousand rows, neither compressed nor a dictionary."""
    return written(_many(name), use_dictionary=False, write_statistics=False)


def _in_hand(name: str, *images: bytes | None) -> pa.Table:
    return parquet(name, [{**ROW, "image": image} for image in images], image=pa.binary())


def _groups(name: str) -> bytes:
    """Good rows with row groups of none between them."""
    table, file = parquet(name), io.BytesIO()
    with pq.ParquetWriter(file, table.schema) as writer:
        for rows in (table.slice(0, 1), table.slice(0, 0), table.slice(1, 1), table.slice(0, 0)):
            writer.write_table(rows, row_group_size=1)
    return file.getvalue()


def _of_bytes(name: str, *captions: bytes) -> bytes:
    """Captions as bytes that are called text."""
    values = [before(name).encode(), *captions, after(name).encode()]
    flat = pa.array(values, pa.binary())
    caption = pa.Array.from_buffers(pa.string(), len(values), flat.buffers())
    urls = [f"{NEIGHBOURS}/{which}.png" for which in ("before", "after")]
    urls[1:1] = [signed(name, IT.encode()).decode()] * len(captions)
    return written(pa.table({"url": urls, "caption": caption}), use_dictionary=False, write_statistics=False)


_ROWS = [
    _case(
        "rows-of-null", "Rows of null", lambda: written(parquet("rows-of-null", [{}, {}])), dropped={"url_invalid": 2}
    ),
    _case(
        "dictionary-with-null",
        "A dictionary with null indices and a value twice",
        lambda: written(_encoded("dictionary-with-null")),
        dropped={"url_invalid": 1},
    ),
    _case(
        "text-of-any-bytes",
        "Text that is no UTF-8, which Parquet does not refuse",
        lambda: _of_bytes("text-of-any-bytes", b"caf\xe9 at the corner"),
        "caf\ufffd at the corner",
    ),
    _case("groups-of-no-rows", "Row groups without rows", lambda: _groups("groups-of-no-rows")),
    _case(
        "image-null-and-empty",
        "Images that are null and empty",
        lambda: written(_in_hand("image-null-and-empty", None, b"")),
        CAPTION,
        dropped={"pair_repeated": 1},
        settings=IMAGES,
    ),
    _case(
        "image-of-nothing-in-a-table",
        "Images of 0 bytes without a URL, and one that is null",
        lambda: written(
            parquet(
                "image-of-nothing-in-a-table",
                [{"caption": f"{CAPTION} {n}", "image": image} for n, image in enumerate([b"", b"", None])],
                image=pa.binary(),
            )
        ),
        dropped={"image_undecodable": 2, "url_invalid": 1},
        settings=IMAGES,
    ),
    _case(
        "image-of-text-in-a-table",
        "An image that is a text",
        lambda: written(
            parquet(
                "image-of-text-in-a-table",
                [{"url": "http://x.example/it.png", "caption": CAPTION, "image": b"no image"}],
                image=pa.binary(),
            )
        ),
        dropped={"image_undecodable": 1},
        settings=IMAGES,
    ),
    _case(
        "statistics-that-lie",
        "Statistics of another table: nobody asks them",
        lambda: _lying("statistics-that-lie"),
        CAPTION,
    ),
    Case(
        "table-of-no-rows",
        "A table without rows beside one with some",
        "table",
        ".parquet",
        lambda: written(parquet("x").slice(0, 0)),
        beside=lambda: written(parquet("table-of-no-rows")),
    ),
    Case(
        "table-of-no-bytes",
        "A file without a byte beside one with some",
        "table",
        ".parquet",
        lambda: b"",
        beside=lambda: written(parquet("table-of-no-bytes")),
    ),
]

_FILES = [
    _file("footer-missing", "`PAR1` and nothing more", lambda: b"PAR1", "cannot be read as Parquet (…)"),
    _file(
        "footer-of-junk",
        "A footer of any bytes",
        lambda: _footer(_plain("a"), lambda footer: bytes(reversed(footer))),
        "cannot be read as Parquet (…)",
    ),
    _file(
        "footer-of-nul",
        "A footer of NUL",
        lambda: _footer(_plain("a"), lambda footer: bytes(len(footer))),
        "cannot be read as Parquet (…)",
    ),
    _file(
        "footer-too-long",
        "A footer that says it has 4 GB",
        lambda: _plain("a")[:-8] + b"\xff\xff\xff\xffPAR1",
        "cannot be read as Parquet (…)",
    ),
    _file("footer-cut", "A file cut at its end", lambda: _plain("a")[:-20], "cannot be read as Parquet (…)"),
    _file(
        "footer-encrypted",
        "A file with an encrypted footer",
        lambda: _plain("a")[:-4] + b"PARE",
        "cannot be read as Parquet (…)",
    ),
    _file(
        "rows-huge-in-the-footer",
        "A footer that says the file has 10^15 rows",
        lambda: _footer(_plain("a"), _rows_changed({0}, 10**15)),
        "cannot be read as Parquet (1000 rows in its row groups, where its footer says 1000000000000000)",
    ),
    _file(
        "rows-huge-in-a-group",
        "A row group that says it has 10^15 rows",
        lambda: _footer(_plain("a"), _rows_changed({5}, 10**15)),
        "cannot be read as Parquet (1000000000000000 rows in its row groups, where its footer says 1000)",
    ),
    _file(
        "rows-huge-everywhere",
        "A footer and a row group that say they have 10^15 rows",
        lambda: _footer(_plain("a"), _rows_changed({0, 5}, 10**15)),
        "cannot be read as Parquet (1000 values of url in row group 0, which has 1000000000000000 rows)",
    ),
    _file(
        "rows-negative",
        "A footer and a row group of minus five rows",
        lambda: _footer(_plain("a"), _rows_changed({0, 5}, -5)),
        "cannot be read as Parquet (-5 rows in its row groups, where its footer says -5)",
    ),
    _file(
        "rows-missing",
        "A footer and a row group of ten rows, where there are a thousand",
        lambda: _footer(_plain("a"), _rows_changed({0, 5}, 10)),
        "cannot be read as Parquet (1000 values of url in row group 0, which has 10 rows)",
    ),
    _file(
        "values-too-few",
        "A column that says it has ten values, where there are a thousand",
        lambda: _footer(_plain("a"), _rows_changed({3}, 10)),
        "cannot be read as Parquet (10 values of caption in row group 0, which has 1000 rows)",
    ),
    _file(
        "values-too-many",
        "A column that says it has more values than its row group has rows",
        lambda: _footer(_plain("a"), _rows_changed({3}, 5_000)),
        "cannot be read as Parquet (5000 values of caption in row group 0, which has 1000 rows)",
    ),
    _file(
        "page-header-of-junk",
        "A page whose header is junk",
        lambda: _patched(_plain("a"), 4, b"\xff" * 60),
        "cannot be read as Parquet (…)",
    ),
    _file(
        "page-of-other-counts",
        "A page that says it has other values than its column",
        lambda: _patched(_plain("a"), _plain("a").index(_varint(2 * ROWS)), _varint(2 * 1_001)),
        "cannot be read as Parquet (…)",
    ),
    _file(
        "page-of-long-strings",
        "Strings that say they are longer than their page",
        lambda: _patched(_plain("a"), _plain("a").index(b"http://") - 4, b"\xff\xff\xff\x7f"),
        "cannot be read as Parquet (…)",
    ),
    _file(
        "page-compressed-wrongly",
        "A compressed page that is damaged",
        lambda: _patched(written(_many("a"), compression="zstd"), 60, b"\xff" * 400),
        "cannot be read as Parquet (…)",
    ),
    _file(
        "parquet-of-csv",
        "A CSV called `.parquet`",
        lambda: b"url,caption\nhttp://a/,b\n",
        "cannot be read as Parquet (…)",
    ),
    _file("parquet-of-nul", "1 MB of NUL", lambda: b"\0" * 1_000_000, "cannot be read as Parquet (…)"),
    _file(
        "column-of-lists",
        "A column of lists of lists",
        lambda: written(pa.table({"url": ["x"], "caption": [[["a"], ["b"]]]})),
        (
            "column caption is of type list<element: list<element: string>>, where strings (or lists of them) are "
            "meant; name another column or convert this one"
        ),
        exit_code=2,
    ),
    _file(
        "column-of-numbers",
        "A column of numbers",
        lambda: written(pa.table({"url": [1], "caption": ["x"]})),
        "column url is of type int64, where strings are meant; name another column or convert this one",
        exit_code=2,
    ),
    _file(
        "column-of-times",
        "A column of times",
        lambda: written(pa.table({"url": ["x"], "caption": pa.array([np.datetime64("2020-01-01", "us")])})),
        (
            "column caption is of type timestamp[us], where strings (or lists of them) are meant; name another column "
            "or convert this one"
        ),
        exit_code=2,
    ),
    _file(
        "column-of-images-as-text",
        "Images in a column of strings",
        lambda: written(pa.table({"url": ["x"], "caption": ["y"], "image": ["z"]})),
        (
            "column image is of type string, where bytes (or a struct whose field bytes holds them) are meant; name "
            "another column"
        ),
        settings=IMAGES,
        exit_code=2,
    ),
    _file(
        "columns-none",
        "A table without columns",
        lambda: written(pa.table({})),
        'no column "url" (url_column)',
        exit_code=2,
    ),
]


def _encoded(name: str) -> pa.Table:
    """Indices that are null, of a dictionary with a text twice."""
    table = parquet(name, [{"url": None, "caption": None}])
    indices = pa.array([0, None, 1], pa.int32())
    dictionary = pa.DictionaryArray.from_arrays(indices, pa.array([before(name), after(name), after(name)]))
    return pa.table({"url": table["url"], "caption": dictionary})


def _lying(name: str) -> bytes:
    data = written(parquet(name, [ROW]), use_dictionary=False)
    length = int.from_bytes(data[-8:-4], "little")
    return data[: -8 - length] + data[-8 - length :].replace(before(name).encode(), b"z" * len(before(name)))


CASES = [*_ROWS, *_FILES]
