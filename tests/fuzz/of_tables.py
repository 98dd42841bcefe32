"""Tables under attack: CSV, TSV and JSON Lines against plain loops; Parquet against its own footer, row groups read
alone and together.
"""

import gzip
import io
import json
import zlib
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from altalign.curation import InputSettings
from altalign.errors import UnreadableError, UsageError
from altalign.filters import captions
from altalign.pipelines import read
from altalign.pipelines.files import parquet
from altalign.pipelines.read.tables import needed_columns, table
from altalign.schema import CANDIDATE
from tests.fuzz import plain_tables
from tests.fuzz.mutate import mutate
from tests.fuzz.target import Everything, Target, check_message, read_in_two_ways

_TEXT = InputSettings(kind="table", paths=["-"], page_url_column="page")
_IMAGES = InputSettings(kind="table", paths=["-"], image_column="image")
_LINE_BYTES = 300  # of some inputs, so that long lines are met
_TOKENS = {
    "csv": (
        b'"',
        b'""',
        b'"""',
        b",",
        b"\r\n",
        b"\n",
        b"\r",
        b"\xef\xbb\xbf",
        b"\0",
        b"\xff",
        b'a","""',
        b"caption",
        b"url",
        b'\n"',
        b'",',
        b" \n",
        b"\xe2\x80\xa8",
    ),
    "tsv": (b"\t", b"\r\n", b"\n", b"\r", b"\xef\xbb\xbf", b"\0", b"\xff", b"caption", b"url", b" \n", b"\t\t"),
    "jsonl": (
        *(
            b'{"',
            b'"',
            b"{",
            b"}",
            b"[",
            b"]",
            b":",
            b",",
            b"\n",
            b"\r\n",
            b"null",
            b"NaN",
            b"-Infinity",
            b"1e999",
            b"9" * 5_000,
            b'"caption":',
            b'"url":',
        ),
        *(
            b"[" * 2_000,
            b'{"a":' * 2_000,
            b"\\ud800",
            b"\\udc00",
            b"\\u0000",
            b"\\",
            b"\xff",
            b"\xed\xa0\x80",
            b"\x1c\n",
            b"\xc2\x85",
        ),
    ),
}
_PARQUET_TOKENS = (
    b"PAR1",
    b"PARE",
    b"\x15",
    b"\x15\x00",
    b"\x15\x80\x80\x80\x80\x10",
    b"\x19\xfc",
    b"\x1c",
    b"\x00",
    b"\x28\xb5\x2f\xfd",
    b"url",
    b"caption",
    b"\xff\xff\xff\xff\x0f",
)


def _values() -> list[tuple[str, str, str]]:
    urls = ["http://a.example/1.jpg#x", " https://b.example/ü?q=1 ", "", "no url", "ftp://c/", "http://[::1]/"]
    texts = [
        "a dog on a beach",
        'he said "no", twice',
        "über  den\u2028Wolken",
        "犬と猫",
        "",
        "x" * 200,
        "a &amp; b",
        "\u0301combining",
        "emoji 👩‍👩‍👧",
    ]
    return [
        (urls[i % len(urls)], texts[i % len(texts)] + (f" {i}" if i % 3 else ""), f"http://p.example/{i // 4}")
        for i in range(40)
    ]


@cache
def _texts(form: str) -> tuple[bytes, ...]:
    rows = _values()
    if form == "jsonl":
        lines = [
            json.dumps(
                {"url": url, "caption": [text, "two"] if i % 9 == 4 else text, "page": page, "n": [1, {"x": None}]},
                ensure_ascii=i % 2 == 0,
            )
            for i, (url, text, page) in enumerate(rows)
        ]
        return ("\n".join(lines).encode(), ("\r\n".join(lines[:7]) + "\n\n").encode())
    if form == "tsv":
        lines = [
            "\t".join(("url", "other", "caption", "page")),
            *("\t".join((url, "o", text, page)) for url, text, page in rows),
        ]
        return ("\n".join(lines).encode(), ("\r\n".join(lines[:9]) + "\n").encode())
    quoted = ['"' + text.replace('"', '""') + ('\nmore"' if i % 5 == 0 else '"') for i, (_, text, _) in enumerate(rows)]
    lines = [
        "url,other,caption,page",
        *(",".join((url, "o", text, page)) for (url, _, page), text in zip(rows, quoted, strict=True)),
    ]
    return ("\n".join(lines).encode(), ("\ufeff" + "\r\n".join(lines[:9]) + "\r\n").encode())


def _compressed(data: bytes, suffix: str) -> bytes:
    return (
        gzip.compress(data, mtime=0)
        if suffix == ".gz"
        else pa.compress(data, "zstd", asbytes=True)
        if suffix == ".zst"
        else data
    )


def _make_text(form: str, suffix: str, rng: Random) -> tuple[bytes, bytes]:
    texts = _texts(form)
    original = rng.choice(texts)
    inner = mutate(original, rng, tokens=_TOKENS[form], others=texts) if not suffix or rng.random() < 0.5 else original
    outer = _compressed(inner, suffix)
    if suffix and (inner is original or rng.random() < 0.2):
        outer = mutate(
            outer,
            rng,
            tokens=(b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18", b"\0" * 8),
            others=[_compressed(text, suffix) for text in texts],
        )
    return _compressed(original, suffix), outer


def _check_text(form: str, suffix: str, path: Path, _original: bytes) -> str:
    data = path.read_bytes()
    line_bytes = _LINE_BYTES if zlib.crc32(data) % 4 == 0 else 16 << 20
    with patch("altalign.pipelines.read.tables.lines.LINE_BYTES", line_bytes):
        found = read_in_two_ways(path, _TEXT)
    text = _plain(data, suffix)
    if text is None:
        assert found.error.startswith("UnreadableError"), (
            f"the compression is broken, and this came out: {found.outcome}"
        )
        return found.outcome
    _check_against_plain(found, text, form, line_bytes)
    return found.outcome


def _plain(data: bytes, suffix: str) -> bytes | None:
    """The decompressed text; None where the compression is broken."""
    match suffix:
        case ".gz":
            text = b""
            while data:
                inflater = zlib.decompressobj(31)
                try:
                    text += inflater.decompress(data)
                except zlib.error:
                    return None
                if not inflater.eof:
                    return None
                data = inflater.unused_data
            return text
        case ".zst":
            try:
                return pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
            except OSError:
                return None
    return data


def _check_against_plain(found: Everything, text: bytes, form: str, line_bytes: int) -> None:
    columns = [_TEXT.url_column, _TEXT.caption_column, _TEXT.page_url_column]
    if form == "jsonl":
        names = [
            name for _, value in plain_tables.objects(text, line_bytes) if isinstance(value, dict) for name in value
        ] or columns
    else:
        header = plain_tables.columns_at(text, form, line_bytes)
        names = columns if header == [] else header
    if names is None:
        assert found.error.startswith("UnreadableError"), f"the header is broken, and this came out: {found.outcome}"
    elif any(name not in names or (form != "jsonl" and names.count(name) > 1) for name in columns):
        assert found.error.startswith("UsageError"), (
            f"a column is missing or there twice, and this came out: {found.outcome}"
        )
    else:
        assert not found.error, f"it can be read, but: {found.error}"
        rows, broken = plain_tables.rows(text, form, columns, line_bytes)
        assert [row["offset"] for row in found.broken] == broken, "other rows are broken than should be"
        assert len(found.rows) == len(rows), f"{len(found.rows)} rows, where there are {len(rows)}"
        assert [row["page_url"] for row in found.rows] == [page for _, _, page in rows]
        cleaned = captions.clean(pa.array([caption or "" for _, caption, _ in rows], pa.string())).to_pylist()
        assert [row["caption"] for row in found.rows] == cleaned


# Parquet --------------------------------------------------------------------------------------------------------------


@cache
def _parquets() -> tuple[bytes, ...]:
    rows = _values()
    url, text, page = (
        pa.array([row[i] if (n + i) % 11 else None for n, row in enumerate(rows)], pa.string()) for i in range(3)
    )
    image = pa.array([f"image {i}".encode() * 9 if i % 7 else None for i in range(len(rows))], pa.binary())
    struct = pa.StructArray.from_arrays([image, text], names=["bytes", "path"])
    plain = pa.table({"url": url, "caption": text, "page": page, "n": pa.array(range(len(rows))), "image": image})
    nested = pa.table(
        {
            "image": struct,
            "url": url.cast(pa.large_string()),
            "caption": text.dictionary_encode(),
            "page": page.cast(pa.string_view()),
        }
    )
    return (
        _written(plain, compression="none", row_group_size=15),
        _written(
            plain,
            compression="snappy",
            use_dictionary=False,
            data_page_version="2.0",
            row_group_size=40,
            write_page_checksum=True,
        ),
        _written(plain, compression="zstd", row_group_size=13, data_page_size=64, write_batch_size=4),
        _written(
            plain,
            compression="none",
            use_dictionary=False,
            column_encoding={"url": "DELTA_BYTE_ARRAY", "caption": "DELTA_LENGTH_BYTE_ARRAY"},
        ),
        _written(nested, compression="none", row_group_size=25),
        _written(nested, compression="gzip", row_group_size=7),
        _written(plain.slice(0, 0), compression="none"),
        _written(
            plain.set_column(1, "caption", pa.array([[row[1]] * (n % 4) for n, row in enumerate(rows)])),
            compression="none",
            row_group_size=17,
        ),
    )


def _written(rows: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(rows, file, **options)
    return file.getvalue()


def _make_parquet(rng: Random) -> tuple[bytes, bytes]:
    every = _parquets()
    original = rng.choice(every)
    if rng.random() < 0.4:  # the footer: there the structure is
        cut = len(original) - 8 - int.from_bytes(original[-8:-4], "little")
        footer = mutate(original[cut:-8], rng, tokens=_PARQUET_TOKENS)
        return original, original[:cut] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    return original, mutate(original, rng, tokens=_PARQUET_TOKENS, others=every)


def _check_parquet(path: Path, _original: bytes) -> str:
    if path.stat().st_size == 0:
        return "empty"
    whole = read_in_two_ways(path, _TEXT)
    direct = _direct(path, whole)
    assert whole.error.split(":")[0] == direct.error.split(":")[0], (
        f"read once: {whole.error!r}; straight from row groups: {direct.error!r}"
    )
    if not whole.error:
        same = [{name: row[name] for name in CANDIDATE.names} for row in whole.rows]
        assert same == direct.rows, "row groups read alone give other rows"
    in_hand = read_in_two_ways(path, _IMAGES)
    if not in_hand.error:
        _check_images(path, in_hand)
    return f"{whole.outcome}, {in_hand.outcome}"


def _direct(path: Path, whole: Everything) -> Everything:
    """As the text passes read it: each row group for itself, and all together; `whole` where they do not."""
    try:
        read.check([str(path)], _TEXT)
        if not read.is_direct(str(path), _TEXT):  # captions are in lists
            rows = [{name: row[name] for name in CANDIDATE.names} for row in whole.rows]
            return Everything(rows, [], [], whole.error)
        groups = table.direct(str(path), _TEXT).row_groups
        apart: list[dict[str, Any]] = []
        for number, rows in enumerate(groups):
            group = _candidates(path, number, number, first_row=len(apart))
            assert len(group) == rows, f"row group {number}: {len(group)} rows, where the footer says {rows}"
            apart += group
        assert not groups or apart == _candidates(path, 0, len(groups) - 1, first_row=0)
    except (UnreadableError, UsageError) as error:
        check_message(error, path)
        return Everything([], [], [], f"{type(error).__name__}: {error}")
    return Everything(apart, [], [])


def _candidates(path: Path, first: int, last: int, *, first_row: int) -> list[dict[str, Any]]:
    batches = list[pa.RecordBatch]()
    for batch in parquet.read_row_groups(str(path), first, last, needed_columns.columns(_TEXT)):
        batches.append(
            table.candidates(
                batch, _TEXT, table.row_names(path.name, pa.array(range(first_row, first_row + len(batch))))
            )
        )
        first_row += batch.num_rows
        batches[-1].validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def _check_images(path: Path, found: Everything) -> None:
    rows = [place["offset"] for place in found.places]
    images = dict(table.images(str(path), _IMAGES, rows))
    assert list(images) == rows, "an image has a place and cannot be read there"
    assert all(images.values())


# Arrow ----------------------------------------------------------------------------------------------------------------


@cache
def _arrows() -> tuple[bytes, ...]:
    found = []
    for data in _parquets():
        rows = pq.read_table(io.BytesIO(data))
        for new, options in ((pa.ipc.new_stream, None), (pa.ipc.new_file, pa.ipc.IpcWriteOptions(compression="zstd"))):
            file = io.BytesIO()
            with new(file, rows.schema, options=options) as written:
                written.write_table(rows, 15)
            found.append(file.getvalue())
    return tuple(found)


def _make_arrow(rng: Random) -> tuple[bytes, bytes]:
    original = rng.choice(_arrows())
    tokens = (b"ARROW1", b"\xff\xff\xff\xff", bytes(8), b"\xff\xff\xff\x7f", b"url", b"caption", b"\x28\xb5\x2f\xfd")
    return original, mutate(original, rng, tokens=tokens, others=_arrows())


def _check_arrow(path: Path, _original: bytes) -> str:
    if path.stat().st_size == 0:
        return "empty"
    whole, in_hand = read_in_two_ways(path, _TEXT), read_in_two_ways(path, _IMAGES)
    if not in_hand.error:
        _check_images(path, in_hand)
    return f"{whole.outcome}, {in_hand.outcome}"


TARGETS = {
    **{
        f"{form}{suffix}": Target(
            f".{form}{suffix}", partial(_make_text, form, suffix), partial(_check_text, form, suffix)
        )
        for form in ("csv", "tsv", "jsonl")
        for suffix in ("", ".gz", ".zst")
    },
    "parquet": Target(".parquet", _make_parquet, _check_parquet),
    "arrow": Target(".arrow", _make_arrow, _check_arrow),
}
