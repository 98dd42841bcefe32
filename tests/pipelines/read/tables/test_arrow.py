"""Arrow files: data sets that Hugging Face's `save_to_disk` has left, streams and files, whole and damaged."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from altalign.curation import InputSettings
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines import read
from altalign.pipelines.read.tables import arrow, caption_lists, table
from tests.pipelines.read.pages.archives import read_all

IMAGES: list[bytes | None] = [b"one", None, b"", b"two", b"one"]


def an_input(**values: str) -> InputSettings:
    return InputSettings(kind="table", paths=["-"], **values)  # pyright: ignore[reportArgumentType]


def rows() -> pa.Table:
    """What a data set with a column of images looks like."""
    mask = pa.array([image is None for image in IMAGES])
    fields = [pa.array(IMAGES, pa.binary()), pa.array([f"{number}.jpg" for number in range(5)])]
    return pa.table(
        {
            "image": pa.StructArray.from_arrays(fields, names=["bytes", "path"], mask=mask),
            "caption": [f"caption {number}" for number in range(5)],
            "several": [["a", "b"], [], None, ["c"], ["d"]],
            "url": pa.array([None, "http://a/1", None, "http://a/3", None], pa.large_string()),
        }
    )


def saved(folder: Path, *parts: pa.Table, rows_a_batch: int = 2, **options: Any) -> Path:
    """A data set as `save_to_disk` leaves it, a file for each part."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(parts):05d}.arrow" for number in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, part.schema, **options) as stream:
            stream.write_table(part, rows_a_batch)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    (folder / "dataset_info.json").write_text("{}", encoding="utf-8")
    return folder


def one(folder: Path) -> Path:
    return next(folder.glob("*.arrow"))


@pytest.mark.parametrize("options", [{}, {"options": pa.ipc.IpcWriteOptions(compression="zstd")}])
@pytest.mark.parametrize("stretch_rows", [1, 8_192])
def test_rows_and_images_of_a_saved_data_set_are_read(
    tmp_path: Path, options: dict[str, Any], stretch_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "STRETCH_ROWS", stretch_rows)
    monkeypatch.setattr(caption_lists, "STRETCH_ROWS", stretch_rows)
    path = one(saved(tmp_path / "set", rows(), **options))
    settings = an_input(image_column="image")
    read.check([str(path)], settings)
    assert not read.is_direct(str(path), settings)
    candidates, broken, places = read_all(path, settings)
    of_one = hashlib.sha256(b"one").hexdigest()
    assert [row["image_identity"] for row in candidates] == [of_one, "http://a/1", None, "http://a/3", of_one]
    assert [row["caption"] for row in candidates] == [f"caption {number}" for number in range(5)]
    assert (broken, [place["offset"] for place in places]) == ([], [0, 3, 4])
    assert list(table.images(str(path), settings, [0, 3])) == [(0, b"one"), (3, b"two")]
    lists, _, places = read_all(path, an_input(image_column="image", caption_column="several"))
    assert [row["caption"] for row in lists] == ["a", "b", "", "", "c", "d"]
    assert [place["offset"] for place in places] == [0, 3, 4]


def test_a_file_with_a_footer_and_an_empty_data_set_are_read(tmp_path: Path) -> None:
    path = tmp_path / "table.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows().schema) as written:
        written.write_table(rows(), 2)
    assert len(read_all(path, an_input())[0]) == 5
    assert read_all(one(saved(tmp_path / "empty", rows().slice(0, 0))), an_input())[0] == []


def test_a_folder_stands_for_the_files_of_its_data_set(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", rows(), rows())
    (folder / "cache-0123.arrow").write_bytes(b"not of it")
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    assert read.listed([str(folder)], an_input()) == [str(folder / name) for name in names]


def test_a_folder_of_splits_is_refused_with_their_names(tmp_path: Path) -> None:
    saved(tmp_path / "sets" / "train", rows())
    (tmp_path / "sets" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}', encoding="utf-8")
    with pytest.raises(UsageError, match=r"a data set of splits \(train, test\); name one, such as .*/sets/train"):
        read.listed([str(tmp_path / "sets")], an_input())


@pytest.mark.parametrize("name", [1, None, "../other.arrow", {"a": 1}])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: Any) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}), encoding="utf-8")
    with pytest.raises(UsageError, match=r"state\.json: .* is no name of a file"):
        read.listed([str(tmp_path)], an_input())


@pytest.mark.parametrize("cut", [1, 8, 9, 200])
def test_a_file_that_is_cut_cannot_be_read(tmp_path: Path, cut: int) -> None:
    path = one(saved(tmp_path / "set", rows()))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(UnreadableError, match="cannot be read as Arrow"):
        read_all(path, an_input())


def test_a_file_of_something_else_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "table.arrow"
    for content in (b"url,caption\nhttp://a/,b\n", bytes(1_000), b"ARROW1\0\0" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(UnreadableError, match=r"table\.arrow: cannot be read as Arrow"):
            read_all(path, an_input())


def test_columns_have_to_be_there_and_of_their_type(tmp_path: Path) -> None:
    path = str(one(saved(tmp_path / "set", rows())))
    with pytest.raises(UsageError, match='no column "text"'):
        read.check([path], an_input(caption_column="text"))
    with pytest.raises(UsageError, match=r"column url is of type large_string, where bytes"):
        read.check([path], an_input(image_column="url"))
    with pytest.raises(
        UsageError, match=r"column image is of type struct.*where strings \(or lists of them\) are meant"
    ):
        read.check([path], an_input(caption_column="image"))
