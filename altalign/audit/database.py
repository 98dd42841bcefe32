"""DuckDB over the rows of a run: joins and counts of more rows than fit into memory."""

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from altalign.errors import AltalignError, first_line
from altalign.machine.cores import cores

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_LIMIT = "200MB"  # what does not fit goes to temporary files
THREADS_AT_MOST = 4  # each holds a part of that memory, which 64 use up between them


@contextmanager
def opened() -> Iterator["DuckDBPyConnection"]:
    """An empty database, which reads and writes no file but temporary ones.

    Raises AltalignError: a query failed, as for lack of space for temporary files.
    """
    import duckdb  # half a second, which other commands need not wait for

    with tempfile.TemporaryDirectory(prefix="altalign-") as folder:
        settings = {"temp_directory": folder, "memory_limit": MEMORY_LIMIT, "threads": min(THREADS_AT_MOST, cores())}
        with duckdb.connect(config={**settings, "preserve_insertion_order": False}) as connection:
            connection.execute("set enable_external_access = false")
            connection.execute("set lock_configuration = true")
            try:
                yield connection
            except duckdb.Error as error:
                repair = "free memory, or space for temporary files in {}, or name another folder by TMPDIR"
                raise AltalignError(
                    f"a query failed ({first_line(error)}); {repair.format(tempfile.gettempdir())}"
                ) from error


def execute_on(
    connection: "DuckDBPyConnection", rows: pa.Table, statement: str, parameters: Sequence[object] = ()
) -> None:
    """Run a statement that reads these rows as the table `arrow_rows`."""
    connection.register("arrow_rows", rows)
    try:
        connection.execute(statement, parameters)
    finally:
        connection.unregister("arrow_rows")


def rows_of_query(
    connection: "DuckDBPyConnection", query: str, parameters: Sequence[object] = ()
) -> list[tuple[Any, ...]]:
    """The rows of a query, which a signal ends: the main thread meets none while it is in DuckDB itself."""
    with ThreadPoolExecutor(1) as thread:
        rows = thread.submit(lambda: connection.execute(query, parameters).fetchall())
        try:
            return rows.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise
