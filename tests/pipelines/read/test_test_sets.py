"""Test sets of every form: each image is found by its name, and nothing that might be one is silently passed over."""

import gzip
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign import cli, storage
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines.read import test_sets
from altalign.settings.curate import TestSet as NamedSet  # a name that pytest does not take for a class of tests
from tests.support.archives import zstd
from tests.support.pictures import FORMATS, encoded, picture
from tests.support.tars import tar as tar_of

PNG = encoded(picture(24, 18), "png")


def pictures(count: int) -> list[bytes]:
    """As many images, each other bytes."""
    return [encoded(picture(8 + number, 9), "png") for number in range(count)]


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def named(path: Path | str, image_column: str = "image") -> NamedSet:
    return NamedSet(name="mine", path=str(path), image_column=image_column)


def found(path: Path | str, image_column: str = "image") -> list[tuple[str, bytes]]:
    """Every image by its name, each part sent through JSON as units are."""
    parts = test_sets.parts(named(path, image_column))
    sent = [test_sets.Part(**json.loads(json.dumps(part._asdict()))) for part in parts]
    assert sent == parts
    return [image for part in sent for image in test_sets.images(part)]


def names(path: Path | str) -> list[str]:
    return [name for name, _ in found(path)]


# Folders --------------------------------------------------------------------------------------------------------------


def test_a_folder_gives_its_images_by_their_names_in_order(tmp_path: Path) -> None:
    images = pictures(4)
    for name, data in zip(("b.png", "a.JPEG", "class 1/x.png", "class 1/deep/ü.webp"), images, strict=True):
        put(tmp_path / name, data)
    expected = {"b.png": images[0], "a.JPEG": images[1], "class 1/x.png": images[2], "class 1/deep/ü.webp": images[3]}
    assert found(tmp_path) == [
        (name, expected[name]) for name in ("a.JPEG", "b.png", "class 1/x.png", "class 1/deep/ü.webp")
    ]
    assert found(f"{tmp_path}/") == found(tmp_path)


def test_one_file_is_a_test_set(tmp_path: Path) -> None:
    put(tmp_path / "one.png", PNG)
    assert found(tmp_path / "one.png") == [("one.png", PNG)]


@pytest.mark.parametrize("kind", FORMATS)
def test_an_image_without_a_name_of_one_is_known_by_its_bytes(tmp_path: Path, kind: str) -> None:
    data = encoded(picture(20, 30), kind)
    put(tmp_path / "000123", data)
    put(tmp_path / "a.dat", data)
    assert found(tmp_path) == [("000123", data), ("a.dat", data)]


def test_what_is_named_an_image_is_one_whatever_its_bytes(tmp_path: Path) -> None:
    """Whoever decodes it says what is wrong; left aside it would be a gap."""
    put(tmp_path / "broken.jpg", b"<html>")
    put(tmp_path / "photo.HEIC", b"")
    assert found(tmp_path) == [("broken.jpg", b"<html>"), ("photo.HEIC", b"")]


def test_labels_lists_and_hidden_files_are_left_aside(tmp_path: Path) -> None:
    put(tmp_path / "a.png", PNG)
    for name in (
        "labels.csv",
        "LICENSE",
        "empty",
        "annotations/a.xml",
        "setid.mat",
        ".DS_Store",
        "._a.png",
        ".thumbnails/a.png",
    ):
        put(tmp_path / name, b"" if name == "empty" else b"no image")
    put(tmp_path / ".hidden.png", PNG)
    assert names(tmp_path) == ["a.png"]


@pytest.mark.parametrize(
    "name",
    [
        "val2014.ZIP",
        "test.zip.001",
        "a.tar.bz2",
        "data-00000-of-00001.arrow",
        "dmlab-test.tfrecord-00000-of-00001",
        "camelyon.h5",
    ],
)
def test_an_archive_that_is_not_read_stops_the_command(tmp_path: Path, name: str) -> None:
    put(tmp_path / "a.png", PNG)
    put(tmp_path / "more" / name, b"whatever")
    with pytest.raises(UsageError, match=rf"more/{name}: images in it would not be looked for"):
        test_sets.parts(named(tmp_path))


@pytest.mark.parametrize("files", [[], ["notes.txt"], [".hidden.png"]])
def test_a_folder_without_an_image_is_refused(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        put(tmp_path / name, b"nothing")
    what = r"1 files that hold none, such as .*notes\.txt" if files == ["notes.txt"] else "it is empty"
    with pytest.raises(UsageError, match=rf"no image, Parquet file or tar in it \({what}\)"):
        test_sets.parts(named(tmp_path))


def test_a_path_where_nothing_is_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing is at .*nowhere"):
        test_sets.parts(named(tmp_path / "nowhere"))


def test_many_images_make_several_parts(tmp_path: Path) -> None:
    count = 2 * test_sets.FILES_PER_PART + 1
    for number in range(count):
        put(tmp_path / f"{number:04d}.png", PNG)
    assert [len(part.paths) for part in test_sets.parts(named(tmp_path))] == [test_sets.FILES_PER_PART] * 2 + [1]
    assert names(tmp_path) == [f"{number:04d}.png" for number in range(count)]


def test_a_name_that_is_no_utf_8_is_written_out(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/caf\xe9.png", "wb") as file:  # noqa: PTH123 - paths are texts
        file.write(PNG)
    assert found(tmp_path) == [(r"caf\udce9.png", PNG)]


# Links, and what is no file -------------------------------------------------------------------------------------------


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    root = tmp_path / "set"
    put(root / "a" / "1.png", PNG)
    put(tmp_path / "elsewhere" / "2.png", PNG)
    (root / "b").symlink_to(tmp_path / "elsewhere")
    for folder, name in (
        (root, "loop"),
        (root / "a", "up"),
        (root / "a", "up again"),
        (tmp_path / "elsewhere", "back"),
    ):
        (folder / name).symlink_to(root)
    (root / "c.png").symlink_to(root / "a" / "1.png")
    assert names(root) == ["c.png", "a/1.png", "b/2.png"]


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    put(tmp_path / "a.png", PNG)
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing.png")
    with pytest.raises(UnreadableError, match=r"gone\.png: in a test set, and no file"):
        test_sets.parts(named(tmp_path))


def test_a_link_to_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "me.png").symlink_to(tmp_path / "me.png")
    with pytest.raises(UnreadableError, match=r"me\.png: "):
        test_sets.parts(named(tmp_path))


def test_a_pipe_is_named_and_not_waited_for(tmp_path: Path) -> None:
    put(tmp_path / "a.png", PNG)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "*"):
        with pytest.raises(UnreadableError, match=r"pipe: in a test set, and no file"):
            test_sets.parts(named(path))


def as_somebody(check: Callable[[], None]) -> None:
    """Does a check as somebody who is not root (root may read everything); in a child process: we stay who we are.

    Its working directory is a folder of theirs: whoever is in it needs no way to it, and TMPDIR may be root's alone.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as child:
        child.submit(_as_somebody, check).result()


def _as_somebody(check: Callable[[], None]) -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name, chdir(name):
        Path().chmod(0o755)
        if user == 0:
            os.chown(".", 65_534, -1)
            os.seteuid(65_534)
        try:
            check()
        finally:
            os.seteuid(user)
            for path in Path().rglob("*"):  # root needs no permission to delete
                path.chmod(0o755)


def test_a_folder_that_may_not_be_read_is_named() -> None:
    as_somebody(_a_folder_that_may_not_be_read)


def _a_folder_that_may_not_be_read() -> None:
    put(Path("set/shut/a.png"), PNG)
    put(Path("set/b.png"), PNG)
    Path("set/shut").chmod(0)
    with pytest.raises(UnreadableError, match=r"shut: a folder of a test set cannot be read \(Permission denied\)"):
        test_sets.parts(named("set"))
    with pytest.raises(UsageError, match=r"a\.png: cannot be reached \(Permission denied\)"):
        test_sets.parts(named("set/shut/a.png"))
    for of_storage in (storage.exists, storage.kind):
        with pytest.raises(PermissionError):
            of_storage("set/shut/a.png")


def test_an_image_that_may_not_be_read_is_named() -> None:
    as_somebody(_an_image_that_may_not_be_read)


def _an_image_that_may_not_be_read() -> None:
    put(Path("set/a.png"), PNG).chmod(0)
    (part,) = test_sets.parts(named("set"))
    with pytest.raises(UnreadableError, match=r"a\.png: a file of a test set cannot be read \(Permission denied\)"):
        list(test_sets.images(part))
    Path("set/a.png").rename("set/a")
    with pytest.raises(
        UnreadableError, match=r"/a: a file of a test set cannot be read \(Permission denied\); if it is an image"
    ):
        test_sets.parts(named("set"))


# Globs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["*/*.png", "**", "**/*.png", "[ab]", "*"])
def test_a_glob_gives_each_image_once(tmp_path: Path, pattern: str) -> None:
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        put(tmp_path / "set" / name, PNG)
    found_names = [os.path.normpath(name) for name in names(tmp_path / "set" / pattern)]
    assert sorted(Path(name).name for name in found_names) == ["1.png", "2.png", "3.png"]
    assert len(set(found_names)) == 3


def test_a_path_with_brackets_is_itself(tmp_path: Path) -> None:
    put(tmp_path / "[2]" / "a.png", PNG)
    put(tmp_path / "2" / "b.png", PNG)
    assert names(tmp_path / "[2]") == ["a.png"]


# Parquet --------------------------------------------------------------------------------------------------------------

FORMS: dict[str, Callable[[list[bytes | None]], Any]] = {
    "binary": lambda images: pa.array(images, pa.binary()),
    "large": lambda images: pa.array(images, pa.large_binary()),
    "struct": lambda images: pa.array(
        [{"bytes": image, "path": "x.png"} for image in images],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    ),
}


def table(
    path: Path, images: list[bytes | None], form: str = "binary", *, rows_per_group: int = 3, column: str = "image"
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"label": pa.array(range(len(images)), pa.int64()), column: FORMS[form](images)}
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_every_row_of_every_row_group_is_an_image(tmp_path: Path, form: str) -> None:
    images = pictures(8)
    table(tmp_path / "test.parquet", [*images], form)
    assert [part.row_group for part in test_sets.parts(named(tmp_path))] == [0, 1, 2]
    assert found(tmp_path) == [(f"test.parquet#{row}", image) for row, image in enumerate(images)]
    assert found(tmp_path / "test.parquet") == found(tmp_path)


def test_another_column_can_be_named(tmp_path: Path) -> None:
    table(tmp_path / "a.pq", [PNG], "struct", column="img")
    assert found(tmp_path, "img") == [("a.pq#0", PNG)]
    message = (
        r'a\.pq: no columns "image" \(there are label, img\); give \{name = "mine", path = ".*", image_column = "…"\}'
    )
    with pytest.raises(UsageError, match=message):
        test_sets.parts(named(tmp_path))


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    pq.write_table(
        pa.Table.from_arrays([pa.array([PNG]), pa.array([PNG])], names=["image", "image"]), tmp_path / "a.parquet"
    )
    with pytest.raises(UsageError, match=r'2 columns "image"'):
        test_sets.parts(named(tmp_path))


@pytest.mark.parametrize(
    "values",
    [pa.array(["a.png"]), pa.array([7]), pa.array([{"path": "a.png"}]), pa.array([[PNG]])],
    ids=lambda values: str(values.type),
)
def test_a_column_that_holds_no_bytes_is_refused(tmp_path: Path, values: Any) -> None:
    pq.write_table(pa.table({"image": values}), tmp_path / "a.parquet")
    with pytest.raises(
        UsageError,
        match=r"a\.parquet: column image is of type .*, where bytes \(or a struct whose field bytes holds them\) are",
    ):
        test_sets.parts(named(tmp_path))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("nothing", [None, b""])
def test_a_row_without_an_image_is_named(tmp_path: Path, form: str, nothing: bytes | None) -> None:
    table(tmp_path / "a.parquet", [PNG, PNG, PNG, PNG, nothing], form)
    with pytest.raises(UnreadableError, match=r"a\.parquet: row 4 of test set mine has no image"):
        found(tmp_path)


def test_a_broken_table_is_named_without_advice_that_does_not_apply(tmp_path: Path) -> None:
    whole = table(tmp_path / "a.parquet", [*pictures(30)]).read_bytes()
    for data in (whole[:-40], whole[:100] + b"\0" * 400 + whole[500:], b"", b"no table"):
        put(tmp_path / "a.parquet", data)
        with pytest.raises(UnreadableError, match=r"a\.parquet: .*; repair it, or take it out of the test set$"):
            found(tmp_path)


def test_tables_without_a_row_are_no_test_set(tmp_path: Path) -> None:
    table(tmp_path / "a.parquet", [])
    with pytest.raises(UsageError, match=r"1 files that hold none, such as .*a\.parquet"):
        test_sets.parts(named(tmp_path))
    table(tmp_path / "b.parquet", [PNG])
    assert names(tmp_path) == ["b.parquet#0"]


# Tars -----------------------------------------------------------------------------------------------------------------


def tar(path: Path, members: list[tuple[str, bytes]], compression: str = "") -> Path:
    return put(path, {"": bytes, "gzip": gzip.compress, "zstd": zstd}[compression](tar_of(members)))


@pytest.mark.parametrize(
    ("ending", "compression"),
    [(".tar", ""), (".tar.gz", "gzip"), (".tgz", "gzip"), (".tar.zst", "zstd"), (".tar", "gzip")],
)
def test_a_tar_gives_its_images_by_their_names(tmp_path: Path, ending: str, compression: str) -> None:
    first, second, third = pictures(3)
    members = [
        ("0.jpg", first),
        ("0.txt", b"a cat"),
        ("0.json", b"{}"),
        ("deep/1.cls", b"3"),
        ("deep/1.png", second),
        ("./2", third),
        ("empty", b""),
    ]
    members += [("._0.jpg", b"of a system"), ("__MACOSX/._0.jpg", b"of a system"), (".cache/0.jpg", b"of a tool")]
    tar(tmp_path / f"test{ending}", members, compression)
    expected = [(f"test{ending}/0.jpg", first), (f"test{ending}/deep/1.png", second), (f"test{ending}/./2", third)]
    assert found(tmp_path) == expected
    assert found(tmp_path / f"test{ending}") == expected


def test_the_name_of_a_member_that_is_no_utf_8_is_written_out(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", [("caf\udce9.png", PNG)])
    assert names(tmp_path) == [r"a.tar/caf\udce9.png"]


@pytest.mark.parametrize("compression", ["", "gzip"])
def test_a_tar_of_tars_is_not_taken_for_one_of_images(
    tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tar(tmp_path / "inner.tar", [("n01440764_1.JPEG", PNG)]).read_bytes()
    outer = tar(tmp_path / "outer" / "train.tar", [("n01440764.tar", inner), ("list.txt", b"n01440764")], compression)
    monkeypatch.setattr(test_sets, "_LARGE_BYTES", 100)  # of a larger member only the head is read
    with pytest.raises(
        UnreadableError, match=r"train\.tar: n01440764\.tar: images in it would not be looked for; unpack it"
    ):
        found(outer)
    tar(outer, [("list.txt", b"n01440764")], compression)
    with pytest.raises(
        UnreadableError, match=r"train\.tar: a tar of test set mine that holds no image; take it out of the set"
    ):
        found(outer)


def test_an_image_too_large_to_be_one_by_chance_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = encoded(picture(200, 200), "bmp")
    tar(tmp_path / "a.tar", [("0001", big)])
    monkeypatch.setattr(test_sets, "_LARGE_BYTES", 100)
    with pytest.raises(UnreadableError, match=rf"a\.tar: 0001: an image of {len(big):,} bytes"):
        found(tmp_path)
    tar(tmp_path / "a.tar", [("0001.bmp", big)])
    assert found(tmp_path) == [("a.tar/0001.bmp", big)]


def test_a_tar_cut_anywhere_is_named_or_has_lost_nothing(tmp_path: Path) -> None:
    members = [(f"{number}.png", data) for number, data in enumerate(pictures(4))]
    whole = tar(tmp_path / "whole" / "a.tar", members).read_bytes()
    ends = 0
    for length in [*range(0, len(whole), 512), *range(100, len(whole), 512)]:
        put(tmp_path / "a.tar", whole[:length])
        try:
            images = found(tmp_path / "a.tar")
        except UnreadableError:
            continue
        ends += 1
        assert images == [(f"a.tar/{name}", data) for name, data in members]
    assert ends > 0


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
def test_a_tar_that_breaks_off_is_named(tmp_path: Path, compression: str) -> None:
    whole = tar(
        tmp_path / "a.tar", [(f"{number}.png", data) for number, data in enumerate(pictures(40))], compression
    ).read_bytes()
    put(tmp_path / "a.tar", whole[: len(whole) // 2])
    with pytest.raises(UnreadableError, match=r"a\.tar: "):
        found(tmp_path)
    put(tmp_path / "a.tar", b"no tar at all" * 100)
    with pytest.raises(UnreadableError, match=r"a\.tar: "):
        found(tmp_path)


# All together ---------------------------------------------------------------------------------------------------------


def test_images_tables_and_tars_of_one_folder_are_one_test_set(tmp_path: Path) -> None:
    put(tmp_path / "a.png", PNG)
    table(tmp_path / "b.parquet", [PNG, PNG])
    tar(tmp_path / "c" / "c.tar", [("1.png", PNG)])
    assert names(tmp_path) == ["b.parquet#0", "b.parquet#1", "c/c.tar/1.png", "a.png"]


def test_stamps_name_every_file_once(tmp_path: Path) -> None:
    put(tmp_path / "a.png", PNG)
    table(tmp_path / "b.parquet", [*pictures(7)])
    parts = test_sets.parts(named(tmp_path))
    assert [path for path, _ in test_sets.stamps(parts)] == [str(tmp_path / "b.parquet"), str(tmp_path / "a.png")]
    before = dict(test_sets.stamps(parts))
    put(tmp_path / "a.png", PNG + b"more")
    after = dict(test_sets.stamps(parts))
    assert [path for path in before if before[path] != after[path]] == [str(tmp_path / "a.png")]


@pytest.mark.runs
@pytest.mark.parametrize(
    ("name", "data", "code", "message"),
    [
        ("broken.png", PNG[: len(PNG) // 2], 1, "broken.png: an image of test set set cannot be decoded"),
        ("page.jpg", b"<html>", 1, "page.jpg: an image of test set set cannot be decoded"),
        ("test.zip", b"PK", 2, "test.zip: images in it would not be looked for"),
        ("test.parquet", b"no table", 1, "test.parquet: cannot be read as Parquet"),
    ],
)
def test_a_gap_stops_a_run_before_an_image_is_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, data: bytes, code: int, message: str
) -> None:
    put(tmp_path / "set" / "good.png", PNG)
    put(tmp_path / "set" / name, data)
    table(tmp_path / "pool.parquet", [encoded(picture(300, 300), "png")], column="image")
    pq.write_table(
        pq.read_table(tmp_path / "pool.parquet").append_column("caption", pa.array(["a small field of colours"])),
        tmp_path / "pool.parquet",
    )
    config = put(
        tmp_path / "mine.toml",
        f"""
        [run]
        folder = "{tmp_path}/run"
        [[input]]
        kind = "table"
        paths = ["{tmp_path}/pool.parquet"]
        url_column = ""
        image_column = "image"
        [decontaminate]
        test_sets = ["{tmp_path}/set"]
        """.encode(),
    )
    assert cli.main(["curate", str(config)]) == code
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not list((tmp_path / "run").glob("work/fetch/units/*"))


# Links and archives in tars -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["more.tar", "more.TGZ", "more.zip", "more.parquet", "more.lmdb"])
def test_what_may_hold_images_in_a_tar_is_not_passed_over(tmp_path: Path, name: str) -> None:
    tar(tmp_path / "a.tar", [("0.png", PNG), (name, b"whatever")])
    with pytest.raises(UnreadableError, match=rf"a\.tar: {name}: images in it would not be looked for; unpack it"):
        found(tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize(("name", "is_refused"), [("deep/b.png", True), (".b.png", False), ("latest", False)])
def test_a_link_in_a_tar_that_is_called_an_image_is_refused(
    tmp_path: Path, kind: bytes, name: str, *, is_refused: bool
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        header = tarfile.TarInfo("a.png")
        header.size = len(PNG)
        archive.addfile(header, io.BytesIO(PNG))
        link = tarfile.TarInfo(name)
        link.type, link.linkname = kind, "a.png"
        archive.addfile(link)
    if not is_refused:
        assert found(tmp_path) == [("a.tar/a.png", PNG)]
        return
    with pytest.raises(UnreadableError, match=rf"a\.tar: {name}: a link, where an image is meant; make the tar anew"):
        found(tmp_path)
