"""Web archive to (page URL, image URL, alt-text), the plain loop over fastwarc and selectolax. Prints one line of JSON.

    python -m benchmarks.peer_pages ARCHIVE... [--repeat 1]

Needs fastwarc and selectolax and nothing of ours. It does what is needed and no more: every page is taken for UTF-8, `src` stays as it is
written, nothing is checked, counted or cleaned, and images in the archive are passed over. A first pass is not counted, as with ours.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from fastwarc.warc import ArchiveIterator, WarcRecordType
from selectolax.lexbor import LexborHTMLParser


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--repeat", type=int, default=1, help="times over all archives")
    arguments = parser.parse_args()
    read(arguments.archives)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(arguments.repeat):
        pages, images, rows = read(arguments.archives)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps({"cpu_s": cpu, "wall_s": wall, **{name: n * arguments.repeat for name, n in (("pages", pages), ("images", images), ("rows", len(rows)))}}))
    return 0


def read(archives: list[Path]) -> tuple[int, int, list[tuple[str, str, str]]]:
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
    return pages, images, rows


if __name__ == "__main__":
    sys.exit(main())
