"""Queries over rows of a run: they read no files, and what fails is one clear error."""

import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from altalign.audit import rows as run_rows
from altalign.errors import AltalignError
from altalign.machine import interrupts

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def test_a_query_reads_no_file(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    for statement in (f"select * from '{tmp_path}/rows.csv'", "set enable_external_access = true"):
        with pytest.raises(AltalignError, match="a query failed"), run_rows.database() as connection:
            connection.execute(statement)


def test_a_variable_of_python_is_no_table() -> None:
    rows = pa.table({"a": [1]})
    assert len(rows) == 1
    with pytest.raises(AltalignError, match="a query failed"), run_rows.database() as connection:
        connection.execute("select * from rows")


def test_what_does_not_fit_goes_to_files_that_do_not_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run_rows, "_MEMORY_LIMIT", "48MB")
    with run_rows.database() as connection:
        connection.execute("create table keys as select hash(range) as key from range(8_000_000)")
        (folder,) = tmp_path.iterdir()
        assert list(folder.iterdir())
        count = "select count(*), sum(rows) from (select key, count(*) as rows from keys group by key)"
        assert connection.execute(count).fetchall() == [(8_000_000, 8_000_000)]
    assert not list(tmp_path.iterdir())


def test_a_machine_of_many_cores_has_few_threads_for_that_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_rows, "cores", lambda: 64)
    with run_rows.database() as connection:
        assert connection.execute("select current_setting('threads')").fetchall() == [(4,)]


def test_too_little_memory_is_an_error_with_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_rows, "_MEMORY_LIMIT", "1MB")
    with pytest.raises(AltalignError, match=r"Out of Memory.*free memory, or space"), run_rows.database() as connection:
        connection.execute("create table keys as select hash(range) as key from range(2_000_000)")


def test_a_signal_ends_a_query() -> None:
    def query(connection: "DuckDBPyConnection") -> None:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        run_rows.rows_of_query(connection, "select sum(hash(range)) from range(1_000_000_000_000)")

    with interrupts.handled(), pytest.raises(interrupts.Interrupted), run_rows.database() as connection:
        query(connection)
