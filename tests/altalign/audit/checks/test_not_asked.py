"""Checks that could not be asked, and what a terminal is shown meanwhile."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from altalign.filters import pixels
from tests.support import finished_runs as runs
from tests.support.finished_runs import checks_of, failing, not_asked

pytestmark = pytest.mark.runs


def test_a_block_list_that_is_gone_cannot_be_asked_and_fails_nothing(run: Path) -> None:
    runs.set_in_config(run, "blocked_hashes", '["gone.txt"]')
    assert not_asked(run) == {
        "image_blocked": (
            "[image] blocked_hashes: gone.txt: No such file or directory; run this in the folder that the run was made "
            "in, with the list"
        )
    }
    assert failing(run) == {}


def test_what_another_block_list_holds_fails_where_one_is_gone(run: Path) -> None:
    runs.block_an_image(run)
    runs.set_in_config(run, "blocked_hashes", f'["gone.txt", "{run / "blocked.txt"}"]')
    assert failing(run).keys() == {"image_blocked"}
    assert not_asked(run) == {}


def test_an_image_that_there_is_no_memory_for_is_not_asked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, first = pixels.decode, (run / "shards" / "00000.tar").read_bytes()

    def short_of_memory(data: bytes, **more: Any) -> pixels.Decoded:
        if data in first:
            raise MemoryError("needs 5 GB")
        return decode(data, **more)

    monkeypatch.setattr(pixels, "decode", short_of_memory)
    rows = runs.rows_of(run, "00000")
    why = [
        f"shards/00000.tar: {row['key']}: no memory to decode its image (needs 5 GB), so no image rule was checked; "
        "run it with more memory"
        for row in rows
    ]
    assert failing(run) == {}
    # other shards have some of them, too
    hindered = sum(row["sha256"] in {row["sha256"] for row in rows} for row in runs.rows_of(run))
    assert not_asked(run) == {"image_sizes": f"{'; '.join(why[:3])}; and {hindered - 3} more"}
    assert checks_of(run)["image_damaged"].checked == len(runs.rows_of(run)) - hindered


def test_a_terminal_is_shown_how_many_shards_are_checked(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks_of(whole)
    assert capsys.readouterr() == ("", "")
    screen = io.StringIO()
    monkeypatch.setattr("altalign.terminal.stderr", lambda: Console(file=screen, force_terminal=True, width=100))
    checks_of(whole)
    number = len(runs.names(whole))
    assert f"{number}/{number}" in screen.getvalue()
    assert capsys.readouterr() == ("", "")
