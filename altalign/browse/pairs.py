"""The pairs of a run, kept and dropped, as one table of DuckDB in a temporary file, which is filled while it is asked.

The table `pairs` has a row a pair: `n`, its number; `file` and `row`, where the run has it; `image`, its image_id as a
number, which is counted faster; `failed`, every rule of its stage that holds, joined by spaces; `said`, the notations
in its `preferences`, likewise; `host`, of the image's URL; the columns of side-cars and dropped rows by their names;
the run's scores; and those of `keep_columns`, as text.
"""

import heapq
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.audit import rows as run_rows
from altalign.audit.run_folder import RunFolder
from altalign.browse.filters import SIZES, Facet, Facets, identifier
from altalign.data.columns import EXTRA, known
from altalign.data.reasons import KEPT
from altalign.data.schema import DROPPED, SAMPLE
from altalign.data.scores import sidecars
from altalign.errors import UsageError, one_line
from altalign.filters import where as conditions

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY = "500MB"  # of DuckDB: what a page asks for is sums, and a window of rows
BINS, VALUES = 40, 50  # of a range facet; of a facet of values
FEW_ROWS, MANY_ROWS = 10_000, 200_000  # that go into the table at once: the first soon, the others fast
BATCH_ROWS = 100_000
FILTERS_KEPT = 4  # lists of matching pairs, four bytes a pair
NEW_AFTER = 1_000_000  # pairs read, after which a list is made anew while the files are still read

_OF_BOTH = ("key", "image_id", "image_url", "page_url", "caption", "source", "words", "width", "height")
_OF_KEPT = ("format", "bytes")
_OF_DROPPED = (
    "stage",
    "reason",
    "kept_key",
    "images_per_text",
    "texts_per_image",
    "http_code",
    "nsfw_score",
    "similarity",
    "test_set",
)
_TYPES = {field.name: field.type for field in (*DROPPED, *SAMPLE)}
# thresholds are not rounded to 32 bits
_NAMES = {pa.string(): "VARCHAR", pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.float32(): "DOUBLE"}
_WITH_PREFERENCES = 3  # the first version of the schema whose rows have them
_HOST = r"regexp_extract(lower(image_url), '^[a-z][a-z0-9+.-]*://(?:[^/?#]*@)?(\[[^\]]*\]|[^/:?#]+)', 1)"


class File(NamedTuple):
    """A Parquet file of a run: its place in the order in which files are read, its path in the run, its shard."""

    order: float
    path: str
    shard: str  # empty of dropped rows


class Pairs:
    """The pairs of a run, and what is asked of them. Threads may ask at once.

    Attributes:
        files, starts: the files that are read, in order, and the number `n` of the first pair of each.
        digests: the shards, and SHA-256 of the side-car of each.
        total: how many pairs the files have.
        is_over: set once reading has ended, at the end or before it.
        read: how many of them the table has; all of them once `is_read`.
        trouble: why reading ended before that.
    """

    def __init__(self, run: RunFolder, connection: "DuckDBPyConnection") -> None:
        self.run, self._connection = run, connection
        manifest = run.json("manifest.json")
        self.digests = sidecars(manifest)
        self._said = ["preferences"] if manifest.get("schema_version", 0) >= _WITH_PREFERENCES else []
        self.columns = known(run.folder, {name for each in run.config.input for name in each.keep_columns})
        self._scores = {score.name: score for score in self.columns.scores.values()}
        self._kept_columns = [name for name in self.columns.types if name.startswith(EXTRA)]
        own = {
            "n": "BIGINT",
            "file": "INTEGER",
            "row": "BIGINT",
            "image": "UUID",
            "failed": "VARCHAR",
            "said": "VARCHAR",
            "host": "VARCHAR",
        }
        own |= {name: _NAMES[_TYPES[name]] for name in (*_OF_BOTH, *_OF_KEPT, *_OF_DROPPED)}
        self.named = renamed([*self._kept_columns, *self.columns.scores], {*own, *SIZES})
        is_text = {column: pa.types.is_string(self.columns.types[name]) for name, column in self.named.items()}
        self.facets = Facets({name: "values" if text else "range" for name, text in is_text.items()})
        self.files = list(_files(run, list(self.digests)))
        rows = [_rows_of(run.path(file.path)) for file in self.files]
        self.starts = list(accumulate(rows, initial=0))
        self.total = self.starts.pop()
        self.read, self.is_read, self.trouble = 0, False, ""
        self._lists, self._lock = OrderedDict[tuple[str, str, str], npt.NDArray[np.uint32]](), threading.Lock()
        self._numbering = threading.Lock()
        columns = own | {name: "VARCHAR" if text else "DOUBLE" for name, text in is_text.items()}
        declared = ", ".join(f"{identifier(name)} {kind}" for name, kind in columns.items())
        connection.execute(f"CREATE TABLE pairs ({declared})")
        self._columns = list(columns)
        self._stop, self.is_over = threading.Event(), threading.Event()

    # Reading ----------------------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Read all files into the table, in order; what cannot be read ends it, and `trouble` says why."""
        try:
            with self._connection.cursor() as cursor:
                for number, file in enumerate(self.files):
                    row = 0
                    for rows in _joined(self._of_file(file), FEW_ROWS if self.read < MANY_ROWS else MANY_ROWS):
                        if self._stop.is_set():
                            return
                        places = {"n": self.read, "row": row}
                        arrays: dict[str, Any] = {
                            name: pa.array(range(at, at + len(rows))) for name, at in places.items()
                        }
                        arrays["file"] = pa.repeat(pa.scalar(number), len(rows))
                        columns = dict(zip(rows.column_names, rows.columns, strict=True))
                        self._insert(cursor, pa.table({**arrays, **columns}))
                        row, self.read = row + len(rows), self.read + len(rows)
            self.is_read = True
        except Exception as error:
            self.trouble = one_line(error)
        finally:
            self.is_over.set()

    def stop(self) -> None:
        """End the reading, in a moment."""
        self._stop.set()

    @property
    def is_stopped(self) -> bool:
        """Whether the reading is to end."""
        return self._stop.is_set()

    def _of_file(self, file: File) -> Iterator[pa.Table]:
        names = [*_OF_BOTH, *self._said, *(_OF_KEPT if file.shard else (*_OF_DROPPED, "failed"))]
        if self._kept_columns:
            names.append("extra")
        of_scores, at = self._values(file.shard), 0
        for rows in run_rows.row_groups(self.run.path(file.path), names):
            some = rows
            for name, column in of_scores.items():
                some = some.append_column(self.named[name], column.slice(at, len(rows)))
            at += len(rows)
            yield some

    def _values(self, shard: str) -> "dict[str, pa.ChunkedArray[Any]]":
        """The columns of scores of a shard: none of dropped rows, nor of a score that is of another side-car."""
        found: dict[str, pa.ChunkedArray[Any]] = {}
        if shard:
            for score in self._scores.values():
                if score.has(shard, self.digests[shard]):
                    values = score.values(shard, list(score.columns))
                    found |= dict(zip(values.column_names, values.columns, strict=True))
        return found

    def _insert(self, cursor: "DuckDBPyConnection", rows: pa.Table) -> None:
        there = {*rows.column_names}
        kept = f"'{KEPT}'"
        expressions = {
            **{name: identifier(name) if name in there else "NULL" for name in self._columns},
            "image": "try_cast(image_id AS UUID)",
            "host": f"nullif({_HOST}, '')",
        }
        if self._said:
            notations = "list_sort(list_distinct([each.notation for each in preferences]))"
            expressions["said"] = f"array_to_string({notations}, ' ')"
        if "reason" in there:
            # a stage that drops for one reason alone lists no other
            expressions["failed"] = "coalesce(nullif(array_to_string(failed, ' '), ''), reason)"
        else:
            expressions |= {"stage": kept, "reason": kept, "failed": "''"}
        for name in self.columns.scores:  # what is no number is no value, as for `select`
            column = self.named[name]
            if column in there and not pa.types.is_string(self.columns.types[name]):
                expressions[column] = f"if(isfinite({identifier(column)}::DOUBLE), {identifier(column)}::DOUBLE, NULL)"
        for name in self._kept_columns:
            expressions[self.named[name]] = f"json_extract_string(extra, {_pointer(name.removeprefix(EXTRA))})"
        names = ", ".join(map(identifier, expressions))
        run_rows.execute_on(
            cursor, rows, f"INSERT INTO pairs ({names}) SELECT {', '.join(expressions.values())} FROM arrow_rows"
        )

    # Asking -----------------------------------------------------------------------------------------------------------

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query on the table."""
        with self._connection.cursor() as cursor:
            return cursor.execute(sql).fetchall()

    def arrays(self, sql: str) -> list[npt.NDArray[Any]]:
        """The columns of a query."""
        with self._connection.cursor() as cursor:
            return list(cursor.execute(sql).fetchnumpy().values())

    def batches(self, sql: str) -> Iterator[list[Any]]:
        """The first column of a query, some rows at a time."""
        with self._connection.cursor() as cursor:
            found = cursor.execute(sql)
            while rows := found.fetchmany(BATCH_ROWS):
                yield [row[0] for row in rows]

    def matching(self, asked: Mapping[str, Any], sort: object = "") -> npt.NDArray[np.uint32]:
        """The numbers of the pairs that match a filter, in this order; the last lists are kept."""
        return self.numbers(self.facets.where(asked), self.facets.order(sort))

    def numbers(self, where: str, order: str = "n") -> npt.NDArray[np.uint32]:
        """The numbers of the pairs that a condition in SQL holds for, in this order; the last lists are kept."""
        name = (where, order, self._version)
        with self._lock:
            if name in self._lists:
                self._lists.move_to_end(name)
                return self._lists[name]
        (found,) = self.arrays(f"SELECT n FROM pairs WHERE {where} ORDER BY {order}")
        with self._lock:
            self._lists[name] = np.asarray(found, np.uint32)
            while len(self._lists) > FILTERS_KEPT:
                self._lists.popitem(last=False)
            return self._lists[name]

    def rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The rows of these numbers of the table, in this order; a number that there is none of is left out."""
        if not len(numbers):
            return []
        with self._connection.cursor() as cursor:
            listed = ", ".join(str(int(number)) for number in numbers)
            least, most = min(numbers), max(numbers)
            found = cursor.execute(f"SELECT * FROM pairs WHERE n BETWEEN {least} AND {most} AND n IN ({listed})")
            names = [each[0] for each in found.description]
            rows = {row[0]: dict(zip(names, row, strict=True)) for row in found.fetchall()}
        return [rows[int(number)] for number in numbers if int(number) in rows]

    def table(self, numbers: Sequence[int]) -> pa.Table:
        """The rows of these numbers in this order."""
        with self._connection.cursor() as cursor:
            chosen = pa.table({"n": pa.array(numbers, pa.int64()), "place": pa.array(range(len(numbers)), pa.int64())})
            cursor.register("arrow_rows", chosen)
            query = "SELECT pairs.* EXCLUDE (file, row, image) FROM pairs JOIN arrow_rows USING (n) ORDER BY place"
            rows: Any = cursor.sql(query).to_arrow_table()
            return rows

    def condition(self, text: str) -> str:
        """A condition as `altalign select --where` takes it, in SQL; it may name columns of dropped pairs too.

        Raises UsageError: it is none.
        """
        if not text:
            return "true"
        known = {name: _TYPES[name] for name in (*_OF_BOTH, *_OF_KEPT, *_OF_DROPPED)}
        known |= dict.fromkeys(("host", "failed", "said"), pa.string()) | {
            name: self.columns.types[name] for name in self.named
        }
        try:
            condition = conditions.parsed(text)
            conditions.check(condition, known)
        except conditions.WhereError as error:
            raise UsageError(f"where {text!r}: {error}") from None
        return condition.written(lambda name: identifier(self.named.get(name, name)))

    @cached_property
    def _used(self) -> set[str]:
        """The facets of which a pair has a value."""
        named = [each for each in self.facets.values() if each.kind != "name"]
        counts = self.query(f"SELECT {', '.join(f'count({each.sql})' for each in named)} FROM pairs")[0]
        return {each.name for each, count in zip(named, counts, strict=True) if count}

    def shown_facets(self) -> list[Facet]:
        """The facets to show: those that have a value, once all is read."""
        return [
            each
            for each in self.facets.values()
            if each.kind != "name" and (not self.is_read or each.name in self._used)
        ]

    def count(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """How many pairs match, of how many distinct images."""
        where = self.facets.where(asked)
        (numbers,) = self.arrays(f"SELECT n FROM pairs WHERE {where}")
        sql = f"SELECT count(*), count(DISTINCT image) FROM pairs WHERE {where}"
        return {"pairs": len(numbers), "images": self.distinct("image", numbers), "sql": sql}

    def distinct(self, column: str, numbers: npt.NDArray[Any]) -> int | None:
        """How many values pairs have of `image` or `key`; None before all pairs were read."""
        if not self.is_read:
            return None
        with self._numbering:  # one thread finds them, once
            of_pairs = self._numbered(column)
        is_there = np.zeros(self.read + 1, np.bool_)
        is_there[of_pairs[numbers]] = True
        return int(np.count_nonzero(is_there[:-1]))

    @lru_cache(maxsize=2)  # noqa: B019 - of the one object of a server
    def _numbered(self, column: str) -> npt.NDArray[np.int32]:
        """A number for each value of a column, by pair, -1 of none: DuckDB takes a second to count five million."""
        numbers = np.full(self.read, -1, np.int32)
        ranks = f"SELECT n, dense_rank() OVER (ORDER BY {column}) - 1 AS rank FROM pairs WHERE {column} IS NOT NULL"
        with self._connection.cursor() as cursor:
            for batch in cursor.sql(ranks).to_arrow_reader(BATCH_ROWS):
                numbers[batch["n"].to_numpy()] = batch["rank"].to_numpy()
        return numbers

    def facet(self, asked: Mapping[str, Any], name: object) -> dict[str, Any]:
        """Pairs by the values of a facet, or by 40 parts of its range; what the filter says of it is left out."""
        facet = self.facets.named(name)
        where = self.facets.where(asked, but=facet.name)
        if facet.kind == "range":
            return self._histogram(facet, where)
        sql = (
            f"SELECT {facet.sql}, count(*), count(*) OVER () FROM pairs WHERE {where} "
            f"GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {VALUES}"
        )
        found = self.query(sql)
        others = found[0][2] - len(found) if found else 0
        return {"values": [[value, pairs] for value, pairs, _ in found], "others": others, "sql": sql}

    @property
    def _version(self) -> str:
        """Changes when what was found before is to be found anew: at each pair read, of a million each million."""
        is_at_end = self.is_read or self.trouble
        return "all" if is_at_end else f"{self.read:.0e}" if self.read >= NEW_AFTER else str(self.read)

    def _histogram(self, facet: Facet, where: str) -> dict[str, Any]:
        """Equal parts from the 1st to the 99th percentile of all pairs; the outer ones have what is beyond, too."""
        least, most, low, high = self._extent(facet, self._version)
        if least is None:
            return {"bins": [], "missing": self.count_of(where), "sql": f"SELECT max({facet.sql}) FROM pairs"}
        width = (high - low) / BINS or 1.0
        if isinstance(least, int):  # whole numbers: no part is of less than one
            low, width = float(int(low)), float(max(1, -int(-(high - low + 1) // BINS)))
        part = f"least(greatest(floor(({facet.sql} - {low!r}) / {width!r}), 0), {BINS - 1})"  # of no value it is a part
        sql = f"SELECT if({facet.sql} IS NULL, NULL, {part}), count(*) FROM pairs WHERE {where} GROUP BY 1 ORDER BY 1"
        found = dict(self.query(sql))
        missing = found.pop(None, 0)
        edges = [low + width * number for number in range(BINS + 1)]
        used = [number for number in range(BINS) if edges[number] <= most or number in found]
        bins = [[edges[number], edges[number + 1], found.get(float(number), 0)] for number in used]
        bins[0][0], bins[-1][1] = min(float(least), bins[0][0]), max(float(most), bins[-1][1])
        return {"bins": bins, "missing": missing, "sql": sql}

    @lru_cache(maxsize=256)  # noqa: B019 - of the one object of a server
    def _extent(self, facet: Facet, _version: str) -> tuple[Any, Any, float, float]:
        """The smallest and largest value of all pairs, and their 1st and 99th percentiles."""
        sql = f"SELECT min({facet.sql}), max({facet.sql}), quantile_disc({facet.sql}, [0.01, 0.99]) FROM pairs"
        (least, most, percentiles), *_ = self.query(sql)
        low, high = map(float, percentiles or (0, 0))
        return least, most, low, high

    def count_of(self, where: str) -> int:
        """How many pairs a condition holds for."""
        return int(self.query(f"SELECT count(*) FROM pairs WHERE {where}")[0][0])

    def place(self, number: int) -> tuple[File, int, str]:
        """The file that has a pair, its row there, and its key. Raises UsageError: there is no such pair."""
        if not (found := self.query(f"SELECT file, row, key FROM pairs WHERE n = {int(number)}")):
            raise UsageError(f"{number}: no such pair")
        file, row, key = found[0]
        return self.files[file], row, key

    def in_file(self, number: int) -> dict[str, Any]:
        """A pair with the columns of its file, `in` its path, `shard` its tar. Raises UsageError: there is none."""
        file, row, key = self.place(number)
        path = self.run.path(file.path)
        with storage.open_read(path) as source, run_rows.naming(path):
            parquet, group = pq.ParquetFile(source).metadata, 0
            while group < parquet.num_row_groups and row >= (held := parquet.row_group(group).num_rows):
                row, group = row - held, group + 1
        rows = next(run_rows.row_groups(path, numbers=[group])) if group < parquet.num_row_groups else None
        found_row = {} if rows is None else rows.slice(row, 1).to_pylist()[0]
        if found_row.get("key", "") != key:
            raise UsageError(f"{path}: it has changed since the page was opened; restart altalign browse")
        return {**found_row, "in": file.path, "shard": file.shard}


@contextmanager
def opened(run: RunFolder) -> Iterator[Pairs]:
    """The pairs of a finished run; a thread reads them meanwhile.

    Raises UsageError: the run is not finished; UnreadableError: a file of it is damaged.
    """
    run.check_finished("it cannot be browsed or searched yet")
    with ExitStack() as stack:
        pairs = Pairs(run, stack.enter_context(run_rows.database(memory=MEMORY, is_on_disk=True)))
        thread = threading.Thread(target=pairs.fill, name="pairs", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(pairs.stop)
        yield pairs


def _files(run: RunFolder, stems: Sequence[str]) -> Iterator[File]:
    """The side-cars, and the files of dropped rows between them: soon after the start there are some of both."""
    kept = [File(at / len(stems), f"shards/{stem}.parquet", stem) for at, stem in enumerate(stems)]
    paths = [
        f"dropped/{stage}/{name}"
        for stage in run_rows.STAGES
        for name in storage.names(run.path("dropped", stage), ".parquet")
    ]
    dropped = [File((at + 0.5) / len(paths), path, "") for at, path in enumerate(paths)]
    return heapq.merge(kept, dropped)


def _joined(tables: Iterator[pa.Table], at_least: int) -> Iterator[pa.Table]:
    """Neighbouring tables as one of so many rows or more, but for the last."""
    held, rows = list[pa.Table](), 0
    for table in tables:
        held, rows = [*held, table], rows + len(table)
        if rows >= at_least:
            yield pa.concat_tables(held)
            held, rows = [], 0
    if rows:
        yield pa.concat_tables(held)


def renamed(names: Sequence[str], taken: set[str]) -> dict[str, str]:
    """Columns by names, `_` behind one that is taken: a score may be called `similarity`; DuckDB ignores case."""
    found = dict[str, str]()
    for name in names:
        column = name
        while column.lower() in taken:
            column += "_"
        taken.add(column.lower())
        found[name] = column
    return found


def _rows_of(path: str) -> int:
    with storage.open_read(path) as source, run_rows.naming(path):
        return int(pq.ParquetFile(source).metadata.num_rows)


def _pointer(name: str) -> str:
    """A key of a JSON object as a JSON pointer, in SQL."""
    return "'/" + name.replace("~", "~0").replace("/", "~1").replace("'", "''") + "'"
