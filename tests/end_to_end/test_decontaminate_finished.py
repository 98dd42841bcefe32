"""`altalign decontaminate` on a finished run: what cannot be done leaves it whole, and what is lost of it is made anew or named."""

from pathlib import Path

import pytest

from altalign.cli import main
from tests.end_to_end.runs import tree
from tests.end_to_end.test_decontaminate import FOUND, curate, dropped, failure, folder, names, written

__all__ = ["folder", "written"]  # fixtures

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--test-set", "own=run/shards/00000.tar"), "run/shards: in the run's own folder run, whose files are made anew"),
        (("--test-set", "all=."), ".: the run's own folder run is in it"),
        (("--test-set", "mine=tests", "--set", "decontaminate.calibration=run/audit/near_duplicates"), "near_duplicates': in the run's own folder run"),
        (("--test-set", "mine=tests", "--set", "decontaminate.embedder=phash"), "its stage fetch was made with decontaminate.embedder = 'dct', now 'phash'"),
    ],
)
def test_a_finished_run_stays_whole_when_what_is_asked_for_would_take_it_away(
    folder: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], said: str
) -> None:
    curate("--set", 'decontaminate.test_sets=["tests/more"]')
    before = tree(folder / "run")
    assert said in failure(capsys, 2, "decontaminate", "run", *args)
    assert tree(folder / "run") == before


def test_what_is_lost_of_a_run_is_made_anew_or_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curate("--set", 'decontaminate.test_sets=["tests/more"]')
    (folder / "run" / "work" / "test_images" / "00000.parquet").unlink()
    assert main(["decontaminate", "run", "--test-set", "mine=tests"]) == 0
    assert names(dropped(folder / "run")) == FOUND
    (folder / "run" / "audit" / "near_duplicates" / "found.json").unlink()
    said = failure(capsys, 1, "decontaminate", "run", "--test-set", "mine=tests")
    assert "found.json: damaged: it is not there; `altalign curate` with --rerun decontaminate makes it anew" in said
    (folder / "run" / "work" / "test_images" / "00000.json").write_text("{", encoding="utf-8")
    assert "00000.json: damaged: not JSON" in (said := failure(capsys, 1, "decontaminate", "run", "--test-set", "flat=tests/flat.png"))
    assert "--rerun fetch makes it anew" in said
    curate("--rerun", "fetch", "--set", 'decontaminate.test_sets=["tests"]')
    assert names(dropped(folder / "run")) == FOUND
