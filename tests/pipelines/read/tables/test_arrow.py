"""Arrow files: data sets that Hugging Face's `save_to_disk` has left, streams and files, whole and damaged."""

import hashlib
import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.errors import UnreadableError, UsageError
from altalign.pipelines import read
from altalign.pipelines.read.tables import columns, table
from altalign.settings.curate import InputSettings
from tests.support.archives import read_all

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
    monkeypatch.setattr(table, "STRETCH_ROWS", stretch_rows)
    monkeypatch.setattr(columns, "_CAPTIONS_AT_ONCE", stretch_rows)
    path = one(saved(tmp_path / "set", rows(), **options))
    settings = an_input(image_column="image")
    read.check([str(path)], settings)
    assert not read.is_direct(str(path), settings)
    candidates, broken, places = read_all(path, settings)
    of_one, of_none = (hashlib.sha256(data).hexdigest() for data in (b"one", b""))
    assert [row["image_identity"] for row in candidates] == [of_one, "http://a/1", of_none, "http://a/3", of_one]
    assert [row["caption"] for row in candidates] == [f"caption {number}" for number in range(5)]
    assert (broken, [place["offset"] for place in places]) == ([], [0, 2, 3, 4])
    assert list(table.images(str(path), settings, [0, 3])) == [(0, b"one"), (3, b"two")]
    lists, _, places = read_all(path, an_input(image_column="image", caption_column="several"))
    assert [row["caption"] for row in lists] == ["a", "b", "", "", "c", "d"]
    assert [place["offset"] for place in places] == [0, 2, 3, 4]


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


def _as_written(form: str, kind: Any, values: list[Any]) -> "pa.Array[Any]":
    """The values in a column of a kind, alone, in a struct, or in lists of a kind."""
    if form == "dictionary":
        indices = pa.array([None if value is None else number for number, value in enumerate(values)], pa.int32())
        return pa.DictionaryArray.from_arrays(indices, pa.array([value for value in values if value], kind))
    return pa.array(values, {"plain": lambda: kind, "struct": lambda: pa.struct([("bytes", kind)])}[form]())


BYTES = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
LISTS: list[Any] = [pa.list_, pa.large_list, lambda of: pa.list_(of, 2), pa.list_view, pa.large_list_view]


def _write(path: Path, table: pa.Table) -> str:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
            file.write_table(table)
    return str(path)


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
@pytest.mark.parametrize("text", TEXTS, ids=str)
@pytest.mark.parametrize("kind", BYTES, ids=str)
@pytest.mark.parametrize("form", ["plain", "struct", "dictionary"])
def test_every_kind_of_bytes_and_of_text_is_read(tmp_path: Path, ending: str, text: Any, kind: Any, form: str) -> None:
    if form == "dictionary" and ending == ".parquet" and "view" in f"{kind} {text}":
        pytest.skip("Arrow 26 writes no dictionaries of views to Parquet")
    images, captions = [b"one", b"two" * 99, None], ["a caption", "of more than twelve characters", None]
    values = [None if image is None else {"bytes": image} for image in images] if form == "struct" else images
    texts = _as_written("dictionary" if form == "dictionary" else "plain", text, captions)
    columns = {"image": _as_written(form, kind, values), "caption": texts, "licence": texts}
    path = _write(tmp_path / f"a{ending}", pa.table(columns))
    settings = InputSettings(kind="table", paths=["-"], url_column="", image_column="image", keep_columns=["licence"])
    rows, broken, places = read_all(Path(path), settings)
    assert [row["caption"] for row in rows] == ["a caption", "of more than twelve characters", ""]
    assert [json.loads(row["extra"])["licence"] for row in rows] == captions
    assert [row["image_identity"] for row in rows[:2]] == [hashlib.sha256(each).hexdigest() for each in images[:2]]
    assert not broken
    numbers = [place["offset"] for place in places]
    assert list(table.images(path, settings, numbers)) == [(0, b"one"), (1, b"two" * 99)]


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
@pytest.mark.parametrize("text", TEXTS, ids=str)
@pytest.mark.parametrize("lists", LISTS, ids=["list", "large", "fixed", "view", "large view"])
def test_every_kind_of_list_of_captions_is_read(tmp_path: Path, ending: str, text: Any, lists: Any) -> None:
    none = ["", ""] if pa.types.is_fixed_size_list(lists(text)) else None  # Arrow 26 reads no null ones from Parquet
    captions = pa.array([["one", "two of more than twelve characters"], none, ["three", "four"]], lists(text))
    path = _write(
        tmp_path / f"a{ending}", pa.table({"url": ["http://a/1", "http://a/2", "http://a/3"], "caption": captions})
    )
    found = [(row["image_url"], row["caption"]) for row in read_all(Path(path), an_input())[0]]
    assert found == [
        ("http://a/1", "one"),
        ("http://a/1", "two of more than twelve characters"),
        *[("http://a/2", "")] * (2 if none else 1),
        ("http://a/3", "three"),
        ("http://a/3", "four"),
    ]


def _with_gaps(path: Path) -> None:
    """A file with gaps between messages, as polars writes them from 2.0.0 on: its footer says where they are."""
    whole = pa.BufferOutputStream()
    batch = pa.record_batch({"url": [f"http://a/{number}" for number in range(50)], "caption": ["a caption"] * 50})
    with pa.ipc.new_file(whole, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as file:
        file.write_batch(batch)
    data = whole.getvalue().to_pybytes()
    length = int.from_bytes(data[-10:-6], "little")
    footer = bytearray(data[-10 - length : -10])
    with pa.ipc.open_file(pa.py_buffer(data)) as opened:
        assert opened.num_record_batches == 1
    at = next(at for at in range(0, len(footer) - 8) if _block(data, footer, at))
    (offset,) = struct.unpack_from("<q", footer, at)
    gap = 4_096
    struct.pack_into("<q", footer, at, offset + gap)
    path.write_bytes(data[:offset] + b"\x55" * gap + data[offset : -10 - length] + bytes(footer) + data[-10:])


def _block(data: bytes, footer: bytearray, at: int) -> bool:
    """Whether a block of the footer is here: offset and sizes of a message that is there."""
    offset, size = struct.unpack_from("<qi", footer, at)
    return 8 < offset < len(data) and 8 < size < len(data) and data[offset : offset + 4] == b"\xff" * 4


def test_messages_of_a_file_are_where_its_footer_says(tmp_path: Path) -> None:
    _with_gaps(tmp_path / "a.arrow")
    assert len(read_all(tmp_path / "a.arrow", an_input())[0]) == 50


@pytest.mark.parametrize("place", range(-90, -1, 3))
def test_a_footer_of_other_bytes_is_refused_or_read(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.arrow"
    _with_gaps(path)
    for value in (b"\xff" * 8, b"\0" * 8, b"\x7f" * 8):
        data = bytearray(path.read_bytes())
        data[place : place + 8] = value[: len(data[place:][:8])]
        (tmp_path / "b.arrow").write_bytes(bytes(data))
        with suppress(UnreadableError, UsageError):
            read_all(tmp_path / "b.arrow", an_input())


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
@pytest.mark.parametrize("column", ["caption", "kept"])
def test_bytes_within_lists_or_structs_that_are_no_utf8_give_captions_or_one_line(
    tmp_path: Path, ending: str, column: str
) -> None:
    raw = pa.array([b"one", b"a\xff"])
    texts = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), texts)
    columns = {"caption": lists, "kept": pa.StructArray.from_arrays([texts], ["a"])}
    keep, table = ["kept"] * (column == "kept"), pa.table({"url": ["a", "b"], "caption": ["c", "d"]})
    table = table.drop(["caption"] * (column == "caption")).append_column(column, columns[column])
    path, settings = _write(tmp_path / f"a{ending}", table), InputSettings(kind="table", paths=["-"], keep_columns=keep)
    read.check([path], settings)
    if (ending, column) == (".parquet", "caption"):
        assert [row["caption"] for row in read_all(Path(path), settings)[0]] == ["one", "a\ufffd"]
    else:
        with pytest.raises(UnreadableError, match=r"(?i)a\.\w+: cannot be read as .*utf-?8"):
            read_all(Path(path), settings)
