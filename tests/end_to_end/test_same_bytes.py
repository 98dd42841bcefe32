"""The same input and settings give the same bytes: run again, one worker or four, Prism, stage by
stage.
"""

from pathlib import Path

import pytest

from altalign.cli import main
from altalign.data.stages import STAGES
from tests import made_once
from tests.support.curations import Finished, altalign, summary, tree

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def reference(embedded: Finished) -> tuple[Path, dict[str, str]]:
    return embedded.folder, embedded.tree


def same_input(reference: tuple[Path, dict[str, str]], folder: Path) -> Path:
    """The input of the reference run, the same files of the same times, under another folder's name."""
    for name in ("input", "text", "tests", "config.toml"):
        (folder / name).symlink_to(reference[0] / name)
    return folder


@pytest.mark.everyday
def test_every_kind_of_file_is_there(reference: tuple[Path, dict[str, str]]) -> None:
    folder, files = reference
    of_write = {"shards", "counts.parquet", "summary.json", "files.jsonl", "README.md", "croissant.json"}
    others = {"config.toml", "tables", "dropped", "audit", "manifest.json"}
    assert {name.split("/")[0] for name in files} == others | of_write
    assert summary(folder / "run")["pairs"] > 60  # several shards: enough to differ


@pytest.mark.everyday
def test_more_workers_change_no_byte(reference: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    done = altalign(same_input(reference, tmp_path), "curate", "config.toml", "--set", "engine.workers=4")
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "run") == reference[1]


@pytest.mark.everyday
@pytest.mark.engine
def test_prism_changes_no_byte(reference: tuple[Path, dict[str, str]], tmp_path: Path, prism: str) -> None:
    done = altalign(
        same_input(reference, tmp_path),
        "curate",
        "config.toml",
        "--set",
        "engine.runner=prism",
        environment={"ALTALIGN_PRISM": prism},
    )
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "run") == reference[1]


def test_stopped_after_every_stage_it_ends_with_the_same_bytes(
    reference: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(same_input(reference, tmp_path))
    for stage in STAGES[:-1]:
        assert main(["curate", "config.toml", "--until", stage]) == 0
        assert not (tmp_path / "run" / "manifest.json").exists()
    assert main(["curate", "config.toml"]) == 0
    assert tree(tmp_path / "run") == reference[1]


@pytest.mark.everyday
def test_a_finished_run_answers_at_once(reference: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    files, folder = reference[1], same_input(reference, tmp_path)
    made_once.linked(reference[0] / "run", folder / "run")
    times = {path: path.stat().st_mtime_ns for path in (folder / "run" / "shards").iterdir()}
    done = altalign(folder, "curate", "config.toml")
    assert done.returncode == 0
    assert "pairs of" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in (folder / "run" / "shards").iterdir()} == times
    assert tree(folder / "run") == files
