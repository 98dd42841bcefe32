"""Input that is small and unpacks huge: one page, one row, one dictionary, one member, one line, many tiny records.

A run over all of them has to stay under 2 GB, whatever is repeated in them.
"""

import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import brotli
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.cases import NONE, Case, after, before
from tests.hostile.files import (
    NEIGHBOURS,
    gzip_bomb,
    gzipped,
    host,
    link,
    member,
    metadata,
    picture,
    sample,
    warc,
    wat,
)
from tests.pipelines.read.pages.archives import response, zstd

MB = 1 << 20
LARGE: Mapping[str, int] = {"text_too_large": 2_500}


def _columns(name: str, caption: Any, **others: Any) -> dict[str, Any]:
    """Columns of a table, with a neighbour's row before and one after those of the caption."""
    rows = len(caption)
    ends = [pa.array([before(name)]), pa.array([after(name)])]
    urls = [f"{host(name)}/{row}.png" for row in range(rows)]
    url = pa.array([f"{NEIGHBOURS}/before.png", *urls, f"{NEIGHBOURS}/after.png"])
    columns = {"url": url, "caption": _joined(ends[0], caption, ends[1])}
    return columns | {key: _joined(pa.array(["-"]), values, pa.array(["-"])) for key, values in others.items()}


def _joined(*parts: Any) -> Any:
    """The parts as one dictionary."""
    return pa.chunked_array([part.dictionary_encode() for part in parts]).unify_dictionaries().combine_chunks()


def _repeated(value: Any, rows: int) -> Any:
    """A dictionary of one value, which all rows have."""
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([value]))


def _numbered(rows: int) -> Any:
    return pa.array([f"a cat in hat {number}" for number in range(rows)])


def _parquet(columns: Mapping[str, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), file, compression="zstd", store_schema=False, **options)
    return file.getvalue()


def _arrow(columns: Mapping[str, Any], *, codec: Any = None) -> bytes:
    file = io.BytesIO()
    table = pa.table(dict(columns))
    with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as stream:
        stream.write_table(table)
    return file.getvalue()


def _case(
    name: str,
    about: str,
    suffix: str,
    build: Callable[[str], bytes],
    dropped: Mapping[str, int] = NONE,
    *kept: str,
    settings: str = "",
    error: str = "",
    exit_code: int = 0,
) -> Case:
    """A table, or whatever the suffix says."""
    kinds = {".warc.gz": "warc", ".warc.wat.gz": "wat", ".tar.gz": "webdataset"}
    kind = kinds.get(suffix, "table")
    made = partial(build, name)
    return Case(name, about, kind, suffix, made, dropped, kept, settings=settings, error=error, exit_code=exit_code)  # type: ignore[arg-type]


# Dictionaries ---------------------------------------------------------------------------------------------------------


def _one_caption(name: str, rows: int = 2_500, size: int = MB) -> dict[str, Any]:
    return _columns(name, _repeated("a cat and " + "x" * size, rows))


def _images(name: str) -> bytes:
    rows = 2_000
    image = pa.chunked_array(
        [
            pa.array([picture()]).dictionary_encode(),
            _repeated(picture(60, (2_300, 2_300), "bmp"), rows),
            pa.array([picture(90)]).dictionary_encode(),
        ]
    )
    captions = [before(name), *["one image of many rows"] * rows, after(name)]
    return _parquet({"image": image.unify_dictionaries().combine_chunks(), "caption": pa.array(captions)})


def _lists(name: str) -> bytes:
    """A row whose list has one caption of 100 kB 20,000 times."""
    rows = 20_000
    values = pa.array([before(name), "a cat and " + "x" * 100_000, after(name)])
    flat = pa.DictionaryArray.from_arrays(np.r_[0, np.ones(rows, np.int64), 2].astype(np.int32), values)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, rows + 1, rows + 2], pa.int32()), flat)
    urls = [f"{NEIGHBOURS}/before.png", f"{host(name)}/it.png", f"{NEIGHBOURS}/after.png"]
    return _parquet({"url": pa.array(urls), "caption": lists})


def _texts_of_many_images(name: str) -> bytes:
    """Captions of 20 words and 60 kB, which pass all rules, on 500 images each."""
    texts = [" ".join(f"{'x' * 3_000}{text}" for _ in range(20)) for text in range(20)]
    values = pa.DictionaryArray.from_arrays((np.arange(10_000) // 500).astype(np.int32), pa.array(texts))
    return _parquet(_columns(name, values))


def _page(name: str) -> bytes:
    """A page that Arrow would unpack to 200 MB."""
    return _parquet(
        {"url": pa.array(["http://a.example/"] * 200), "caption": pa.array(["x" * MB] * 200)},
        use_dictionary=False,
        data_page_size=1 << 30,
    )


# Lines, records, members ----------------------------------------------------------------------------------------------


def _lines(name: str) -> bytes:
    """A CSV of 200 captions of 12 MB each, in a gzip member for each row."""
    row = gzipped(f'{host(name)}/it.png,"a cat and {"x" * 12 * MB}"\n'.encode())
    return gzipped(b"url,caption\n" + _end(name, "before", before)) + row * 200 + gzipped(_end(name, "after", after))


def _end(name: str, which: str, text: Callable[[str], str]) -> bytes:
    return f"{NEIGHBOURS}/{which}.png,{text(name)}\n".encode()


def _line(name: str, *parts: str) -> bytes:
    ends = [
        json.dumps({"url": f"{NEIGHBOURS}/{which}.png", "caption": text(name)})
        for which, text in (("before", before), ("after", after))
    ]
    return gzipped("\n".join([ends[0], *parts, ends[1]]).encode())


def _many_captions(name: str) -> bytes:
    return _line(name, json.dumps({"url": f"{host(name)}/it.png", "caption": [""] * 1_000_000}))


def _nested(name: str) -> bytes:
    return _line(name, '{"url":"' + host(name) + '/it.png","caption":"","more":[' + "{}," * 5_000_000 + "{}]}")


def _pages_of_long_texts(name: str) -> bytes:
    images = "".join(f'<img src="{number}.png" alt="a cat and {"x" * MB}">' for number in range(15))
    return warc(name, gzipped(response(f"{host(name)}/page", images.encode())) * 200)


def _base(name: str) -> bytes:
    """A page whose base has 50 kB, and 20,000 images."""
    images = "".join(f'<img src="{number}.png" alt="a picture of something">' for number in range(20_000))
    base = f'<base href="http://base.example/{"b" * 50_000}/">'
    return warc(name, gzipped(response(f"{host(name)}/page", (base + images).encode())))


def _tiny_records(name: str) -> bytes:
    """A million pages without an image, in ten members."""
    return warc(name, gzipped(response(f"{host(name)}/page", b"-") * 100_000) * 10)


def _packed_thrice(name: str) -> bytes:
    """A page of 1 GB of NUL, in three compressions."""
    body = zstd(brotli.compress(gzip_bomb(b"<img src=1 alt=a>", 1_000)))
    headers = "Content-Encoding: gzip, br, zstd\r\n"
    return warc(name, gzipped(response(f"{host(name)}/page", body, headers=headers)))


def _links_of_long_texts(name: str) -> bytes:
    links = [link(str(each), "a cat and " + "x" * MB) for each in range(15)]
    return wat(name, *[metadata(f"{host(name)}/page", links)] * 40)


def _one_pair(name: str) -> bytes:
    """60,000 rows of one URL and one caption of 4 kB: all are rows of one image."""
    row = gzipped(f"{host(name)}/it.png,a cat in a hat {'x' * 4_000}\n".encode() * 1_000)
    return gzipped(b"url,caption\n" + _end(name, "before", before)) + row * 60 + gzipped(_end(name, "after", after))


def _tiny_lines(name: str) -> bytes:
    row = gzipped(b"x\n" * 100_000)
    return gzipped(b"url,caption\n" + _end(name, "before", before)) + row * 10 + gzipped(_end(name, "after", after))


def _tiny_members(name: str) -> bytes:
    ends = [gzipped(sample(name, which, text)) for which, text in (("before", before), ("after", after))]
    members = gzipped(b"".join(member(f"it-{number}.txt", b"") for number in range(100_000)))
    return b"".join([ends[0], members, ends[1], gzipped(bytes(1_024))])


def _members(name: str) -> bytes:
    """A tar of 40 samples, each with a caption of 15 MB in its JSON."""
    ends = [gzipped(sample(name, which, text)) for which, text in (("before", before), ("after", after))]
    caption = "a cat and " + "x" * 15 * MB
    rows = [{"url": f"{host(name)}/{number}.png", "caption": caption} for number in range(40)]
    members = (gzipped(member(f"it-{number}.json", json.dumps(row).encode())) for number, row in enumerate(rows))
    return b"".join([ends[0], *members, ends[1], gzipped(bytes(1_024))])


CASES = [
    _case(
        "one-caption-in-all-rows",
        "A caption of 1 MB that 2,500 rows share through a dictionary of 10 kB",
        ".parquet",
        lambda name: _parquet(_one_caption(name)),
        LARGE,
    ),
    _case(
        "one-caption-in-all-rows-of-arrow",
        "The same in Arrow",
        ".arrow",
        lambda name: _arrow(_one_caption(name)),
        LARGE,
    ),
    _case(
        "one-page-url-in-all-rows",
        "The same of a page's URL",
        ".parquet",
        lambda name: _parquet(_columns(name, _numbered(2_500), page=_repeated("http://a.example/" + "x" * MB, 2_500))),
        {"url_too_long": 2_500},
        settings='page_url_column = "page"\n',
    ),
    _case(
        "one-kept-value-in-all-rows",
        "The same of a column that is kept",
        ".parquet",
        lambda name: _parquet(_columns(name, _numbered(2_500), more=_repeated("x" * MB, 2_500))),
        {"row_too_large": 2_500},
        settings='keep_columns = ["more"]\n',
    ),
    _case(
        "one-image-in-all-rows",
        "An image of 5 MB that 2,000 rows share",
        ".parquet",
        _images,
        {"pair_repeated": 1_999},
        "one image of many rows",
        settings='url_column = ""\nimage_column = "image"\n',
    ),
    _case(
        "one-row-of-many-captions",
        "A row with a list of 20,000 captions of 100 kB, all the same",
        ".parquet",
        _lists,
        {"text_too_large": 20_000},
    ),
    _case(
        "captions-of-60-kb",
        "10,000 captions of 60 kB and 20 words",
        ".parquet",
        _texts_of_many_images,
        {"not_in_archive": 10_000},
    ),
    _case(
        "page-of-200-mb",
        "A page that unpacks to 200 MB",
        ".parquet",
        _page,
        error="cannot be read as Parquet (a page of … bytes in column 1 of row group 0 that unpacks to …)",
        exit_code=1,
    ),
    _case(
        "buffers-of-400-mb",
        "400 MB of text in buffers that are compressed",
        ".arrow",
        lambda _: _arrow(
            {"url": pa.array(["http://a.example/"] * 400), "caption": pa.array(["x" * MB] * 400)}, codec="zstd"
        ),
        error="cannot be read as Arrow (buffers of … bytes that unpack to …)",
        exit_code=1,
    ),
    _case("lines-of-12-mb", "200 captions of 12 MB in a file of 3 MB", ".csv.gz", _lines, {"text_too_large": 200}),
    _case("members-of-15-mb", "40 captions of 15 MB in JSON", ".tar.gz", _members, {"text_too_large": 40}),
    _case(
        "line-of-a-million-captions",
        "A line with a list of a million empty captions",
        ".jsonl.gz",
        _many_captions,
        {"text_empty": 1_000_000},
    ),
    _case(
        "line-of-five-million-objects",
        "A line with a list of five million objects",
        ".jsonl.gz",
        _nested,
        {"text_empty": 1},
    ),
    _case(
        "pages-of-long-texts",
        "3,000 `alt` of 1 MB, 15 on each of 200 pages",
        ".warc.gz",
        _pages_of_long_texts,
        {"text_too_large": 3_000},
    ),
    _case("base-of-50-kb", "`<base href>` of 50 kB above 20,000 images", ".warc.gz", _base, {"url_too_long": 20_000}),
    _case("records-by-the-million", "A million pages of a byte in ten members", ".warc.gz", _tiny_records),
    _case(
        "page-packed-thrice",
        "A page of 1 GB of NUL, in gzip, brotli and zstd",
        ".warc.gz",
        _packed_thrice,
        {"record_broken": 1},
        error="a page of more than 16 MiB",
    ),
    _case(
        "links-of-long-texts",
        "600 texts of 1 MB, 15 in each of 40 metadata records",
        ".warc.wat.gz",
        _links_of_long_texts,
        {"text_too_large": 600},
    ),
    _case(
        "one-pair-in-all-rows",
        "60,000 rows of one image and one caption of 4 kB",
        ".csv.gz",
        _one_pair,
        {"pair_repeated": 59_999, "not_in_archive": 1},
    ),
    _case(
        "lines-by-the-million",
        "A million lines of a byte",
        ".csv.gz",
        _tiny_lines,
        {"record_broken": 1_000_000},
        error="1 fields, where the header has 2",
    ),
    _case(
        "members-by-the-hundred-thousand",
        "100,000 empty texts",
        ".tar.gz",
        _tiny_members,
        {"url_invalid": 100_000},
    ),
]
