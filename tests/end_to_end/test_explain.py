"""`explain`, `status` and `clean` on a real run: a newcomer finds why a row was dropped."""

import json
import os
import re
import shlex
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign import storage
from altalign.cli import main
from altalign.data.reasons import WORDS
from altalign.data.stages import STAGES
from tests import made_once
from tests.support import archives
from tests.support.curations import Finished, altalign, command, environ, rows_in, tree, write_input

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def folder(embedded: Finished) -> Path:
    return embedded.folder


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    write_hostile(folder)
    return curated(folder, "--until", "judge")


def curated(folder: Path, *args: str) -> Path:
    with chdir(folder):
        assert main(["curate", "config.toml", *args]) == 0
    return folder


def explain(capsys: pytest.CaptureFixture[str], folder: Path, *args: str, code: int = 0) -> str:
    """What `explain` prints, or what it fails with."""
    capsys.readouterr()
    assert main(["explain", str(folder / "run"), *args]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


@pytest.mark.everyday
def test_every_dropped_row_is_found_by_its_key_and_says_each_rule_that_failed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = set()
    for path in sorted((folder / "run" / "dropped").rglob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            if row["reason"] in seen or row["key"] is None:
                continue
            seen.add(row["reason"])
            said = explain(capsys, folder, "--key", row["key"])
            assert re.search(rf"^  {row['stage']} +dropped: {row['reason']}$", said, re.MULTILINE)
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
    assert seen <= WORDS.keys()


def test_the_measured_value_stands_beside_the_setting(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_in(folder / "run" / "dropped" / "judge")
    long = next(row for row in rows if row["reason"] == "text_too_long")
    assert f"text_too_long: {long['words']} words, [text] words_at_most = 20" in explain(
        capsys, folder, "--text", long["caption"]
    )
    rare = next(row for row in rows if row["failed"] == ["text_has_rare_ngram"])
    said = explain(capsys, folder, "--key", rare["key"])
    named = said.split('rare: "')[1].split('"')[0]
    assert named in rare["caption"]


def test_a_kept_pair_names_its_shard(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = pq.read_table(folder / "run" / "shards" / "00001.parquet").to_pylist()[0]
    by = ("--key", sample["key"]), ("--key", sample["image_id"]), ("--text", f"  {sample['caption']} ")
    for args in (*by, ("--source-key", sample["source_key"])):
        assert "shards/00001.tar" in explain(capsys, folder, *args)


def test_a_url_is_found_with_its_fragment_and_white_space(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "https://img.example/3.png" in explain(capsys, folder, "--url", " https://img.example/3.png#top")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a folder: a picture kept, the same pair again, a caption in Latin-1, a pair that was removed, a page."""
    folder = tmp_path_factory.mktemp("photos")
    captions = {"a": "The Quiet Lake at dawn", "sub/b": "The Quiet Lake at dawn", "gone": "A mill beside the river"}
    (folder / "photos" / "sub").mkdir(parents=True)
    for number, (name, caption) in enumerate({**captions, "sub/latin1": ""}.items()):
        color = "blue" if name in ("a", "sub/b") else (90 * number, 0, 0)
        Image.new("RGB", (320, 240), color).save(folder / "photos" / f"{name}.png")
        (folder / "photos" / f"{name}.txt").write_bytes(caption.encode() or "a caf\xe9 at night".encode("latin-1"))
    page = b'<img src="ftp://h.example/a.png" alt="a mountain under clouds">'
    archives.write(folder / "pages.warc.gz", [archives.response("https://h.example/page", page)])
    inputs = '[[input]]\nkind = "folder"\npaths = ["photos"]\n[[input]]\nkind = "warc"\npaths = ["pages.warc.gz"]\n'
    (folder / "config.toml").write_text(f'[run]\nfolder = "run"\n{inputs}', encoding="utf-8")
    curated(folder)
    (folder / "names.txt").write_text("gone.png\n", encoding="utf-8")
    assert main(["remove", str(folder / "run"), "--source-keys", str(folder / "names.txt")]) == 0
    return folder


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--text", "quiet lake"), "written       shards/00000.tar"),
        (("--url", "https://h.example/page"), "url_invalid: its scheme is ftp, not http or https"),
        (("--source-key", "b.png"), "name      sub/b.png"),
        (("--source-key", "sub/latin1.png"), "record_broken: not UTF-8 (byte 5); convert the file"),
        (("--source-key", "gone.png"), "removed   20"),
    ],
)
def test_a_part_of_a_caption_a_page_a_broken_record_and_a_removed_name_are_found(
    photos: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, str], words: str
) -> None:
    assert words in explain(capsys, photos, *args)


def test_a_repeated_pair_tells_what_became_of_the_row_that_stands_for_it(
    photos: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = explain(capsys, photos, "--text", "The Quiet Lake at dawn")
    [kept] = re.findall(r"^name +(\S+)(?=(?:\n(?!\n).*)*written)", said, re.MULTILINE)
    assert f"that row was kept ({kept})" in said
    rows = rows_in(folder / "run" / "dropped")
    repeated = {row["key"] for row in rows if row["reason"] == "pair_repeated"}
    later = next(row for row in rows if row["key"] in repeated and row["reason"] != "pair_repeated")
    assert f"that row was dropped later: {later['reason']}" in explain(capsys, folder, "--key", later["key"])


def test_nothing_found_exits_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing found with caption 'no such text'" in explain(capsys, folder, "--text", "no such text", code=1)


@pytest.mark.parametrize(("run", "words"), [("nowhere", "no such run folder"), (".", "no run of altalign")])
def test_what_is_no_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], run: str, words: str) -> None:
    for verb in (
        ["explain", str(folder / run), "--text", "x"],
        ["status", str(folder / run)],
        ["clean", str(folder / run)],
    ):
        capsys.readouterr()
        assert main(verb) == 2
        assert words in capsys.readouterr().err


def test_status_tells_units_rows_and_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["status", str(folder / "run")]) == 0
    said = capsys.readouterr().out
    assert "run: finished" in said
    assert "3 of 3" in said
    assert all(stage in said for stage in STAGES)


def test_status_tells_whether_a_command_is_at_work(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_once.linked(folder / "run", tmp_path / "run")
    capsys.readouterr()
    with storage.locked(str(run)):
        assert main(["status", str(run)]) == 0
    assert f"run: running (process {os.getpid()})" in capsys.readouterr().out
    assert main(["status", str(run)]) == 0
    assert "run: finished" in capsys.readouterr().out


def test_a_cleaned_run_answers_at_once_and_explains_still(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def write_hostile(folder: Path) -> None:
    """A config and a table of captions, URLs and broken lines that would act on a terminal."""
    rows = [
        ("https://h.example/\x1b]0;title\x07.png", "a caption \u202eof three words"),
        ("ftp://h.example/a.png", "a caption of other words"),
        ("https://h.example:port/a.png", "a caption of no port"),
        (None, "a caption without a URL"),
        ("mailto:\x1b[31m@h.example", "a caption with a strange one"),
    ]
    lines = [*(json.dumps({"url": url, "caption": caption}) for url, caption in rows), '{"\x1b[2J": 1, "url"', "[]"]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = (
        '[run]\nfolder = "run"\n[input]\nname = "\\u001b[7m hostile"\nkind = "table"\npaths = '
        '["rows.jsonl"]\n[text]\nwords_at_least = 9\n'
    )
    (folder / "config.toml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a caption of other words", "url_invalid: its scheme is ftp, not http or https"),
        ("a caption of no port", "url_invalid: it is not a valid URL (WHATWG)"),
        ("a caption without a URL", "url_invalid: it has no URL"),
        ("a caption with a strange one", "url_invalid: its scheme is mailto, not http or https"),
    ],
)
def test_an_invalid_url_says_why_it_is_none_and_nothing_acts_on_a_terminal(
    hostile_run: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    said = explain(capsys, hostile_run, "--text", text)
    assert words in said
    assert "6 words, [text] words_at_least = 9" in said or "5 words" in said or "4 words" in said
    assert all(line.isprintable() for line in said.splitlines())


@pytest.mark.parametrize(
    ("src", "url", "words"),
    [
        ("mailto:somebody@h.example", "mailto:somebody@h.example", "its scheme is mailto, not http or https"),
        ("https://h.example:port/a.png", "https://h.example:port/a.png", "it is not a valid URL (WHATWG)"),
    ],
)
def test_an_invalid_url_of_a_page_is_found_by_url_and_by_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], src: str, url: str, words: str
) -> None:
    page = f'<p><img src="{src}" alt="a picture of a quiet lake">'.encode()
    archives.write(tmp_path / "pages.warc.gz", [archives.response("https://h.example/", page)])
    config = '[run]\nfolder = "run"\n[input]\nkind = "warc"\npaths = ["pages.warc.gz"]\n'
    (tmp_path / "config.toml").write_text(config, encoding="utf-8")
    curated(tmp_path, "--until", "judge")
    for args in (("--url", url), ("--text", "a picture of a quiet lake")):
        assert f"url_invalid: {words}" in explain(capsys, tmp_path, *args)


def test_whatever_a_run_holds_nothing_that_is_printed_acts_on_a_terminal(
    hostile_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [
        row["key"]
        for path in (hostile_run / "run" / "dropped").rglob("*.parquet")
        for row in pq.read_table(path).to_pylist()
        if row["key"]
    ]
    commands = [["explain", "run", "--key", key] for key in keys] + [
        ["status", "run"],
        ["curate", "config.toml", "--until", "judge"],
    ]
    commands += [
        ["curate", "config.toml", "--dry-run"],
        ["explain", "run", "--text", "\x1b[2J"],
        ["explain", "run", "--url", "\u202e"],
        ["status", "\x1b[2J"],
    ]
    assert len(keys) == 5
    with chdir(hostile_run):
        for command in commands:
            main(command)
            said = capsys.readouterr()
            assert all(line.isprintable() for line in [*said.out.split("\n"), *said.err.split("\n")]), command


def test_a_locale_of_ascii_alone_writes_out_what_it_does_not_know(hostile_run: Path, tmp_path: Path) -> None:
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    shutil.copytree(hostile_run / "run", tmp_path / "läufe")
    for arguments in (["explain", "läufe", "--text", "a caption of other words"], ["status", "läufe"]):
        ended = altalign(tmp_path, *arguments, environment=ascii_alone)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.isascii()
    for arguments in (
        ["explain", "läufe", "--text", "ä"],
        ["curate", "läufe/config.toml", "--set", "run.folder=läufe"],
    ):
        ended = altalign(tmp_path, *arguments, environment=ascii_alone)
        assert ended.returncode in (1, 2)
        assert ended.stderr.startswith("altalign: ")
        assert "Traceback" not in ended.stderr


def test_a_reader_that_has_seen_enough_is_no_error(folder: Path) -> None:
    for arguments in ("explain run --text 'click here to see more'", "status run"):
        script = f"{shlex.join(command(*shlex.split(arguments)))}; echo $? >&2"
        ended = subprocess.run(
            ["bash", "-c", f"{{ {script}; }} | true"],
            cwd=folder,
            env=environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.stderr == "0\n"


def test_there_is_nothing_to_retry_where_images_were_in_hand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(folder / "run")
    assert main(["retry", str(folder / "run")]) == 0
    assert "nothing to retry: its images were in hand, not on the web" in " ".join(capsys.readouterr().err.split())
    assert tree(folder / "run") == before
