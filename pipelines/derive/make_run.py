"""Makes a run of other runs: rows are chosen, shards are copied, counts go on from the parents', the manifest is last.

OUT/shards          the chosen samples, in shards of exactly `samples_per_shard`
OUT/scores          of the chosen samples, those that all parents have
OUT/dropped         what the parents dropped, and in `select/` what was not chosen
OUT/manifest.json   names the operation, its settings, and the parents by their numbers

Units, marks and engines are those of a curation: a command that was killed goes on.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from altalign import storage
from altalign.data import generations, listing, scores
from altalign.data.audit_tables import FAILED_ROWS, FUNNEL
from altalign.data.counts import Counts, FailedCounts, FailedRow
from altalign.data.reasons import Stage
from altalign.data.stages import own_files
from altalign.errors import AltalignError, UsageError
from altalign.pipelines import curate
from altalign.pipelines.card import CardFacts
from altalign.pipelines.derive import copy_files, copy_scores, copy_shards, counting, keys, ordering, pictures, units
from altalign.pipelines.derive.copy_shards import Part
from altalign.pipelines.derive.parents import Parent, name_of, of_unit
from altalign.pipelines.engine.jobs import started
from altalign.pipelines.opening import reopen, summary
from altalign.pipelines.opening.inputs_of_stages import Grounds
from altalign.pipelines.opening.record import recording
from altalign.pipelines.run import manifest, marks, outputs
from altalign.pipelines.run.tables.derived import (
    CARRIED,
    CHOSEN,
    CHOSEN_ROWS,
    ChosenFacts,
    ShardOfParent,
)
from altalign.pipelines.run.tables.written import WRITTEN, ShardFacts, ShardUnit
from altalign.pipelines.run.units import Run
from altalign.storage import atomic_change, parquet


@dataclass(frozen=True)
class Making:
    """How a run is made of others.

    Attributes:
        operation: the verb.
        settings: what was asked for, as JSON.
        parents: of these runs, in this order.
        choose: writes which rows of a shard stay (`choosing.chosen`); it can be pickled.
        is_of_keys: whether the keys of those that stay are written, and no shards.
        before: steps that come first.
        also: more that the result rests on, such as digests of scores.
        conclude: writes more of the run's audit, at the end; of keys alone nothing.
    """

    operation: str
    settings: Mapping[str, Any]
    parents: tuple[Parent, ...]
    choose: Callable[[Run, ShardOfParent], ChosenFacts]
    is_of_keys: bool = False
    before: tuple[curate.Step, ...] = ()
    also: Mapping[str, Any] | None = None
    conclude: Callable[[Run], None] | None = None

    @property
    def last_file(self) -> str:
        """What is written last, in the run's folder."""
        return "keys.json" if self.is_of_keys else "manifest.json"

    @property
    def lineage(self) -> dict[str, Any]:
        """What the manifest says of where the run is from."""
        of = {"parents": [parent.digest for parent in self.parents], "before": [each.lineage for each in self.parents]}
        said = {"operation": self.operation, "settings": dict(self.settings), **of, **(self.also or {})}
        return {**said, "keys_only": True} if self.is_of_keys else said


def make(making: Making, run: Run, pipeline_options: PipelineOptions) -> Run:
    """Make a run, or go on with one; `run` has the folder and the settings.

    Raises:
        UsageError: the folder holds something else, or a run that was made in another way; or a parent was changed
            meanwhile, and nothing is left of the new run.
    """
    check_folder(run, making)
    try:
        return _make(making, run, pipeline_options)
    except Exception as error:
        try:
            _check_unchanged(making.parents)
        except UsageError as busy:
            # which explains whatever a worker met: rows that went, a shard of other bytes, a file that is gone
            if storage.exists(run.path("run.json")) and not storage.exists(run.path(making.last_file)):
                storage.delete(run.folder)
            raise busy from error
        raise


def _check_unchanged(parents: Sequence[Parent]) -> None:
    """Refuse to go on where another command changes a parent, or has changed it.

    Raises:
        UsageError: naming it.
    """
    for parent in parents:
        with suppress(AltalignError):  # a change is under way
            atomic_change.check_none(parent.folder)
            if listing.number(parent.folder) == parent.digest:
                continue
        raise UsageError(f"{parent.folder}: busy: another command has changed it meanwhile; run this one again")


def _make(making: Making, run: Run, pipeline_options: PipelineOptions) -> Run:
    with storage.locked(run.folder), own_files(run.folder):
        grounds = _opened(run, making)
        if not storage.exists(run.path(making.last_file)):
            followed = {} if making.is_of_keys else copy_scores.of_all(making.parents)
            of_scores = copy_scores.step_of(followed)
            copy_scores.unmark_damaged(run, of_scores)
            follow = curate.each(
                of_scores, partial(_plan_shards, making.parents), partial(copy_scores.follow, making.parents, followed)
            )
            with (
                storage.temporary(run.work("temporary")),
                started(run, pipeline_options),
                recording(run, Stage.SELECT.value, grounds),
            ):
                for step in (*making.before, *_steps(making), *([follow] if followed else [])):
                    curate.run_step(run, step, pipeline_options)
            copy_scores.conclude(run, followed, of_scores)
            _check_unchanged(making.parents)
            _conclude(run, making)
        if making.is_of_keys or not run.config.run.keep_work:
            storage.delete_units([run.path("work")])
    return run


def check_folder(run: Run, making: Making) -> None:
    """Refuse a folder that holds something else; nothing is written."""
    for parent in making.parents:
        if storage.is_inside(run.folder, parent.folder) or storage.is_inside(parent.folder, run.folder):
            raise UsageError(f"{run.folder}: inside {parent.folder}, or around it; give a folder apart from the run's")
    reopen.check_folder(run)
    stages = storage.read_json(run.path("run.json")).get("stages", {})
    if stages and (Stage.SELECT.value not in stages or len(stages) > 1):
        raise UsageError(f"{run.folder}: holds a run of its own; give another folder")
    said = stages.get(Stage.SELECT.value, {}).get("digest")
    if said not in (None, _grounds(making).digest):
        raise UsageError(
            f"{run.folder}: holds a run that was made of other runs, or with other settings; give another folder, or "
            "delete this one"
        )


def _grounds(making: Making) -> Grounds:
    said = json.dumps(making.lineage, sort_keys=True).encode()
    folders = {"folders": [parent.folder for parent in making.parents]}
    return Grounds({**making.lineage, **folders}, hashlib.sha256(said).hexdigest())


def _opened(run: Run, making: Making) -> Grounds:
    """Open the folder for work: what is there stays where it is as it was written."""
    storage.sweep(run.folder)
    facts = storage.read_sealed(run.path("run.json"))
    if not storage.exists(run.path(making.last_file)):
        if facts:
            reopen.mend(run)
        stated = reopen.of_this_call(run.config, facts.get("stages", {}))
        storage.write_sealed(run.path("run.json"), stated, durable=run.config.run.durable)
        reopen.write_settings(run)
    return _grounds(making)


def _steps(making: Making) -> list[curate.Step]:
    parents = making.parents
    chosen = curate.each(CHOSEN, partial(plan_of, parents), making.choose)
    if making.is_of_keys:
        return [chosen]
    return [
        chosen,
        curate.each(CARRIED, lambda _: copy_files.plan(parents), partial(_carry, parents)),
        curate.each(WRITTEN, partial(_plan_shards, parents), partial(_write, parents), seconds=_seconds),
    ]


def plan_of(parents: Sequence[Parent], _run: Run) -> list[ShardOfParent]:
    """The units of each parent, in their order."""
    return [
        ShardOfParent(name=name_of(number, place), parent=number, rows=sum(of.end - of.begin for of in pieces))
        for number, parent in enumerate(parents)
        for place, pieces in enumerate(parent.units)
    ]


def _carry(parents: tuple[Parent, ...], run: Run, unit: Any) -> Any:
    return copy_files.carry(run, parents, unit)


def _plan_shards(parents: tuple[Parent, ...], run: Run) -> list[ShardUnit]:
    """One unit a shard: which chosen rows of which shards of a parent, in order; those of several parents in one."""
    kept = [(name, facts.kept) for name, facts in run.all_facts(CHOSEN)]
    per_shard = run.config.shards.samples_per_shard
    shards = (
        copy_shards.filled(kept, per_shard) if len(parents) == 1 else ordering.filled(run, parents, kept, per_shard)
    )
    return [
        ShardUnit(
            name=f"{number:05d}",
            rows=sum(of.end - of.begin for of in parts),
            parts=[(of.name, of.begin, of.end) for of in parts],
        )
        for number, parts in enumerate(shards)
    ]


def _seconds(_run: Run, shards: Sequence[ShardUnit]) -> float:
    return copy_shards.SECONDS_PER_SAMPLE * sum(shard["rows"] for shard in shards)


def _write(parents: tuple[Parent, ...], run: Run, unit: ShardUnit) -> ShardFacts:
    """Write a shard of rows of the parents' shards."""
    sequences = dict[tuple[str, int], list[Part]]()  # each in the order of image_id and key
    for name, begin, end in unit["parts"]:
        for parts in units.parts_of(*of_unit(parents, name), CHOSEN_ROWS.array(run, name)[begin:end]):
            sequence = name.split("-")[0], generations.of(parts[0].shard)
            sequences.setdefault(sequence, []).extend(parts)
    return copy_shards.copied(run.path("shards"), unit["name"], sequences.values())


# The end -------------------------------------------------------------------------------------------------------------


def _conclude(run: Run, making: Making) -> None:
    """Write counts and summary, then list, card and manifest."""
    shards = list(run.all_facts(WRITTEN))
    chosen = [facts for _, facts in run.all_facts(CHOSEN)]
    before = [row for parent in making.parents for row in counting.received(counting.rows(parent))]
    counts = Counts.total(map(Counts.from_json, [*([row] for row in before), *(facts.counts for facts in chosen)]))
    if making.is_of_keys:
        counts.reconcile(counts.stages_of_run(), pairs=sum(facts.kept for facts in chosen))
        keys.conclude(run, making.parents, counts, making.lineage)
        return
    pairs, size = (sum(getattr(facts, name) for _, facts in shards) for name in ("rows", "bytes"))
    counts.reconcile(counts.stages_of_run(), pairs=pairs)
    with storage.noted() as block:
        _write_failed(run, making.parents, [facts.failed for facts in chosen], counts)
        parquet.write(run.path("counts.parquet"), counts.to_arrow(), counts.to_arrow().schema)
        shared = sum(before.last_image == after.first_image for (_, before), (_, after) in pairwise(shards))
        images = sum(facts.images for _, facts in shards) - shared
        stages = counts.summary(counts.stages_of_run())
        facts = {"stages": stages, "pairs": pairs, "images": images, "bytes": size}
        if near_duplicates := storage.read_json(outputs.near_duplicates(run, "found.json")):
            facts["near_duplicates"] = near_duplicates
        storage.write_json(run.path("summary.json"), facts)
        _write_funnel(run, making.parents)
        pictures.write(run, making.parents)
        if making.conclude:
            making.conclude(run)
        if len(making.parents) > 1:
            copy_files.write_removed(run, making.parents)
    files = {**marks.outputs(run), **manifest.written(run, block)}
    card = CardFacts(run.config, counts, facts, summary.notes(run), scores=tuple(scores.all_of(run.folder)))
    manifest.write(run, shards, files, card, block, {"lineage": making.lineage})


def _write_failed(run: Run, parents: Sequence[Parent], of_select: Sequence[list[FailedRow]], counts: Counts) -> None:
    """Write `audit/failed.parquet`: the parents' rows by every rule that holds, and those of `select`."""
    before = [row for parent in parents for row in counting.failed(parent)]
    failed = FailedCounts.from_json([*before, *(row for rows in of_select for row in rows)])
    failed.check(counts)
    outputs.write_audit(run, FAILED_ROWS, failed.to_arrow())


def _write_funnel(run: Run, parents: Sequence[Parent]) -> None:
    """Write `audit/funnel.parquet`: what each step of one parent left; of the steps after that, the summary knows."""
    rows = parquet.read_table(parents[0].path(FUNNEL.path)).to_pylist() if len(parents) == 1 else []
    outputs.write_audit(run, FUNNEL, [row for row in rows if row["step"] not in ("shards", Stage.SELECT.value)])
