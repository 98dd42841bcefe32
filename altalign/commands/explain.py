"""`altalign explain RUN --url U`, `--text`, `--key`, `--source-key`: shows what happened to a pair in every stage."""

import sys
from collections.abc import Sequence

from altalign.audit.run_folder import RunFolder
from altalign.commands.arguments import Parser
from altalign.data.stages import own_files
from altalign.machine import startup


def main(argv: Sequence[str]) -> int:
    """Finds a pair and says what happened to it."""
    parser = Parser(
        prog="altalign explain",
        description="Show what happened to a pair in every stage of a run, with the measured values.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--url", help="the URL of the image, or of its page")
    wanted.add_argument("--text", help="the caption, or a part of it")
    wanted.add_argument("--key", help="the pair's key, or its image_id: 32 hex digits")
    wanted.add_argument(
        "--source-key",
        metavar="NAME",
        help="its name in the input: FILE#ROW of a table, FILE#SAMPLE of a tar, or the path in a folder",
    )
    arguments = parser.parse_args(argv)
    with own_files(arguments.run):
        run = RunFolder.open(arguments.run)
        with startup.imports(compiles=False):
            from altalign.audit import explain  # Arrow: a fifth of a second, which --help need not wait for

        found = explain.explain(
            run, url=arguments.url, text=arguments.text, key=arguments.key, source_key=arguments.source_key
        )
    sys.stdout.write(f"{found}\n")
    return 0
