"""Tables of text whose rows, quotes, lines, charsets or compression are broken."""

import json
from collections.abc import Callable

from tests.hostile.cases import BROKEN, NONE, Case
from tests.hostile.files import IT, between, csv, gzip_bomb, gzipped, jsonl, row, tsv
from tests.pipelines.read.pages.archives import zstd

CAPTION = "a picture in a table"
BYTES = IT.encode()
UNCLOSED = "unexpected end of data"


def _file(name: str, about: str, suffix: str, build: Callable[[], bytes], error: str, exit_code: int = 1) -> Case:
    """A case that is a file which cannot be read."""
    return Case(name, about, "table", suffix, build, exit_code=exit_code, error=error)


def _bomb(name: str) -> bytes:
    lines = csv(name).splitlines(keepends=True)
    return gzip_bomb(lines[0] + lines[1] + BYTES + b',"', 100, b'"\n' + lines[2], byte=b"a")


_CSV = [
    between(
        csv,
        "quote-not-closed",
        "A quote that is never closed: the rows below it are read again without it",
        BYTES + b',"a picture\n',
        dropped=BROKEN,
        error=UNCLOSED,
    ),
    between(
        csv,
        "quote-inside-a-field",
        "A quote closed before its field ends",
        BYTES + b',"a picture" of more\n',
        dropped=BROKEN,
        error="',' expected after '\"'",
    ),
    between(
        csv,
        "quote-over-lines",
        "A line break inside quotes, which is allowed",
        BYTES + b',"a picture\nin a table"\n',
        CAPTION,
    ),
    between(
        csv,
        "fields-of-any-number",
        "Rows of one, three and no fields",
        BYTES + b"\n" + BYTES + b",a picture,more\n,,,\n",
        dropped={"record_broken": 3},
        error="… fields, where the header has 2",
    ),
    between(csv, "rows-of-nothing", "10,000 empty lines", b"\n" * 5_000 + b"\r\n" * 5_000),
    between(
        csv,
        "rows-of-commas",
        "A row of a million commas",
        lambda: b"," * 1_000_000 + b"\n",
        dropped=BROKEN,
        error="1000001 fields, where the header has 2",
    ),
    between(csv, "row-with-nul", "NUL in a row", BYTES + b",a picture\0 in a table\n", CAPTION),
    between(
        csv,
        "row-no-utf-8",
        "A row in Latin-1",
        BYTES + b",une for\xeat tr\xe8s verte\n",
        dropped=BROKEN,
        error="not UTF-8 (byte …); convert the file",
    ),
    between(
        csv,
        "row-of-20-mb",
        "A field of 20 MB",
        lambda: BYTES + b"," + b"a" * 20_000_000 + b"\n",
        dropped=BROKEN,
        error="longer than 16 MiB",
    ),
    between(
        csv,
        "row-of-a-formula",
        "What a spreadsheet would run: it is text",
        BYTES + b",=HYPERLINK(A1) in a cell\n",
        "=HYPERLINK(A1) in a cell",
    ),
    between(
        csv,
        "lines-of-cr",
        "Lines that end in CR alone",
        BYTES + b",a picture\rin a table\n",
        dropped=BROKEN,
        error="new-line character seen in unquoted field…",
    ),
    between(
        csv,
        "line-in-no-charset",
        "A line of bytes that mean nothing",
        lambda: bytes(range(128, 256)) * 1_000 + b"\n",
        dropped=BROKEN,
        error="not UTF-8 (byte …); convert the file",
    ),
    Case(
        "line-of-100-mb",
        "A quoted field of 100 MB in a file of 100 kB",
        "table",
        ".csv.gz",
        lambda: _bomb("line-of-100-mb"),
        BROKEN,
        error="longer than 16 MiB",
    ),
    Case("csv-with-a-mark", "A byte order mark", "table", ".csv", lambda: b"\xef\xbb\xbf" + csv("csv-with-a-mark")),
    Case(
        "csv-without-end",
        "A last row without a line break",
        "table",
        ".csv",
        lambda: csv("csv-without-end").rstrip(b"\n"),
    ),
    Case(
        "csv-cut",
        "A table cut inside its last row: a CSV has nothing that would tell",
        "table",
        ".csv",
        lambda: csv("csv-cut", BYTES + b",a picture in a table\n").partition(b" table")[0],
        NONE,
        ("a picture in a",),
        after=False,
    ),
    between(
        csv,
        "gzip-members",
        "A table in two gzip members",
        BYTES + b",a picture in a table\n",
        CAPTION,
        pack=lambda data: gzipped(data[:90]) + gzipped(data[90:]),
        end=".gz",
    ),
    _file(
        "csv-of-utf-16",
        "A table in UTF-16",
        ".csv",
        lambda: csv("csv-of-utf-16").decode().encode("utf-16"),
        "its header row cannot be read (not UTF-8 (byte 0); convert the file)",
    ),
    _file("csv-of-nul", "A table of NUL, as a disk leaves it", ".csv", lambda: b"\0" * 1_000_000, "…", exit_code=2),
    _file(
        "csv-quote-in-its-header",
        "A header with a quote that is not closed",
        ".csv",
        lambda: csv("csv-quote-in-its-header", header=b'url,"caption\n'),
        "its header row cannot be read (unexpected end of data)",
    ),
    _file(
        "csv-of-semicolons",
        "A table with semicolons",
        ".csv",
        lambda: csv("csv-of-semicolons", header=b"url;caption\n"),
        "its columns are separated by ';', where .csv has a comma and .tsv a tab; convert it",
        exit_code=2,
    ),
    _file(
        "csv-with-a-column-twice",
        "Two columns of one name",
        ".csv",
        lambda: csv("x", header=b"url,caption,caption\n"),
        'the column "caption" (caption_column) is there 2 times; rename one',
        exit_code=2,
    ),
    _file(
        "csv-gz-cut",
        "A compressed table that is cut",
        ".csv.gz",
        lambda: gzipped(csv("csv-gz-cut"))[:-30],
        "cannot be read as CSV (Truncated compressed stream)",
    ),
    _file(
        "csv-gz-that-is-plain",
        "A plain table called `.gz`",
        ".csv.gz",
        lambda: csv("csv-gz-that-is-plain"),
        "not gzip by its first bytes: rename it to csv-gz-that-is-plain.csv",
    ),
    _file(
        "csv-gz-with-junk",
        "Junk behind a compressed table",
        ".csv.gz",
        lambda: gzipped(csv("csv-gz-with-junk")) + b"junk",
        "cannot be read as CSV (…)",
    ),
    _file(
        "csv-gz-wrong-checksum",
        "A compressed table whose checksum is wrong",
        ".csv.gz",
        lambda: gzipped(csv("csv-gz-wrong-checksum"))[:-8] + b"\0" * 8,
        "cannot be read as CSV (…)",
    ),
    _file(
        "csv-zst-cut",
        "A table in zstd that is cut",
        ".csv.zst",
        lambda: zstd(csv("csv-zst-cut"))[:-20],
        "cannot be read as CSV (Truncated compressed stream)",
    ),
    between(
        tsv,
        "tsv-with-quotes",
        "Quotes in a TSV, where they mean nothing",
        BYTES + b'\t"a picture" "in a table\n',
        '"a picture" "in a table',
    ),
    between(
        tsv,
        "tsv-of-tabs",
        "A row of a million tabs",
        lambda: b"\t" * 1_000_000 + b"\n",
        dropped=BROKEN,
        error="1000001 fields, where the header has 2",
    ),
]

_JSON = [
    between(
        jsonl,
        "json-line-nested",
        "Lists nested 100,000 times",
        lambda: b"[" * 100_000 + b"]" * 100_000 + b"\n",
        dropped=BROKEN,
        error="no JSON: nested too deeply",
    ),
    between(
        jsonl,
        "json-line-nested-inside",
        "An object of objects nested 100,000 times beside a caption",
        lambda: row(CAPTION)[:-2] + b', "x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001 + b"\n",
        dropped=BROKEN,
        error="no JSON: nested too deeply",
    ),
    between(
        jsonl,
        "json-line-half-character",
        "Half a surrogate pair",
        row("half a \ud83d character"),
        "half a \ufffd character",
    ),
    between(
        jsonl,
        "json-line-keys-twice",
        "A key given twice: the last counts",
        b'{"caption": "not this one here", ' + row(CAPTION)[1:],
        CAPTION,
    ),
    between(
        jsonl,
        "json-line-huge-number",
        "Numbers beyond any type",
        row(CAPTION)[:-2] + b', "a": 1e99999, "b": 99999999999999999999999999}\n',
        CAPTION,
    ),
    between(
        jsonl,
        "json-line-number-of-10-kb",
        "A number of 10,000 digits",
        row(CAPTION)[:-2] + b', "a": ' + b"9" * 10_000 + b"}\n",
        dropped=BROKEN,
        error="no JSON: a number of too many digits",
    ),
    between(
        jsonl,
        "json-line-nan",
        "`NaN`, which is no JSON and is written all the same",
        row(CAPTION)[:-2] + b', "a": NaN}\n',
        CAPTION,
    ),
    between(
        jsonl,
        "json-lines-no-objects",
        "A list, a number, a text, null and true",
        b'[1]\n7\n"text"\nnull\ntrue\n',
        dropped={"record_broken": 5},
        error="…, where an object is meant",
    ),
    between(
        jsonl,
        "json-lines-of-types",
        "Captions that are a number, a list with a number and true",
        (
            b'{"url": "http://a/", "caption": 7}\n{"url": "http://a/", "caption": ["a", 7]}\n{"url": "http://a/", '
            b'"caption": true}\n'
        ),
        dropped={"record_broken": 3},
        error="caption is no string but …",
    ),
    between(
        jsonl,
        "json-line-of-two",
        "Two objects on a line",
        row(CAPTION)[:-1] + b" " + row(CAPTION),
        dropped=BROKEN,
        error="no JSON: Extra data: …",
    ),
    between(
        jsonl, "json-line-cut", "A line that breaks off", row(CAPTION)[:-20] + b"\n", dropped=BROKEN, error="no JSON: …"
    ),
    between(
        jsonl,
        "json-line-no-utf-8",
        "A line that is no UTF-8",
        b'{"url": "http://a/", "caption": "caf\xe9"}\n',
        dropped=BROKEN,
        error="not UTF-8 (byte …); convert the file",
    ),
    between(jsonl, "json-line-of-nothing", "An empty object", b"{}\n", dropped={"url_invalid": 1}),
    between(
        jsonl,
        "json-line-of-keys",
        "An object of 200,000 keys",
        lambda: row(CAPTION)[:-2] + b"".join(b', "k%d": 0' % number for number in range(200_000)) + b"}\n",
        CAPTION,
    ),
    between(
        jsonl,
        "json-line-of-20-mb",
        "A line of 20 MB",
        lambda: row("a" * 20_000_000),
        dropped=BROKEN,
        error="longer than 16 MiB",
    ),
    Case(
        "jsonl-cut",
        "A last line that breaks off",
        "table",
        ".jsonl",
        lambda: jsonl("jsonl-cut")[:-10],
        BROKEN,
        after=False,
        error="no JSON: …",
    ),
    _file(
        "jsonl-of-one-list",
        "A JSON list over many lines instead of JSON Lines",
        ".json",
        lambda: json.dumps([{"url": "x", "caption": "y"}] * 2, indent=1).encode(),
        (
            "not the name of a table; it should end in .parquet, .arrow, .csv, .tsv or .jsonl, the last three also in "
            ".gz or .zst after that"
        ),
        exit_code=2,
    ),
    _file(
        "jsonl-gz-cut",
        "Compressed JSON Lines that are cut",
        ".jsonl.gz",
        lambda: gzipped(jsonl("jsonl-gz-cut"))[:-30],
        "cannot be read as JSONL (Truncated compressed stream)",
    ),
    _file(
        "jsonl-without-the-key",
        "Objects of other keys",
        ".jsonl",
        lambda: b'{"url": "http://a/", "captoin": "a"}\n',
        'no key in the first 1 objects "caption" (caption_column); did you mean captoin?',
        exit_code=2,
    ),
]

CASES = [*_CSV, *_JSON]
