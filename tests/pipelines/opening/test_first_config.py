"""`altalign init`: what files are is guessed and said, and the config runs."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.cli import main
from tests.hostile.files import picture
from tests.pipelines.read.tables.test_arrow import rows, saved
from tests.support import archives
from tests.support.img2dataset import Asked, write


def _images(**texts: str) -> None:
    Path("in").mkdir()
    for number in range(3):
        Path(f"in/a_red_dog {number}.png").write_bytes(picture(number))
    for name, text in texts.items():
        Path(f"in/{name}").write_text(text, encoding="utf-8")


def _table(**columns: Any) -> None:
    Path("in").mkdir()
    pq.write_table(pa.table(columns), "in/part.parquet")


def _lines(name: str, text: str) -> None:
    Path("in").mkdir()
    Path(f"in/{name}").write_text(text, encoding="utf-8")


def _warc(*records: bytes) -> None:
    Path("in").mkdir()
    archives.write(Path("in/crawl.warc.gz"), records)


COLUMNS = {"url_column": "URL", "caption_column": "TEXT"}
# what is there, what of the input is guessed, where images come from
CASES: dict[str, tuple[Callable[[], object], dict[str, Any], str]] = {
    "a table of URLs": (
        lambda: _table(ID=[1], TEXT=["a b c"], URL=["http://a/1"], page_url=["http://a/"]),
        {"kind": "table", "paths": ["in/*.parquet"], **COLUMNS, "page_url_column": "page_url"},
        "web",
    ),
    "a table of images and lists of captions": (
        lambda: _table(sentences=[["a b c", "d e f"]], picture=[picture()]),
        {"kind": "table", "url_column": "", "caption_column": "sentences", "image_column": "picture"},
        "archive",
    ),
    "a CSV": (lambda: _lines("some.csv", "TEXT,URL\na b c,http://a/1\n"), {"paths": ["in/*.csv"], **COLUMNS}, "web"),
    "JSON Lines": (
        lambda: _lines("some.JSONL", json.dumps({"TEXT": ["a"], "URL": "http://a/1"})),
        {"paths": ["in/*.JSONL"], **COLUMNS},
        "web",
    ),
    "images with texts": (
        lambda: _images(**{"a_red_dog 0.txt": "a red dog", "notes.csv": "file,caption\n"}),
        {"kind": "folder", "paths": ["in"]},
        "archive",
    ),
    "images with a table": (
        lambda: _images(**{"captions.csv": "file,caption\na_red_dog 1.png,a dog\n", "other.csv": "a,b\n"}),
        {"kind": "folder", "captions": "in/captions.csv", "file_column": "file", "caption_column": "caption"},
        "archive",
    ),
    "images with telling names": (
        _images,
        {"kind": "folder", "caption_pattern": r"(.*/)?(?P<caption>[^/]+)\.\w+"},
        "archive",
    ),
    "img2dataset": (
        lambda: write(Path("in"), 0, [Asked("http://a/1", "a b c", picture()), Asked("http://a/2", "gone")]),
        {"kind": "webdataset", "paths": ["in"]},
        "archive",
    ),
    "a saved data set": (
        lambda: saved(Path("in"), rows()),
        {"kind": "table", "paths": ["in"], "url_column": "url", "caption_column": "caption", "image_column": "image"},
        "archive",
    ),
    "a saved data set of splits": (
        lambda: (
            saved(Path("in/train"), rows()),
            Path("in/dataset_dict.json").write_text('{"splits": ["test", "train"]}', encoding="utf-8"),
        ),
        {"kind": "table", "paths": ["in/train"]},
        "archive",
    ),
    "web archives": (
        lambda: _warc(archives.page(1), archives.image("http://a/1.png")),
        {"kind": "warc", "paths": ["in/*.warc.gz"]},
        "archive",
    ),
    "web archives of pages": (lambda: _warc(archives.page(1)), {"kind": "warc"}, "web"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_there_is_guessed_and_the_config_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make, guessed, source = CASES[case]
    make()
    assert main(["init", "in/"]) == 0
    text = Path("altalign.toml").read_text(encoding="utf-8")
    said = capsys.readouterr().out
    assert said == f"{text}\nwritten to altalign.toml; run it: altalign curate altalign.toml\n"
    config = tomllib.loads(text)
    (found,) = config["input"]
    assert {name: found[name] for name in guessed} == guessed
    assert config["fetch"]["source"] == source
    assert config["run"]["folder"] == "runs/in"
    assert main(["curate", "altalign.toml", "--dry-run"]) == 0
    assert not Path("runs").exists()


def test_several_paths_are_several_inputs_and_a_folder_of_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _lines("some.csv", "caption,url\na b c,http://a/1\n")
    archives.write(Path("in/crawl.warc.gz"), [archives.image("http://a/1")])
    assert main(["init", "in/some.csv", "in/*.warc.gz", "--to", "both.toml", "--run", "there"]) == 0
    config = tomllib.loads(Path("both.toml").read_text(encoding="utf-8"))
    assert [each["kind"] for each in config["input"]] == ["table", "warc"]
    assert (config["fetch"]["source"], config["run"]["folder"]) == ("archive", "there")
    Path("empty/more").mkdir(parents=True)
    capsys.readouterr()
    assert main(["init", "empty"]) == 2
    assert "empty: no web archive, table, tar, image or saved data set in it (more);" in capsys.readouterr().err
    assert not Path("altalign.toml").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("some.csv", "url;caption\nhttp://a/1;a b c\n", "its columns are separated by ';', where .csv has a comma"),
        (
            "some.csv",
            "filepath\ttitle\na/1.png\ta b c\n",
            "its columns are separated by '\\t', where .csv has a comma and .tsv a tab; name it .tsv",
        ),
        ("some.csv", "", "no header and no row in it"),
        ("some.csv", "\ufeff", "no header and no row in it"),
        ("crawl.warc", "", "no record in it"),
        ("some.csv", "one,two\n1,2\n", "no column is known to hold captions, there are one, two"),
    ],
)
def test_a_file_of_which_no_config_can_be_made_is_refused_with_the_cause(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    _lines(name, content)
    assert main(["init", f"in/{name}"]) == 2
    assert f"in/{name}: {said}" in capsys.readouterr().err
    assert not Path("altalign.toml").exists()


def test_a_damaged_table_of_captions_beside_images_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _images(**{"captions.parquet": "no Parquet"})
    assert main(["init", "in"]) != 0
    assert "in/captions.parquet: cannot be read as Parquet" in capsys.readouterr().err
    assert not Path("altalign.toml").exists()


def test_a_run_in_the_folder_of_images_is_refused_with_the_flag_that_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Image.new("RGB", (300, 300)).save("in/0.png")
    assert main(["init", "in", "--run", "in/run"]) == 2
    assert "in/run: not apart from the input in; name another folder with --run" in capsys.readouterr().err
    assert main(["init", "in", "--run", "run"]) == 0


def test_files_of_no_known_kind_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.json").write_text("[]", encoding="utf-8")
    assert main(["init", "rows.json"]) == 2
    assert "rows.json: not the name of a web archive, a table or a tar" in capsys.readouterr().err


def test_a_table_in_utf_8_with_a_broken_row_is_an_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("some.csv").write_bytes("url,caption\nhttp://a/1,a café là-bas\nu,".encode() + b"\xe9\n")
    assert main(["init", "some.csv"]) == 0
