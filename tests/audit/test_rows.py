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

ALL = pc.scalar(True)  # noqa: FBT003 - the value


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


def test_an_error_without_text_is_named_by_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise pa.ArrowInvalid("")

    monkeypatch.setattr(pq, "ParquetFile", fail)
    with pytest.raises(UnreadableError, match=r"cannot be read as Parquet \(ArrowInvalid\)"):
        list(rows.samples(run_with(tmp_path, written()), ALL))
