"""`altalign select RUN OUT`: makes a run of the samples that a condition on columns and scores keeps.

Where only a share of the largest values is to stay, two passes of histograms find the exact bound first. Verdicts read
values as they are stored, so the same samples stay wherever it runs.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import columns
from altalign.filters import where
from altalign.pipelines import curate
from altalign.pipelines.derive import choosing
from altalign.pipelines.derive.making import Making, make, plan_of
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.engine.options import options
from altalign.pipelines.files import arrays, parquet
from altalign.pipelines.run.artefacts.derived import Chosen, ChosenFacts, ShardOfParent
from altalign.pipelines.run.artefacts.selected import (
    BALANCE,
    BOUNDS,
    CONCEPTS,
    HIGH,
    LOW,
    THRESHOLDS,
    BoundFacts,
    CountedFacts,
    Histograms,
    ThresholdFacts,
)
from altalign.pipelines.run.units import Marks, Run, Unit
from altalign.pipelines.select import balance, tops
from altalign.pipelines.select.asked import Asked, check, missing_of, reason_of
from altalign.reasons import Verdict, drop_where
from altalign.schema import SAMPLE
from altalign.scores import Score

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Selection:
    """What a unit needs to know; it can be pickled."""

    parent: Parent
    asked: Asked
    scores: Mapping[str, Score]
    labels: tuple[str, ...]
    is_of_keys: bool

    def read(self, unit: ShardOfParent, names: Iterable[str], *, checks_keys: bool = True) -> pa.Table:
        """These columns of a shard; keys are not checked where a later pass over the same files checks them."""
        parent, shard = of_unit((self.parent,), unit["name"])
        wanted = list(dict.fromkeys(names))
        key: list[str] = ["key"] if checks_keys else []
        of_sidecar = list(dict.fromkeys([*key, *columns.of_sidecar(wanted)]))
        rows = parquet.read_table(parent.path("shards", f"{shard.name}.parquet"), of_sidecar)
        return columns.joined(rows, shard.name, wanted, self.scores, checks_keys=checks_keys)


def select(parent: Parent, run: Run, asked: Asked, flags: list[str], *, is_of_keys: bool) -> int:
    """Make the run, or only its list of keys; returns the exit code.

    Raises:
        UsageError: the condition is none, or a score is missing or not measured on all shards.
    """
    known = columns.known(parent.folder, [name for of in parent.config.input for name in of.keep_columns])
    check(asked, known, parent.folder)
    labels = () if is_of_keys or not run.config.audit.keep_dropped else _labels(parent, known)
    of_scores = known.scores_of([*asked.columns, *labels])
    columns.check_measured([(shard.name, shard.parquet_sha256) for shard in parent.shards], of_scores.values())
    scores = {name: of for name, of in known.scores.items() if of.name in of_scores}
    selection = _Selection(parent, asked, scores, labels, is_of_keys)
    making = Making(
        "select",
        asked.to_json(),
        (parent,),
        partial(_choose, selection),
        before=_before(selection),
        also={"scores": {name: of.facts["digest"] for name, of in sorted(of_scores.items())}},
        conclude=partial(balance.conclude, asked.balance) if asked.balance else None,
        is_of_keys=is_of_keys,
    )
    make(making, run, options(run.config.engine, flags))
    if is_of_keys:
        return 0
    return curate.show(run)


def _labels(parent: Parent, known: columns.Known) -> tuple[str, ...]:
    """Languages that are measured on all shards: dropped rows have them, so that the report says who is left out."""
    return tuple(
        name
        for name, score in known.scores.items()
        if score.facts["kind"] == "language"
        and name == score.name
        and all(score.has(shard.name, shard.parquet_sha256) for shard in parent.shards)
    )


# Deciding ------------------------------------------------------------------------------------------------------------


def _choose(selection: _Selection, run: Run, unit: ShardOfParent) -> ChosenFacts:
    """Decide the samples of a shard."""
    keeps = run.config.audit.keep_dropped and not selection.is_of_keys
    of_sample = SAMPLE.names if keeps else ["key", "source", *(["caption"] if selection.asked.balance else [])]
    named = list(dict.fromkeys([*selection.asked.columns, *selection.labels]))
    rows = selection.read(unit, [*of_sample, *named])
    verdicts = [*_of_conditions(selection, rows), *_of_tops(selection, run, rows)]
    if selection.asked.balance:
        verdicts.append(balance.verdict(selection.asked.balance, run, rows))
    values = rows.select(named)

    def scores(mask: Mask) -> "pa.Array[Any]":
        found = values.filter(pa.array(mask)).to_pylist()
        return pa.array([json.dumps(each, ensure_ascii=False) for each in found], pa.string())

    facts = choosing.chosen(run, unit["name"], rows, verdicts, scores if keeps else None)
    if selection.asked.balance and not selection.is_of_keys:
        stays = parquet.strings(rows, "caption").take(Chosen(run, unit["name"]).rows())
        balance.count_chosen(selection.asked.balance, run, unit, stays)
    return facts


def _of_conditions(selection: _Selection, rows: pa.Table) -> list[Verdict]:
    """The verdicts of the conditions, those on missing values among them."""
    verdicts = list[Verdict]()
    for number, condition in enumerate(selection.asked.conditions, start=1):
        found = where.holds(condition, lambda name: rows[name], len(rows))
        verdicts.append(drop_where(_is_false(found), reason_of(condition, number)))
        if found.null_count and selection.asked.nulls != "keep":
            verdicts.append(drop_where(found.is_null(), missing_of(condition, number)))
    return verdicts


def _is_false(found: pa.BooleanArray) -> pa.BooleanArray:
    return pc.and_(found.is_valid(), pc.invert(_known(found)))


def _known(found: pa.BooleanArray) -> pa.BooleanArray:
    return pc.if_else(found.is_valid(), found, pa.scalar(True))  # noqa: FBT003


def _of_tops(selection: _Selection, run: Run, rows: pa.Table) -> list[Verdict]:
    """The verdicts of the shares of largest values."""
    verdicts = list[Verdict]()
    if not selection.asked.tops:
        return verdicts
    thresholds = run.facts_of(THRESHOLDS, "0").numbers
    for top, threshold in zip(selection.asked.tops, thresholds, strict=True):
        values = rows[top.column].combine_chunks()
        is_there = values.is_valid().to_numpy(zero_copy_only=False)
        is_below = np.zeros(len(values), bool)
        if threshold is not None:
            is_below[is_there] = tops.ordered(values.drop_null()) < np.uint32(threshold)
        verdicts.append(drop_where(pa.array(is_below), f"not_in_top:{top.column}"))
        if not is_there.all() and selection.asked.nulls != "keep":
            verdicts.append(drop_where(pa.array(~is_there), f"score_missing:{top.column}"))
    return verdicts


# Bounds of the largest values ----------------------------------------------------------------------------------------


def _before(selection: _Selection) -> tuple[curate.Step, ...]:
    """Two passes of histograms, and one of concepts, each with its sum."""
    shards = partial(plan_of, (selection.parent,))
    steps = ()
    if selection.asked.balance:
        steps = (
            curate.each(CONCEPTS, shards, partial(_count_concepts, selection)),
            curate.each(BALANCE, _one, partial(balance.total, selection.asked.balance)),
        )
    if not selection.asked.tops:
        return steps
    return (
        *steps,
        curate.each(HIGH, shards, partial(_count_high, selection)),
        curate.each(BOUNDS, _one, partial(_bound, selection)),
        curate.each(LOW, shards, _count_low),
        curate.each(THRESHOLDS, _one, partial(_threshold, selection)),
    )


def _one(_run: Run) -> list[Unit]:
    return [Unit(name="0")]


def _count_concepts(selection: _Selection, run: Run, unit: ShardOfParent) -> CountedFacts:
    assert selection.asked.balance is not None
    rows = _kept(selection, selection.read(unit, ["caption", *selection.asked.columns], checks_keys=False))
    return balance.count(selection.asked.balance, run, unit, parquet.strings(rows, "caption"))


def _kept(selection: _Selection, rows: pa.Table) -> pa.Table:
    """The rows that the conditions keep."""
    stays = np.ones(len(rows), bool)
    for verdict in _of_conditions(selection, rows):
        stays &= verdict.is_null().to_numpy(zero_copy_only=False)
    return rows.filter(pa.array(stays))


def _numbers(selection: _Selection, unit: ShardOfParent) -> list[tops.Ordered]:
    """The values of each column, of the samples that the conditions keep and that have one, in `tops.ordered`."""
    kept = _kept(selection, selection.read(unit, selection.asked.columns, checks_keys=False))
    return [tops.ordered(kept[top.column].combine_chunks().drop_null()) for top in selection.asked.tops]


def _count(run: Run, marks: Marks[CountedFacts], unit: Unit, of_columns: list[tops.Counts]) -> CountedFacts:
    parts = []
    for column, counts in enumerate(of_columns):
        buckets = np.flatnonzero(counts)
        parts.append(np.column_stack([np.full(len(buckets), column), buckets, counts[buckets]]))
    Histograms(run.work(marks.step, unit["name"])).write(np.concatenate(parts).astype(np.int64))
    return CountedFacts(rows=[int(counts.sum()) for counts in of_columns])


def _count_high(selection: _Selection, run: Run, unit: ShardOfParent) -> CountedFacts:
    """Count, and leave the values for the second pass, 4 bytes each."""
    numbers = _numbers(selection, unit)
    for column, of in enumerate(numbers):
        arrays.save(_values(run, unit, column), of)
    return _count(run, HIGH, unit, [tops.high(of) for of in numbers])


def _count_low(run: Run, unit: ShardOfParent) -> CountedFacts:
    buckets = run.facts_of(BOUNDS, "0").buckets
    counts = [tops.low(arrays.read(_values(run, unit, column)), bucket) for column, bucket in enumerate(buckets)]
    return _count(run, LOW, unit, counts)


def _values(run: Run, unit: ShardOfParent, column: int) -> str:
    return run.work(HIGH.step, f"{unit['name']}.{column}.values")


def _sum(run: Run, marks: Marks[CountedFacts], number: int) -> list[tops.Counts]:
    """The histogram of each column over all shards."""
    found = np.zeros((number, tops.BUCKETS), np.int64)
    for name in run.finished(marks.step):
        column, bucket, count = Histograms(run.work(marks.step, name)).read().T
        np.add.at(found, (column, bucket), count)
    return list(found)


def _bound(selection: _Selection, run: Run, _unit: Unit) -> BoundFacts:
    rows, buckets, ranks = list[int](), list[int](), list[int]()
    for top, counts in zip(selection.asked.tops, _sum(run, HIGH, len(selection.asked.tops)), strict=True):
        rows.append(int(counts.sum()))
        bucket, rank = tops.bucket_of(counts, tops.wanted(top.share, rows[-1])) if rows[-1] else (0, 0)
        buckets.append(bucket)
        ranks.append(rank)
    return BoundFacts(rows=rows, buckets=buckets, ranks=ranks)


def _threshold(selection: _Selection, run: Run, _unit: Unit) -> ThresholdFacts:
    bounds, numbers = run.facts_of(BOUNDS, "0"), list[int | None]()
    for place, counts in enumerate(_sum(run, LOW, len(selection.asked.tops))):
        if not bounds.rows[place]:
            numbers.append(None)
            continue
        low, _ = tops.bucket_of(counts, bounds.ranks[place])
        numbers.append(bounds.buckets[place] << 16 | low)
    return ThresholdFacts(numbers=numbers)
