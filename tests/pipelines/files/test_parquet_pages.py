"""Files written from the bytes of their pages, read again by Arrow."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign import storage
from altalign.pipelines.files import parquet_pages as pages
from altalign.pipelines.read.tables import footers

derandomized = settings(derandomize=True, deadline=None, max_examples=60)

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("digits", pa.string()),
        ("few", pa.string()),
        ("lists", pa.list_(pa.string())),
        ("small", pa.int32()),
        ("large", pa.int64()),
        ("real", pa.float32()),
        ("never", pa.string()),
        ("no_list", pa.int64()),
    ]
)
VALUES = ["one", "zwei", "три", "四", "v"]

texts = st.lists(st.none() | st.text(max_size=40), max_size=70)


def reread(path: Path, groups: list[tuple[int, dict[str, pages.Column]]], schema: pa.Schema = SCHEMA) -> pa.Table:
    with pages.writing(str(path), schema) as file:
        for rows, columns in groups:
            file.write_row_group(rows, columns)
    with storage.open_read(str(path)) as file:
        footers.check_pages(file, footers.chunks(file), range(len(schema) + 2))
    table = pq.read_table(path)
    assert table.schema == schema
    table.validate(full=True)
    return table


def group_of(given_texts: list[str | None], seed: int) -> tuple[dict[str, pages.Column], list[dict[str, Any]]]:
    """Columns of as many rows as there are texts, and what should be read."""
    rng, n = np.random.default_rng(seed), len(given_texts)
    digests, is_known = rng.integers(0, 256, (n, 16), np.uint8), rng.random(n) < 0.8
    few, combinations = rng.integers(0, 5, n).astype(np.uint8), [[0], [1, 3], [0, 2, 4], [4]]
    which, small, large = (
        rng.integers(0, 4, n).astype(np.uint8),
        rng.integers(-9, 9, n, np.int32),
        rng.integers(-(2**62), 2**62, n),
    )
    real = rng.random(n, np.float32)
    columns = {
        "text": pages.strings(pa.array(given_texts, pa.string()), np.arange(n)),
        "digits": pages.hex_digits(digests, is_known),
        "few": pages.coded(VALUES, few),
        "lists": pages.lists(VALUES, combinations, which),
        "small": pages.numbers(small),
        "large": pages.numbers(large, is_known),
        "real": pages.numbers(real),
    }
    rows = [
        {
            "text": given_texts[i],
            "digits": digests[i].tobytes().hex() if is_known[i] else None,
            "few": VALUES[few[i]],
            "lists": [VALUES[value] for value in combinations[which[i]]],
            "small": int(small[i]),
            "large": int(large[i]) if is_known[i] else None,
            "real": float(real[i]),
            "never": None,
            "no_list": None,
        }
        for i in range(n)
    ]
    return columns, rows


@given(st.lists(texts, max_size=3))
@derandomized
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[str | None]]
) -> None:
    made = [group_of(some, seed) for seed, some in enumerate(groups) if some]
    table = reread(tmp_path_factory.mktemp("pages") / "some.parquet", [(len(rows), columns) for columns, rows in made])
    assert table.to_pylist() == [row for _, rows in made for row in rows]


def test_digests_of_which_none_is_known(tmp_path: Path) -> None:
    column = pages.hex_digits(np.zeros((300, 16), np.uint8), np.zeros(300, np.bool_))
    assert (
        reread(tmp_path / "unknown.parquet", [(300, {"digits": column})], pa.schema([("digits", pa.string())]))[
            "digits"
        ].to_pylist()
        == [None] * 300
    )


def test_many_rows(tmp_path: Path) -> None:
    columns, rows = group_of([f"caption {i} 画像" if i % 7 else None for i in range(70_000)], seed=1)
    assert reread(tmp_path / "many.parquet", [(len(rows), columns)]).to_pylist() == rows


@given(texts, st.data())
@derandomized
def test_some_rows_of_a_slice(
    tmp_path_factory: pytest.TempPathFactory, some: list[str | None], data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(some)))
    column = pa.array(some, pa.string()).slice(begin)
    rows = sorted(data.draw(st.sets(st.integers(0, max(0, len(column) - 1)), max_size=len(column))))
    schema = pa.schema([("text", pa.string())])
    table = reread(
        tmp_path_factory.mktemp("pages") / "some.parquet",
        [(len(rows), {"text": pages.strings(column, np.array(rows, np.int64))})] if rows else [],
        schema,
    )
    assert table["text"].to_pylist() == [column[row].as_py() for row in rows]


def test_long_strings_have_pages_of_their_own(tmp_path: Path) -> None:
    some = ["x" * size for size in (3_000_000, 1, 0, 500_000, 600_000, 5, 2_000_000)]
    column = pages.strings(pa.array(some), np.arange(len(some)))
    assert len(column.pages) > 3
    assert (
        reread(tmp_path / "long.parquet", [(len(some), {"text": column})], pa.schema([("text", pa.string())]))[
            "text"
        ].to_pylist()
        == some
    )


def test_a_string_of_no_rows_that_is_null_but_has_bytes(tmp_path: Path) -> None:
    offsets, data = pa.py_buffer(np.array([0, 2, 4, 6], np.int32).data), pa.py_buffer(b"abcdef")
    column = pa.StringArray.from_buffers(3, offsets, data, pa.py_buffer(b"\5"))
    table = reread(
        tmp_path / "null.parquet",
        [(3, {"text": pages.strings(column, np.arange(3))})],
        pa.schema([("text", pa.string())]),
    )
    assert table["text"].to_pylist() == ["ab", None, "ef"]


def test_a_name_that_the_schema_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such columns: \['Small'\]"):
        reread(tmp_path / "wrong.parquet", [(1, {"Small": pages.numbers(np.zeros(1, np.int32))})])


def test_what_has_no_rows_is_a_file_all_the_same(tmp_path: Path) -> None:
    assert reread(tmp_path / "none.parquet", []).to_pylist() == []


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with pages.writing(str(tmp_path / "x.parquet"), SCHEMA) as file:
            file.write_row_group(3, {})
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert list(tmp_path.iterdir()) == []
