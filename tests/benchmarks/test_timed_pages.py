"""The timed loop that ours and the peer's benchmark of pages share."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import timed_pages
from tests.test_layers import imports


def test_what_is_counted_is_of_all_timed_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passes: list[list[Path]] = []

    def read(archives: list[Path]) -> timed_pages.Counts:
        passes.append(archives)
        return {"images": 2 * len(archives)}

    monkeypatch.setattr(sys, "argv", ["pages", "one.warc", "two.warc", "--repeat", "3"])
    assert timed_pages.main("about", read, afterwards=lambda archives: {"pages": len(archives)}) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["images"], figures["pages"]) == (12, 6)
    assert figures["cpu_s"] >= 0
    assert figures["wall_s"] > 0
    assert passes == [[Path("one.warc"), Path("two.warc")]] * 4  # the first is not timed


def test_the_peers_environment_needs_nothing_of_ours_for_it() -> None:
    assert imports(Path(timed_pages.__file__)) <= sys.stdlib_module_names
