"""Scores follow their samples into runs that are made of others, and stay with what a removal leaves."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.cli import main
from altalign.data import scores
from altalign.models.model import normal
from altalign.pipelines.score.models import frequencies
from tests.end_to_end.scored import prepared, rows, scores_of
from tests.support.curations import Finished, killed, tree

pytestmark = pytest.mark.runs

NAMES = ["language", "look", "picture", "similarity", "text"]


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
    stamps = {path: path.stat().st_mtime_ns for path in (folder / "out" / "scores").rglob("*.parquet")}
    capsys.readouterr()
    assert main(["score", "out", "--with", "scores.toml"]) == 0  # nothing is left to measure but what galleries show
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    followed = scores_of(folder / "out" / "scores")
    assert measured_anew(folder / "out") == followed
    before = {row["key"]: row for row in rows(Path("run")).to_pylist()}
    columns = [column for score in scores.all_of("out") for column in score.columns]
    for row in rows(Path("out")).to_pylist():
        assert {name: row[name] for name in columns} == {name: before[row["key"]][name] for name in columns}
    assert main(["select", "out", "again", "--where", "similarity >= 0", "--top", "picture_entropy=0.5"]) == 0
    assert main(["select", "again", "few", "--list", "again/shards/00000.parquet"]) == 0
    assert [score.name for score in scores.all_of("few")] == NAMES


def test_embeddings_of_dropped_images_are_of_the_pictures_that_are_left(folder: Path) -> None:
    def pictures() -> list[dict[str, Any]]:
        table = pq.read_table("run/audit/samples.parquet", filters=pc.field("picture").is_valid())
        return [row for row in table.to_pylist() if row["reason"] != "kept"]

    def measured() -> list[dict[str, Any]]:
        return pq.read_table("run/scores/look/dropped.parquet").to_pylist()

    run = folder / "run" / "scores"
    target = run.resolve()
    run.unlink()
    shutil.copytree(target, run)
    before = pictures()
    assert len(before) > 5
    for row, of in zip(measured(), before, strict=True):
        assert row["key"] == of["key"]
        vector = normal(frequencies(np.array(Image.open(io.BytesIO(of["picture"])).convert("RGB"))))
        is_flat = np.isnan(vector).any()
        assert row["look"] == (None if is_flat else vector.astype(np.float16).astype(np.float32).tolist())
    Path("keys.txt").write_text(before[0]["key"], encoding="utf-8")
    assert main(["remove", "run", "--keys", "keys.txt"]) == 0
    assert not (run / "look" / "dropped.parquet").exists()
    check(folder / "run")
    assert main(["score", "run", "--with", "scores.toml"]) == 0
    assert [row["key"] for row in measured()] == [row["key"] for row in pictures()]
    assert before[0]["key"] not in {row["key"] for row in measured()}
    check(folder / "run")


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


@pytest.mark.faults
def test_killed_and_continued_gives_the_same_scores(folder: Path) -> None:
    assert main(["select", "run", "whole", "--where", "text_characters > 15"]) == 0
    select: list[Any] = ["select", "run", "out", "--where", "text_characters > 15", "--set", "engine.workers=1"]
    for number in (1, 2):
        killed(folder, select, lambda n=number: len(list(Path("out").glob("scores/*/0*.parquet"))) >= n)
    assert main(select) == 0
    found, wanted_files = tree(folder / "out"), tree(folder / "whole")
    assert {name: of for name, of in found.items() if name.startswith("scores/")}
    assert found == wanted_files
