"""Wrong settings, files and folders: one clear line, the exit code, and nothing done."""

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from tests.end_to_end.runs import fails, tree

pytestmark = pytest.mark.slow


# Before any work: exit code 2 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("text.words_at_lest=3", "words_at_least"),
        ('input.paths=["nothing/*.parquet"]', "nothing matches 'nothing/*.parquet'"),
        ('input.paths=["input"]', "input is a folder, where a file is meant"),
        ('input.caption_column="captoin"', "captoin"),
        ('input.caption_column="image"', "image"),
        ('input.image_column="caption"', "caption"),
        ('fetch.source="web"', "not supported yet"),
        ('decontaminate.test_sets=["x"]', "not supported yet"),
        ('engine.runner="spark"', "not supported yet"),
        ('image.blocked_hashes=["no-such-list"]', "no-such-list"),
        ('run.folder="s3://bucket/run"', "object stores are not supported yet"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(folder: Path, capsys: pytest.CaptureFixture[str], setting: str, words: str) -> None:
    text = (folder / "config.toml").read_text(encoding="utf-8")
    (folder / "config.toml").write_text(text[: text.index('[[input]]\nname = "words"')] + text[text.index("[text]") :], encoding="utf-8")
    assert words in fails(capsys, 2, "--set", setting)
    assert not (folder / "run").exists()


def test_a_folder_that_is_no_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "thesis.txt").write_text("mine", encoding="utf-8")
    assert "a folder that is no run of altalign" in fails(capsys, 2)
    assert [path.name for path in (folder / "run").iterdir() if path.name != "log"] == ["thesis.txt"]


def test_other_settings_are_refused_and_rerun_runs_from_the_first_stage_that_reads_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml"]) == 0
    before = tree(folder / "run")
    line = fails(capsys, 2, "--set", "shards.samples_per_shard=7")
    assert "stage write was made with shards.samples_per_shard = 20, now 7" in line
    assert "--rerun runs write" in line
    assert tree(folder / "run") == before
    assert "stage judge was made with text.words_at_least = 3, now 2" in fails(
        capsys, 2, "--set", "text.words_at_least=2", "--set", "shards.samples_per_shard=7"
    )
    marks = {path: path.stat().st_mtime_ns for path in (folder / "run" / "work" / "fetch").rglob("*.json")}
    assert main(["curate", "config.toml", "--set", "shards.samples_per_shard=7", "--rerun"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "run" / "work" / "fetch").rglob("*.json")} == marks
    assert main(["curate", "config.toml", "--rerun"]) == 0
    assert tree(folder / "run") == before


def test_a_file_that_changed_is_refused_and_restart_runs_everything(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml", "--until", "judge"]) == 0
    path = folder / "input" / "part-0.parquet"
    os.utime(path, ns=(1, 1))
    line = fails(capsys, 2)
    assert "stage extract was made with the file input/part-0.parquet of the same size, but another time" in line
    assert main(["curate", "config.toml", "--restart"]) == 0


def test_a_changed_engine_is_no_other_setting(folder: Path) -> None:
    assert main(["curate", "config.toml", "--until", "judge"]) == 0
    assert main(["curate", "config.toml", "--set", "engine.workers=3"]) == 0


def test_a_dry_run_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "input/part-1.parquet" in said
    assert "words_at_least = 3" in said
    assert not (folder / "run").exists()


# Files that cannot be read: exit code 1 -------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_read_stops_the_run_and_made_readable_it_continues(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "text" / "some.csv.gz"
    whole = gzip.compress((folder / "text" / "some.csv").read_bytes())
    (folder / "text" / "some.csv").unlink()
    path.write_bytes(whole[: len(whole) // 2])
    (folder / "config.toml").write_text((folder / "config.toml").read_text(encoding="utf-8").replace("*.csv", "*.csv.gz"), encoding="utf-8")
    line = fails(capsys, 1)
    assert "text/some.csv.gz" in line
    path.write_bytes(whole)
    assert main(["curate", "config.toml"]) == 0


def test_a_file_that_cannot_be_read_is_counted_where_that_is_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "input" / "part-1.parquet").write_bytes(b"PAR1 and nothing more")
    text = (folder / "config.toml").read_text(encoding="utf-8")
    (folder / "config.toml").write_text(text.replace('image_column = "image"', 'image_column = "image"\nskip_unreadable = true'), encoding="utf-8")
    assert main(["curate", "config.toml"]) == 0
    broken = [row for path in (folder / "run" / "dropped" / "extract").glob("broken-*.parquet") for row in pq.read_table(path).to_pylist()]
    assert [row["file"] for row in broken] == ["input/part-1.parquet"]
    assert "record_broken" in capsys.readouterr().out


def test_a_parquet_page_that_is_damaged_names_its_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "input" / "part-0.parquet"
    pq.write_table(
        pa.table({"url": ["https://a.example/"] * 1000, "caption": [f"caption number {i}" for i in range(1000)], "page": [None] * 1000}),
        path,
        compression="none",
        use_dictionary=False,
    )
    data = bytearray(path.read_bytes())
    data[4:3000] = b"\xff" * 2996
    path.write_bytes(data)
    (folder / "config.toml").write_text(
        (folder / "config.toml").read_text(encoding="utf-8").replace('image_column = "image"\n', "").replace("input/*.parquet", "input/part-0.parquet"),
        encoding="utf-8",
    )
    assert "input/part-0.parquet" in fails(capsys, 1)


# Nothing, and hardly anything --------------------------------------------------------------------------------------------------


def test_files_without_rows_or_bytes_are_no_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "text" / "some.csv").write_text("url,caption\n", encoding="utf-8")
    (folder / "text" / "none.csv").write_bytes(b"")
    for path in (folder / "input").iterdir():
        pq.write_table(pq.read_table(path).slice(0, 0), path)
    assert main(["curate", "config.toml"]) == 0
    assert "nothing is left of the pool" in capsys.readouterr().out
    assert (folder / "run" / "manifest.json").is_file()
    assert not list((folder / "run").glob("shards/*"))


def test_a_full_disk_says_so_and_the_run_continues(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file-size limit of the process stands for the disk: writes fail as they do on a full one."""
    pytest.importorskip("resource")
    import errno

    from altalign import storage

    real, left = storage.write, [12]

    def write(path: str):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return real(path)

    monkeypatch.setattr(storage, "write", write)
    assert "no space left on the device" in fails(capsys, 1)
    monkeypatch.setattr(storage, "write", real)
    assert main(["curate", "config.toml"]) == 0
