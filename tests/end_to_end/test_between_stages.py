"""Between two stages or writes: changed files, deletions cut short, lost counts, a moved folder."""

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign import storage
from altalign.cli import main
from altalign.data.stages import STAGES
from tests.support.curations import fails, rows_in, summary, tree

pytestmark = pytest.mark.faults


def test_a_table_that_changes_before_its_images_are_gathered_stops_the_run(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are numbers: in another order they would give captions the images of others."""
    from altalign.pipelines.stages import fetch

    real = fetch.gather

    def gather(run, file, wanted):
        path = Path(run.files[file].path)
        rows = pq.read_table(path)
        pq.write_table(rows.take(pa.array(range(len(rows) - 1, -1, -1))), path)
        return real(run, file, wanted)

    monkeypatch.setattr(fetch, "gather", gather)
    assert "changed since the run began to read it" in fails(capsys, 1)
    assert not (folder / "run" / "manifest.json").exists()


@pytest.mark.parametrize(
    "lost", ["extract/marks/000000.json", "extract/marks/000001.json", "judge/grouped/marks/00000.json"]
)
def test_a_deletion_that_was_cut_short_loses_no_pair(folder: Path, lost: str) -> None:
    """However far `--restart` came before it was killed: what says that a stage is done goes first."""
    assert main(["curate", "config.toml"]) == 0
    before = tree(folder / "run")
    deleted = []
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002
        if str(path).endswith(lost) or deleted:
            deleted.append(path)
            raise KeyboardInterrupt
        real(path, missing_ok=missing_ok)

    (folder / "run" / "manifest.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            storage.delete_units([str(folder / "run" / "work")])
    assert not list((folder / "run" / "work").rglob("done.json"))
    assert main(["curate", "config.toml"]) == 0
    assert tree(folder / "run") == before


def test_without_its_manifest_alone_a_run_writes_it_again(folder: Path) -> None:
    assert main(["curate", "config.toml"]) == 0
    before = tree(folder / "run")
    (folder / "run" / "manifest.json").unlink()
    assert main(["curate", "config.toml"]) == 0
    assert tree(folder / "run") == before


def test_lost_counts_stop_the_stage_that_lost_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml", "--until", "judge"]) == 0
    (folder / "run" / "work" / "judge" / "done.json").unlink()
    marks = [
        path
        for path in (folder / "run" / "work" / "judge" / "grouped" / "marks").glob("*.json")
        if json.loads(path.read_text(encoding="utf-8"))["counts"]
    ]
    facts = storage.read_sealed(str(marks[0]))
    storage.write_sealed(str(marks[0]), {**facts, "counts": []})
    assert "counts do not add up" in fails(capsys, 1, "--until", "judge")


def test_the_toml_beside_a_model_is_part_of_what_the_fetch_stage_rests_on(tmp_path: Path) -> None:
    from altalign.pipelines.opening.reopen import grounds_of
    from altalign.settings.curate import CurateConfig

    (tmp_path / "m.onnx").write_bytes(b"model")
    (tmp_path / "m.toml").write_text("a = 1", encoding="utf-8")
    config = CurateConfig.from_values(
        {"input": {"paths": ["x"]}, "image": {"nsfw": {"model": str(tmp_path / "m.onnx")}}}, where="test"
    )
    before = grounds_of(config, ())
    (tmp_path / "m.toml").write_text("a = 2", encoding="utf-8")
    after = grounds_of(config, ())
    assert [stage for stage in before if before[stage].digest != after[stage].digest] == list(
        STAGES[STAGES.index("fetch") :]
    )


@pytest.mark.parametrize("name", ["report.html", "audit/checks.json"])
def test_a_kill_after_the_manifest_leaves_no_part_of_a_file(folder: Path, name: str) -> None:
    """The report is written last, when the stages are done."""
    assert main(["curate", "config.toml"]) == 0
    before = tree(folder / "run")
    (folder / "run" / name).rename(folder / "run" / f"{name}.partial-0123abcd")
    assert main(["curate", "config.toml"]) == 0
    assert tree(folder / "run") == before


def test_a_block_list_that_grew_is_read_again_in_the_same_process(folder: Path) -> None:
    blocked = folder / "blocked.txt"
    blocked.write_text("", encoding="utf-8")
    setting = ("--set", f'image.blocked_hashes=["{blocked}"]')
    assert main(["curate", "config.toml", *setting]) == 0
    first = summary(folder / "run")["pairs"]
    kept = rows_in(folder / "run" / "shards")
    blocked.write_text(kept[0]["found_sha256"] + "\n", encoding="utf-8")
    assert main(["curate", "config.toml", *setting, "--rerun"]) == 0
    assert summary(folder / "run")["pairs"] == first - sum(
        row["found_sha256"] == kept[0]["found_sha256"] for row in kept
    )


def test_a_setting_that_changes_no_byte_leaves_the_files_of_a_finished_run(folder: Path) -> None:
    assert main(["curate", "config.toml"]) == 0
    before = tree(folder / "run")
    assert main(["curate", "config.toml", "--set", "fetch.threads=32"]) == 0
    assert tree(folder / "run") == before
    manifest = json.loads((folder / "run" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["settings_sha256"] == hashlib.sha256((folder / "run" / "config.toml").read_bytes()).hexdigest()


def test_a_kill_during_the_very_first_write_does_not_cost_the_folder(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "run.json.partial-0123abcd").write_text("{", encoding="utf-8")
    assert main(["curate", "config.toml", "--until", "extract"]) == 0


def test_a_run_that_was_moved_goes_on(folder: Path) -> None:
    assert main(["curate", "config.toml", "--until", "extract"]) == 0
    shutil.move(folder / "run", folder / "moved")
    assert main(["curate", "config.toml", "--set", "run.folder=moved"]) == 0
    assert main(["curate", "config.toml"]) == 0
    assert tree(folder / "moved") == tree(folder / "run")


def test_an_unknown_flag_for_beam_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no_such_flag" in fails(capsys, 2, "--", "--no_such_flag=3")
    assert not (folder / "run").exists()


@pytest.mark.parametrize("lost", ["shards/00001.tar", "shards/00000.parquet"])
def test_a_finished_run_without_one_of_its_files_says_so_and_writes_it_anew(
    folder: Path, capsys: pytest.CaptureFixture[str], lost: str
) -> None:
    assert main(["curate", "config.toml", "--set", "shards.samples_per_shard=4"]) == 0
    before = tree(folder / "run")
    (folder / "run" / lost).unlink()
    if lost.endswith(".tar"):
        assert f"run/{lost}: damaged: it is not there" in fails(capsys, 1, "--set", "shards.samples_per_shard=4")
    (folder / "run" / "manifest.json").unlink()
    assert main(["curate", "config.toml", "--set", "shards.samples_per_shard=4"]) == 0
    assert tree(folder / "run") == before


def test_an_image_whose_header_lies_costs_itself_alone(folder: Path) -> None:
    path = folder / "input" / "part-0.parquet"
    rows = pq.read_table(path).to_pylist()
    png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xff\xff\xff\x00\x00\x01\x00\x08\x02\x00\x00\x00"
    for row in rows:
        row["image"] = png if row["image"] else None
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(path)), path)
    assert main(["curate", "config.toml"]) == 0


def test_names_that_look_like_markup_are_shown_as_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml", "--set", "run.folder=run [/x] [red]"]) == 0
    assert "run [/x] [red]" in capsys.readouterr().out
    assert main(["status", "run [/x] [red]"]) == 0


def test_a_path_with_brackets_that_is_there_is_itself_and_a_pipe_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import os

    (folder / "text" / "a[1].csv").write_bytes((folder / "text" / "some.csv").read_bytes())
    text = (folder / "config.toml").read_text(encoding="utf-8")
    (folder / "config.toml").write_text(text.replace("text/*.csv", "text/a[1].csv"), encoding="utf-8")
    assert main(["curate", "config.toml", "--until", "extract"]) == 0
    os.mkfifo(folder / "text" / "pipe.csv")
    (folder / "config.toml").write_text(text.replace("text/*.csv", "text/pipe.csv"), encoding="utf-8")
    assert "no regular file" in fails(capsys, 2, "--restart")
    (folder / "config.toml").write_text(text.replace("input/*.parquet", "run/**/*.parquet"), encoding="utf-8")
    assert "overlaps the run's own folder" in fails(capsys, 2, "--restart")
