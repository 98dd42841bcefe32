"""Tars, tables and folders whose members, rows or files are broken or lie."""

import io
import tarfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.cases import BROKEN, NONE, Case, after, before
from tests.hostile.files import (
    IT,
    MARK,
    NEIGHBOURS,
    csv,
    gzipped,
    header,
    host,
    jsonl,
    member,
    parquet,
    patched,
    pax,
    pax_record,
    picture,
    row,
    sample,
    signed,
    tar,
    tsv,
    written,
)

CAPTION = "a picture in a file"
IMAGE = picture(90) + MARK  # which decoders do not look at
BYTES = IT.encode()
MIB = 1 << 20


def between(
    form: Callable[..., bytes],
    about: str,
    hostile: bytes,
    *kept: str,
    dropped: Mapping[str, int] = NONE,
    error: str = "",
    pack: Callable[[bytes], bytes] = lambda data: data,
    end: str = "",
) -> Case:
    """A case of lines or members between good ones: `form` is csv, tsv, jsonl or tar, whose name the file's ends in,
    and then in `end`.
    """
    kind = "webdataset" if form is tar else "table"
    suffix = f".{form.__name__}{end}"
    return Case(about, kind, suffix, lambda name: pack(form(name, hostile)), dropped, kept, error=error)


def unreadable(about: str, suffix: str, build: Callable[[str], bytes], error: str, exit_code: int = 1) -> Case:
    """A case that is a file which cannot be read, or does not fit its settings."""
    kind = "webdataset" if suffix.startswith(".tar") else "table"
    return Case(about, kind, suffix, build, exit_code=exit_code, error=error)


def rows(
    about: str,
    build: Callable[[str], bytes],
    *kept: str,
    dropped: Mapping[str, int] = NONE,
    settings: str = "",
    suffix: str = ".parquet",
) -> Case:
    """A case that is a Parquet table."""
    return Case(about, "table", suffix, build, dropped, kept, settings=settings)


def folder(about: str, content: bytes, *kept: str, dropped: Mapping[str, int] = NONE, error: str = "") -> Case:
    """A folder, as a tar of it, in which this content stands beside good samples."""

    def build(name: str) -> bytes:
        return sample(name, "before", before) + signed(name, content) + sample(name, "after", after) + bytes(1024)

    return Case(about, "folder", "", build, dropped, kept, error=error)


def good(stem: str = "it", image: bytes = IMAGE) -> bytes:
    """A sample without a URL."""
    return member(f"{stem}.png", image) + member(f"{stem}.txt", CAPTION.encode())


def _text(content: bytes) -> bytes:
    """A sample of an image and this text."""
    return member("it.png", IMAGE) + member("it.txt", content)


def _number(value: int) -> bytes:
    """A number as GNU writes it where eleven octal digits are too few; negative ones too."""
    if 0 <= value < 8**11:
        return b"%011o\0" % value
    return (b"\x80" if value >= 0 else b"\xff") + value.to_bytes(11, "big", signed=value < 0)


def _sized(size: int) -> bytes:
    """A member whose header says that it has so many bytes."""
    return patched(header("it.png", 0), 124, _number(size)) + IMAGE


def _sparse() -> bytes:
    records = [pax_record("GNU.sparse.map", f"0,{len(IMAGE)}"), pax_record("GNU.sparse.size", str(1 << 20))]
    return pax(*records, pax_record("GNU.sparse.name", "it.png")) + member("it.png", IMAGE)


tars = partial(between, tar)
TARS = [
    tars(
        "a tar in a tar",
        member("inner.tar", bytes(1_024)),
        dropped=BROKEN,
        error="no image, .txt or .json of one name …",
    ),
    tars(
        "a symbolic link out of a tar",
        header("it.png", 0, type=tarfile.SYMTYPE, linkname="/etc/passwd") + member("it.txt", CAPTION.encode()),
        dropped={"url_invalid": 1},
    ),
    tars("a name that goes upwards", good("../../it"), CAPTION),
    tars(
        "a name with an escape sequence",
        member("it\n\x07\x1b[2J.zip", b"zip"),
        dropped=BROKEN,
        error="no image, .txt or .json of one name …",
    ),
    tars("a name that is no UTF-8", good("it\udcff"), CAPTION),
    tars(
        "two texts of one sample",
        good() + member("it.txt", b"another text of it"),
        dropped=BROKEN,
        error="it.txt: a second .txt of one sample; two samples may not have one name",
    ),
    tars(
        "attributes as macOS adds them",
        member("._it.png", b"\0\5\x16\7") + good(),
        CAPTION,
    ),
    tars(
        "a text that is no UTF-8",
        _text(b"caf\xe9 at the corner"),
        dropped=BROKEN,
        error="it.txt: not UTF-8 (byte 3); convert the file",
    ),
    tars("a text of 17 MiB", _text(b"a" * (17 * MIB)), dropped=BROKEN, error="it.txt: longer than 16 MiB"),
    tars(
        "a number of 100,000 digits",
        good() + member("it.json", b'{"n": ' + b"9" * 100_000 + b"}"),
        dropped=BROKEN,
        error="it.json: no JSON: a number of too many digits",
    ),
    tars("a sparse member", _sparse(), dropped=BROKEN, error="it.png: a sparse member"),
    tars(
        "a tar in two gzip members",
        good(),
        CAPTION,
        pack=lambda data: gzipped(data[:2_000]) + gzipped(data[2_000:]),
        end=".gz",
    ),
    unreadable(
        "an extended header below zero",
        ".tar",
        lambda name: tar(name, pax(pax_record("size", "-5120")), good()),
        "cannot be read as tar (member of -5120 bytes)",
    ),
    unreadable(
        "an extended header of 1 GB",
        ".tar",
        lambda name: tar(name, header("long", 1 << 30, type=tarfile.XHDTYPE) + b"n" * 2_048),
        "cannot be read as tar (header of 1073741824 bytes)",
    ),
    unreadable(
        "junk behind the end of a tar",
        ".tar",
        lambda name: tar(name) + b"junk" * 200,
        "cannot be read as tar (invalid header)",
    ),
    unreadable(
        "a member of 1 EB",
        ".tar",
        lambda name: tar(name, _sized(1 << 60)),
        "cannot be read as tar (member of 1152921504606846976 bytes)",
    ),
    unreadable(
        "a tar cut inside a member",
        ".tar",
        lambda name: tar(name, good())[:2_800],
        "cannot be read as tar (unexpected end of data)",
    ),
    unreadable(
        "a compressed tar that is cut", ".tar.gz", lambda name: gzipped(tar(name))[:-40], "cannot be read as tar (…)"
    ),
]

TEXT_TABLES = [
    between(
        csv, "a quote that is never closed", BYTES + b',"a picture\n', dropped=BROKEN, error="unexpected end of data"
    ),
    between(csv, "a line break inside quotes", BYTES + b',"a picture\nin a file"\n', CAPTION),
    between(
        csv,
        "rows of one field and of three",
        BYTES + b"\n" + BYTES + b",a picture,more\n,,,\n",
        dropped={"record_broken": 3},
        error="… fields, where the header has 2",
    ),
    between(
        csv,
        "a row in Latin-1",
        BYTES + b",une for\xeat verte\n",
        dropped=BROKEN,
        error="not UTF-8 (byte …); convert the file",
    ),
    between(
        csv, "a field of 17 MiB", BYTES + b"," + b"a" * (17 * MIB) + b"\n", dropped=BROKEN, error="longer than 16 MiB"
    ),
    between(
        csv,
        "a table in two gzip members",
        BYTES + b",a picture in a file\n",
        CAPTION,
        pack=lambda data: gzipped(data[:90]) + gzipped(data[90:]),
        end=".gz",
    ),
    between(tsv, "quotes in a TSV", BYTES + b'\t"a picture" "in a file\n', '"a picture" "in a file'),
    between(
        jsonl,
        "lists nested 100,000 deep",
        b"[" * 100_000 + b"]" * 100_000 + b"\n",
        dropped=BROKEN,
        error="no JSON: nested too deeply",
    ),
    between(jsonl, "half a surrogate pair", row("half a \ud83d character"), "half a \ufffd character"),
    between(
        jsonl,
        "lines that are no objects",
        b'[1]\n7\n"text"\nnull\ntrue\n',
        dropped={"record_broken": 5},
        error="…, where an object is meant",
    ),
    between(
        jsonl,
        "captions that are no text",
        b'{"url": "http://a/", "caption": 7}\n{"url": "http://a/", "caption": ["a", 7]}\n',
        dropped={"record_broken": 2},
        error="caption is no string but …",
    ),
    between(
        jsonl,
        "an object of 200,000 keys",
        row(CAPTION)[:-2] + b"".join(b', "k%d": 0' % n for n in range(200_000)) + b"}\n",
        CAPTION,
    ),
    unreadable(
        "a table in UTF-16",
        ".csv",
        lambda name: csv(name).decode().encode("utf-16"),
        "its header row cannot be read (not UTF-8 (byte 0); convert the file)",
    ),
    unreadable(
        "a table with semicolons",
        ".csv",
        lambda name: csv(name, header=b"url;caption\n"),
        "its columns are separated by ';', where .csv has a comma and .tsv a tab; convert it",
        exit_code=2,
    ),
    unreadable(
        "a compressed table that is cut",
        ".csv.gz",
        lambda name: gzipped(csv(name))[:-30],
        "cannot be read as CSV (Truncated compressed stream)",
    ),
    unreadable(
        "objects of other keys",
        ".jsonl",
        lambda _: b'{"url": "http://a/", "captoin": "a"}\n',
        'no key in the first 1 objects "caption" (caption_column); there are captoin, url',
        exit_code=2,
    ),
]


def _repeated(name: str, value: Any, count: int, column: str) -> bytes:
    """A table whose bad rows have one value through a dictionary, of some MB in a file of some kB."""
    values = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([value]))
    ends = [pa.array([text(name) if column == "caption" else picture()]) for text in (before, after)]
    parts = [ends[0].dictionary_encode(), values, ends[1].dictionary_encode()]
    dictionary = pa.chunked_array(parts).unify_dictionaries().combine_chunks()
    urls = [f"{NEIGHBOURS}/before.png", *(f"{host(name)}/{n}.png" for n in range(count)), f"{NEIGHBOURS}/after.png"]
    captions = [before(name), *[CAPTION] * count, after(name)]
    file = io.BytesIO()
    columns = {"url": pa.array(urls), "caption": pa.array(captions), column: dictionary}
    pq.write_table(pa.table(columns), file, compression="zstd", store_schema=False)
    return file.getvalue()


def _page_of_200_mb(_: str) -> bytes:
    table = pa.table({"url": ["http://a.example/"] * 200, "caption": ["x" * MIB] * 200})
    return written(table, compression="zstd", use_dictionary=False, data_page_size=1 << 30)


def _stream(table: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return file.getvalue()


def _bytes_as_text(name: str) -> bytes:
    """A caption of bytes that are called text."""
    values = pa.array([before(name).encode(), b"caf\xe9 at the corner", after(name).encode()], pa.binary())
    urls = [f"{NEIGHBOURS}/before.png", signed(name, IT.encode()).decode(), f"{NEIGHBOURS}/after.png"]
    return written(pa.table({"url": urls, "caption": pa.Array.from_buffers(pa.string(), 3, values.buffers())}))


IMAGES = 'image_column = "image"\n'
BINARY_TABLES = [
    rows("rows of null", lambda name: written(parquet(name, [{}, {}])), dropped={"url_invalid": 2}),
    rows("text of any bytes in Parquet", _bytes_as_text, "caf\ufffd at the corner"),
    rows(
        "images of no bytes in Parquet",
        lambda name: written(
            parquet(name, [{"caption": f"{CAPTION} {n}", "image": b""} for n in range(2)], image=pa.binary())
        ),
        dropped={"image_undecodable": 2},
        settings=IMAGES,
    ),
    rows(
        "a caption of 1 MB in 1,000 rows",
        lambda name: _repeated(name, "a cat and " + "x" * MIB, 1_000, "caption"),
        dropped={"text_too_large": 1_000},
    ),
    rows(
        "an image of 2 MB in 500 rows",
        lambda name: _repeated(name, picture(60, (1_500, 1_500), "bmp"), 500, "image"),
        CAPTION,
        dropped={"pair_repeated": 499},
        settings='url_column = ""\n' + IMAGES,
    ),
    unreadable(
        "a page of 200 MB",
        ".parquet",
        _page_of_200_mb,
        "cannot be read as Parquet (…)",
    ),
    unreadable("PAR1 and nothing more", ".parquet", lambda _: b"PAR1", "cannot be read as Parquet (…)"),
    unreadable(
        "a Parquet file cut at its end",
        ".parquet",
        lambda name: written(parquet(name))[:-20],
        "cannot be read as Parquet (…)",
    ),
    unreadable(
        "a column of numbers",
        ".parquet",
        lambda _: written(pa.table({"url": [1], "caption": ["x"]})),
        "column url is of type int64, where strings are meant; name another column or convert this one",
        exit_code=2,
    ),
    unreadable(
        "an Arrow stream cut at its end",
        ".arrow",
        lambda name: _stream(parquet(name)).removesuffix(b"\xff\xff\xff\xff\0\0\0\0"),
        "cannot be read as Arrow (it ends without the mark of its end, as one that is cut does)",
    ),
    unreadable(
        "an Arrow caption that is no UTF-8",
        ".arrow",
        lambda _: _stream(pa.table({"url": ["x"], "caption": pa.array([b"\xff"]).cast(pa.string(), safe=False)})),
        "cannot be read as Arrow (…)",
    ),
]

FOLDERS = [
    folder(
        "a text without an image",
        member("README.txt", b"read me"),
        dropped=BROKEN,
        error="a caption without an image of its name beside it",
    ),
    folder(
        "a name that is no UTF-8 in a folder",
        member("for\udceat.png", IMAGE),
        dropped=BROKEN,
        error="a name that is not UTF-8 or holds control characters; rename the file",
    ),
    folder("a folder in itself", good() + header("again", 0, type=tarfile.SYMTYPE, linkname="."), CAPTION),
    folder(
        "a link to nothing",
        header("it.png", 0, type=tarfile.SYMTYPE, linkname="gone.png"),
        dropped=BROKEN,
        error="cannot be read (a link that leads nowhere)",
    ),
    folder(
        "a pipe called an image",
        header("it.png", 0, type=tarfile.FIFOTYPE) + member("it.txt", b"a pipe and no picture"),
        dropped={"image_undecodable": 1},
    ),
    Case(
        "a folder without images",
        "folder",
        "",
        lambda _: member("it.txt", b"a text") + bytes(1_024),
        exit_code=2,
        error="no image in it (1 texts, such as it.txt); name a folder that holds .jpg, .png or other images",
    ),
]


def unpacked(data: bytes, place: str) -> None:
    """Make the folder of a case."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(place, filter="fully_trusted")
