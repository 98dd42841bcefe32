"""Rows of a run from Parquet files that are not as they were written."""

import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from altalign.audit import rows
from altalign.audit.run_folder import RunFolder
from altalign.errors import UnreadableError

ALL = rows.Condition(pc.scalar(True), ["caption"])  # noqa: FBT003 - the value


def run_with(folder: Path, data: bytes) -> RunFolder:
    """A run of one side-car."""
    path = folder / "shards" / "00000.parquet"
    path.parent.mkdir()
    path.write_bytes(data)
    return RunFolder(str(folder), {})


def written() -> bytes:
    """A Parquet file of 7 rows."""
    file = io.BytesIO()
    pq.write_table(
        pa.table({"caption": ["a cat"] * 7}), file, compression="none", store_schema=False, use_dictionary=False
    )
    return file.getvalue()


def test_every_row_says_where_it_is(tmp_path: Path) -> None:
    assert (
        list(rows.samples(run_with(tmp_path, written()), ALL))
        == [{"caption": "a cat", "in": "shards/00000.parquet"}] * 7
    )


def test_fewer_rows_than_the_footer_says_are_damage(tmp_path: Path) -> None:
    # both numbers of rows, not those of values
    data, replaced = re.subn(rb"\x16\x0e(?=\x19\x1c|\x26\x08)", b"\x16\x10", written())
    assert replaced == 2
    with pytest.raises(
        UnreadableError, match=r"00000\.parquet: cannot be read as Parquet \(7 rows, but its footer says 8\)"
    ):
        list(rows.samples(run_with(tmp_path, data), ALL))


def test_text_that_is_no_utf_8_is_damage(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="cannot be read as Parquet"):
        list(rows.samples(run_with(tmp_path, written().replace(b"a cat", b"a \xff\xff\xff")), ALL))


def test_other_columns_are_read_where_a_row_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read = io.BytesIO(), list[object]()
    captions = pa.table({"caption": [f"a cat {n}" for n in range(9)], "key": [str(n) for n in range(9)]})
    pq.write_table(captions, file, row_group_size=3)
    real = pq.ParquetFile.read_row_group

    def noted(of: pq.ParquetFile, number: int, columns: list[str] | None = None, **more: object) -> pa.Table:
        read.append((number, columns))
        return real(of, number, columns=columns, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    of = rows.Condition(pc.field("caption") == "a cat 4", ["caption"])
    found = list(rows.samples(run_with(tmp_path, file.getvalue()), of))
    assert found == [{"caption": "a cat 4", "key": "4", "in": "shards/00000.parquet"}]
    assert read == [(0, ["caption"]), (1, ["caption"]), (2, ["caption"]), (1, None)]


def test_an_error_without_text_is_named_by_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise pa.ArrowInvalid("")

    monkeypatch.setattr(pq, "ParquetFile", fail)
    with pytest.raises(UnreadableError, match=r"cannot be read as Parquet \(ArrowInvalid\)"):
        list(rows.samples(run_with(tmp_path, written()), ALL))
