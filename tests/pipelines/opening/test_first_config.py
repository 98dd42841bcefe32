"""`altalign init`: what files are is guessed and said, and the config runs."""

import gzip
import json
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.cli import main
from tests.hostile.files import picture
from tests.pipelines.read.pages.test_wat import image, metadata
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


def _packed() -> None:
    """Images and texts of the folder as a tar, in their place."""
    with tarfile.open("in/00000.tar", "w") as tar:
        for path in sorted(Path("in").glob("a_red_dog*")):
            tar.add(path, path.name)
            path.unlink()


WAT = archives.record(
    "http://a/", metadata([image("x.png", "a b c")]), kind="metadata", content_type="application/json"
)
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
    "metadata of web archives": (
        lambda: (Path("in").mkdir(), archives.write(Path("in/crawl.warc.wat.gz"), [WAT])),
        {"kind": "wat", "paths": ["in/*.warc.wat.gz"]},
        "web",
    ),
    "tars of samples": (
        lambda: (_images(**{"a_red_dog 0.txt": "a red dog"}), _packed()),
        {"kind": "webdataset", "paths": ["in"]},
        "archive",
    ),
    "images with JSON": (
        lambda: _images(**{"a_red_dog 0.json": json.dumps({"caption": "a red dog", "url": "http://a/0.png"})}),
        {"kind": "folder", "paths": ["in"]},
        "archive",
    ),
    "a TSV, compressed": (
        lambda: (
            Path("in").mkdir(),
            Path("in/some.tsv.gz").write_bytes(gzip.compress(b"TEXT\tURL\na b c\thttp://a/1\n")),
        ),
        {"paths": ["in/*.tsv.gz"], **COLUMNS},
        "web",
    ),
    "an Arrow file": (
        lambda: (Path("in").mkdir(), feather.write_feather(pa.table({"TEXT": ["a b"], "URL": ["u"]}), "in/some.arrow")),
        {"paths": ["in/*.arrow"], **COLUMNS},
        "web",
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


def test_the_folder_of_a_run_is_told_from_one_that_holds_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path("runs", name, "shards").mkdir(parents=True)
        Path("runs", name, "shards", "00000.tar").touch()
        Path("runs", name, "run.json").write_text("{}", encoding="utf-8")
    assert main(["init", "runs/a"]) == 2
    said = "altalign: runs/a: not apart from the input runs/a/shards; name another folder with --run"
    assert said in capsys.readouterr().err
    assert main(["init", "runs/a", "--run", "runs/again"]) == 0
    capsys.readouterr()
    assert main(["init", "runs", "--to", "other.toml"]) == 2
    said = "altalign: runs: it holds runs (a, b); give the folder of each, or make one run of them: altalign merge"
    assert said in capsys.readouterr().err


def _json(name: str, value: Any, *, encoding: str = "utf-8") -> None:
    Path(f"in/{name}").write_text(json.dumps(value), encoding=encoding)


COCO = {
    "info": {},
    "images": [{"id": 7, "file_name": "a_red_dog 0.png", "coco_url": "http://a/7.jpg", "license": 3}],
    "annotations": [{"image_id": 7, "id": 70, "caption": "a red dog"}, {"image_id": 7, "id": 71, "bbox": [1]}],
}
SENTENCES = [{"raw": "a red dog", "sentid": 1}]
# what is there, what is given to init, the line's beginning, and what the same gives after its command
NO_INPUTS: dict[str, tuple[Callable[[], object], str, str, str, dict[str, Any]]] = {
    "COCO": (
        lambda: _json("captions_val2017.json", COCO),
        "in/captions_val2017.json",
        "captions of COCO, in one object: ",
        "in/captions_val2017.jsonl",
        {"url_column": "coco_url", "caption_column": "caption", "keep_columns": ["id", "image_id", "license"]},
    ),
    "Karpathy": (
        lambda: _json("dataset.json", {"images": [{"filename": "a_red_dog 1.png", "sentences": SENTENCES}]}),
        "in/dataset.json",
        "captions of Karpathy's splits: ",
        "in",
        {"kind": "folder", "captions": "in/dataset.jsonl", "file_column": "filename"},
    ),
    "an array": (
        lambda: _json("rows.json", [{"url": "http://a/1", "caption": "a red dog"}]),
        "in/rows.json",
        "rows in one JSON array: ",
        "in/rows.jsonl",
        {"url_column": "url"},
    ),
    "an array behind a mark of UTF-8": (
        lambda: _json("rows.json", [{"url": "http://a/1", "caption": "a red dog"}], encoding="utf-8-sig"),
        "in/rows.json",
        "rows in one JSON array: ",
        "in/rows.jsonl",
        {"url_column": "url"},
    ),
    "COCO behind a mark of UTF-8": (
        lambda: _json("captions.json", COCO, encoding="utf-8-sig"),
        "in/captions.json",
        "captions of COCO, in one object: ",
        "in/captions.jsonl",
        {"url_column": "coco_url"},
    ),
    "Flickr's CSV": (
        lambda: Path("in/captions.txt").write_text("image,caption\na_red_dog 1.png,a dog\n", encoding="utf-8"),
        "in/captions.txt",
        "a CSV by another name: ",
        "in",
        {"kind": "folder", "file_column": "image"},
    ),
    "Flickr's tokens": (
        lambda: Path("in/results.token").write_text("a_red_dog1.png#0\ta dog\n", encoding="utf-8"),
        "in/results.token",
        "names and captions with tabs: ",
        "",
        {},
    ),
    "Latin-1": (
        lambda: Path("in/some.csv").write_bytes("url,caption\nhttp://a/1,a café by night\n".encode("latin-1")),
        "in/some.csv",
        "not UTF-8, and in which encoding is not known; `iconv -f ENCODING -t UTF-8 ",
        "in/some.utf8.csv",
        {"url_column": "url"},
    ),
    "Cyrillic, of which some letters read as UTF-8": (
        lambda: Path("in/some.csv").write_bytes("url,caption\nhttp://a/1,ёлка и ДЁГОТЬ Дё\n".encode("cp1251")),
        "in/some.csv",
        "not UTF-8, and in which encoding is not known; ",
        "in/some.utf8.csv",
        {"url_column": "url"},
    ),
    "UTF-16": (
        lambda: Path("in/some.csv").write_bytes("url,caption\nhttp://a/1,a café by night\n".encode("utf-16")),
        "in/some.csv",
        "not UTF-8, but UTF-16; ",
        "in/some.utf8.csv",
        {"url_column": "url"},
    ),
    "a list of URLs": (
        lambda: Path("in/urls.txt").write_text("http://a/1\nhttp://a/2\n", encoding="utf-8"),
        "in/urls.txt",
        "a list of URLs, without captions: write a CSV",
        "",
        {},
    ),
    "a zip": (lambda: Path("in/all.zip").write_bytes(b"PK"), "in/all.zip", "an archive of files: unpack it", "", {}),
    "a sheet": (lambda: Path("in/all.xlsx").write_bytes(b"PK"), "in/all.xlsx", "a spreadsheet: save it as", "", {}),
    "file://": (
        lambda: Path("in/some.csv").write_text("url,caption\nfile:///a/1.jpg,a dog\n", encoding="utf-8"),
        "in/some.csv",
        "its URLs begin with file://",
        "",
        {},
    ),
}


@pytest.mark.parametrize("case", NO_INPUTS)
def test_what_no_reader_reads_is_named_with_a_command_that_makes_an_input_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _images()
    make, given, said, then, guessed = NO_INPUTS[case]
    make()
    assert main(["init", given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    commands = [command for command in re.findall("`([^`]+)`", line) if not command.startswith("altalign")]
    for command in commands:
        subprocess.run(["bash", "-c", command.replace("ENCODING", "WINDOWS-1252")], check=True)
    if then:
        assert main(["init", then]) == 0
        (found,) = tomllib.loads(Path("altalign.toml").read_text(encoding="utf-8"))["input"]
        assert {name: found[name] for name in guessed} == guessed
        assert main(["curate", "altalign.toml", "--dry-run"]) == 0


def test_a_table_in_utf_8_with_a_broken_row_is_an_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("some.csv").write_bytes("url,caption\nhttp://a/1,a café là-bas\nu,".encode() + b"\xe9\n")
    assert main(["init", "some.csv"]) == 0


def test_ids_and_licences_are_kept_and_images_that_are_not_read_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _table(
        photo_id=[1], url=["http://a/1"], alt_text=["a b c"], licence=["CC0"], width=[3], wide_grid=["x"], sourceID=[1]
    )
    assert main(["init", "in"]) == 0
    (found,) = tomllib.loads(Path("altalign.toml").read_text(encoding="utf-8"))["input"]
    assert found["keep_columns"] == ["photo_id", "licence", "sourceID"]
    Path("in/part.parquet").unlink()
    Path("in").rmdir()
    _images()
    for name in ("a.jxl", "b.JXL", "c.svg"):
        Path("in", name).write_bytes(b"0")
    Path("in/clip.csv").write_text("filepath\ttitle\na_red_dog 1.png\ta dog\n".replace("\t", ","), encoding="utf-8")
    assert main(["init", "in/clip.csv", "--to", "clip.toml"]) == 0  # open_clip's columns
    (found,) = tomllib.loads(Path("clip.toml").read_text(encoding="utf-8"))["input"]
    assert (found["kind"], found["paths"], found["caption_column"]) == ("folder", ["in"], "title")
    assert main(["init", "in", "--to", "folder.toml"]) == 0
    assert "not read, and dropped as image_undecodable: 2 .jxl, 1 .svg" in Path("folder.toml").read_text()
