"""The timed loop that ours and the peers' benchmarks of pages and images share."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import timed
from tests.test_layers import imports


def test_the_rate_is_of_all_timed_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    passes: list[list[Path]] = []

    def read(archives: list[Path]) -> timed.Counts:
        passes.append(archives)
        return {"images": 2 * len(archives)}

    monkeypatch.setattr(sys, "argv", ["pages", "one.warc", "two.warc", "--repeat", "3"])
    assert timed.main("about", read, counted="pages", afterwards=lambda archives: {"pages": len(archives)}) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["images"], figures["pages"]) == (4, 2)
    assert figures["pages_per_cpu_s"] * figures["work_cpu_s"] == pytest.approx(6)
    assert figures["work_s"] > 0
    assert passes == [[Path("one.warc"), Path("two.warc")]] * 4  # the first is not timed


def test_the_peers_environment_needs_nothing_of_ours_for_it() -> None:
    assert imports(Path(timed.__file__)) <= sys.stdlib_module_names
