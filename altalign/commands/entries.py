"""`python -m altalign.commands.entries OUT`: writes the file of concepts by which `altalign select` balances."""

import sys
from collections.abc import Sequence

from altalign import cli
from altalign.commands.arguments import Parser
from altalign.errors import UsageError
from altalign.machine import startup


def entries(argv: Sequence[str]) -> int:
    """Write a file of concepts."""
    parser = Parser(
        prog="python -m altalign.commands.entries",
        description="Write a file of concepts, one a line, by which `altalign select` balances: from titles of "
        "Wikipedia and from WordNet's files, which you have. Entries of the same words are written once.",
    )
    parser.add_argument("out", metavar="OUT", help="the file")
    parser.add_argument(
        "--titles", action="append", default=[], metavar="FILE", help="titles, one a line, plain or gzip; repeatable"
    )
    parser.add_argument(
        "--wordnet",
        action="append",
        default=[],
        metavar="PATH",
        help="WordNet's folder, or wn-data-XXX.tab; repeatable",
    )
    arguments = parser.parse_args(argv)
    if not (arguments.titles or arguments.wordnet):
        raise UsageError("nothing to take entries from; give --titles, --wordnet or both")
    with startup.imports():
        from altalign.pipelines.derive import entries as of_files

    return of_files.write(arguments.out, arguments.titles, arguments.wordnet)


def program(argv: Sequence[str]) -> int:
    """The program, with errors as those of verbs; returns the exit code."""
    return cli.main(["entries", *argv], {"entries": ("altalign.commands.entries:entries", "")})


if __name__ == "__main__":
    raise SystemExit(program(sys.argv[1:]))
