"""Footers and page headers of Parquet, read from their bytes, against what Arrow says of sound ones; and any bytes."""

import io
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.pipelines.read.tables import footers


def written(**options) -> bytes:
    file = io.BytesIO()
    rows = pa.table(
        {
            "a": [f"text {number}" * 30 for number in range(300)],
            "b": [[1, None]] * 300,
            "c": [True, None, False] * 100,
            "d": [1.5] * 300,
        }
    )
    pq.write_table(rows, file, row_group_size=90, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False, "data_page_size": 100},
        {"compression": "none", "data_page_version": "2.0"},
        {"store_schema": False, "write_statistics": False},
    ],
    ids=str,
)
def test_columns_and_pages_are_as_arrow_has_them(options):
    data = written(**options)
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    every = footers.chunks(io.BytesIO(data))
    expected = []
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            expected.append(
                footers.Chunk(
                    group,
                    metadata.row_group(group).num_rows,
                    column,
                    chunk.num_values,
                    start,
                    start + chunk.total_compressed_size,
                )
            )
    assert every == expected
    footers.check_pages(io.BytesIO(data), every)


def field(name: int, kind: int, value: bytes) -> bytes:
    """A field of a struct, its number written out."""
    return bytes([kind, 2 * name]) + value


def test_of_a_field_that_is_there_twice_the_last_counts_and_one_of_another_kind_never():
    about = (
        b"".join(field(name, 6, bytes([2 * value])) for name, value in ((5, 9), (5, 7), (7, 20), (9, 4)))
        + field(9, 1, b"")
        + b"\0"
    )
    group = field(1, 9, b"\x1c" + field(3, 12, about) + b"\0") + field(3, 6, b"\x0e") + field(3, 2, b"") + b"\0"
    footer = field(4, 9, b"\x2c" + group * 2) + field(4, 9, b"\x1c" + group) + b"\0"
    assert footers.chunks(io.BytesIO(footer + len(footer).to_bytes(4, "little") + b"PAR1")) == [
        footers.Chunk(0, 7, 0, 7, 4, 24)
    ]


def test_a_page_beyond_its_column_is_refused_where_the_column_is_wanted():
    data = bytearray(written(use_dictionary=False, compression="none"))
    chunk = footers.chunks(io.BytesIO(data))[0]
    at = data.index(b"\x15", data.index(b"\x15", chunk.start + 2) + 1) + 1  # field 3, behind two numbers
    data[at : at + 3] = b"\xff\xff\x7f"
    every = footers.chunks(io.BytesIO(data))
    footers.check_pages(io.BytesIO(data), [chunk for chunk in every if chunk.column])
    with pytest.raises(pa.ArrowInvalid, match="column 0 of row group 0"):
        footers.check_pages(io.BytesIO(data), every)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    edits=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6),
    footer_bytes=st.none() | st.integers(0, 2**32 - 1),
)
def test_any_bytes_are_columns_or_no_parquet(edits, footer_bytes):
    data = bytearray(written(compression="zstd"))
    length = int.from_bytes(data[-8:-4], "little")
    for at, value in edits:
        data[len(data) - 8 - 1 - at % length] = value
    if footer_bytes is not None:
        data[-8:-4] = footer_bytes.to_bytes(4, "little")
    with suppress(pa.ArrowInvalid):
        footers.check_pages(io.BytesIO(data), footers.chunks(io.BytesIO(data)))
