"""`python -m tools.concept_entries OUT` writes the concepts by which `altalign select` balances, one a line.

Titles are those of a dump (`XXwiki-…-all-titles-in-ns0.gz`), or of any list, one a line. WordNet is a folder with its
`index.noun`, `index.verb`, `index.adj` and `index.adv`, or a `wn-data-XXX.tab` of the Open Multilingual WordNet. An
entry is there once, however it is written: entries of the same words, as the rules on texts have them, are the same.
"""

import gzip
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa

from altalign import cli, storage, terminal
from altalign.commands.arguments import Parser
from altalign.errors import UsageError
from altalign.filters.concepts import WORDS_AT_MOST, Entries

_AT_ONCE = 65_536  # lines
_INDEX = ("index.noun", "index.verb", "index.adj", "index.adv")
_OF = re.compile(r"_\([^()]*\)$")  # what tells titles of the same name apart
_HEADER = "page_title"

Lines = Iterator[str]


def write(out: str, titles: Sequence[str], wordnet: Sequence[str]) -> int:
    """Write the entries of these files; returns the exit code.

    Raises:
        UsageError: a file is missing, damaged, no UTF-8, or has nothing.
    """
    files = [*((path, _titles) for path in titles), *((path, _words) for given in wordnet for path in _files(given))]
    hashes, taken = list[np.ndarray](), 0
    for path, read in files:  # first which lines are to be written: 8 bytes a line, however long the lines are
        for block in _blocks(path, read):
            found = Entries.from_lines(block)
            of_block = np.zeros(len(block), np.uint64)
            of_block[found.number] = found.hashes
            hashes.append(of_block)
    every = np.concatenate([np.zeros(0, np.uint64), *hashes])
    _, first = np.unique(every, return_index=True)
    is_first = np.zeros(len(every), bool)
    is_first[first] = True
    is_first &= every != 0
    if not is_first.any():
        raise UsageError(f"{', '.join(path for path, _ in files)}: no entry of up to {WORDS_AT_MOST} words is in it")
    with storage.write(out) as file:
        for path, read in files:
            for block in _blocks(path, read):
                lines = block.filter(pa.array(is_first[taken : taken + len(block)])).to_pylist()
                taken += len(block)
                file.write("".join(f"{line}\n" for line in lines).encode())
    said = f"{terminal.shown(out)}: {int(is_first.sum()):,} entries of {len(every):,} lines"
    terminal.stdout().print(said, highlight=False, soft_wrap=True)
    return 0


def _blocks(path: str, read: Callable[[Lines], Lines]) -> Iterator[pa.StringArray]:
    lines = list[str]()
    for line in read(_lines(path)):
        lines.append(line)
        if len(lines) == _AT_ONCE:
            yield pa.array(lines, pa.string())
            lines = []
    if lines:
        yield pa.array(lines, pa.string())


def _lines(path: str) -> Lines:
    """The lines of a file, unpacked where it is gzip."""
    try:
        with storage.open_read(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            with (
                gzip.open(file) if packed else nullcontext(file) as unpacked,
                io.TextIOWrapper(unpacked, "utf-8-sig", newline="\n") as text,  # type: ignore[type-var]
            ):
                yield from (line.rstrip("\r\n") for line in text)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 ({error.reason}); save it as UTF-8") from None
    except (OSError, EOFError) as error:  # a cut gzip is an EOFError
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: cannot be read ({why}); give titles, or WordNet's files") from None


def _titles(lines: Lines) -> Lines:
    """Titles with spaces for underscores, without what stands in brackets behind them."""
    for line in lines:
        if line != _HEADER:
            yield _OF.sub("", line).replace("_", " ")


def _words(lines: Lines) -> Lines:
    """Lemmas: the first field of WordNet's indexes, whose licence is indented; the third of a table by synsets."""
    for line in lines:
        if not line.startswith((" ", "#")):
            fields = line.split("\t")
            if len(fields) == 1:
                yield line.partition(" ")[0].replace("_", " ")
            elif len(fields) > 2 and fields[1].endswith("lemma"):
                yield fields[2].replace("_", " ")


def _files(given: str) -> list[str]:
    """The files of a WordNet: those indexes that are in a folder, or the file itself."""
    if storage.kind(given) != "folder":
        return [given]
    found = [storage.join(given, name) for name in _INDEX if Path(storage.join(given, name)).is_file()]
    if not found:
        raise UsageError(f"{given}: no WordNet (it has no {_INDEX[0]}); give its folder `dict`, or a wn-data-XXX.tab")
    return found


def entries(argv: Sequence[str]) -> int:
    """Write the file that the arguments name."""
    parser = Parser(
        prog="python -m tools.concept_entries",
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
    return write(arguments.out, arguments.titles, arguments.wordnet)


def program(argv: Sequence[str]) -> int:
    """The program, with errors as those of verbs; returns the exit code."""
    return cli.main(["entries", *argv], {"entries": ("tools.concept_entries:entries", "")})


if __name__ == "__main__":
    raise SystemExit(program(sys.argv[1:]))
