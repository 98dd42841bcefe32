"""Makes a run of other runs: rows are chosen, shards and scores copied, counts go on from the parents'.

Units, marks and engines are those of a curation: a command that was killed goes on.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, starmap
from typing import Any

import pyarrow as pa

from altalign import storage, terminal
from altalign.data import listing, scores
from altalign.data.audit_tables import FAILED_ROWS, FUNNEL, SAMPLES
from altalign.data.counts import Counts, FailedCounts, FailedRow
from altalign.data.reasons import Stage
from altalign.data.schema import REMOVED
from altalign.data.stages import REMOVED_FILE, own_files
from altalign.errors import AltalignError, UnreadableError, UsageError
from altalign.machine import interrupts
from altalign.pipelines import curate
from altalign.pipelines.card import CardFacts
from altalign.pipelines.derive import choose_rows, copy_scores, copy_shards
from altalign.pipelines.derive import parents as of_parents
from altalign.pipelines.derive.copy_shards import Slice
from altalign.pipelines.derive.parents import Parent, of_unit
from altalign.pipelines.engine.jobs import started
from altalign.pipelines.engine.options import options
from altalign.pipelines.opening import reopen, summary
from altalign.pipelines.opening.reopen import Grounds, recording
from altalign.pipelines.run import marks, outputs
from altalign.pipelines.run.shard_tables import (
    CARRIED,
    CHOSEN,
    CHOSEN_ROWS,
    WRITTEN,
    CarriedFacts,
    CarriedUnit,
    ChosenFacts,
    ShardFacts,
    ShardOfParent,
    ShardUnit,
)
from altalign.pipelines.run.units import Run, digest
from altalign.storage import atomic_change, parquet

KEYS_FILE = "keys.parquet"
KEYS = pa.schema([("key", pa.string()), ("shard", pa.string())])  # of a sample, and the name of its shard

_FILES_PER_UNIT = 64
# made anew, of the new run
_NOT_CARRIED = ("counts.parquet", "summary.json", FAILED_ROWS.path, FUNNEL.path, SAMPLES.path)
_OF_SELECT = "dropped/select/"
_KINDS = ("broken-", "repeated-")  # begin names of dropped rows that readers tell from others


@dataclass(frozen=True)
class Making:
    """How a run is made of others."""

    operation: str  # the verb
    settings: Mapping[str, Any]  # that it was given, as JSON
    parents: tuple[Parent, ...]
    choose: Callable[[Run, ShardOfParent], ChosenFacts]  # writes which rows of a unit stay; it can be pickled
    is_of_keys: bool = False  # whether the keys of those that stay are written, and no shards
    before: Sequence[curate.Step] = ()
    also: Mapping[str, Any] | None = None  # that the result rests on, such as digests of scores
    conclude: Callable[[Run], None] | None = None  # writes more of the run's audit; of keys alone nothing

    @property
    def last_file(self) -> str:
        """What is written last, in the run's folder."""
        return "keys.json" if self.is_of_keys else "manifest.json"

    @property
    def lineage(self) -> dict[str, Any]:
        """What the manifest says of where the run is from."""
        lineage = {
            "operation": self.operation,
            "settings": dict(self.settings),
            "parents": [parent.digest for parent in self.parents],
            "before": [parent.lineage for parent in self.parents],
            **(self.also or {}),
        }
        return {**lineage, "keys_only": True} if self.is_of_keys else lineage


def make(making: Making, run: Run, flags: Sequence[str]) -> Run:
    """Make a run, or go on with one; `run` has the folder and the settings, `flags` go to Beam."""
    pipeline_options = options(run.config.engine, list(flags))
    folders = [parent.folder for parent in making.parents]
    grounds = Grounds({**making.lineage, "folders": folders}, digest(making.lineage))
    _check_folder(run, folders, grounds)
    is_durable, last_file = run.config.run.durable, run.path(making.last_file)
    try:
        with storage.locked(run.folder), own_files(run.folder):
            storage.sweep(run.folder)
            facts = storage.read_sealed(run.path("run.json"))
            if not storage.exists(last_file):
                if facts:
                    reopen.mend(run)
                stated = reopen.of_this_call(run.config, facts.get("stages", {}))
                storage.write_sealed(run.path("run.json"), stated, durable=is_durable)
                reopen.write_settings(run)
                _make(making, run, grounds, pipeline_options)
            if making.is_of_keys or not run.config.run.keep_work:
                storage.delete_units([run.path("work")])
        return run
    except Exception as error:
        try:
            _check_unchanged(making.parents)
        except UsageError as busy:
            # which explains whatever a worker met; nothing is left of the new run
            if storage.exists(run.path("run.json")) and not storage.exists(last_file):
                storage.delete(run.folder)
            raise busy from error
        raise


def _check_folder(run: Run, parents: Sequence[str], grounds: Grounds) -> None:
    """Refuse a folder that holds something else; nothing is written."""
    for parent in parents:
        if storage.is_inside(run.folder, parent) or storage.is_inside(parent, run.folder):
            raise UsageError(f"{run.folder}: inside {parent}, or around it; give a folder apart from the run's")
    reopen.check_folder(run)
    stages = storage.read_json(run.path("run.json")).get("stages", {})
    if stages and (Stage.SELECT.value not in stages or len(stages) > 1):
        raise UsageError(f"{run.folder}: holds a run of its own; give another folder")
    if stages.get(Stage.SELECT.value, {}).get("digest") not in (None, grounds.digest):
        raise UsageError(
            f"{run.folder}: holds a run that was made of other runs, or with other settings; give another folder, or "
            "delete this one"
        )


def _check_unchanged(parents: Sequence[Parent]) -> None:
    """Refuse to go on where another command changes a parent, or has changed it."""
    for parent in parents:
        with suppress(AltalignError):  # a change is under way
            atomic_change.check_none(parent.folder)
            if listing.number(parent.folder) == parent.digest:
                continue
        raise UsageError(f"{parent.folder}: busy: another command has changed it meanwhile; run this one again")


def _make(making: Making, run: Run, grounds: Grounds, pipeline_options: Any) -> None:
    parents = making.parents
    followed = {} if making.is_of_keys else copy_scores.of_all(parents)
    of_scores = copy_scores.step_of(followed)
    for damage in marks.look(run, (of_scores,)):
        storage.delete(damage.mark.path)
    steps = [*making.before, curate.each(CHOSEN, partial(plan_of, parents), making.choose)]
    if not making.is_of_keys:
        plan_shards = partial(_plan_shards, parents)
        steps.append(curate.each(CARRIED, partial(_plan_files, parents), partial(_carry, parents)))
        steps.append(curate.each(WRITTEN, plan_shards, partial(_write, parents), seconds=_seconds))
        if followed:
            steps.append(curate.each(of_scores, plan_shards, partial(copy_scores.follow, parents, followed)))
    with (
        storage.temporary(run.work("temporary")),
        started(run, pipeline_options),
        recording(run, Stage.SELECT.value, grounds),
    ):
        for step in steps:
            curate.run_step(run, step, pipeline_options)
    copy_scores.conclude(run, followed, of_scores)
    _check_unchanged(parents)
    chosen = [facts for _, facts in run.all_facts(CHOSEN)]
    before = [row for parent in parents for row in of_parents.received(of_parents.counts_of(parent))]
    counts = Counts.from_json([*before, *(row for facts in chosen for row in facts.counts)])
    if making.is_of_keys:
        counts.reconcile(counts.stages_of_run(), pairs=sum(facts.kept for facts in chosen))
        _write_keys(run, making, counts)
    else:
        _write_run(run, making, counts, [row for facts in chosen for row in facts.failed])


# Units ---------------------------------------------------------------------------------------------------------------


def plan_of(parents: Sequence[Parent], _run: Run) -> list[ShardOfParent]:
    """One unit a shard of each parent, in their order."""
    return [
        ShardOfParent(name=f"{number:03d}-{place:05d}", parent=number, rows=shard.rows)
        for number, parent in enumerate(parents)
        for place, shard in enumerate(parent.shards)
    ]


def _plan_shards(parents: tuple[Parent, ...], run: Run) -> list[ShardUnit]:
    """One unit a shard: which chosen rows of which units, in order."""
    kept, chosen = [(name, facts.kept) for name, facts in run.all_facts(CHOSEN)], partial(CHOSEN_ROWS.array, run)
    shards = of_parents.in_one_order(parents, kept, chosen, run.config.shards.samples_per_shard)
    return [
        ShardUnit(name=f"{number:05d}", rows=sum(end - begin for _, begin, end in parts), parts=[*parts])
        for number, parts in enumerate(shards)
    ]


def _seconds(_run: Run, shards: Sequence[ShardUnit]) -> float:
    return copy_shards.SECONDS_PER_SAMPLE * sum(shard["rows"] for shard in shards)


def _write(parents: tuple[Parent, ...], run: Run, unit: ShardUnit) -> ShardFacts:
    """Write a shard of rows of the parents' shards."""
    parts, chosen = starmap(Slice, unit["parts"]), partial(CHOSEN_ROWS.array, run)
    return of_parents.write_shard(parents, run.path("shards"), unit["name"], parts, chosen)


def _plan_files(parents: tuple[Parent, ...], _run: Run) -> list[CarriedUnit]:
    """Units of files that the run has as the parents do; tables and distributions of one run are none of several."""
    units = list[CarriedUnit]()
    for number, parent in enumerate(parents):
        files = sorted(listing.read(parent.folder))
        if len(parents) == 1:
            files = [name for name in files if not name.startswith("shards/") and name not in _NOT_CARRIED]
        else:
            files = [name for name in files if name.startswith("dropped/") or (number == 0 and name.endswith(".py"))]
        for begin in range(0, len(files), _FILES_PER_UNIT):
            name = f"{number:03d}-{begin // _FILES_PER_UNIT:06d}"
            units.append(CarriedUnit(name=name, parent=number, files=files[begin : begin + _FILES_PER_UNIT]))
    return units


def _carry(parents: tuple[Parent, ...], run: Run, unit: CarriedUnit) -> CarriedFacts:
    """Copy the files of a unit."""
    parent, size = parents[unit["parent"]], 0
    for name in unit["files"]:
        try:
            pieces = storage.read_pieces(parent.path(name))
        except FileNotFoundError:
            raise UnreadableError(f"{parent.path(name)}: it is not there") from None
        with storage.write(run.path(_renamed(name, parent, are_several=len(parents) > 1))) as copy:
            for data in pieces:
                interrupts.check()
                size += copy.write(data)
    return CarriedFacts(size)


def _renamed(name: str, parent: Parent, *, are_several: bool) -> str:
    """The path of a parent's file in the new run: rows that an earlier selection dropped are told from those of now.

    Of several parents all names say which one they are of.
    """
    if are_several and name.startswith("dropped/"):
        folder, _, file = name.rpartition("/")
        kind = next((kind for kind in _KINDS if file.startswith(kind)), "")
        return f"{folder}/{kind}{parent.digest[:8]}-{file.removeprefix(kind)}"
    file = name.removeprefix(_OF_SELECT)
    is_of_now = name.startswith(_OF_SELECT) and not re.match(r"[0-9a-f]{8}-", file)
    return f"{_OF_SELECT}{parent.digest[:8]}-{file}" if is_of_now else name


# The end -------------------------------------------------------------------------------------------------------------


def _write_run(run: Run, making: Making, counts: Counts, failed_now: list[FailedRow]) -> None:
    """Write counts and summary, then list, card and manifest."""
    parents, shards = making.parents, list(run.all_facts(WRITTEN))
    pairs = sum(facts.rows for _, facts in shards)
    counts.reconcile(counts.stages_of_run(), pairs=pairs)
    failed = FailedCounts.from_json([*(row for parent in parents for row in of_parents.failed_of(parent)), *failed_now])
    failed.check(counts)
    shared = sum(before.last_image == after.first_image for (_, before), (_, after) in pairwise(shards))
    facts = {
        "stages": counts.summary(counts.stages_of_run()),
        "pairs": pairs,
        "images": sum(facts.images for _, facts in shards) - shared,
        "bytes": sum(facts.bytes for _, facts in shards),
    }
    if near_duplicates := storage.read_json(outputs.near_duplicates(run, "found.json")):
        facts["near_duplicates"] = near_duplicates
    # what each step of one parent left; of the steps after that, the summary knows
    funnel = parquet.read_table(parents[0].path(FUNNEL.path)).to_pylist() if len(parents) == 1 else []
    removed = [path for parent in parents if storage.exists(path := parent.path(REMOVED_FILE))]
    with storage.noted() as block:
        outputs.write_audit(run, FAILED_ROWS, failed.to_arrow())
        parquet.write(run.path("counts.parquet"), counts.to_arrow(), counts.to_arrow().schema)
        storage.write_json(run.path("summary.json"), facts)
        outputs.write_audit(run, FUNNEL, [row for row in funnel if row["step"] not in ("shards", Stage.SELECT.value)])
        choose_rows.write_galleries(run, parents)
        if making.conclude:
            making.conclude(run)
        if removed and len(parents) > 1:
            rows = pa.concat_tables([parquet.read_table(path).cast(REMOVED) for path in removed])
            parquet.write(run.path(REMOVED_FILE), rows, REMOVED)
    files = {**marks.outputs(run), **outputs.files_of(run, block)}
    card = CardFacts(run.config, counts, facts, summary.notes(run), scores=tuple(scores.all_of(run.folder)))
    outputs.write_manifest(run, shards, files, card, block, {"lineage": making.lineage})


def _write_keys(run: Run, making: Making, counts: Counts) -> None:
    """Write keys, counts, and what they are of last."""
    pairs = 0
    with storage.noted() as block:
        with parquet.writing(run.path(KEYS_FILE), KEYS) as file:
            for name in run.finished(CHOSEN.step):
                interrupts.check()
                parent, shard = of_unit(making.parents, name)
                keys = parent.samples(shard, ["key"])["key"].take(CHOSEN_ROWS.array(run, name))
                file.write(pa.table([keys, pa.repeat(pa.scalar(shard.name), len(keys))], schema=KEYS))
                pairs += len(keys)
        parquet.write(run.path("counts.parquet"), counts.to_arrow(), counts.to_arrow().schema)
    if run.config.run.durable:
        storage.sync(block)
    stated = {"pairs": pairs, "stages": counts.summary(counts.stages_of_run()), "lineage": making.lineage}
    storage.write_sealed(run.path("keys.json"), stated, durable=run.config.run.durable)
    message = f"{terminal.shown(run.path(KEYS_FILE))}: the keys of {pairs:,} pairs"
    terminal.stdout().print(message, highlight=False, soft_wrap=True)
