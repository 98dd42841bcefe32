"""`altalign demo DIR [--serve]`: write the demo web; serve it on loopback."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from altalign.commands.arguments import Parser
from altalign.errors import UsageError


def main(argv: Sequence[str]) -> int:
    """Write the demo web where there is none yet, and serve it if asked."""
    parser = Parser(
        prog="altalign demo",
        description=(
            "Write a small web of drawn pictures and their captions, as WARC files, from a seed and without a network."
        ),
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="where to write it")
    parser.add_argument(
        "--serve",
        action="store_true",
        help="then serve it on 127.0.0.1; its pairs go to DIR/served.csv",
    )
    parser.add_argument("--port", type=int, default=8642, help="port (8642); 0 finds a free one")
    arguments = parser.parse_args(argv)

    from altalign.demo import serve, web  # imports what draws, for which --help need not wait

    folder: Path = arguments.folder
    if (folder / "README.md").is_file():
        sys.stdout.write(f"{folder}: the demo web is there already\n")
    elif folder.is_file():
        raise UsageError(f"{folder}: a file, where a folder is meant; choose another")
    elif folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder}: a folder that holds something else; choose another, or empty it")
    else:
        # An interrupted command leaves no folder that seems whole.
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        summary = web.write(partial)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
        sys.stdout.write(
            f"{folder}: {summary.pages:,} pages, {summary.image_elements:,} image elements, {summary.images:,} images, "
            f"{summary.test_images} test images, {summary.bytes / 1e6:.1f} MB\n"
        )
    if arguments.serve:
        serve.serve(folder, arguments.port)
    return 0
