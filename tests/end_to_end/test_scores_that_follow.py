"""Scores follow their samples into runs that are made of others, and stay with what a removal leaves."""

import json
import os
import signal
import subprocess
from contextlib import chdir
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from altalign.data import scores
from tests.end_to_end.runs import Finished, command, environ, tree
from tests.end_to_end.scored import prepared, rows, scores_of

pytestmark = pytest.mark.runs

NAMES = ["language", "picture", "similarity", "text"]


@pytest.fixture
def folder(embedded: Finished, scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scored run of its own, in the working directory."""
    prepared(tmp_path, embedded)
    (tmp_path / "run" / "scores").symlink_to(scored / "run" / "scores")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measured_anew(run: Path) -> dict[str, bytes]:
    """What `altalign score` measures on a run without scores."""
    (run / "scores").rename(run.parent / "followed")
    assert main(["score", str(run), "--with", "scores.toml"]) == 0
    return scores_of(run / "scores")


def check(run: Path) -> None:
    assert main(["audit", str(run)]) == 0
    assert main(["audit", str(run), "--digest"]) == 0


@pytest.mark.everyday
def test_the_scores_of_a_selection_are_those_that_would_be_measured_on_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["select", "run", "out", "--where", "text_characters > 15"]) == 0
    check(folder / "out")
    assert [score.name for score in scores.all_of("out")] == NAMES
    followed = scores_of(folder / "out" / "scores")
    stamps = {path: path.stat().st_mtime_ns for path in (folder / "out" / "scores").rglob("*.parquet")}
    capsys.readouterr()
    assert main(["score", "out", "--with", "scores.toml"]) == 0  # nothing is left to measure
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert measured_anew(folder / "out") == followed
    before = {row["key"]: row for row in rows(Path("run")).to_pylist()}
    columns = [column for score in scores.all_of("out") for column in score.columns]
    for row in rows(Path("out")).to_pylist():
        assert {name: row[name] for name in columns} == {name: before[row["key"]][name] for name in columns}
    assert main(["select", "out", "again", "--where", "similarity >= 0", "--top", "picture_entropy=0.5"]) == 0
    assert main(["select", "again", "few", "--list", "again/shards/00000.parquet"]) == 0
    assert [score.name for score in scores.all_of("few")] == NAMES


def test_a_run_has_the_same_number_with_scores_and_without(folder: Path, scored: Path) -> None:
    (folder / "run" / "scores").unlink()
    assert main(["select", "run", "plain", "--where", "width > 100"]) == 0
    assert list(scores.all_of("plain")) == []
    (folder / "run" / "scores").mkdir()
    (folder / "run" / "scores" / "text").symlink_to(scored / "run" / "scores" / "text")
    assert main(["select", "run", "out", "--where", "width > 100"]) == 0
    assert [score.name for score in scores.all_of("out")] == ["text"]
    numbers = [json.loads(Path(run, "manifest.json").read_bytes())["files"]["sha256"] for run in ("out", "plain")]
    assert numbers[0] == numbers[1]


def test_shares_have_their_scores_and_shards_without_are_measured_later(folder: Path, scored: Path) -> None:
    link = folder / "run" / "scores"
    link.unlink()
    for name, data in scores_of(scored / "run" / "scores").items():
        path = link / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (link / "text" / "00002.parquet").unlink()
    assert main(["select", "run", "most", "rest", "--share", "0.6/0.4"]) == 0
    for run in ("most", "rest"):
        check(folder / run)
        of = {score.name: score for score in scores.all_of(run)}
        shards = sorted(path.stem for path in Path(run, "shards").glob("*.parquet"))
        assert sorted(of["similarity"].files) == shards
        assert 0 < len(of["text"].files) < len(shards)
        assert main(["score", run, "--with", "scores.toml"]) == 0
        followed = scores_of(folder / run / "scores")
        (folder / run / "scores").rename(folder / f"{run}-followed")
        assert main(["score", run, "--with", "scores.toml"]) == 0
        assert scores_of(folder / run / "scores") == followed


def test_what_a_removal_leaves_keeps_its_scores(folder: Path) -> None:
    assert (
        main(["select", "run", "out", "--list", "run/shards/00001.parquet", "--list", "run/shards/00003.parquet"]) == 0
    )
    sidecars: dict[str, list[Any]] = {
        path.stem: pq.read_table(path)["key"].to_pylist() for path in sorted(Path("out", "shards").glob("*.parquet"))
    }
    first, *others = sidecars
    assert others
    gone = [sidecars[first][1], sidecars[first][-1]]
    Path("gone").write_text("\n".join(gone), encoding="utf-8")
    before = {name: of for name, of in scores_of(folder / "out" / "scores").items() if "manifest" not in name}
    assert main(["remove", "out", "--keys", "gone"]) == 0
    check(folder / "out")
    after = scores_of(folder / "out" / "scores")
    assert {name for name, data in before.items() if after[name] != data} == {
        f"{name}/{first}.parquet" for name in NAMES
    }
    assert measured_anew(folder / "out") == after
    Path("gone").write_text("\n".join(sidecars[first]), encoding="utf-8")
    assert main(["remove", "out", "--keys", "gone"]) == 0
    check(folder / "out")
    assert all(first not in score.files for score in scores.all_of("out"))
    assert not list(Path("out", "scores").glob(f"*/{first}.parquet"))


@pytest.mark.faults
def test_killed_and_continued_gives_the_same_scores(folder: Path) -> None:
    with chdir(folder):
        assert main(["select", "run", "whole", "--where", "text_characters > 15"]) == 0
    select: list[Any] = ["select", "run", "out", "--where", "text_characters > 15", "--set", "engine.workers=1"]
    for wanted in (1, 2):
        process = subprocess.Popen(
            command(*select), cwd=folder, env=environ(), start_new_session=True, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and len(list(Path("out", "work").glob("select/scores/*/0*.json"))) < wanted:
            pass
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for path in sorted(Path("out", "work").glob("select/scores/*/0*.json"))[:1]:  # what a power cut may leave
        Path("out", "scores", "text", f"{path.stem}.parquet").write_bytes(b"")
    assert main(select) == 0
    found, wanted_files = tree(folder / "out"), tree(folder / "whole")
    assert {name: of for name, of in found.items() if name.startswith("scores/")}
    assert found == wanted_files
