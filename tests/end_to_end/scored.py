"""A finished run with scores of every kind that needs no training, as a user measures them."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import made_once
from tests.pipelines import score_models
from tests.support.curations import Finished, altalign

SCORES = """
[[score]]
name = "text"
kind = "text"

[[score]]
name = "language"
kind = "language"
model = "softmax.bin"

[[score]]
name = "picture"
kind = "image"

[[score]]
name = "look"
kind = "embedding"

[[score]]
name = "similarity"
kind = "similarity"
model = "onnx:clip"
"""
FASTTEXT = Path(__file__).parents[1] / "pipelines" / "score" / "fasttext"


def prepared(folder: Path, finished: Finished) -> Path:
    """A copy of a finished run, what scores need, and no scores yet."""
    shutil.copytree(finished.folder / "run", folder / "run")
    score_models.write(folder / "clip")
    shutil.copy(FASTTEXT / "softmax.bin", folder)
    (folder / "scores.toml").write_text(SCORES, encoding="utf-8")
    return folder


def scored_run(embedded: Finished, factory: pytest.TempPathFactory) -> Path:
    """The run with its scores; read only."""

    def make(folder: Path) -> None:
        prepared(folder, embedded)
        done = altalign(folder, "score", "run", "--with", "scores.toml")
        assert done.returncode == 0, done.stderr
        assert "run/scores/similarity: 141 samples, similarity" in done.stdout

    return made_once.made_once("scored", factory, make)


def rows(run: Path) -> pa.Table:
    """The samples of a run with their scores."""
    tables = []
    for sidecar in sorted((run / "shards").glob("*.parquet")):
        table = pq.read_table(sidecar)
        for folder in sorted((run / "scores").iterdir()):
            values = pq.read_table(folder / sidecar.name)
            assert values["key"].equals(table["key"])
            for name in values.column_names[1:]:
                table = table.append_column(name, values[name])
        tables.append(table)
    return pa.concat_tables(tables)


def scores_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
