"""`explain`, `status` and `clean` on a real run: a newcomer finds why a row was dropped."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from altalign.reasons import DropReason
from tests.end_to_end.runs import tree, write_input

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    write_input(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["curate", "config.toml"]) == 0
    return folder


def explain(capsys: pytest.CaptureFixture[str], folder: Path, *args: str, code: int = 0) -> str:
    """What `explain` prints, or what it fails with."""
    capsys.readouterr()
    assert main(["explain", str(folder / "run"), *args]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def test_every_dropped_row_is_found_by_its_key_and_says_each_rule_that_failed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = set()
    for path in sorted((folder / "run" / "dropped").rglob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            if row["reason"] in seen or row["key"] is None:
                continue
            seen.add(row["reason"])
            said = explain(capsys, folder, "--key", row["key"])
            assert f"{row['stage']:<9} dropped: {row['reason']}" in said
            assert all(f"- {reason}" in said for reason in row["failed"])
    judged = {
        "url_invalid",
        "text_empty",
        "text_too_short",
        "text_too_long",
        "text_on_too_many_images",
        "text_has_rare_ngram",
        "image_has_too_many_texts",
        "pair_repeated",
    }
    assert seen >= judged | {"not_in_archive", "image_damaged", "image_too_small", "image_too_elongated"}
    assert seen <= {reason.value for reason in DropReason}


def test_the_measured_value_stands_beside_the_setting(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row for path in (folder / "run" / "dropped" / "judge").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    long = next(row for row in rows if row["reason"] == "text_too_long")
    assert f"text_too_long: {long['words']} words, [text] words_at_most = 20" in explain(capsys, folder, "--text", long["caption"])
    rare = next(row for row in rows if row["failed"] == ["text_has_rare_ngram"])
    said = explain(capsys, folder, "--key", rare["key"])
    named = said.split('rare: "')[1].split('"')[0]
    assert named in rare["caption"]


def test_a_kept_pair_names_its_shard(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = pq.read_table(folder / "run" / "shards" / "00001.parquet").to_pylist()[0]
    for args in (("--key", sample["key"]), ("--key", sample["image_id"]), ("--text", f"  {sample['caption']} ")):
        assert "shards/00001.tar" in explain(capsys, folder, *args)


def test_a_url_is_found_with_its_fragment_and_white_space(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "https://img.example/3.png" in explain(capsys, folder, "--url", " https://img.example/3.png#top")


def test_nothing_found_exits_with_1_and_says_where_else_to_look(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing found with caption 'no such text'" in explain(capsys, folder, "--text", "no such text", code=1)


@pytest.mark.parametrize(("run", "words"), [("nowhere", "no such run folder"), (".", "no run of altalign")])
def test_what_is_no_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], run: str, words: str) -> None:
    for verb in (["explain", str(folder / run), "--text", "x"], ["status", str(folder / run)], ["clean", str(folder / run)]):
        capsys.readouterr()
        assert main(verb) == 2
        assert words in capsys.readouterr().err


def test_status_tells_units_rows_and_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["status", str(folder / "run")]) == 0
    said = capsys.readouterr().out
    assert "run: finished" in said
    assert "3 of 3" in said
    assert all(stage in said for stage in ("extract", "tables", "judge", "fetch", "write"))


def test_a_cleaned_run_answers_at_once_and_explains_still(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write_input(tmp_path, rows=120)
    monkeypatch.chdir(tmp_path)
    assert main(["curate", "config.toml", "--until", "judge"]) == 0
    assert main(["clean", "run"]) == 2
    assert main(["curate", "config.toml"]) == 0
    before = tree(tmp_path / "run")
    assert main(["clean", "run"]) == 0
    assert not (tmp_path / "run" / "work").exists()
    assert main(["curate", "config.toml"]) == 0
    assert tree(tmp_path / "run") == before
    assert main(["curate", "config.toml", "--set", "shards.samples_per_shard=3"]) == 2
    assert main(["curate", "config.toml", "--set", "shards.samples_per_shard=3", "--rerun"]) == 0
    assert main(["curate", "config.toml", "--rerun"]) == 0
    assert tree(tmp_path / "run") == before


def test_work_is_deleted_where_it_is_not_to_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_input(tmp_path, rows=120)
    monkeypatch.chdir(tmp_path)
    assert main(["curate", "config.toml", "--set", "run.keep_work=false"]) == 0
    assert not (tmp_path / "run" / "work").exists()
    assert main(["curate", "config.toml", "--set", "run.keep_work=false"]) == 0
