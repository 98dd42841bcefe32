"""A finished run of schema 3, whose side-cars have no column `image`: it is read, or refused in one line."""

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import altalign
from altalign import storage
from altalign.cli import main
from altalign.data.schema import SAMPLE, SCHEMA_VERSION
from tests.support import finished_runs as runs

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in `run` as it was written before, with a config that curates into it; one of now in `now`."""
    folder = tmp_path_factory.mktemp("before")
    run = runs.curated(folder, rows=200)
    runs.copied(run, folder / "now")
    for path in (run / "shards").glob("*.parquet"):
        pq.write_table(pq.read_table(path, columns=SAMPLE.names), path, compression="zstd", compression_level=3)
    runs.seal(run)
    for name in ("manifest.json", "run.json"):
        facts = {**json.loads((run / name).read_text()), "schema_version": 3}
        del facts["seal"]
        if name == "run.json":  # it had the version of all columns in the grounds of `extract` alone
            before, write = (facts["stages"][stage] for stage in ("decontaminate", "write"))
            del write["reads"]["schema_version"]
            grounds = before["digest"] + json.dumps(write["reads"], sort_keys=True)
            write["digest"] = hashlib.sha256(grounds.encode()).hexdigest()
        storage.write_sealed(str(run / name), facts, durable=False)
    return folder


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["select", "run", "new", "--where", "words > 2"], "run: made with schema_version = 3"),
        (["merge", "run", "now", "--to", "new"], "run: made with schema_version = 3"),
        (["merge", "now", "run", "--to", "new"], "run: made with schema_version = 3"),
        (["remove", "run", "--keys", "keys.txt"], "run: made with schema_version = 3"),
        (["add", "run", "--input", "more/*.parquet"], "run: made with schema_version = 3"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_makes_a_run_of_it_refuses_it_in_a_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], words: str
) -> None:
    monkeypatch.chdir(folder)
    key = runs.rows_of(folder / "run")[0]["key"]
    Path("keys.txt").write_text(f"{key}\n", encoding="utf-8")
    capsys.readouterr()
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"altalign: {words}, and this altalign has {SCHEMA_VERSION}; curate it anew")
    assert said.count("\n") == 1
    assert not Path("new").exists()


def test_it_can_be_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    rows = runs.rows_of(folder / "run")
    run = altalign.open("run")
    assert run.samples().to_table(SAMPLE.names).to_pylist() == rows
    assert len([*run.images(run.samples().head(3))]) == 3
    assert main(["explain", "run", "--key", rows[0]["key"]]) == 0
    assert rows[0]["caption"] in capsys.readouterr().out


def test_the_audit_names_the_versions_and_the_column(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    said = runs.failing(folder / "run")
    assert f"schema_version = 3, but this altalign checks by {SCHEMA_VERSION}" in said["settings"]
    assert "not the columns and text of a side-car" in said["side_cars"]


def test_its_shards_are_written_anew_without_reading_or_fetching_anything_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert main(["curate", "config.toml"]) == 2
    said = f"run: its stage write was made with schema_version = 'absent', now {SCHEMA_VERSION}; `altalign curate` with"
    assert capsys.readouterr().err.startswith(f"altalign: {said} --rerun runs write and what follows anew")
    tars = {path.name: path.read_bytes() for path in Path("run/shards").glob("*.tar")}
    assert main(["curate", "config.toml", "--rerun"]) == 0
    assert "write: " in (steps := capsys.readouterr().err)
    assert not [stage for stage in ("extract", "judge", "fetch", "decontaminate") if f"{stage}: " in steps]
    assert {path.name: path.read_bytes() for path in Path("run/shards").glob("*.tar")} == tars
    assert runs.rows_of(folder / "run") == runs.rows_of(folder / "now")
    assert runs.failing(folder / "run") == {}
