"""Makes a run of other runs: rows are chosen, shards and scores copied, counts go on from the parents'.

Units, marks and engines are those of a curation: a command that was killed goes on.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data import generations, listing, scores
from altalign.data.audit_tables import FAILED_ROWS, FUNNEL, SAMPLES
from altalign.data.counts import Counts, FailedCounts
from altalign.data.reasons import KEPT, Stage, Verdict, reasons_of
from altalign.data.schema import DROPPED, REMOVED
from altalign.data.stages import REMOVED_FILE, own_files
from altalign.errors import AltalignError, UnreadableError, UsageError
from altalign.machine import interrupts
from altalign.machine.threads import in_threads
from altalign.pipelines import curate
from altalign.pipelines.card import CardFacts
from altalign.pipelines.derive import copy_scores, copy_shards
from altalign.pipelines.derive import parents as of_parents
from altalign.pipelines.derive.copy_shards import Part
from altalign.pipelines.derive.parents import Parent, of_unit, plan_of
from altalign.pipelines.engine.jobs import started
from altalign.pipelines.engine.options import options
from altalign.pipelines.figures import image_figures, personal_figures, text_figures
from altalign.pipelines.opening import reopen, summary
from altalign.pipelines.opening.reopen import Grounds, recording
from altalign.pipelines.run import marks, outputs, shard_files
from altalign.pipelines.run.shard_files import Places
from altalign.pipelines.run.shard_tables import (
    CHOSEN,
    CHOSEN_ROWS,
    WRITTEN,
    ChosenFacts,
    ShardFacts,
    ShardOfParent,
    ShardUnit,
)
from altalign.pipelines.run.units import Run, digest
from altalign.storage import Written, atomic_change, parquet

# made anew, of the new run
_NOT_CARRIED = ("counts.parquet", "summary.json", FAILED_ROWS.path, FUNNEL.path, SAMPLES.path)
_OF_SELECT = "dropped/select/"
# a dropped row, with the values that it was decided by, as a JSON object
_DROPPED = DROPPED.append(pa.field("scores", pa.string()))
_KINDS = ("broken-", "repeated-")  # begin names of dropped rows that readers tell from others


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Making:
    """How a run is made of others."""

    operation: str  # the verb
    settings: Mapping[str, Any]  # that it was given, as JSON
    parents: tuple[Parent, ...]
    choose: Callable[[Run, ShardOfParent], ChosenFacts]  # writes which rows of a unit stay; it can be pickled
    before: Sequence[curate.Step] = ()
    prepare: Callable[[Run], None] = lambda _: None  # after these steps; writes what `choose` reads of all units
    also: Mapping[str, Any] = field(default_factory=dict)  # that the result rests on, such as digests of scores
    conclude: Callable[[Run], None] = lambda _: None  # writes more of the run's audit

    @property
    def lineage(self) -> dict[str, Any]:
        """What the manifest says of where the run is from."""
        of_parents = {
            "parents": [each.digest for each in self.parents],
            "before": [each.lineage for each in self.parents],
        }
        return {"operation": self.operation, "settings": dict(self.settings), **of_parents, **self.also}


def make(making: Making, run: Run, flags: Sequence[str]) -> Run:
    """Make a run, or go on with one; `run` has the folder and the settings, `flags` go to Beam."""
    pipeline_options = options(run.config.engine, list(flags))
    folders = [parent.folder for parent in making.parents]
    grounds = Grounds({**making.lineage, "folders": folders}, digest(making.lineage))
    _check_folder(run, folders, grounds)
    with storage.locked(run.folder), own_files(run.folder):
        storage.sweep(run.folder)
        facts = storage.read_sealed(run.path("run.json"))
        if not storage.exists(run.path("manifest.json")):
            if facts:
                reopen.mend(run)
            stated = reopen.of_this_call(run.config, facts.get("stages", {}))
            storage.write_sealed(run.path("run.json"), stated, durable=run.config.run.durable)
            reopen.write_settings(run)
            try:
                _make(making, run, grounds, pipeline_options)
            except Exception as error:
                if busy := _busy(making.parents, run):
                    raise UsageError(busy) from error
                raise
        if not run.config.run.keep_work:
            storage.delete_units([run.path("work")])
    return run


def _check_folder(run: Run, parents: Sequence[str], grounds: Grounds) -> None:
    """Refuse a folder that holds something else; nothing is written."""
    for parent in parents:
        if storage.is_inside(run.folder, parent) or storage.is_inside(parent, run.folder):
            raise UsageError(f"{run.folder}: inside {parent}, or around it; give a folder apart from the run's")
    reopen.check_folder(run)
    stages = storage.read_json(run.path("run.json")).get("stages", {})
    if stages and (stages.keys() != {Stage.SELECT.value} or stages[Stage.SELECT.value]["digest"] != grounds.digest):
        what = "holds a run of its own, or one that was made of other runs or with other settings"
        raise UsageError(f"{run.folder}: {what}; give another folder, or delete this one")


def _make(making: Making, run: Run, grounds: Grounds, pipeline_options: Any) -> None:
    parents = making.parents
    with (
        storage.temporary(run.work("temporary")),
        started(run, pipeline_options),
        recording(run, Stage.SELECT.value, grounds),
    ):
        for step in making.before:
            curate.run_step(run, step, pipeline_options)
        making.prepare(run)
        choosing = curate.each(CHOSEN, partial(plan_of, parents), making.choose)
        curate.run_step(run, choosing, pipeline_options)
        units = _plan_shards(parents, run)
        writing = curate.each(
            WRITTEN,
            lambda _: units,
            partial(_write, parents),
            seconds=lambda _, left: copy_shards.SECONDS_PER_SAMPLE * sum(unit["rows"] for unit in left),
        )
        curate.run_step(run, writing, pipeline_options)
    shards, copied = dict(run.all_facts(WRITTEN)), _copy_files(parents, run)
    copy_scores.follow(parents, run, units, shards)
    if busy := _busy(parents, run):
        raise UsageError(busy)
    _conclude(making, run, shards, copied)


def _busy(parents: Sequence[Parent], run: Run) -> str:
    """What is wrong where another command has changed a parent since the choice began; empty where none has."""
    for parent in parents:
        is_same = False
        with suppress(AltalignError):
            atomic_change.check_none(parent.folder)
            is_same = listing.number(parent.folder) == parent.digest
        if not is_same:
            what = "busy: another command has changed it meanwhile"
            return f"{parent.folder}: {what}; delete {run.folder}, and run this one again"
    return ""


# Rows, and shards of them ---------------------------------------------------------------------------------------------


def chosen(
    run: Run,
    name: str,
    rows: pa.Table,
    verdicts: Sequence[Verdict],
    scores: "Callable[[Mask], pa.Array[Any]] | None" = None,
) -> ChosenFacts:
    """Write which of n rows of a unit stay, and the others with their reasons: what `Making.choose` ends with.

    `rows` have `source`, and all that a dropped row has where those are kept; there is a verdict of each rule, in
    order. `scores` are the values that the rows of a mask were decided by, as JSON objects.
    """
    counts = FailedCounts()
    first, failed = reasons_of(verdicts)
    counts.add(Stage.SELECT, rows["source"], failed)
    stays = first.is_null().to_numpy(zero_copy_only=False)
    CHOSEN_ROWS.save(run, np.flatnonzero(stays), name)
    if run.config.audit.keep_dropped:
        columns = {column: rows[column] for column in rows.column_names if column in DROPPED.names}
        columns |= {"reason": first.cast(pa.string()), "failed": failed.dictionary_decode()}
        gone = pa.table(columns).filter(pa.array(~stays))
        gone = gone.append_column("scores", scores(~stays) if scores else pa.nulls(len(gone), pa.string()))
        outputs.write_dropped(outputs.dropped(run, Stage.SELECT, name), Stage.SELECT, gone, _DROPPED)
    return ChosenFacts(kept=int(stays.sum()), **counts.facts())


def _plan_shards(parents: tuple[Parent, ...], run: Run) -> list[ShardUnit]:
    """One unit a shard: which chosen rows of which units, in the order of (image_id, key)."""
    sequences = dict[tuple[int, int], list[tuple[str, int]]]()
    for name, facts in run.all_facts(CHOSEN):
        sequences.setdefault(_sequence_of(parents, name), []).append((name, facts.kept))

    def places(name: str) -> Places:
        parent, shard = of_unit(parents, name)
        rows = parent.samples(shard, ["image_id", "key"]).take(CHOSEN_ROWS.array(run, name))
        both = zip(*(parquet.values(rows, column) for column in ("image_id", "key")), strict=True)
        return np.array([image_id + key for image_id, key in both], "S64")

    where, per_shard = ", ".join(parent.folder for parent in parents), run.config.shards.samples_per_shard
    whole = run.config.shards.captions == "all"
    if len(sequences) > 1 or whole:
        shards = shard_files.merged(where, list(sequences.values()), places, per_shard, whole=whole)
    else:
        shards = shard_files.filled([thing for things in sequences.values() for thing in things], per_shard)
    return [
        ShardUnit(name=f"{number:05d}", rows=sum(end - begin for _, begin, end in parts), parts=[*parts])
        for number, parts in enumerate(shards)
    ]


def _sequence_of(parents: Sequence[Parent], name: str) -> tuple[int, int]:
    """The numbers of the run and the generation that a unit is of: its samples are in one order."""
    return int(name.partition("-")[0]), generations.number_of(of_unit(parents, name)[1].name)


def _write(parents: tuple[Parent, ...], run: Run, unit: ShardUnit) -> ShardFacts:
    """Write a shard of rows of the parents' shards."""
    sequences = dict[tuple[int, int], list[Part]]()
    for name, begin, end in unit["parts"]:
        parent, shard = of_unit(parents, name)
        part = Part(parent.path("shards"), shard.name, CHOSEN_ROWS.array(run, name)[begin:end])
        sequences.setdefault(_sequence_of(parents, name), []).append(part)
    return copy_shards.copied(run.path("shards"), unit["name"], sequences.values(), run.config.shards)


# The end -------------------------------------------------------------------------------------------------------------


def _copy_files(parents: Sequence[Parent], run: Run) -> dict[str, Written]:
    """Copy the files that the run has as the parents do; tables and distributions of one run are none of several.

    Returns them by their paths in the new run.
    """

    def copy(file: tuple[str, str]) -> Written:
        source, name = file
        with storage.noted() as block:
            if not storage.exists(source):
                raise UnreadableError(f"{source}: it is not there")
            with storage.write(run.path(*name.split("/"))) as copied:
                for data in storage.read_pieces(source):
                    interrupts.check()
                    copied.write(data)
        (written,) = block.files.values()
        assert written is not None
        return written

    files = list(_carried(parents))
    copied = in_threads(copy, files, copy_shards.at_once(run.folder), bar=("copying", "files"))
    return {name: written for (_, name), written in zip(files, copied, strict=True)}


def _carried(parents: Sequence[Parent]) -> Iterator[tuple[str, str]]:
    """Yields the path of a parent's file, and its name in the new run.

    Rows that an earlier selection dropped are told from those of now; of several parents all names say whose they are.
    """
    for number, parent in enumerate(parents):
        for name in sorted(listing.read(parent.folder)):
            folder, _, file = name.rpartition("/")
            is_dropped, new = name.startswith("dropped/"), name
            if len(parents) == 1:
                if name.startswith("shards/") or name in _NOT_CARRIED:
                    continue
                if f"{folder}/" == _OF_SELECT and not re.match(r"[0-9a-f]{8}-", file):
                    new = f"{folder}/{parent.digest[:8]}-{file}"
            elif is_dropped:
                kind = next((kind for kind in _KINDS if file.startswith(kind)), "")
                new = f"{folder}/{kind}{parent.digest[:8]}-{file.removeprefix(kind)}"
            elif number or not name.endswith(".py"):
                continue
            yield parent.path(*name.split("/")), new


def _conclude(making: Making, run: Run, shards: Mapping[str, ShardFacts], copied: Mapping[str, Written]) -> None:
    """Write counts, summary and galleries, then list, card and manifest."""
    parents, chosen = making.parents, [facts for _, facts in run.all_facts(CHOSEN)]
    before = [row for parent in parents for row in of_parents.received(of_parents.counts_of(parent))]
    counts = Counts.from_json([*before, *(row for facts in chosen for row in facts.counts)])
    of_rules = [row for parent in parents for row in of_parents.failed_of(parent)]
    failed = FailedCounts.from_json([*of_rules, *(row for facts in chosen for row in facts.failed)])
    images = shard_files.distinct_images(shards.values())
    near_duplicates = storage.read_json(outputs.near_duplicates(run, "found.json"))
    # what each step of one parent left; of the steps after that, the summary knows
    funnel = parquet.read_table(parents[0].path(FUNNEL.path)).to_pylist() if len(parents) == 1 else []
    removed = [path for parent in parents if storage.exists(path := parent.path(REMOVED_FILE))]
    with storage.noted() as block:
        more = {"near_duplicates": near_duplicates} if near_duplicates else {}
        more |= personal_figures.measured(run, list(shards))
        facts = outputs.write_totals(run, shards, counts, failed, images=images, more=more)
        outputs.write_audit(run, FUNNEL, [row for row in funnel if row["step"] not in ("shards", Stage.SELECT.value)])
        _write_galleries(run, parents)
        making.conclude(run)
        if removed and len(parents) > 1:
            rows = pa.concat_tables([parquet.read_table(path).cast(REMOVED) for path in removed])
            parquet.write(run.path(REMOVED_FILE), rows, REMOVED)
    files = {**marks.outputs(run), **copied, **outputs.files_of(run, block)}
    block.files.update((run.path(*name.split("/")), written) for name, written in copied.items())  # to be kept too
    card = CardFacts(run.config, counts, facts, summary.notes(run), scores=tuple(scores.all_of(run.folder)))
    outputs.write_manifest(run, shards, files, card, block, {"lineage": making.lineage})


def _write_galleries(run: Run, parents: Sequence[Parent]) -> None:
    """Write `audit/samples.parquet`: what the parents show, what was not chosen, and what is kept."""
    of_parents = [parquet.read_table(parent.path(SAMPLES.path)).cast(SAMPLES.schema) for parent in parents]
    before = [rows.filter(pc.field("stage") != KEPT) for rows in of_parents]
    gone = _not_chosen(run, parents) if run.config.audit.keep_dropped else ()
    parts = [image_figures.to_samples(*part) for part in (*gone, *image_figures.kept(run))]
    outputs.write_audit(run, SAMPLES, pa.concat_tables([*before, *parts]))


def _not_chosen(run: Run, parents: Sequence[Parent]) -> Iterator[image_figures.Part]:
    """The first rows that were not chosen, for each reason, with pictures from the parents' shards."""
    taken: Counter[str] = Counter()
    for name, facts in run.all_facts(CHOSEN):
        reasons = {reason for _, _, reason, _ in facts.counts if reason != KEPT}
        most = {reason: left for reason in reasons if (left := text_figures.PER_REASON - taken[reason]) > 0}
        path = outputs.dropped(run, Stage.SELECT, name)
        if not most or not storage.exists(path):
            continue
        rows = image_figures.first_rows(parquet.read_table(path), most).select(DROPPED.names)
        taken.update(parquet.values(rows, "reason"))
        keys, (parent, shard) = parquet.values(rows, "key"), of_unit(parents, name)
        yield rows, list(image_figures.pictures_of(run, parent.path("shards", shard.name), keys))
