"""Rows of a run's Parquet files: row groups, rows that match, what was removed; joins of many rows by DuckDB."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import AuditTable
from altalign.data.reasons import WORDS, Stage
from altalign.data.schema import COUNTS, REMOVED
from altalign.data.stages import REMOVED_FILE
from altalign.errors import AltalignError, UnreadableError, UsageError, first_line
from altalign.machine.cores import cores

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

STAGES = tuple(stage.value for stage in Stage)  # folders of dropped/, in the order of stages
_DROPPED = tuple(storage.join("dropped", stage) for stage in STAGES)
_MEMORY_LIMIT = "200MB"  # of DuckDB; what does not fit goes to temporary files
_THREADS_AT_MOST = 4  # each holds a part of that memory, which 64 use up between them

Found = dict[str, Any]  # a row of a side-car or a dropped row, and `in`: its file, by its path in the run


class Condition(NamedTuple):
    """What rows must match, and the columns that say whether they do: of other row groups no more is read."""

    matches: pc.Expression
    columns: Sequence[str]


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Errors of Arrow name the Parquet file. Raises UnreadableError; FileNotFoundError: there is no such file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        why = "a string is not UTF-8" if isinstance(error, UnicodeDecodeError) else first_line(error)
        raise UnreadableError(f"{path}: cannot be read as Parquet ({why})") from error


def row_groups(
    path: str,
    columns: Sequence[str] | None = None,
    *,
    numbers: Sequence[int] | None = None,
    file: "pa.NativeFile | None" = None,
) -> Iterator[pa.Table]:
    """The row groups of a file, with these columns or all: those of these numbers, or all.

    A file that is open already is read in place of the one at the path. Raises UnreadableError: it is not a whole
    Parquet file, or lacks one of these columns; FileNotFoundError: there is no such file.
    """
    with nullcontext(file) if file else storage.open_read(path) as source, naming(path):
        parquet = pq.ParquetFile(source)
        if missing := [name for name in columns or () if name not in parquet.schema_arrow.names]:
            raise pa.ArrowInvalid(f"no column {missing[0]}; was it written by an earlier altalign?")
        names = list(columns) if columns is not None else None
        for number in range(parquet.num_row_groups) if numbers is None else numbers:
            rows: pa.Table = parquet.read_row_group(number, columns=names, use_threads=False)
            # if pages are damaged, Arrow may stop early without an error
            if len(rows) != (in_footer := parquet.metadata.row_group(number).num_rows):
                raise pa.ArrowInvalid(f"{len(rows)} rows, but its footer says {in_footer}")
            yield rows


def table(path: str, schema: pa.Schema) -> pa.Table:
    """The columns of a schema from a whole file, with its types. Raises as `row_groups`; UnreadableError: of others."""
    with naming(path):
        groups = [rows.cast(schema) for rows in row_groups(path, schema.names)]
        return pa.concat_tables([schema.empty_table(), *groups])


def of_audit(run: RunFolder, file: AuditTable) -> pa.Table | None:
    """A table of the audit; None if the run has no such file."""
    path = run.path(file.path)
    return table(path, file.schema) if storage.exists(path) else None


def listed(run: RunFolder, file: AuditTable) -> list[dict[str, Any]] | None:
    """The rows of a table of the audit, each as a dict; None if the run has no such file."""
    with naming(run.path(file.path)):  # a string may be no UTF-8
        rows = of_audit(run, file)
        return None if rows is None else rows.to_pylist()


def dropped(run: RunFolder, condition: Condition, advance: Callable[[], None] = lambda: None) -> Iterator[Found]:
    """The dropped rows that match, in the order of stages; `advance` is called after each file."""
    for folder in _DROPPED:
        yield from samples(run, condition, advance, folder)


def samples(
    run: RunFolder, condition: Condition, advance: Callable[[], None] = lambda: None, folder: str = "shards"
) -> Iterator[Found]:
    """The rows of side-cars that match, or those of another folder of the run."""
    matches, columns = condition
    for name in storage.names(run.path(folder), ".parquet"):
        path = run.path(folder, name)
        few = enumerate(row_groups(path, columns))
        numbers = [number for number, rows in few if len(rows.filter(matches))]
        for rows in row_groups(path, numbers=numbers) if numbers else ():
            with naming(path):
                yield from ({**row, "in": f"{folder}/{name}"} for row in rows.filter(matches).to_pylist())
        advance()


def files(run: RunFolder) -> int:
    """How many files `samples` and `dropped` look at."""
    return sum(len(storage.names(run.path(folder), ".parquet")) for folder in ("shards", *_DROPPED))


def image(run: RunFolder, tar: str, offset: int, size: int) -> bytes:
    """The bytes of a sample's image in a tar of the run. Raises UnreadableError: the tar ends before it does."""
    path = run.path("shards", tar)
    data = storage.read_range(path, offset, size)
    if missing := size - len(data):
        raise UnreadableError(f"{path}: it ends {missing:,} bytes before an image does")
    return data


def check_reason(name: str, *others: str) -> str:
    """The name of a reason. Raises UsageError: there is none."""
    if name not in (*others, *WORDS):
        raise UsageError(f"{name}: no such reason; give one that the counts of the run have")
    return str(name)


def counts(run: RunFolder) -> dict[tuple[str, str, str], int]:
    """counts.parquet: rows by stage, source and reason. Raises UnreadableError: it is not there, or damaged."""
    rows = listed(run, AuditTable("counts.parquet", COUNTS))
    if rows is None:
        raise UnreadableError(f"{run.path('counts.parquet')}: it is not there")
    return {(row["stage"], row["source"], row["reason"]): row["rows"] for row in rows}


def by_reason(counts: Mapping[tuple[str, str, str], int]) -> Counter[tuple[str, str]]:
    """The counts of all sources together: rows by stage and reason."""
    sums = Counter[tuple[str, str]]()
    for (stage, _, reason), number in counts.items():
        sums[stage, reason] += number
    return sums


def removed(run: RunFolder, matches: pc.Expression) -> list[dict[str, Any]]:
    """The rows of removed.parquet that match, which names by hashes what was taken out on request."""
    rows = of_audit(run, AuditTable(REMOVED_FILE, REMOVED))
    return [] if rows is None else rows.filter(matches).to_pylist()


def removed_pairs(run: RunFolder) -> tuple[Counter[tuple[str, str, str]], Counter[str]]:
    """How many pairs went: by stage, source and reason; and by shard.

    Of what went before an addition, counts say nothing any more.
    """
    rows = removed(run, pc.field("kind") == "pair")
    counted = Counter((row["stage"] or "", row["source"] or "", row["reason"] or "") for row in rows if row["stage"])
    return counted, Counter(row["shard"] for row in rows if row["shard"])


# DuckDB: joins and counts of more rows than fit into memory -----------------------------------------------------------


@contextmanager
def database(*, memory: str = "", is_on_disk: bool = False) -> Iterator["DuckDBPyConnection"]:
    """An empty database in memory, or in a temporary file; it reads and writes no file but temporary ones.

    Raises AltalignError: a query failed, as for lack of space for temporary files.
    """
    import duckdb  # half a second, which other commands need not wait for

    with tempfile.TemporaryDirectory(prefix="altalign-") as folder:
        limits = {"memory_limit": memory or _MEMORY_LIMIT, "threads": min(_THREADS_AT_MOST, cores())}
        settings = {"temp_directory": folder, **limits}
        place = f"{folder}/rows.duckdb" if is_on_disk else ":memory:"
        with duckdb.connect(place, config={**settings, "preserve_insertion_order": False}) as connection:
            connection.execute("set enable_external_access = false")
            connection.execute("set lock_configuration = true")
            try:
                yield connection
            except duckdb.Error as error:
                where = tempfile.gettempdir()
                repair = f"free memory, or space for temporary files in {where}, or name another folder by TMPDIR"
                raise AltalignError(f"a query failed ({first_line(error)}); {repair}") from error


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
