"""Web archive to candidates, ours: all that extract does with an archive, in one thread, without Beam. Prints one line of JSON.

    python -m benchmarks.our_pages ARCHIVE... [--repeat 1]

Included: finding out where records are that can be read again, charsets, URLs, captions, verdicts, places of images, Arrow batches.
A first pass over the archives is not counted, for kernels load on first use.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from fastwarc.warc import ArchiveIterator, WarcRecordType

from pipelines.read import warc


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--repeat", type=int, default=1, help="times over all archives")
    arguments = parser.parse_args()
    read(arguments.archives)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(arguments.repeat):
        images, candidates = read(arguments.archives)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    pages = sum(map(pages_in, arguments.archives)) * arguments.repeat
    print(json.dumps({"cpu_s": cpu, "wall_s": wall, "pages": pages, "images": images * arguments.repeat, "candidates": candidates * arguments.repeat}))
    return 0


def read(archives: list[Path]) -> tuple[int, int]:
    """Image elements, and those that are candidates."""
    images = candidates = 0
    for archive in archives:
        for found in warc.read(str(archive)):
            images += found.rows.num_rows
            candidates += found.rows.column("reason").null_count
    return images, candidates


def pages_in(archive: Path) -> int:
    """How many pages an archive has."""
    with archive.open("rb") as file:
        return sum(record.http_content_type == "text/html" for record in ArchiveIterator(file, record_types=WarcRecordType.response))


if __name__ == "__main__":
    sys.exit(main())
