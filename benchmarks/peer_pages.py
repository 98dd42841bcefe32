"""Web archive to (page URL, image URL, alt-text), the plain loop over fastwarc and selectolax. Prints one line of JSON.

    python -m benchmarks.peer_pages ARCHIVE... [--repeat 1]

Needs fastwarc and selectolax and nothing of ours but `timed`. It does what is needed and no more: every page is
taken for UTF-8, `src` stays as it is written, nothing is checked, counted or cleaned, and images in the archive are
passed over. A first pass is not counted, as with ours.
"""

import sys
from pathlib import Path

from fastwarc.warc import ArchiveIterator, WarcRecordType
from selectolax.lexbor import LexborHTMLParser

from benchmarks import timed


def read(archives: list[Path]) -> timed.Counts:
    """Pages, image elements, and rows of those that have a `src` and an `alt`."""
    pages = images = 0
    rows = []
    for archive in archives:
        with archive.open("rb") as file:
            for record in ArchiveIterator(file, record_types=WarcRecordType.response):
                if record.http_content_type != "text/html":
                    continue
                pages += 1
                page_url = record.headers["WARC-Target-URI"]
                for image in LexborHTMLParser(record.reader.read()).tags("img"):
                    images += 1
                    attributes = image.attributes
                    url, alt = attributes.get("src"), attributes.get("alt")
                    if url and alt:
                        rows.append((page_url, url, alt))
    return {"pages": pages, "images": images, "rows": len(rows)}


if __name__ == "__main__":
    sys.exit(timed.main(__doc__, read, counted="pages"))
