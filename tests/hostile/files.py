"""Files with neighbours: what is bad stands between two good records, or where it must."""

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.hostile.cases import after, before
from tests.support.archives import record, response
from tests.support.pictures import encoded

NEIGHBOURS = "http://neighbours.example"  # of tables and metadata: their images are in an archive of their own
MARK = b"00c0ffee"  # in the URL or the bytes of a picture: each case has its own, so that no two have one pair
IT = f"{NEIGHBOURS}/{MARK.decode()}.png"


def signed(name: str, data: bytes) -> bytes:
    """The same with the case's own mark, which is as long."""
    return data.replace(MARK, b"%08x" % zlib.crc32(name.encode()))


@cache
def picture(colour: int = 120, size: tuple[int, int] = (210, 220), kind: str = "png", **options: object) -> bytes:
    """A good image."""
    return encoded(Image.new("L", size, colour), kind, **options)


def gzipped(data: bytes) -> bytes:
    """One gzip member, the same each time."""
    return gzip.compress(data, 1, mtime=0)


# Web archives ---------------------------------------------------------------------------------------------------------


def warc(name: str, *hostile: bytes, pack: Callable[[bytes], bytes] = gzipped, has_after: bool = True) -> bytes:
    """An archive; what is hostile comes packed."""
    parts = [*map(pack, _neighbour(name, "before", before(name))), *hostile]
    return b"".join(parts + ([*map(pack, _neighbour(name, "after", after(name)))] if has_after else []))


def _neighbour(name: str, which: str, caption: str) -> list[bytes]:
    host = f"http://{name}.example"
    page = f'<!DOCTYPE html><p><img src="{which}.png" alt="{caption}">'.encode()
    return [response(f"{host}/{which}", page), response(f"{host}/{which}.png", picture(), "image/png")]


def host(name: str) -> str:
    """Where the pages of a case stand."""
    return f"http://{name}.example"


# Metadata and tables: their images are in `neighbours`. ---------------------------------------------------------------


def neighbours(names: Iterable[str]) -> bytes:
    """An archive of the images that tables and metadata of these cases name."""
    urls = [
        f"{NEIGHBOURS}/before.png",
        f"{NEIGHBOURS}/after.png",
        *(signed(name, IT.encode()).decode() for name in names),
    ]
    return b"".join(gzipped(response(url, picture(), "image/png")) for url in urls)


def wat(name: str, *hostile: bytes) -> bytes:
    """Metadata of pages, of records `metadata` gives."""
    ends = [
        metadata(f"{host(name)}/{which}", [link(which, text(name))])
        for which, text in (("before", before), ("after", after))
    ]
    return b"".join(gzipped(signed(name, each)) for each in (ends[0], *hostile, ends[1]))


def link(which: str, alt: object) -> dict[str, object]:
    """An image of a page."""
    return {"path": "IMG@/src", "url": IT if which == "it" else f"{NEIGHBOURS}/{which}.png", "alt": alt}


def metadata(url: str, links: object, *, head: object = None, status: object = "200") -> bytes:
    """The record about a page."""
    http = {
        "Response-Message": {"Status": status},
        "HTML-Metadata": {"Head": {} if head is None else head, "Links": links},
    }
    block = {
        "Envelope": {
            "WARC-Header-Metadata": {"WARC-Target-URI": url},
            "Payload-Metadata": {"HTTP-Response-Metadata": http},
        }
    }
    return metadata_of(url, json.dumps(block).encode())


def metadata_of(url: str, block: bytes) -> bytes:
    """A metadata record of any bytes."""
    return record(url, block, kind="metadata", content_type="application/json")


def csv(name: str, *hostile: bytes, header: bytes = b"url,caption\n") -> bytes:
    """A table of lines."""
    return header + _line(name, "before", before) + signed(name, b"".join(hostile)) + _line(name, "after", after)


def _line(name: str, which: str, text: Callable[[str], str]) -> bytes:
    return f"{NEIGHBOURS}/{which}.png,{text(name)}\n".encode()


def tsv(name: str, *hostile: bytes) -> bytes:
    """The same with tabs."""
    lines = [
        f"{NEIGHBOURS}/{which}.png\t{text(name)}\n".encode() for which, text in (("before", before), ("after", after))
    ]
    return b"url\tcaption\n" + lines[0] + signed(name, b"".join(hostile)) + lines[1]


def jsonl(name: str, *hostile: bytes) -> bytes:
    """Lines of JSON."""
    ends = [
        json.dumps({"url": f"{NEIGHBOURS}/{which}.png", "caption": text(name)}).encode() + b"\n"
        for which, text in (("before", before), ("after", after))
    ]
    return ends[0] + signed(name, b"".join(hostile)) + ends[1]


def row(caption: str, url: str = IT) -> bytes:
    """A line of JSON with a good image."""
    return json.dumps({"url": url, "caption": caption}).encode("utf-8", "surrogatepass") + b"\n"


def parquet(name: str, hostile: Iterable[Mapping[str, object]] = (), **types: pa.DataType) -> pa.Table:
    """A table; `types` are of columns beside or instead of strings."""
    own = {IT: signed(name, IT.encode()).decode()}
    ends = [
        {"url": f"{NEIGHBOURS}/{which}.png", "caption": text(name)}
        for which, text in (("before", before), ("after", after))
    ]
    rows = [ends[0], *({**each, "url": own.get(str(each.get("url")), each.get("url"))} for each in hostile), ends[1]]
    fields = {"url": pa.string(), "caption": pa.string(), **types}
    return pa.table({column: pa.array([each.get(column) for each in rows], kind) for column, kind in fields.items()})


def written(table: pa.Table, **options: object) -> bytes:
    """A table as Parquet."""
    file = io.BytesIO()
    pq.write_table(table, file, **{"compression": "none", **options})  # type: ignore[arg-type]
    return file.getvalue()


# Tars -----------------------------------------------------------------------------------------------------------------


def tar(name: str, *hostile: bytes, end: bytes = b"\0" * 1024) -> bytes:
    """A tar; what is hostile are members as `member` or `header` gives them."""
    return sample(name, "before", before) + signed(name, b"".join(hostile)) + sample(name, "after", after) + end


def sample(name: str, which: str, text: Callable[[str], str]) -> bytes:
    """The members of a good sample."""
    side_car = json.dumps({"url": f"{host(name)}/{which}.png"}).encode()
    return (
        member(f"{which}.png", picture())
        + member(f"{which}.txt", text(name).encode())
        + member(f"{which}.json", side_car)
    )


def member(name: str, data: bytes, **fields: object) -> bytes:
    """A member and its header."""
    return header(name, len(data), **fields) + padded(data)


def padded(data: bytes) -> bytes:
    """Data as a tar stores it."""
    return data + b"\0" * (-len(data) % 512)


def header(name: str, size: int, **fields: object) -> bytes:
    """A header of 512 bytes; `fields` are of `tarfile.TarInfo`."""
    info = tarfile.TarInfo(name)
    info.size = size
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.USTAR_FORMAT if len(name) <= 100 else tarfile.GNU_FORMAT)


def patched(block: bytes, at: int, value: bytes) -> bytes:
    """A header with other bytes at a place, and a checksum that fits."""
    block = block[:at] + value + block[at + len(value) :]
    checksum = sum(block[:148]) + sum(block[156:512]) + 8 * 32
    return block[:148] + b"%06o\0 " % checksum + block[156:]


def pax(*records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """An extended header of records as they are."""
    return member("pax", b"".join(records), type=kind)


def pax_record(key: str, value: str) -> bytes:
    """`LENGTH KEY=VALUE`, the length its own too."""
    rest = f" {key}={value}\n".encode("utf-8", "surrogateescape")
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return str(length).encode() + rest
