"""Options that do not go together are one line, before anything is read."""

import pytest

from altalign import cli


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("score run --clusters 2 --anew", "--clusters: takes --embedder alone"),
        ("score run --clusters 2 --set engine.workers=1", "--clusters: takes --embedder alone"),
        ("score run --clusters 2 -- --flag", "--clusters: takes --embedder alone"),
        ("score run --with file --embedder dct", "--embedder dct: belongs to --clusters"),
        ("add run --test-set a=b --like c", "--like: does not go with --test-set"),
        ("add run --test-set a=b --mode frozen", "--mode frozen: does not go with --test-set"),
        ("add run --test-set a=b --fetch-again", "--fetch-again: does not go with --test-set"),
        ("add run --input a --test-set b=c", "give --input or --test-set, one of the two"),
        ("curate file --repair --until fetch", "--repair: makes the files of a run as they were"),
        ("curate file --repair --rerun", "--repair: makes the files of a run as they were"),
        ("select run out", "nothing is asked for"),
        ("select run out --list a --where b", "--list and --where: do not go together"),
        ("merge a b", "the following arguments are required: --to"),
        ("status run --json", "--json: belongs to --lineage"),
        ("audit run --summary eu --json", "--summary: is written alone"),
        ("audit run other --words a=b", "--words a=b: belongs to the report of one run"),
        ("audit run --quick --words a=b", "--words a=b: belongs to the report of one run"),
        ("audit run --to folder", "--to folder: belongs to --summary"),
        ("audit run --page a.html", "--page is for two runs"),
        ("audit run other --shards 3", "--shards is for the checks of one run"),
        ("audit run --full --quick", "--full: reads every file of one run"),
        ("audit run other --digest", "--digest and --quick look at all files of one run"),
        ("eval a b --checkpoint 1", "two evaluations are compared as they are"),
        ("eval run --out folder", "--out folder: belongs to --sets or two evaluations"),
        ("eval run --model other --checkpoint 1", "--checkpoint 1: of the run, and --model names another"),
        ("train --sweep file --until noise", "--sweep trains trials"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"altalign: {message}")
    assert err.count("\n") == 1
