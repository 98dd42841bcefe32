"""`altalign select RUN OUT`: makes a run of the samples that a condition on columns and scores keeps.

Where only a share of the largest values is to stay, two passes of histograms find the exact bound first. Verdicts read
values as they are stored, so the same samples stay wherever it runs.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data import columns
from altalign.data.reasons import Verdict, drop_where
from altalign.data.schema import SAMPLE
from altalign.data.scores import Score
from altalign.filters import where
from altalign.pipelines import curate
from altalign.pipelines.derive import balance, choose_rows, largest_values, units
from altalign.pipelines.derive.make_run import Making, make, plan_of
from altalign.pipelines.derive.parents import Parent, Shard, of_unit
from altalign.pipelines.derive.selection import Asked, check, missing_of, reason_of
from altalign.pipelines.engine.options import options
from altalign.pipelines.run.shard_tables import (
    BALANCE,
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

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Selection:
    """What a unit needs to know; it can be pickled."""

    parent: Parent
    asked: Asked
    scores: Mapping[str, Score]
    labels: tuple[str, ...]
    is_of_keys: bool

    def read(self, shard: Shard, names: Iterable[str], *, checks_keys: bool = True) -> pa.Table:
        """These columns of a shard; keys are not checked where a later pass over the same files checks them."""
        wanted = list(dict.fromkeys(names))
        key: list[str] = ["key"] if checks_keys else []
        of_sidecar = list(dict.fromkeys([*key, *columns.of_sidecar(wanted)]))
        rows = parquet.read_table(self.parent.path("shards", f"{shard.name}.parquet"), of_sidecar)
        return columns.joined(rows, shard.name, wanted, self.scores, checks_keys=checks_keys)

    def read_unit(self, unit: ShardOfParent, names: Iterable[str], *, checks_keys: bool = True) -> pa.Table:
        """The same of a unit, whose rows may be of several shards."""
        _, pieces = of_unit((self.parent,), unit["name"])
        return units.rows_of(self.parent, pieces, lambda shard: self.read(shard, names, checks_keys=checks_keys))


def select(parent: Parent, run: Run, asked: Asked, flags: list[str], *, is_of_keys: bool) -> int:
    """Make the run, or only its list of keys; returns the exit code.

    Raises:
        UsageError: the condition is none, or a score is missing or not measured on all shards.
    """
    selection, digests = _checked(parent, asked, is_of_keys=is_of_keys, keeps_dropped=run.config.audit.keep_dropped)
    making = Making(
        "select",
        asked.to_json(),
        (parent,),
        partial(_choose, selection),
        is_of_keys=is_of_keys,
        before=_before(selection),
        also={"scores": digests},
        conclude=partial(balance.conclude, asked.balance) if asked.balance else None,
    )
    make(making, run, options(run.config.engine, flags))
    if is_of_keys:
        return 0
    return curate.show(run)


def _checked(
    parent: Parent, asked: Asked, *, is_of_keys: bool, keeps_dropped: bool
) -> tuple[_Selection, dict[str, str]]:
    """What units need to know, and the digests of the scores that are asked for; the rest of manifests can go."""
    known = columns.known(parent.folder, [name for of in parent.config.input for name in of.keep_columns])
    check(asked, known, parent.folder)
    labels = _labels(parent, known) if keeps_dropped and not is_of_keys else ()
    of_scores = known.scores_of([*asked.columns, *labels])
    columns.check_measured([(shard.name, shard.parquet_sha256) for shard in parent.shards], of_scores.values())
    light = {
        name: replace(score, files={shard: {"sha256": file["sha256"]} for shard, file in score.files.items()})
        for name, score in of_scores.items()
    }
    scores = {column: light[of.name] for column, of in known.scores.items() if of.name in light}
    return _Selection(parent, asked, scores, labels, is_of_keys), {
        name: of.facts["digest"] for name, of in sorted(light.items())
    }


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
    rows = selection.read_unit(unit, [*of_sample, *named])
    values = rows.select(named)

    def scores(mask: Mask) -> "pa.Array[Any]":
        found = values.filter(pa.array(mask)).to_pylist()
        return pa.array([json.dumps(each, ensure_ascii=False) for each in found], pa.string())

    verdicts = _verdicts(selection, run, rows, _thresholds(selection, run))
    is_of_keys = selection.is_of_keys
    facts = choose_rows.chosen(run, unit["name"], rows, verdicts, scores if keeps else None, is_of_keys=is_of_keys)
    if selection.asked.balance and not is_of_keys:
        stays = parquet.strings(rows, "caption").take(CHOSEN_ROWS.array(run, unit["name"]))
        balance.count_chosen(selection.asked.balance, run, unit, stays)
    return facts


def _verdicts(selection: _Selection, run: Run, rows: pa.Table, thresholds: Sequence[int | None]) -> list[Verdict]:
    """The verdicts of all rules on the rows of a shard."""
    verdicts = [*_of_conditions(selection, rows), *_of_tops(selection, rows, thresholds)]
    if selection.asked.balance:
        verdicts.append(balance.verdict(selection.asked.balance, run, rows))
    return verdicts


def _thresholds(selection: _Selection, run: Run) -> list[int | None]:
    return run.facts_of(THRESHOLDS, "0").numbers if selection.asked.tops else []


def _of_conditions(selection: _Selection, rows: pa.Table) -> list[Verdict]:
    """The verdicts of the conditions, those on missing values among them."""
    verdicts = list[Verdict]()
    conditions = selection.asked.conditions
    for number, (condition, found) in enumerate(zip(conditions, where.holds(conditions, rows), strict=True), start=1):
        verdicts.append(drop_where(pc.and_kleene(found.is_valid(), pc.invert(found)), reason_of(condition, number)))
        if found.null_count and selection.asked.nulls != "keep":
            verdicts.append(drop_where(found.is_null(), missing_of(condition, number)))
    return verdicts


def _of_tops(selection: _Selection, rows: pa.Table, thresholds: Sequence[int | None]) -> list[Verdict]:
    """The verdicts of the shares of largest values."""
    verdicts = list[Verdict]()
    for top, threshold in zip(selection.asked.tops, thresholds, strict=True):
        values = rows[top.column].combine_chunks()
        is_there = values.is_valid().to_numpy(zero_copy_only=False)
        is_below = np.zeros(len(values), bool)
        if threshold is not None:
            numbers = largest_values.ordered(values.drop_null())
            is_below[is_there] = numbers < numbers.dtype.type(threshold)
        verdicts.append(drop_where(pa.array(is_below), f"not_in_top:{top.column}"))
        if not is_there.all() and selection.asked.nulls != "keep":
            verdicts.append(drop_where(pa.array(~is_there), f"score_missing:{top.column}"))
    return verdicts


# Bounds of the largest values ----------------------------------------------------------------------------------------


def _before(selection: _Selection) -> tuple[curate.Step, ...]:
    """A pass for values, and one for concepts, each with its sum."""
    steps = ()
    if selection.asked.balance:
        steps = (
            curate.each(CONCEPTS, partial(plan_of, (selection.parent,)), partial(_count_concepts, selection)),
            curate.each(BALANCE, _one, partial(balance.total, selection.asked.balance)),
        )
    if not selection.asked.tops:
        return steps
    return (
        *steps,
        curate.each(VALUES, partial(plan_of, (selection.parent,)), partial(_count_values, selection)),
        curate.each(THRESHOLDS, _one, partial(_find_thresholds, selection)),
    )


def _one(_run: Run) -> list[Unit]:
    return [Unit(name="0")]


def _count_concepts(selection: _Selection, run: Run, unit: ShardOfParent) -> CountedFacts:
    assert selection.asked.balance is not None
    rows = _kept(selection, selection.read_unit(unit, ["caption", *selection.asked.columns], checks_keys=False))
    return balance.count(selection.asked.balance, run, unit, parquet.strings(rows, "caption"))


def _kept(selection: _Selection, rows: pa.Table) -> pa.Table:
    """The rows that the conditions keep."""
    stays = np.ones(len(rows), bool)
    for verdict in _of_conditions(selection, rows):
        stays &= verdict.is_null().to_numpy(zero_copy_only=False)
    return rows.filter(pa.array(stays))


def _count_values(selection: _Selection, run: Run, unit: ShardOfParent) -> CountedFacts:
    """Count the values of each column, of the samples that the conditions keep and that have one."""
    kept = _kept(selection, selection.read_unit(unit, selection.asked.columns, checks_keys=False))
    rows = list[int]()
    for number, top in enumerate(selection.asked.tops):
        values = largest_values.ordered(kept[top.column].combine_chunks().drop_null())
        VALUES_OF_COLUMN.save(run, largest_values.distinct(values), f"{unit['name']}.{number}")
        rows.append(len(values))
    return CountedFacts(rows=rows)


def _find_thresholds(selection: _Selection, run: Run, _unit: Unit) -> ThresholdFacts:
    names = run.finished(VALUES.step)

    def parts(column: int) -> Iterator[largest_values.Distinct]:
        return storage.each(lambda name: VALUES_OF_COLUMN.array(run, f"{name}.{column}"), names, of=run.folder)

    return ThresholdFacts(
        numbers=[
            largest_values.bound(partial(parts, column), top.share) for column, top in enumerate(selection.asked.tops)
        ]
    )
