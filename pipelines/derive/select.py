"""`altalign select RUN OUT`: makes a run of the samples that a condition on columns and scores keeps.

Verdicts read values as they are stored, so the same samples stay wherever it runs.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data import columns
from altalign.data.columns import Known
from altalign.data.reasons import Verdict, drop_where
from altalign.data.schema import SAMPLE
from altalign.data.scores import Score
from altalign.errors import UsageError
from altalign.filters import where
from altalign.filters.where import Condition
from altalign.pipelines import curate
from altalign.pipelines.derive import balance, choose_rows
from altalign.pipelines.derive.balance import Balance
from altalign.pipelines.derive.make_run import Making, make, plan_of
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.run.shard_tables import (
    BALANCE,
    CHOSEN,
    CHOSEN_ROWS,
    CONCEPTS,
    THRESHOLDS,
    VALUES,
    VALUES_OF_COLUMN,
    ChosenFacts,
    CountedFacts,
    ShardOfParent,
    ThresholdFacts,
)
from altalign.pipelines.run.units import Run, Unit
from altalign.storage import parquet

Ordered = npt.NDArray[np.unsignedinteger[Any]]
BUCKETS = 1 << 16  # of a histogram


class Top(NamedTuple):
    """The samples with the largest values of a column."""

    column: str
    share: Fraction


@dataclass(frozen=True)
class Selection:
    """What a selection keeps; with what a unit needs to know of the run, so it can be pickled."""

    where: str  # the condition as it was written; empty: none
    tops: tuple[Top, ...]  # shares of the samples that the condition keeps, each of one column
    nulls: Literal["drop", "keep", ""]  # whether samples stay whose value is missing; empty: the user did not decide
    balance: Balance | None  # lots among samples of frequent concepts, of those that the condition keeps
    is_of_keys: bool  # whether keys alone are written
    parent: Parent
    scores: Mapping[str, Score] | None = None  # that are read, by column
    labels: tuple[str, ...] = ()  # columns that dropped rows have beside those that are named

    @property
    def conditions(self) -> list[Condition]:
        """The conditions that all have to hold."""
        return where.parsed(self.where).parts if self.where else []

    @property
    def columns(self) -> list[str]:
        """The columns that it names, in order."""
        of_where = [name for condition in self.conditions for name in condition.columns()]
        return list(dict.fromkeys([*of_where, *(top.column for top in self.tops)]))

    def read(self, unit: ShardOfParent, names: Iterable[str]) -> pa.Table:
        """These columns of a unit."""
        names, (parent, shard) = list(dict.fromkeys(names)), of_unit((self.parent,), unit["name"])
        rows = parent.samples(shard, columns.of_sidecar(["key", *names]))
        return columns.joined(rows, shard.name, names, self.scores or {})

    def read_kept(self, unit: ShardOfParent, names: Iterable[str]) -> pa.Table:
        """The rows of a unit that the conditions keep, with these columns and those that it names."""
        rows = self.read(unit, [*names, *self.columns])
        stays = np.ones(len(rows), bool)
        for verdict in _of_conditions(self, rows):
            stays &= verdict.is_null().to_numpy(zero_copy_only=False)
        return rows.filter(pa.array(stays))


def top(text: str) -> Top:
    """Of `COLUMN=SHARE`."""
    column, _, number = text.partition("=")
    try:
        share = Fraction(number)
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not column or not 0 < share <= 1:
        raise UsageError(f"--top {text}: not of the form COLUMN=SHARE, such as similarity=0.3")
    return Top(column, share)


def check(selection: Selection, known: Known) -> None:
    """Refuse columns that are not there or of another type, and missing values that --nulls does not speak of."""
    option = "--where"
    try:
        for condition in selection.conditions:
            where.check(condition, known.types)
        for column, _ in selection.tops:
            option = f"--top {column}"
            where.kind_of(column, known.types)
            kind = known.types[column]
            if not (pa.types.is_floating(kind) or (pa.types.is_integer(kind) and kind != pa.uint64())):
                raise where.WhereError(f"it is {kind}; give a column of numbers")
    except where.WhereError as error:
        raise UsageError(f"{option}: {error}") from None
    of_where = [name for each in selection.conditions for name in each.columns(but_of_nulls=True)]
    missing = known.missing([*of_where, *(each.column for each in selection.tops)])
    if missing and not selection.nulls:
        raise UsageError(
            f"{selection.parent.folder}: {missing}; say what becomes of those: --nulls drop, or --nulls keep"
        )


def select(selection: Selection, run: Run, flags: list[str]) -> int:
    """Make the run, or only its list of keys; returns the exit code."""
    parent, is_of_keys, of_balance = selection.parent, selection.is_of_keys, selection.balance
    known = columns.known(parent.folder, [name for each in parent.config.input for name in each.keep_columns])
    check(selection, known)
    labels = tuple[str, ...]()
    if run.config.audit.keep_dropped and not is_of_keys:  # languages of all shards: the report says who is left out
        languages = {name: score for name, score in known.scores.items() if score.facts["kind"] == "language"}
        shards = [(shard.name, shard.parquet_sha256) for shard in parent.shards]
        labels = tuple(
            name
            for name, score in languages.items()
            if name == score.name and all(score.has(*shard) for shard in shards)
        )
    of_scores = known.scores_of([*selection.columns, *labels])
    columns.check_measured([(shard.name, shard.parquet_sha256) for shard in parent.shards], of_scores.values())
    scores = {column: score for column, score in known.scores.items() if score.name in of_scores}
    selection = replace(selection, scores=scores, labels=labels)
    settings: dict[str, Any] = {
        "where": selection.where,
        "top": {top.column: str(float(top.share)) for top in selection.tops},
        "nulls": selection.nulls,
    }
    if of_balance:
        settings["balance"] = of_balance.to_json()
    making = Making(
        "select",
        settings,
        (parent,),
        partial(_choose, selection),
        is_of_keys=is_of_keys,
        before=_before(selection),
        also={"scores": {name: score.facts["digest"] for name, score in sorted(of_scores.items())}},
        conclude=partial(balance.conclude, of_balance) if of_balance else None,
    )
    make(making, run, flags)
    return 0 if is_of_keys else curate.show(run)


def _choose(selection: Selection, run: Run, unit: ShardOfParent) -> ChosenFacts:
    """Decide the samples of a unit."""
    is_of_keys, of_balance = selection.is_of_keys, selection.balance
    keeps = run.config.audit.keep_dropped and not is_of_keys
    of_sample = SAMPLE.names if keeps else ["key", "source", *(["caption"] if of_balance else [])]
    named = list(dict.fromkeys([*selection.columns, *selection.labels]))
    rows = selection.read(unit, [*of_sample, *named])
    values = rows.select(named)

    def scores(mask: choose_rows.Mask) -> "pa.Array[Any]":
        of_rows = values.filter(pa.array(mask)).to_pylist()
        return pa.array([json.dumps(each, ensure_ascii=False) for each in of_rows], pa.string())

    verdicts = [*_of_conditions(selection, rows), *_of_tops(selection, run, rows)]
    if of_balance:
        verdicts.append(balance.verdict(of_balance, run, rows))
    facts = choose_rows.chosen(run, unit["name"], rows, verdicts, scores if keeps else None, is_of_keys=is_of_keys)
    if of_balance and not is_of_keys:
        stays = parquet.strings(rows, "caption").take(CHOSEN_ROWS.array(run, unit["name"]))
        balance.count(of_balance, run, CHOSEN, unit["name"], stays)
    return facts


def _of_conditions(selection: Selection, rows: pa.Table) -> list[Verdict]:
    """The verdicts of the conditions, those on missing values among them."""
    verdicts, conditions = list[Verdict](), selection.conditions
    for number, (condition, holds) in enumerate(zip(conditions, where.holds(conditions, rows), strict=True), start=1):
        reason = missing = f"not_where:{number}"
        if condition.not_null:
            reason = f"score_missing:{_in_reason(condition.not_null)}"
        if condition.bound:
            column, sign, _ = condition.bound
            reason = f"{'score_below' if sign in ('>', '>=') else 'score_above'}:{_in_reason(column)}"
        verdicts.append(drop_where(pc.and_kleene(holds.is_valid(), pc.invert(holds)), reason))
        if holds.null_count and selection.nulls != "keep":
            names = condition.columns(but_of_nulls=True)
            missing = f"score_missing:{_in_reason(names[0])}" if len(names) == 1 else missing
            verdicts.append(drop_where(holds.is_null(), missing))
    return verdicts


def _in_reason(name: str) -> str:
    return "_".join(name.split())  # reasons are words


def _of_tops(selection: Selection, run: Run, rows: pa.Table) -> list[Verdict]:
    """The verdicts of the shares of largest values."""
    verdicts = list[Verdict]()
    thresholds = run.facts_of(THRESHOLDS, "0").numbers if selection.tops else []
    for top, threshold in zip(selection.tops, thresholds, strict=True):
        values = rows[top.column].combine_chunks()
        is_measured = values.is_valid().to_numpy(zero_copy_only=False)
        is_below = np.zeros(len(values), bool)
        if threshold is not None:
            numbers = ordered(values.drop_null())
            is_below[is_measured] = numbers < numbers.dtype.type(threshold)
        verdicts.append(drop_where(pa.array(is_below), f"not_in_top:{top.column}"))
        if not is_measured.all() and selection.nulls != "keep":
            verdicts.append(drop_where(pa.array(~is_measured), f"score_missing:{top.column}"))
    return verdicts


# Passes that come first: one for concepts, and one for values, each with its sum --------------------------------------


def _before(selection: Selection) -> list[curate.Step]:
    steps, units = list[curate.Step](), partial(plan_of, (selection.parent,))
    if selection.balance:
        steps.append(curate.each(CONCEPTS, units, partial(_count_concepts, selection, selection.balance)))
        steps.append(curate.each(BALANCE, _one, partial(balance.total, selection.balance)))
    if selection.tops:
        steps.append(curate.each(VALUES, units, partial(_count_values, selection)))
        steps.append(curate.each(THRESHOLDS, _one, partial(_find_thresholds, selection)))
    return steps


def _one(_run: Run) -> list[Unit]:
    return [Unit(name="0")]


def _count_concepts(selection: Selection, of_balance: Balance, run: Run, unit: ShardOfParent) -> CountedFacts:
    captions = parquet.strings(selection.read_kept(unit, ["caption"]), "caption")
    return CountedFacts(rows=[balance.count(of_balance, run, CONCEPTS, unit["name"], captions)])


def _count_values(selection: Selection, run: Run, unit: ShardOfParent) -> CountedFacts:
    """Count the values of each column, of the samples that the conditions keep and that have one."""
    rows, counts = selection.read_kept(unit, []), list[int]()
    for number, top in enumerate(selection.tops):
        numbers = ordered(rows[top.column].combine_chunks().drop_null())
        VALUES_OF_COLUMN.save(run, distinct(numbers), f"{unit['name']}.{number}")
        counts.append(len(numbers))
    return CountedFacts(rows=counts)


def _find_thresholds(selection: Selection, run: Run, _unit: Unit) -> ThresholdFacts:
    units, thresholds = list(run.all_facts(VALUES)), list[int | None]()
    for column, top in enumerate(selection.tops):

        def parts(column: int = column) -> Iterator[Ordered]:
            names = [f"{name}.{column}" for name, _ in units]
            return storage.each(partial(VALUES_OF_COLUMN.array, run), names, place=run.folder)

        k = rows_of_share(top.share, sum(facts.rows[column] for _, facts in units))
        thresholds.append(kth_largest(parts, k))
    return ThresholdFacts(numbers=thresholds)


def ordered(values: "pa.Array[Any]") -> Ordered:
    """Numbers in the order of some values without nulls: uint32[n], or uint64[n] of a type that needs 64 bits."""
    numbers = values.to_numpy(zero_copy_only=False)
    bits = 64 if values.type in (pa.float64(), pa.int64(), pa.uint32()) else 32
    unsigned, sign = np.dtype(f"u{bits // 8}").type, 1 << (bits - 1)
    if pa.types.is_floating(values.type):
        bit_pattern = (numbers.astype(f"f{bits // 8}") + 0).view(unsigned)  # there is one zero
        return np.where(bit_pattern >> unsigned(bits - 1), ~bit_pattern, bit_pattern | unsigned(sign))
    return numbers.astype(f"i{bits // 8}").view(unsigned) ^ unsigned(sign)


def distinct(numbers: Ordered) -> Ordered:
    """The distinct numbers, rising, and how often each occurs: [2, k]."""
    values, times = np.unique(numbers, return_counts=True)
    return np.stack([values, times.astype(values.dtype)])


def rows_of_share(share: Fraction, rows: int) -> int:
    """How many of so many rows a share is, rounded up."""
    return -((-share.numerator * rows) // share.denominator)


def kth_largest(parts: Callable[[], Iterable[Ordered]], k: int) -> int | None:
    """The k-th largest number of all parts, each [2, n]: distinct numbers, and how often; None for the 0th.

    Numbers that are the same stay together: no sample depends on another one's key. Each pass over the parts finds 16
    bits, the highest first, by a histogram: memory does not grow with the samples.
    """
    bits = max((8 * part.dtype.itemsize for part in islice(parts(), 1)), default=0) if k else 0
    high = 0  # the bits that are known; k counts within the numbers that have them
    for shift in range(bits - 16, -1, -16):
        counts = np.zeros(BUCKETS, np.int64)
        for numbers, times in parts():
            shifted = numbers >> numbers.dtype.type(shift)
            is_in = shifted >> numbers.dtype.type(16) == high
            np.add.at(counts, (shifted & numbers.dtype.type(BUCKETS - 1))[is_in], times[is_in].astype(np.int64))
        from_above = np.cumsum(counts[::-1])
        place = int(np.searchsorted(from_above, k))
        k -= int(from_above[place - 1]) if place else 0
        high = high << 16 | BUCKETS - 1 - place
    return high if bits else None
