"""Web archive to candidates, ours: all that extract does with an archive, in one thread, without Beam.

Prints one line of JSON.

    python -m benchmarks.our_pages ARCHIVE... [--repeat 1]

Included: finding out where records are that can be read again, charsets, URLs, captions, verdicts, places of images,
Arrow batches. A first pass over the archives is not counted, for kernels load on first use.
"""

import sys
from pathlib import Path

from fastwarc.warc import ArchiveIterator, WarcRecordType

from altalign.pipelines.read.pages import warc
from benchmarks import timed


def read(archives: list[Path]) -> timed.Counts:
    """Image elements, and those that are candidates."""
    images = candidates = 0
    for archive in archives:
        for found in warc.read(str(archive)):
            images += found.rows.num_rows
            candidates += found.rows.column("reason").null_count
    return {"images": images, "candidates": candidates}


def pages_in(archives: list[Path]) -> timed.Counts:
    """How many pages the archives have."""
    pages = 0
    for archive in archives:
        with archive.open("rb") as file:
            pages += sum(
                record.http_content_type == "text/html"
                for record in ArchiveIterator(file, record_types=WarcRecordType.response)
            )
    return {"pages": pages}


if __name__ == "__main__":
    sys.exit(timed.main(__doc__, read, counted="pages", afterwards=pages_in))
