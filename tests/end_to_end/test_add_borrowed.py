"""`altalign add` reads no image again that the smaller run has read, whatever archive, table or folder it lies in.

The files of before are overwritten with zeros, at the same sizes and times: whoever reads a byte of them finds another.
"""

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from tests.end_to_end.runs import CONFIG, environ, tree, write_input
from tests.end_to_end.test_add import counted, shards
from tests.pipelines.read.pages.archives import response

pytestmark = pytest.mark.runs

Row = dict[str, Any]
INPUTS = {
    "tars": 'kind = "webdataset"\npaths = ["old/a.tar"]',
    "tables": 'kind = "table"\nimage_column = "image"\npage_url_column = "page"\npaths = ["old/b.parquet"]',
    "folders": 'kind = "folder"\npaths = ["old/c"]',
    "pages": 'kind = "warc"\npaths = ["old/d.warc.gz"]',
}
LATER = {"tars": "new/e.tar", "tables": "new/f.parquet"}
LIMIT = 4_000  # bytes of an image in a table


def write_tar(path: Path, rows: list[Row]) -> None:
    with tarfile.open(path, "w") as tar:
        for number, row in enumerate(rows):
            members = {"json": json.dumps({"url": row["url"]}).encode(), "txt": row["caption"].encode()}
            for ending, content in (members | ({"jpg": row["image"]} if row["image"] else {})).items():
                member = tarfile.TarInfo(f"{number:04d}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def write_folder(path: Path, rows: list[Row]) -> None:
    path.mkdir()
    for number, row in enumerate(rows):
        if row["image"]:
            (path / f"{number:04d}.jpg").write_bytes(row["image"])
            (path / f"{number:04d}.txt").write_text(row["caption"], encoding="utf-8")


def write_pages(path: Path, rows: list[Row]) -> None:
    rows = [row for row in rows if row["url"]]
    page = "".join(f'<p><img src="{row["url"]}" alt="{row["caption"]}">' for row in rows)
    images = {row["url"]: row["image"] for row in rows if row["image"]}
    records = [response("https://a.example/", page.encode())]
    records += [response(url, image, "image/png") for url, image in images.items()]
    path.write_bytes(b"".join(map(gzip.compress, records)))


def config(folder: str, inputs: Iterable[str], more: str = "") -> str:
    """The settings of a run, in which no old text comes in with new ones; its path."""
    text = CONFIG[CONFIG.index("[text]") :].replace("vocabulary_size = 380\n", "")
    text += f"\n[fetch]\nbytes_at_most = {LIMIT}\n{more}"
    text = f'[run]\nfolder = "{folder}"\n' + "".join(f"\n[[input]]\n{each}\n" for each in inputs) + f"\n{text}"
    Path(f"{folder}.toml").write_text(text, encoding="utf-8")
    return f"{folder}.toml"


def named(names: Iterable[str]) -> list[str]:
    return [f'name = "{name}"\n{INPUTS[name]}' for name in names]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an input of each kind, and two more files."""
    folder = tmp_path_factory.mktemp("made")
    with chdir(folder):
        write_input(Path(), rows=900)
        table = pa.concat_tables([pq.read_table(path) for path in sorted(Path("input").glob("*.parquet"))])
        rows = [row for row in table.to_pylist() if row["caption"]]
        cut = len(rows) // 6
        parts = [rows[number * cut : (number + 1) * cut] for number in range(6)]
        for number, row in ((number, row) for number, part in enumerate(parts) for row in part if row["url"]):
            row["url"] = row["url"].replace("img", f"img-{number}")  # so that each file has images of its own
        Path("old").mkdir()
        Path("new").mkdir()
        for path, some in (("old/a.tar", parts[0]), ("new/e.tar", parts[4])):
            write_tar(Path(path), some)
        for path, some in (("old/b.parquet", parts[1]), ("new/f.parquet", parts[5])):
            pq.write_table(pa.Table.from_pylist(some, table.schema), path, row_group_size=20)
        write_folder(Path("old/c"), parts[2])
        write_pages(Path("old/d.warc.gz"), parts[3])
    return folder


def inside_a_copy(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return inside_a_copy(made, tmp_path, monkeypatch)


def blank(*paths: str) -> None:
    """Overwrite files, and all in folders, with zeros of the same size and time."""
    for path in (file for name in paths for file in (Path(name), *Path(name).rglob("*")) if file.is_file()):
        status = path.stat()
        path.write_bytes(bytes(status.st_size))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def write_nsfw_model() -> str:
    """A classifier of images by their mean colours; returns settings that name it."""
    model = pytest.importorskip("tests.filters.test_nsfw")
    Path("nsfw.toml").write_text(model.TOML.format(layout="nchw"), encoding="utf-8")
    model.save_model(Path("nsfw.onnx"), np.array([0.2, -0.1, -0.1]), 0.0, axes=[2, 3])
    return '[image.nsfw]\nmodel = "nsfw.onnx"\n'


def add(run: str, name: str) -> int:
    return main(["add", run, "--input", LATER[name], "--like", name])


@pytest.mark.parametrize("model", ["none", "of NSFW"])
def test_no_byte_of_images_that_were_read_is_read_again(here: Path, model: str) -> None:
    more = "" if model == "none" else write_nsfw_model()
    assert main(["curate", config("run", named(INPUTS), more)]) == 0
    later = [f'name = "{name}"\n{INPUTS[name].rpartition("[")[0]}["{path}"]' for name, path in LATER.items()]
    assert main(["curate", config("fresh", [*named(INPUTS), *later], more)]) == 0
    went = {row["image_id"] for row in pq.read_table("run/dropped/image").to_pylist()}
    blank("old")
    assert add("run", "tars") == 0
    blank("new/e.tar")  # which the next addition borrows from the first one
    assert add("run", "tables") == 0
    assert main(["audit", "run"]) == 0
    # what is dropped is shown, and what is too large is known
    shown = {row["image_id"] for row in pq.read_table("run/audit/samples.parquet").to_pylist() if row["picture"]}
    assert shown & went
    assert any(reason == "row_too_large" and stage == "fetch" for stage, _, reason in counted("run"))
    # the unit has the bytes of what came last
    images = {row["image"] for row in pq.read_table("new/f.parquet").to_pylist() if row["image"]}
    own = sum(path.stat().st_size for path in Path("run/work/fetch/units").glob("*.images"))
    assert 0 < own <= sum(map(len, images))
    assert main(["merge", "run"]) == 0
    assert Path("run", "files.jsonl").read_bytes() == Path("fresh", "files.jsonl").read_bytes()


@pytest.fixture(scope="module")
def finished(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a run of the old input, `run`, and one to which the table was added, `grown`."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("finished") / "here")
    with chdir(folder):
        assert main(["curate", config("run", named(INPUTS))]) == 0
        shutil.copytree("run", "grown")
        assert add("grown", "tables") == 0
    return folder


@pytest.fixture
def there(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return inside_a_copy(finished, tmp_path, monkeypatch)


def largest(folder: str) -> Path:
    return max(Path(folder).glob("*.images"), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("damage", ["gone", "cut", "no mark", "nothing known"])
def test_what_the_smaller_run_has_no_more_is_read_again(there: Path, damage: str) -> None:
    blob = largest("run/work/fetch/units")
    match damage:
        case "gone":
            blob.unlink()
        case "cut":
            blob.write_bytes(blob.read_bytes()[:-1])
        case "no mark":
            blob.with_suffix(".json").unlink()
        case _:
            blob.with_suffix(".known").unlink()
    assert add("run", "tables") == 0
    own, of_grown = (
        sum(path.stat().st_size for path in Path(run, "work/fetch/units").glob("*.images")) for run in ("run", "grown")
    )
    assert own > of_grown
    assert tree(Path("run")) == tree(Path("grown"))


def test_a_blob_that_is_lost_before_an_addition_goes_on_is_borrowed_again(there: Path) -> None:
    command = [sys.executable, "-c", KILLED, "add", "run", "--input", LATER["tables"], "--like", "tables"]
    killed = subprocess.run(command, env=environ(), capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    largest("run/.adding/run/work/fetch/borrowed").unlink()
    assert add("run", "tables") == 0
    assert tree(Path("run")) == tree(Path("grown"))


def test_repair_reads_all_again_where_a_borrowed_blob_is_lost(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", "grown"]) == 0
    before, lost = Path("grown/manifest.json").read_bytes(), largest("grown/work/fetch/borrowed")
    lost.unlink()
    capsys.readouterr()
    assert main(["curate", "grown/config.toml", "--repair"]) == 0
    assert f"{lost.relative_to('grown')}: it is not there; made anew" in capsys.readouterr().out
    assert Path("grown/manifest.json").read_bytes() == before  # with the number of all files, and the lineage
    assert main(["audit", "grown", "--digest"]) == 0


def test_what_lost_the_mark_of_what_it_had_borrowed_is_read_again(there: Path) -> None:
    shutil.copytree("grown", "other")
    Path("other/work/fetch/borrowed/000000000.json").unlink()
    for run in ("grown", "other"):
        assert add(run, "tars") == 0
    assert not Path("other/work/fetch/borrowed").exists()
    assert tree(Path("grown")) == tree(Path("other"))


# A command that is killed as soon as it writes anything of decontamination.
KILLED = """
import os, signal, sys
from tests.end_to_end.killing import on_changes
on_changes(lambda _number, _event, path: os.kill(os.getpid(), signal.SIGKILL) if "/decontaminate/" in path else None)
from altalign.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("what", ["*.images", "000000000.json"])
def test_all_is_read_again_where_a_finished_run_has_lost_what_it_had_borrowed(
    there: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    next(Path("grown/work/fetch/borrowed").glob(what)).unlink()
    shutil.copytree("grown", "one")
    assert main(["merge", "one"]) == 0
    capsys.readouterr()
    assert main(["curate", "grown/config.toml", "--set", "run.folder=grown", "--rerun", "write"]) == 0
    assert "work/fetch/borrowed" in capsys.readouterr().err
    assert not Path("grown/work/fetch/borrowed/000000000.json").exists()
    assert shards("grown") == shards("one")
    assert tree(Path("grown")).keys() == tree(Path("one")).keys()
