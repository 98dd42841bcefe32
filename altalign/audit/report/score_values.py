"""The values of scores that a report reads, and the thresholds of the selection that made the run."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pj

from altalign import storage
from altalign.audit import run_parquet
from altalign.audit.report import files
from altalign.audit.run_folder import RunFolder
from altalign.data.columns import TYPES
from altalign.data.reasons import Stage
from altalign.data.scores import Score
from altalign.errors import UnreadableError
from altalign.filters import where

FILES_AT_MOST = 256  # shards, and files of dropped rows, that are read
_OF_ANCESTOR = re.compile(r"[0-9a-f]{8}-")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Limit:
    """A threshold of a column."""

    column: str  # its name
    label: str  # the threshold in words
    value: float  # its value
    keeps_above: bool  # whether values above it stay, or those below it
    is_within: bool  # whether the value itself stays

    def first(self, value: float) -> float:
        """The first value on the upper side of the threshold, were it at this value."""
        return value if self.keeps_above == self.is_within else float(np.nextafter(value, np.inf))

    def allows(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Which of n values stay; NaN, of a sample that was kept for other reasons, does."""
        is_above = values >= self.first(self.value)
        return np.isnan(values) | (is_above if self.keeps_above else ~is_above)

    @property
    def reasons(self) -> set[str]:
        """The reasons of rows that it drops."""
        name = "_".join(self.column.split())
        return {f"score_below:{name}", f"not_in_top:{self.column}"} if self.keeps_above else {f"score_above:{name}"}


@dataclass(frozen=True)
class Values:
    """What was read."""

    # the values of samples in shards, with `_shard` (a place in `shards`) and `_row`; null where one has none
    kept: pa.Table
    dropped: pa.Table  # the values that this selection decided about rows by, with `_key` and `_failed`
    is_all: bool  # whether that is all
    shards: list[str]  # names of the shards that were read
    shards_in_all: int  # how many shards there are
    settings: dict[str, Any]  # of the selection that made the run
    limits: dict[str, list[Limit]]  # its thresholds by column

    @property
    def failed(self) -> list[list[str]]:
        """The rules that each dropped row fails."""
        lists: Any = self.dropped["_failed"] if "_failed" in self.dropped.column_names else pa.array([])
        return lists.to_pylist()

    def is_number(self, column: str) -> bool:
        """Whether a column holds numbers."""
        return _is_number(self.kept, column)

    @staticmethod
    def numbers(table: pa.Table, column: str) -> Floats:
        """A column as float64[n], NaN where there is no value: in all of a column that is not there, or no number."""
        if column not in table.column_names or not _is_number(table, column):
            return np.full(len(table), np.nan)
        return table[column].cast(pa.float64()).to_numpy()

    @staticmethod
    def labels(table: pa.Table, column: str) -> list[str]:
        """A column as strings, `none` where there is no value; empty where the table has no such column."""
        if column not in table.column_names:
            return []
        return ["none" if value is None else str(value) for value in table[column].to_pylist()]


def values_of(run: RunFolder, measured: Sequence[Score]) -> Values:
    """Reads the values of these scores. Raises UnreadableError: a file of them is damaged."""
    manifest = files.facts(run, "manifest.json")
    digests = {str(of["name"]).removesuffix(".tar"): str(of["parquet_sha256"]) for of in manifest.get("shards", [])}
    names = [list(digests)[place] for place in run_parquet.spread(len(digests), FILES_AT_MOST)]
    settings = (manifest.get("lineage") or {}).get("settings", {})
    kept = _kept(measured, {name: digests[name] for name in names})
    dropped, is_all_dropped = _dropped(run)
    limits = _limits(settings, kept, is_all=len(names) == len(digests))
    is_all = is_all_dropped and len(names) == len(digests)
    return Values(kept, dropped, is_all, names, len(digests), settings, limits)


def _kept(measured: Sequence[Score], shards: dict[str, str]) -> pa.Table:
    """The values of the samples in these shards; null where a shard is not measured."""
    tables = []
    for number, (name, digest) in enumerate(shards.items()):
        values = [score.values(name, list(score.columns)) for score in measured if score.has(name, digest)]
        if values:
            columns = {column: table[column] for table in values for column in table.column_names}
            rows = len(values[0])
            places = {"_shard": np.full(rows, number, np.int32), "_row": np.arange(rows, dtype=np.int32)}
            tables.append(pa.table({**columns, **places}))
    empty = {column: pa.array([], TYPES[kind]) for score in measured for column, kind in score.columns.items()}
    return pa.concat_tables([pa.table(empty), *tables], promote_options="default").combine_chunks()


def _dropped(run: RunFolder) -> tuple[pa.Table, bool]:
    """What this selection did not take, `_key`, `_failed` and the values that it was decided by; whether it is all."""
    folder = run.path("dropped", Stage.SELECT.value)
    names = [name for name in storage.names(folder, ".parquet") if not _OF_ANCESTOR.match(name)]
    tables = []
    for place in run_parquet.spread(len(names), FILES_AT_MOST):
        path = storage.join(folder, names[place])
        for rows in run_parquet.row_groups(path):
            if "scores" in rows.column_names and len(rows) and not rows["scores"].null_count:
                lines = "\n".join(map(str, rows["scores"].to_pylist())).encode()
                try:
                    values = pj.read_json(io.BytesIO(lines), pj.ReadOptions(block_size=max(1 << 20, len(lines) + 1)))
                except pa.ArrowInvalid as error:
                    raise UnreadableError(f"{path}: scores are no JSON ({error!s:.60})") from None
                tables.append(values.append_column("_key", rows["key"]).append_column("_failed", rows["failed"]))
    found = pa.concat_tables(tables, promote_options="permissive").combine_chunks() if tables else pa.table({})
    return found, len(names) <= FILES_AT_MOST


def _is_number(table: pa.Table, column: str) -> bool:
    kind = table.schema.field(column).type
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)


def _limits(settings: dict[str, Any], kept: pa.Table, *, is_all: bool) -> dict[str, list[Limit]]:
    """The thresholds of a selection: those of comparisons, and what the largest values begin with."""
    limits, condition, tops = list[Limit](), settings.get("where"), settings.get("top")
    try:
        conditions = where.parsed(condition).parts if isinstance(condition, str) and condition else []
    except where.WhereError:  # of another version
        conditions = []
    for each in conditions:
        if each.bound:
            column, test, value = each.bound
            ways = {"keeps_above": test in (">", ">="), "is_within": test in (">=", "<=")}
            limits.append(Limit(column, f"{test} {value:g}", value, **ways))
    for column, share in (tops if isinstance(tops, dict) and is_all else {}).items():
        values = Values.numbers(kept, column)
        if not np.isnan(values).all():
            least = float(np.nanmin(values))
            limits.append(Limit(column, f"largest {float(share):.0%}", least, keeps_above=True, is_within=True))
    return {
        column: [each for each in limits if each.column == column]
        for column in dict.fromkeys(each.column for each in limits)
    }
