"""A `source_key` names one row of one input, whatever names files share; a folder of the run may grow."""

import io
import shutil
import tarfile
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign import storage
from altalign.cli import main
from altalign.errors import FullDiskError
from tests.support.finished_runs import rows_of

pytestmark = pytest.mark.runs

_NUMBERS = count()


def picture() -> bytes:
    """One that is like no other."""
    cells = np.random.default_rng(next(_NUMBERS)).integers(0, 255, (6, 8, 3)).astype(np.uint8)
    found = io.BytesIO()
    Image.fromarray(cells).resize((300, 240)).save(found, "PNG")
    return found.getvalue()


def in_table(path: Path) -> None:
    rows = [{"url": None, "alt": f"row {row} of {path.parent}", "image": picture()} for row in range(2)]
    pq.write_table(
        pa.Table.from_pylist(rows, pa.schema({"url": pa.string(), "alt": pa.string(), "image": pa.binary()})), path
    )


def in_urls(path: Path) -> None:
    rows = [{"url": f"https://img.example/{path.parent}/{row}.png", "alt": f"row {row}"} for row in "01"]
    pq.write_table(pa.Table.from_pylist(rows), path)


def in_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for row in range(2):
            for ending, content in (("png", picture()), ("txt", f"row {row} of {path.parent}".encode())):
                member = tarfile.TarInfo(f"it/{row}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def in_folder(path: Path, names: str = "01") -> None:
    path.mkdir(exist_ok=True)
    for row in names:
        (path / f"{row}.png").write_bytes(picture())
        (path / f"{row}.txt").write_text(f"row {row} of {path}", encoding="utf-8")


COLUMNS = 'url_column = "url"\ncaption_column = "alt"\n'
# how an input is written, its settings, its name in a folder, and the names of its rows behind that
KINDS: dict[str, tuple[Any, str, str, list[str]]] = {
    "parquet": (in_table, f'kind = "table"\nimage_column = "image"\n{COLUMNS}', "of.parquet", ["#0", "#1"]),
    "urls": (in_urls, f'kind = "table"\n{COLUMNS}', "of.parquet", ["#0", "#1"]),  # read where it is, in row groups
    "tar": (in_tar, 'kind = "webdataset"\n', "of.tar", ["#it/0", "#it/1"]),
    "folder": (in_folder, 'kind = "folder"\n', "photos", ["/0.png", "/1.png"]),
}


def curated(inputs: list[str], kind: str, *flags: str) -> list[tuple[str, str]]:
    """Source and source_key of all rows that reach a run over these inputs, each a list of paths and more settings."""
    texts = "".join(f"[[input]]\n{KINDS[kind][1]}{each}\n" for each in inputs)
    Path("config.toml").write_text(f'[run]\nfolder = "run"\n{texts}', encoding="utf-8")
    judged = ["--until", "judge"] if kind == "urls" else []  # which drops their short captions
    assert main(["curate", "config.toml", *judged, *flags]) == 0
    return names(Path("run"))


def names(run: Path) -> list[tuple[str, str]]:
    files = [*run.glob("shards/*.parquet"), *run.glob("dropped/*/*.parquet")]
    return sorted((row["source"], row["source_key"]) for path in files for row in pq.read_table(path).to_pylist())


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Inputs of this kind with the same name in two folders."""
    monkeypatch.chdir(tmp_path)
    for folder in ("a/x", "a/y"):
        Path(folder).mkdir(parents=True)
        KINDS[request.param][0](Path(folder, KINDS[request.param][2]))
    return str(request.param)


def test_files_of_one_name_in_one_input(kind: str) -> None:
    *_, name, rows = KINDS[kind]
    wanted = [f"{folder}/{name}{row}" for folder in "xy" for row in rows]
    found = curated([f'paths = ["a/*/{name}"]'], kind)
    assert [key for _, key in found] == wanted
    assert len({source for source, _ in found}) == 1
    if kind == "urls":
        return
    # explain and remove take the name, and one row
    for key in wanted:
        assert main(["explain", "run", "--source-key", key]) == 0
    Path("list").write_text(wanted[0], encoding="utf-8")
    assert main(["remove", "run", "--source-keys", "list"]) == 0
    assert [key for _, key in names(Path("run"))] == wanted[1:]
    Path("list").write_text(f"of no folder/{name}", encoding="utf-8")
    assert main(["remove", "run", "--source-keys", "list"]) == 1


def test_files_of_one_name_in_inputs_of_one_name(kind: str) -> None:
    *_, name, rows = KINDS[kind]
    bare = [f"{name}{row}" if kind != "folder" else row[1:] for row in rows]
    found = curated([f'name = "ours"\npaths = ["a/{folder}/{name}"]' for folder in "xy"], kind)
    above = [f"y/{name}{row}" if kind != "folder" else f"{name}{row}" for row in rows]
    assert found == sorted(("ours", key) for key in (*bare, *above))
    told_apart = curated([f'paths = ["a/{folder}/{name}"]' for folder in "xy"], kind, "--restart")
    assert len({source for source, _ in told_apart}) == 2
    assert [key for _, key in told_apart] == bare * 2


def test_a_file_of_the_same_name_that_is_added(kind: str) -> None:
    name = KINDS[kind][2]
    if kind == "urls":
        return
    before = curated([f'name = "ours"\npaths = ["a/x/{name}"]'], kind)
    assert main(["add", "run", "--input", f"a/y/{name}"]) == 0
    found = names(Path("run"))
    assert len(set(found)) == 4
    assert set(before) < set(found)


def test_what_is_in_the_run_already_is_left_out_of_what_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    in_tar(Path("0.tar"))
    before = curated(['paths = ["*.tar"]'], "tar")
    in_tar(Path("1.tar"))
    assert main(["add", "run", "--input", "*.tar"]) == 0
    assert names(Path("run")) == [*before, ("webdataset", "1.tar#it/0"), ("webdataset", "1.tar#it/1")]
    assert storage.read_json("run/manifest.json")["lineage"]["settings"]["input"] == ["1.tar"]


@pytest.mark.parametrize("name", ["", 'name = "ours"\n'])
def test_an_addition_needs_no_like_where_earlier_ones_have_the_same_settings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for month in "0123":
        in_tar(Path(f"{month}.tar"))
    curated([f'{name}paths = ["0.tar"]'], "tar")
    for month in "123":
        assert main(["add", "run", "--input", f"{month}.tar"]) == 0
    assert len({*names(Path("run"))}) == 8


# A folder that grows --------------------------------------------------------------------------------------------------


@pytest.fixture
def grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a folder of images and a tar, to the first of which images have come since."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("altalign.pipelines.read.folder.IMAGES_PER_PART", 2)
    in_folder(Path("photos"), "2345")
    in_tar(Path("0.tar"))
    inputs = '[[input]]\nkind = "folder"\npaths = ["photos"]\n[[input]]\nkind = "webdataset"\npaths = ["0.tar"]\n'
    Path("config.toml").write_text(f'[run]\nfolder = "run"\n{inputs}', encoding="utf-8")
    assert main(["curate", "config.toml"]) == 0
    in_folder(Path("photos"), "17")
    return Path("run")


def by_key(run: Path) -> dict[str, dict[str, Any]]:
    return {row["key"]: {**row, "tar_offset": 0, "tar_bytes": 0, "image": None} for row in rows_of(run)}


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_new_files_of_a_folder_of_the_run_are_added(grown: Path, *, is_cleaned: bool) -> None:
    assert not is_cleaned or main(["clean", "run"]) == 0
    before = by_key(grown)
    tars = {path.name: path.read_bytes() for path in grown.glob("shards/*.tar")}
    assert main(["add", "run", "--input", "photos/"]) == 0
    assert len(by_key(grown)) == len(before) + 2
    assert {name: (grown / "shards" / name).read_bytes() for name in tars} == tars
    assert storage.read_json("run/manifest.json")["lineage"]["settings"]["input"] == ["photos"]
    assert main(["curate", "config.toml", "--set", "run.folder=fresh"]) == 0
    assert by_key(grown) == by_key(Path("fresh"))
    counted = [sorted(pq.read_table(f"{run}/counts.parquet").to_pylist(), key=str) for run in ("run", "fresh")]
    assert counted[0] == counted[1]
    assert main(["audit", "run", "--digest"]) == 0
    # what it holds now is what it was made of
    assert main(["curate", "run/config.toml"]) == 0
    assert main(["add", "run", "--input", "photos"]) == 0
    in_folder(Path("photos"), "9")
    in_folder(Path("more"), "9")
    assert main(["add", "run", "--input", "photos", "--input", "more", "--like", "folder"]) == 0
    assert len(by_key(grown)) == len(before) + 4
    assert ("folder", "more/9.png") in names(grown)
    assert storage.read_json("run/manifest.json")["lineage"]["settings"]["input"] == ["photos", "more"]


def test_an_image_that_is_gone_from_a_folder_takes_its_pair_along(
    grown: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("photos/3.png").unlink()
    before = by_key(grown)
    capsys.readouterr()
    assert main(["add", "run", "--input", "photos"]) == 0
    assert "2 pairs came, 1 pair went" in capsys.readouterr().out
    assert len(by_key(grown)) == len(before) + 1


def test_a_folder_of_the_run_that_has_grown_is_named_where_another_is_added(
    grown: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_folder(Path("more"))
    capsys.readouterr()
    assert main(["add", "run", "--input", "more", "--like", "folder"]) == 2
    assert "put it back as it was, or name it as --input too" in capsys.readouterr().err
    before = by_key(grown)
    assert main(["add", "run", "--input", "photos", "--mode", "frozen"]) == 0
    assert len(by_key(grown)) == len(before) + 2


def full(*_: object) -> NoReturn:
    raise FullDiskError("run: no space is left")


def test_what_was_removed_does_not_come_back_with_a_folder_that_grows(
    grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("list").write_text("7.png\n4.png", encoding="utf-8")
    assert main(["remove", "run", "--source-keys", "list"]) == 0
    # nor where the addition was ended before it had read a row, and is given again
    with monkeypatch.context() as ended:
        ended.setattr("altalign.pipelines.stages.extract._extract_file", full)
        assert main(["add", "run", "--input", "photos"]) == 1
    assert Path("run/.adding/run/run.json").exists()
    assert main(["add", "run", "--input", "photos"]) == 0
    assert [key for source, key in names(grown) if source == "folder"] == [f"{row}.png" for row in "1235"]


def test_an_addition_of_a_folder_that_grows_again_begins_anew(grown: Path) -> None:
    shutil.copytree("run", "copy")
    assert main(["add", "copy", "--input", "photos"]) == 0
    Path("run/.adding").mkdir()
    in_folder(Path("photos"), "8")
    assert main(["add", "run", "--input", "photos"]) == 0
    assert len(by_key(grown)) == len(by_key(Path("copy"))) + 1
