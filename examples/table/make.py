"""Writes pairs.parquet, a table of URLs, captions and images, of two sites of the demo web.

`altalign demo demo-web`, then `python examples/table/make.py demo-web examples/table/pairs.parquet`.
"""

import csv
import io
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from fastwarc.warc import ArchiveIterator

from altalign.demo.archive import Capture, read_index

SITES = ("en-00.example", "de-33.example")


def main(web: Path, table: Path) -> None:
    """Write the table; the image is null where the web has none at the URL."""
    with (web / "pairs.csv").open(encoding="utf-8", newline="") as file:
        pairs = [row for row in csv.DictReader(file) if row["page_url"].split("/")[2] in SITES]
    urls = {row["url"] for row in pairs}
    captures = {each.url: each for each in read_index(web / "index.cdxj") if each.status == 200 and each.url in urls}
    images = {url: body(web, capture) for url, capture in captures.items()}
    columns = {
        "url": [row["url"] for row in pairs],
        "caption": [row["caption"] for row in pairs],
        "image": [images.get(row["url"]) for row in pairs],
    }
    pq.write_table(pa.table(columns), table, compression="zstd", dictionary_pagesize_limit=1 << 30)


def body(web: Path, capture: Capture) -> bytes:
    """What a server answered."""
    with (web / capture.file).open("rb") as archive:
        archive.seek(capture.offset)
        records = ArchiveIterator(io.BytesIO(archive.read(capture.length)), auto_decode="all")
        return next(iter(records)).reader.read()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
