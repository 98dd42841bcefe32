"""Makes inputs that are small and unpack huge: one value repeated in a dictionary, long attributes, compression in
compression, sizes claimed in headers, very many tiny records; the same random numbers make the same input.

What is drawn is how large each part is, over orders of magnitude, so that both sides of each bound are met.
"""

import gzip
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import brotli
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.files import picture
from tests.pipelines.read.pages.archives import record, response, zstd

MB = 1 << 20
PACKED_AT_MOST = 24 * MB  # of an input on the disk
UNPACKED_AT_MOST = 3_000 * MB  # beyond the bound that is tested; more tells no more, and takes longer
PLAIN_AT_MOST = 48 * MB  # of what nothing unpacks
_CLAIMED = (0, 1, 4_095, 1 << 20, 1 << 30, (1 << 31) - 1, (1 << 32) - 1, 1 << 33, (1 << 63) - 1, 1 << 64)


def size(rng: Random, least: int, most: int) -> int:
    """A size of any order of magnitude."""
    return int(least * (most / least) ** rng.random())


def times(rng: Random, one: int, *, most: int = 1_000_000, total: int = UNPACKED_AT_MOST) -> int:
    """How often something of so many bytes is repeated."""
    return size(rng, 1, max(2, min(most, total // max(1, one))))


def claimed(rng: Random) -> int:
    """A size that a header may claim."""
    return rng.choice(_CLAIMED)


def packed(parts: Sequence[tuple[bytes, int]], suffix: str) -> bytes:
    """Each part so many times, each time in a member or frame of its own: what is packed once is long unpacked."""
    encode: Callable[[bytes], bytes] = {".gz": _gzipped, ".zst": zstd}.get(suffix, bytes)
    found = list[bytes]()
    for part, count in parts:
        one = encode(part)
        most = max(1, (PACKED_AT_MOST if suffix else PLAIN_AT_MOST) // max(1, len(one)))
        found.append(one * min(count, most))
    return b"".join(found)


def _gzipped(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def text(rng: Random, most: int = 8 * MB) -> str:
    """Words of any length."""
    length = size(rng, 1, most)
    word = rng.choice(("x", "a cat and ", "<", "&amp;", '"', "\\", "ü", "犬", "\u0301", "a\n", " ", "\t", "&#x41;"))
    return "a cat in a hat " + word * (length // len(word.encode()) + 1)


# Tables ---------------------------------------------------------------------------------------------------------------


def _values(rng: Random, name: str, rows: int, total: int) -> Any:
    """A column: short values, or a long one that all rows share, or a long one of each row, or lists of one."""
    way = rng.random()
    if name == "image":
        one: Any = rng.choice((picture(), bytes(size(rng, 1, 8 * MB)), picture(60, (2_300, 2_300), "bmp")))
    else:
        one = ("http://a.example/" if name in ("url", "page") else "") + text(rng, min(8 * MB, max(2, total)))
    if way < 0.4:
        short = [
            f"a cat in hat {row}" if name in ("caption", "more") else f"http://a.example/{row}" for row in range(rows)
        ]
        return pa.array([picture()] * rows) if name == "image" else pa.array(short)
    shared = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([one]))
    if way < 0.8 or name != "caption":
        return shared
    count = times(rng, len(one), most=100_000, total=total)
    flat = pa.DictionaryArray.from_arrays(np.zeros(count * rows, np.int32), pa.array([one]))
    if count * rows > 3_000_000:
        return shared
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * count, pa.int32()), flat)


def table(rng: Random) -> dict[str, Any]:
    """Columns of a table that is small while dictionaries are dictionaries."""
    rows = size(rng, 1, 200_000)
    return {name: _values(rng, name, rows, UNPACKED_AT_MOST) for name in ("url", "caption", "page", "more", "image")}


def parquet(rng: Random) -> bytes:
    """A Parquet file, of plain values as far as they are few."""
    columns, file = pa.table(table(rng)), io.BytesIO()
    is_plain = sum(map(_unpacked, columns.columns)) <= PLAIN_AT_MOST and rng.random() < 0.5
    pq.write_table(
        columns,
        file,
        compression=rng.choice(("none", "snappy", "gzip", "zstd", "brotli", "lz4")),
        use_dictionary=not is_plain,
        row_group_size=size(rng, max(1, len(columns) // 200), max(2, len(columns))),
        data_page_size=rng.choice((1, 1 << 12, 1 << 20, 1 << 30)),
        dictionary_pagesize_limit=1 << 30,
        data_page_version=rng.choice(("1.0", "2.0")),
        store_schema=rng.random() < 0.5,
        write_statistics=rng.random() < 0.5,
    )
    return file.getvalue()


def _unpacked(column: Any) -> int:
    """Bytes of the values of a column, each for itself."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_list(array.type):
        array = array.values
    if pa.types.is_dictionary(array.type):
        return len(array) * max((len(value.as_buffer()) for value in array.dictionary), default=0)
    return array.nbytes


def arrow(rng: Random) -> bytes:
    """Arrow's stream or file; its buffers may be compressed."""
    columns, file = pa.table(table(rng)), io.BytesIO()
    if sum(map(_unpacked, columns.columns)) <= 400 * MB and rng.random() < 0.5:
        columns = pa.table(
            {name: _decoded(column) for name, column in zip(columns.column_names, columns.columns, strict=True)}
        )
    new = rng.choice((pa.ipc.new_stream, pa.ipc.new_file))
    options = pa.ipc.IpcWriteOptions(compression=rng.choice((None, "lz4", "zstd")), unify_dictionaries=True)
    with new(file, columns.schema, options=options) as written:
        written.write_table(columns, size(rng, 1, max(2, len(columns))) + len(columns) // 500)
    return file.getvalue()


def _decoded(column: Any) -> Any:
    kind = column.type
    if pa.types.is_list(kind):
        array = column.combine_chunks()
        values = array.values.dictionary_decode() if pa.types.is_dictionary(array.values.type) else array.values
        return pa.chunked_array([pa.ListArray.from_arrays(array.offsets, values)])
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def lines(form: str, rng: Random) -> list[tuple[bytes, int]]:
    """Lines of CSV, TSV or JSON, each so many times."""
    parts = [(b"" if form == "jsonl" else _line(form, ["url", "caption", "page", "more"]), 1)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        row = [f"http://a.example/{rng.random()}", text(rng), "http://p.example/", "-"]
        line = rng.choice((_line(form, row), _line(form, rng.sample(row, 4)), _wide(form, rng), _open(form, rng)))
        parts.append((line, times(rng, len(line))))
    return parts


def _line(form: str, row: list[str]) -> bytes:
    if form == "jsonl":
        return json.dumps(dict(zip(("url", "caption", "page", "more"), row, strict=True))).encode() + b"\n"
    if form == "tsv":
        return "\t".join(value.replace("\t", " ").replace("\n", " ") for value in row).encode() + b"\n"
    return ",".join('"' + value.replace('"', '""') + '"' for value in row).encode() + b"\n"


def _wide(form: str, rng: Random) -> bytes:
    """A line of very many values, or values in values."""
    count = size(rng, 1, 4_000_000)
    if form != "jsonl":
        return rng.choice((b",", b"\t", b'"",', b"a,")) * count + b"\n"
    inside = rng.choice((b"[" * count, b'{"a":' * count, b"[" + b"{}," * count + b"0]", b"[" + b'"",' * count + b'""]'))
    keys = b",".join(b'"%d":0' % number for number in range(min(count, 200_000)))
    return rng.choice((b'{"url":"http://a.example/1","caption":%b}\n' % inside, b"{%b}\n" % keys))


def _open(form: str, rng: Random) -> bytes:
    """The start of a value that never ends."""
    start = b'{"url":"http://a.example/1","caption":"' if form == "jsonl" else b'http://a.example/1,"'
    return start + b"x" * size(rng, 1, 16 * MB)


# Pages, archives, tars ------------------------------------------------------------------------------------------------


def page(rng: Random) -> bytes:
    """A page with images in great number, or of long attributes, below a long base or many levels of elements."""
    alt, many = text(rng, 2 * MB).replace('"', ""), size(rng, 1, 100_000)
    source = rng.choice(("i.png", "i.png?" + "u" * size(rng, 1, MB)))
    image = rng.choice(
        (
            f'<img src="{source}" alt="{alt}">',
            f'<img srcset="{"a 1x, " * size(rng, 1, 100_000)}" alt="{alt}">',
            "<img " + " ".join(f"a{n}={n}" for n in range(size(rng, 1, 50_000))) + f' src="{source}" alt=x>',
            f"<picture>{'<source srcset=a>' * size(rng, 1, 50_000)}<img src=b alt=c></picture>",
        )
    ).encode()
    many = min(many, max(1, PLAIN_AT_MOST // len(image)))
    base = b'<base href="http://base.example/%b/">' % (b"b" * size(rng, 1, MB))
    deep = rng.choice(
        (b"<div>", b"<b>", b"<table><tr><td>", b"<svg><g>", b"<template>", b"<!--", b"&notin", b"<p ")
    ) * size(rng, 1, 200_000)
    return b"<!doctype html>" + rng.choice((b"", base)) + rng.choice((b"", b"", deep)) + image * many


def _body(rng: Random) -> tuple[bytes, str]:
    """A body and the headers of how it is encoded: compression in compression."""
    found, encodings = page(rng), list[str]()
    encoders = {"gzip": _gzipped, "deflate": zlib.compress, "br": _brotli, "zstd": zstd}
    if rng.random() < 0.3:
        found = found[:1000] + bytes(size(rng, 1, 200 * MB))
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        name = rng.choice(list(encoders))
        found = encoders[name](found)
        encodings.append(name)
    headers = f"Content-Encoding: {', '.join(encodings)}\r\n" if encodings else ""
    if rng.random() < 0.2:
        found, headers = b"%x\r\n" % claimed(rng) + found, headers + "Transfer-Encoding: chunked\r\n"
    return found, headers + rng.choice(("", "X: y\r\n" * size(rng, 1, 100_000), f"X: {'y' * size(rng, 1, 4 * MB)}\r\n"))


def _brotli(data: bytes) -> bytes:
    return brotli.compress(data, quality=1)


def records(rng: Random) -> list[tuple[bytes, int]]:
    """Records of a web archive, each so many times."""
    parts = list[tuple[bytes, int]]()
    for _ in range(rng.choice((1, 1, 2, 3))):
        url = "http://a.example/" + "u" * size(rng, 1, rng.choice((10, MB)))
        body, headers = _body(rng)
        length = rng.choice((None, None, None, claimed(rng)))
        one = rng.choice(
            (
                response(url, body, headers=headers, length=length),
                response(url, body, headers=headers, length=length),
                response(
                    rng.choice((url, "http://a.example/i.png")),
                    rng.choice((picture(), image(rng))),
                    "image/png",
                    length=length,
                ),
                response(url, b"-", length=length),
                record(url, b"", kind=rng.choice(("request", "metadata", "x" * size(rng, 1, MB)))),
                b"WARC/1.0\r\n" + b"A: b\r\n" * size(rng, 1, 200_000),
            )
        )
        parts.append((one, times(rng, len(one))))
    return parts


def metadata(rng: Random) -> list[tuple[bytes, int]]:
    """Records of a WAT file."""
    alt, count = text(rng, 2 * MB), size(rng, 1, 100_000)
    link = {"path": "IMG@/src", "url": "i.png" + "u" * size(rng, 1, rng.choice((10, MB))), "alt": alt}
    links = [link] * min(count, max(1, PLAIN_AT_MOST // (len(alt) + len(link["url"]))))
    head = {"Base": "http://b.example/" + "b" * size(rng, 1, MB)}
    said = {"HTML-Metadata": {"Links": links, "Head": rng.choice(({}, head))}, "Response-Message": {"Status": "200"}}
    url = "http://w.example/1"
    inside = {"WARC-Header-Metadata": {"WARC-Target-URI": url}, "Payload-Metadata": {"HTTP-Response-Metadata": said}}
    block = rng.choice((json.dumps({"Envelope": inside}).encode(), b'{"Envelope":' * size(rng, 1, 3_000_000)))
    one = record(
        url, block, kind="metadata", content_type="application/json", length=rng.choice((None, None, claimed(rng)))
    )
    return [(one, times(rng, len(one)))]


def members(rng: Random) -> list[tuple[bytes, int]]:
    """Members of a tar, each so many times; its names repeat then."""
    parts = list[tuple[bytes, int]]()
    for number in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice((f"it-{number}", "n" * size(rng, 1, 100_000)))
        caption = json.dumps({"url": "http://t.example/1.jpg", "caption": text(rng, 16 * MB)}).encode()
        inside = rng.choice(
            (
                _member(f"{name}.jpg", rng.choice((picture(), image(rng))), rng)
                + _member(f"{name}.json", caption, rng),
                _member(f"{name}.json", b"[" * size(rng, 1, 4 * MB), rng),
                _member(f"{name}.txt", text(rng, 16 * MB).encode(), rng),
                _member(f"{name}.txt", b"", rng),
                _member(f"{name}.jpg", b"", rng, claim=min(claimed(rng), (1 << 63) - 1)),
            )
        )
        parts.append((inside, times(rng, len(inside))))
    return [*parts, (bytes(1_024), 1)]


def _member(name: str, data: bytes, rng: Random, *, claim: int | None = None) -> bytes:
    found = tarfile.TarInfo(name)
    found.size = len(data) if claim is None else claim
    form = rng.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    if form == tarfile.PAX_FORMAT and rng.random() < 0.3:
        found.pax_headers = {"comment": "c" * size(rng, 1, 4 * MB)}
    return found.tobuf(form) + data + bytes(-len(data) % 512)


# Images ---------------------------------------------------------------------------------------------------------------


def image(rng: Random) -> bytes:
    """A PNG or another image whose header claims any size, with data that unpacks to any length."""
    if rng.random() < 0.4:
        return _claiming(picture(90, (300, 300), rng.choice(("bmp", "gif", "tiff", "webp", "jpeg"))), rng)
    wide, high = (rng.choice((1, 200, 10_000, 13_377, 65_535, 1 << 20, (1 << 31) - 1)) for _ in range(2))
    depth, colour = rng.choice(((8, 2), (16, 6), (1, 0), (8, 3)))
    data = _deflated(size(rng, 1, 512 * MB))
    chunks = [_chunk(b"IHDR", struct.pack(">IIBBBBB", wide, high, depth, colour, 0, 0, rng.choice((0, 1))))]
    for name in rng.choice(((), (b"zTXt",), (b"iCCP",), (b"iTXt", b"zTXt"))):
        chunks.append(_chunk(name, b"a\0" + (b"\1\0\0\0" if name == b"iTXt" else b"\0") + data))
    return b"\x89PNG\r\n\x1a\n" + b"".join([*chunks, _chunk(b"IDAT", data), _chunk(b"IEND", b"")])


def _claiming(data: bytes, rng: Random) -> bytes:
    """The same with another number somewhere in its first bytes."""
    at, wide = rng.randrange(4, 60), rng.choice((2, 4))
    number = (claimed(rng) % (1 << 8 * wide)).to_bytes(wide, rng.choice(("little", "big")))
    return data[:at] + number + data[at + wide :]


@cache
def _deflated_block() -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflater.compress(bytes(MB)) + deflater.flush(zlib.Z_FULL_FLUSH)


def _deflated(length: int) -> bytes:
    """Zeros as zlib has them, without the checksum of all of them, which decoders ask for last."""
    return b"\x78\xda" + _deflated_block() * (length // MB + 1) + b"\3\0" + bytes(4)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
