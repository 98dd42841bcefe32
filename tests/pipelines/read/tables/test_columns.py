"""Kept columns as JSON, against the encoder of one value at a time; and how readers of text and tars keep them."""

import datetime
import decimal
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.data import extras
from altalign.errors import UsageError
from altalign.pipelines import read
from altalign.pipelines.read.tables import columns as table_columns
from altalign.settings.curate import InputSettings
from altalign.storage import parquet

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["\\", '"', "\\n", "\n", "\x00", "\x7f"])
COLUMNS = st.one_of(
    *(
        st.lists(st.none() | values, min_size=3, max_size=3).map(lambda rows, kind=kind: pa.array(rows, kind))
        for values, kind in (
            (TEXTS, pa.string()),
            (TEXTS, pa.large_string()),
            (TEXTS, pa.string_view()),
            (TEXTS, pa.dictionary(pa.int8(), pa.string())),
            (st.integers(-(2**63), 2**63 - 1), pa.int64()),
            (st.integers(0, 2**64 - 1), pa.uint64()),
            (st.booleans(), pa.bool_()),
            (st.floats(), pa.float64()),
            (st.floats(width=32), pa.float32()),
            (st.lists(TEXTS, max_size=2), pa.list_(pa.string())),
            (st.fixed_dictionaries({"a": st.floats(), "b": TEXTS}), pa.struct({"a": pa.float64(), "b": pa.string()})),
            (st.datetimes(datetime.datetime(1900, 1, 1)), pa.timestamp("us")),
            (st.dates(), pa.date32()),
            (st.decimals(-999, 999, places=2), pa.decimal128(9, 2)),
        )
    ),
)


@given(st.dictionaries(TEXTS, COLUMNS, min_size=1, max_size=3), st.integers(0, 2))
def test_columns_become_the_json_of_each_row(columns: dict[str, pa.Array], begin: int) -> None:
    batch = pa.record_batch(columns).slice(begin)
    found = table_columns.kept_as_json(batch, list(columns)).to_pylist()
    assert found == [extras.encode(row) for row in batch.to_pylist()]
    assert [extras.encode(json.loads(each)) for each in found] == found  # one spelling


def test_numbers_that_json_lacks_are_null() -> None:
    value = {"a": [float("nan"), 1.5], "b": {"c": float("inf")}, "d": decimal.Decimal("1.50")}
    assert extras.encode(value) == '{"a":[null,1.5],"b":{"c":null},"d":"1.50"}'


def test_without_names_there_is_nothing() -> None:
    assert table_columns.kept_as_json(pa.record_batch({"a": [1, 2]}), []).to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        (pa.binary(), True),
        (pa.struct({"bytes": pa.binary(), "path": pa.string()}), True),
        (pa.list_(pa.large_binary()), True),
        (pa.dictionary(pa.int8(), pa.binary()), True),
        (pa.list_(pa.struct({"a": pa.string()})), False),
        (pa.string(), False),
    ],
)
def test_bytes_are_refused_before_any_work(tmp_path, kind, holds):
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"url": ["a"], "caption": ["b"], "more": pa.nulls(1, kind)}), path)
    settings = InputSettings(kind="table", paths=["-"], keep_columns=["more"])
    if holds:
        with pytest.raises(UsageError, match=r"column more \(keep_columns\) holds bytes"):
            read.check([str(path)], settings)
    else:
        read.check([str(path)], settings)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b"url,caption,id\nu,c,1\none field\nu,c,\n"),
        ("t.tsv", b"url\tcaption\tid\nu\tc\t1\nfield\nu\tc\t\n"),
        ("t.jsonl", b'{"url":"u","caption":"c","id":"1"}\n{\n{"url":"u","caption":"c","id":""}\n'),
    ],
)
def test_rows_keep_their_numbers_whatever_is_broken_between_them(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    settings = InputSettings(kind="table", paths=["-"], keep_columns=["id"])
    rows = [row for found in read.read(str(tmp_path / name), settings) for row in found.rows.to_pylist()]
    kept = [(row["source_key"], row["extra"]) for row in rows]
    assert kept == [(f"{name}#0", '{"id":"1"}'), (f"{name}#2", '{"id":""}')]


@pytest.mark.parametrize(
    "of", [pa.list_view(pa.string()), pa.large_list_view(pa.string_view()), pa.list_(pa.string_view(), 2)], ids=str
)
def test_views_of_lists_inside_structs_and_lists_are_kept(tmp_path, of):
    path, values = tmp_path / "t.arrow", [["a", "b"], None, ["c", "d"], ["e", "f"]]
    columns = {
        "a": pa.StructArray.from_arrays([pa.array(values, of)], ["x"], mask=pa.array([False, False, True, False])),
        "b": pa.array([values, None, [], [None]], pa.list_view(of)),
        "c": pa.array([[{"x": each} for each in values], None, [], []], pa.list_(pa.struct({"x": of}))),
    }
    batch = pa.record_batch({"url": ["u"] * 4, "caption": ["c"] * 4, **columns})
    for rows in (batch, batch.slice(1), batch.slice(1, 0)):
        plain = parquet.plain(rows)
        plain.validate(full=True)
        assert plain.to_pylist() == rows.to_pylist()
    with pa.ipc.new_file(path, batch.schema) as file:
        file.write_batch(batch)
    settings = InputSettings(kind="table", paths=["-"], keep_columns=["a", "b", "c"])
    found = [extra for each in read.read(str(path), settings) for extra in each.rows["extra"].to_pylist()]
    assert found == [extras.encode(row) for row in batch.select(["a", "b", "c"]).to_pylist()]
