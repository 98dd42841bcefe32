"""Folders of images: captions beside images, in a table or in names; parts; what has changed."""

import hashlib
import json
import os
from contextlib import chdir
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from altalign.cli import main
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines.read import folder
from altalign.settings.curate import InputSettings
from tests.hostile.files import picture
from tests.support.curations import fails, tree

CONFIG = '[run]\nfolder = "run"\n[input]\nkind = "folder"\npaths = ["photos"]\n'


def an_input(**values) -> InputSettings:
    return InputSettings(kind="folder", paths=["-"], **values)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(place: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


def read_all(place: Path, **values) -> tuple[list[dict], list[dict], list[tuple[str, str, int]]]:
    """Candidates, broken records, and of each image its identity, the file that its place names, and its length."""
    settings = an_input(**values)
    folder.check([str(place)], settings)
    rows, broken, places = [], [], []
    for part in folder.parts(str(place), settings):
        files = folder.files(part, settings)
        for found in folder.read(part, files, settings):
            rows += found.rows.to_pylist()
            broken += found.broken.to_pylist()
            of_part = found.places.to_pylist()
            places += [(each["image_identity"], files[each["offset"]].name, each["length"]) for each in of_part]
    return rows, broken, places


def pairs(place: Path, **values) -> list[tuple[str | None, str]]:
    return [(row["image_identity"], row["caption"]) for row in read_all(place, **values)[0]]


def test_captions_stand_beside_images(tmp_path: Path) -> None:
    place = write(
        tmp_path / "photos",
        {
            "b.jpg": b"one",
            "b.txt": " a caption\n of two lines ",
            "b.json": json.dumps({"caption": "of json", "url": "http://a/1#x"}),
            "a/c.d.PNG": b"two",
            "a/c.d.json": json.dumps({"caption": ["first", "second"]}),
            "a/c.webp": b"three",
            "e.gif": b"four",
            "e.json": json.dumps({"caption": None, "url": "no url"}),
            "notes.md": "left out",
            "00000_stats.json": "{}",
        },
    )
    rows, broken, places = read_all(place)
    assert broken == []
    assert [(row["image_identity"], row["caption"]) for row in rows] == [
        (sha(b"three"), ""),
        (sha(b"two"), "first"),
        (sha(b"two"), "second"),
        ("http://a/1", "a caption of two lines"),
        (sha(b"four"), ""),
    ]
    assert places == [
        (sha(b"three"), "a/c.webp", 5),
        (sha(b"two"), "a/c.d.PNG", 3),
        ("http://a/1", "b.jpg", 3),
        (sha(b"four"), "e.gif", 4),
    ]
    assert rows[3]["image_url"] == "http://a/1"


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_captions_stand_in_a_table(tmp_path: Path, ending: str) -> None:
    place = write(tmp_path / "photos", {"1.jpg": b"one", "x/2.jpg": b"two", "3.jpg": b"three", "3.txt": "not read"})
    entries = [("x/2.jpg", "two"), ("1.jpg", "one"), ("./1.jpg", "again"), ("gone.jpg", "nothing")]
    lines = {
        "csv": ["path,text", *(f"{name},{text}" for name, text in entries)],
        "jsonl": [json.dumps({"path": name, "text": text}) for name, text in entries],
    }
    write(place, {f"captions.{ending}": "\n".join(lines[ending])})
    of_table = {"captions": str(place / f"captions.{ending}"), "file_column": "path", "caption_column": "text"}
    one, two, three = map(sha, (b"one", b"two", b"three"))
    assert pairs(place, **of_table) == [(one, "one"), (one, "again"), (three, ""), (two, "two")]
    _, broken, _ = read_all(place, **of_table)
    assert [(entry["file"], entry["error"]) for entry in broken] == [
        (str(place / f"captions.{ending}"), f"gone.jpg: no such image in {place}")
    ]


def test_captions_stand_in_names(tmp_path: Path) -> None:
    place = write(tmp_path / "photos", {"a_red-dog.12.jpg": b"one", "x/two__cats.3.png": b"two", "other.jpg": b"three"})
    found = pairs(place, caption_pattern=r"(.*/)?(?P<caption>[^/]*)\.\d+\.\w+")
    assert found == [(sha(b"one"), "a red dog"), (sha(b"three"), ""), (sha(b"two"), "two cats")]


NAMES = st.lists(
    st.from_regex(r"[abz.0/-]{1,5}\.(jpg|PNG|txt)", fullmatch=True).filter(
        lambda name: not any(part.startswith(".") or not part for part in name.split("/"))
    ),
    unique=True,
    min_size=1,
    max_size=30,
)


@given(NAMES, st.integers(1, 4))
@budget(derandomize=True, deadline=None, max_examples=80)
def test_parts_hold_every_file_once_in_order_and_no_name_is_cut(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], images: int
) -> None:
    place, made = tmp_path_factory.mktemp("many"), []
    for name in names:
        path = place / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue
        made.append(name)
    if not any(name.lower().endswith((".jpg", ".png")) for name in made):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "IMAGES_PER_PART", images)
        parts = folder.parts(str(place), an_input())
    listed = [[file.name for file in folder.files(part, an_input())] for part in parts]
    together = [name for part in listed for name in part]
    assert sorted(together) == sorted(made)
    assert together == [name for part in folder.parts(str(place), an_input()) for name in _names(part)]
    stems = [{name.rpartition(".")[0] for name in part} for part in listed]
    assert len(set().union(*stems)) == sum(map(len, stems))


def _names(part: folder.FolderPart) -> list[str]:
    return [file.name for file in folder.files(part, an_input())]


def test_of_a_folder_only_what_may_be_of_a_part_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write(tmp_path / "photos", {f"{name}/1.jpg": b"x" for name in ("a", "b", "b/c", "d", "e")})
    opened, scandir = list[str](), os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: opened.append(str(path)) or scandir(path))
    names = [name for name, _ in folder.visible_below(str(place), "b/c/1", "d/1")]
    assert names == ["b/1.jpg", "b/c/1.jpg", "d/1.jpg"]
    assert [Path(path).relative_to(place).as_posix() for path in opened] == [".", "b", "b/c", "d"]


def test_rows_of_a_table_of_captions_are_each_met_in_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write(tmp_path / "photos", {f"{number}.jpg": b"%d" % number for number in range(9)})
    rows = ["file_name,caption", *(f"{name}.jpg,of {name}" for name in [*range(9), "", "0a", "4a", "9", "a"])]
    write(place, {"captions.csv": "\n".join([*rows, "a,row,broken"])})
    monkeypatch.setattr(folder, "IMAGES_PER_PART", 2)
    found, broken, _ = read_all(place, captions=str(place / "captions.csv"))
    assert [row["caption"] for row in found] == [f"of {number}" for number in range(9)]
    assert len(broken) == 6


def test_a_folder_that_changes_is_noticed(tmp_path: Path) -> None:
    place = write(tmp_path / "photos", {"1.jpg": b"one", "1.txt": "one", "2.jpg": b"two"})
    for change in ({"1.jpg": b"other"}, {"1.txt": "more"}, {"3.jpg": b"three"}):
        part = folder.parts(str(place), an_input())[0]
        write(place, change)
        with pytest.raises(UnreadableError, match="photos: changed since the run began"):
            folder.files(part, an_input())


def test_a_file_that_cannot_be_read_stops_or_counts_as_broken(tmp_path: Path) -> None:
    place = write(tmp_path / "photos", {"1.jpg": b"one", "3.jpg": b"three"})
    (place / "2.jpg").symlink_to("gone.jpg")
    with pytest.raises(UnreadableError, match=r"2\.jpg: cannot be read .*; repair or remove the file, or set skip_unr"):
        read_all(place)
    rows, broken, _ = read_all(place, skip_unreadable=True)
    assert ([row["image_identity"] for row in rows], len(broken)) == ([sha(b"one"), sha(b"three")], 1)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"caption_pattern": "("}, "is no regular expression"),
        ({"caption_pattern": "a"}, "no group"),
        ({"caption_pattern": "(?P<caption>.)", "captions": "a.csv"}, "both given"),
    ],
)
def test_wrong_settings_of_captions_are_refused(values: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        an_input(**values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,caption\n1.jpg,one\n", r'no column "file_name" \(file_column\)'),
        ("file_name,caption\nphotos/1.jpg,one\n", r"none of its first 1 files is in .*photos, such as photos/1\.jpg"),
    ],
)
def test_a_table_of_captions_that_does_not_fit_is_refused(tmp_path: Path, text: str, said: str) -> None:
    place = write(tmp_path / "photos", {"1.jpg": b"one", "captions.csv": text})
    with pytest.raises(UsageError, match=said):
        read_all(place, captions=str(place / "captions.csv"))


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A run of several parts, and its bytes."""
    place = tmp_path_factory.mktemp("folder")
    images = {f"{number % 3}/{number:02d}.png": picture(number + 30) for number in range(24)}
    write(place / "photos", images)
    write(place / "photos", {f"{number % 3}/{number:02d}.txt": f"a picture of {number}" for number in range(24)})
    (place / "config.toml").write_text(CONFIG, encoding="utf-8")
    with chdir(place), pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "IMAGES_PER_PART", 5)
        assert main(["curate", "config.toml", "--set", "engine.workers=1"]) == 0
        assert len(list(Path("run/work/extract/marks").glob("0*.json"))) == 5
    return place, tree(place / "run")


def again(finished: tuple[Path, dict[str, str]], place: Path) -> Path:
    """The same input elsewhere."""
    (place / "photos").symlink_to(finished[0] / "photos")
    (place / "config.toml").write_text(CONFIG, encoding="utf-8")
    return place


@pytest.mark.runs
@pytest.mark.everyday
def test_the_number_of_workers_changes_no_byte_and_the_folder_is_checked(
    finished: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "IMAGES_PER_PART", 5)
    monkeypatch.chdir(again(finished, tmp_path))
    assert main(["curate", "config.toml", "--set", "engine.workers=4"]) == 0
    assert tree(tmp_path / "run") == finished[1]


@pytest.mark.runs
def test_a_changed_image_is_named_between_stages_and_at_the_next_call(
    finished: tuple[Path, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path / "photos", {"1.png": picture(1), "1.txt": "a picture of one", "2.png": picture(2)})
    (tmp_path / "config.toml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["curate", "config.toml", "--until", "judge"]) == 0
    os.utime("photos/1.png", ns=(1, 1))
    assert "its stage extract was made with the folder photos, in which files came, went or changed since" in fails(
        capsys, 2
    )
    assert main(["curate", "config.toml", "--rerun"]) == 0


def test_rows_are_named_by_their_file_and_keep_what_stands_beside_them(tmp_path: Path) -> None:
    beside = '{"caption": ["one", "two"], "id": 7}'
    place = write(tmp_path / "p", {"a/1.jpg": b"1", "a/1.json": beside, "2.jpg": b"2", "2.txt": "three"})
    found = [(row["source_key"], row["caption"], row["extra"]) for row in read_all(place, keep_columns=["id"])[0]]
    assert found == [("2.jpg", "three", None), ("a/1.jpg", "one", '{"id":7}'), ("a/1.jpg", "two", '{"id":7}')]
    write(tmp_path, {"t.csv": "file_name,caption,id\n2.jpg,of the table,x\n"})
    rows = read_all(place, captions=str(tmp_path / "t.csv"), keep_columns=["id"])[0]
    assert [(row["source_key"], row["caption"], row["extra"]) for row in rows] == [
        ("2.jpg", "of the table", '{"id":"x"}'),
        ("a/1.jpg", "", None),
    ]
