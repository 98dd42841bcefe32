"""Options that do not go together are one line, before anything is read."""

import pytest

from altalign import cli


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("score run --clusters 2 --anew", "--anew: does not go with --clusters"),
        ("score run --clusters 2 --set engine.workers=1", "--set: does not go with --clusters"),
        ("score run --with file --embedder phash", "--embedder: does not go with --with"),
        ("add run --test-set a=b --like c", "--like: does not go with --test-set"),
        ("add run --test-set a=b --mode frozen", "--mode: does not go with --test-set"),
        ("add run --test-set a=b --fetch-again", "--fetch-again: does not go with --test-set"),
        ("add run --input a --test-set b=c", "--input: does not go with --test-set"),
        ("curate file --repair --until fetch", "--until: does not go with --repair"),
        ("curate file --repair --rerun", "--rerun: does not go with --repair"),
        ("select run out", "nothing is asked for"),
        ("select run out --list a --where b", "--where: does not go with --list"),
        ("select run out --where b --balance-seed 1", "--balance-seed: does not go with a condition"),
        ("merge a b", "the following arguments are required: --to"),
        ("status run --json", "--json: belongs to --lineage"),
        ("audit run --summary eu --json", "--json: does not go with --summary"),
        ("audit run other --words a=b", "--words: does not go with two runs"),
        ("audit run --quick --words a=b", "--words: does not go with --digest or --quick"),
        ("audit run --to folder", "--to: does not go with the report of one run"),
        ("audit run --page a.html", "--page: does not go with the report of one run"),
        ("audit run other --shards 3", "--shards: does not go with two runs"),
        ("audit run --reservations --summary ca", "--reservations: does not go with --summary"),
        ("audit run --reservations --json", "--json: does not go with --reservations"),
        ("select run out --list a --respect search", "--respect: does not go with --list"),
        ("audit run --full --quick", "--full: does not go with --digest or --quick"),
        ("audit run other --digest", "other: --summary, --reservations, --digest and --quick are of one run"),
        ("eval a b --checkpoint 1", "--checkpoint: does not go with two evaluations"),
        ("eval run --out folder", "--out: does not go with a training run alone"),
        ("eval run --model other --checkpoint 1", "--checkpoint: does not go with a training run alone"),
        ("train --sweep file --until noise", "--until: does not go with --sweep"),
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
