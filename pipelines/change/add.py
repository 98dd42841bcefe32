"""`altalign add RUN --input …`: afterwards the run holds the samples that one run over all the input would hold.

RUN/.adding/run is an ordinary run over the old input and the new, which takes over what it can of `work/`. Only its
shards are other: samples that stay keep their places. Then all of its files come at once; a command that is killed
before leaves the old run, and goes on with `.adding` (ADR 22).
"""

import json
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage, terminal
from altalign.data import generations, listing
from altalign.data.schema import REMOVED, SAMPLE
from altalign.data.stages import REMOVED_FILE, REPORT, STAGES, own_files
from altalign.errors import UnreadableError, UsageError
from altalign.machine import interrupts
from altalign.machine.threads import in_threads
from altalign.pipelines import curate
from altalign.pipelines.change import remove
from altalign.pipelines.derive import copy_scores, copy_shards, parents
from altalign.pipelines.derive.copy_shards import Numbers, Part
from altalign.pipelines.derive.parents import Parent, Shard
from altalign.pipelines.engine.options import check_places, options
from altalign.pipelines.opening import find, reopen
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.opening.reopen import recording
from altalign.pipelines.run import marks as vouched
from altalign.pipelines.run.image_tables import (
    DECONTAMINATED,
    FETCHED,
    STORED_COLUMNS,
    TESTS,
    first_of_each_image,
    kept_rows,
)
from altalign.pipelines.run.removal_list import of_run
from altalign.pipelines.run.shard_tables import ShardFacts, files_of
from altalign.pipelines.run.text_tables import EXTRACTED
from altalign.pipelines.run.units import Grown, InputFile, Run, has_work
from altalign.pipelines.stages import write
from altalign.settings.curate import OWN_TABLES, CurateConfig
from altalign.storage import atomic_change, parquet
from altalign.storage.atomic_change import ADDING, Change
from altalign.terminal import many, shown

REFUSED = "refused by altalign add"  # in removed.parquet: why a pair did not come again
_BASE = "base.json"  # beside the run in `.adding`: what it is made of
_GO = ("trial", "clusters", *REPORT)  # rest on the shards as they were
# what follows from the bytes that were found and from settings, or from the place in a tar
_FOLLOWS = {*STORED_COLUMNS, "tar_offset", "tar_bytes", "preferences"}
_COMPARED = [name for name in SAMPLE.names if name not in _FOLLOWS]
_AT_ONCE = 8  # side-cars in memory: a fetch unit lies in a few shards of each generation

Mask = npt.NDArray[np.bool_]  # a row each


def main(
    config: CurateConfig,
    inputs: Sequence[str],
    flags: list[str],
    *,
    like: str = "",
    is_fetched_again: bool = False,
    is_frozen: bool = False,
) -> int:
    """Add inputs to a run; returns 1 where nothing is left of the pool, else 0.

    `like` is the source whose settings they have; `is_fetched_again`: the web may be asked for all again; `is_frozen`:
    the run's tables judge.
    """
    folder = config.run.folder
    with own_files(folder):
        parents.opened(folder, config)  # finished, and of these rules
    with storage.locked(folder):
        atomic_change.check_none(folder)
        storage.sweep(folder)
        with own_files(folder):
            parent = parents.opened(folder, config)
            runs = planned(config, inputs, like, is_frozen=is_frozen)
        if runs is None:
            message = f"{folder}: all of this is in the run already; it stays as it is"
            terminal.stderr().print(shown(message), soft_wrap=True)
            return 0
        message = add(parent, *runs, flags, is_fetched_again=is_fetched_again)
    code = curate.show(Run(folder, runs[1].config, ()))
    terminal.stdout().print(message, highlight=False, soft_wrap=True)
    return code


# The larger run ------------------------------------------------------------------------------------------------------


def planned(config: CurateConfig, inputs: Sequence[str], like: str, *, is_frozen: bool) -> tuple[Run, Grown] | None:
    """The run as it is and the larger one, with their input files; None where all files are in the run already."""
    folder = config.run.folder
    before, more = _before(config, {storage.resolved(path) for path in inputs})
    in_run = {storage.resolved(_path(file)) for file in before.files}
    new = [path for path in inputs if storage.resolved(path) not in in_run]
    grown = _with(before, new, like)
    paths = {storage.resolved(path): path for path in map(_path, grown.files[len(before.files) :])}
    left = [path for resolved, path in paths.items() if resolved not in in_run]
    if not (left or more):
        return None
    if len(left) < len(paths):  # files of the run are left out
        grown = _with(before, left, like)
    values = grown.config.model_dump(mode="json")
    values["run"]["folder"] = inside = storage.join(folder, ADDING, "run")
    tables = before.config.text.tables
    if tables in ("", OWN_TABLES) or storage.resolved(tables) == storage.resolved(before.path("tables")):
        values["text"]["tables"] = OWN_TABLES if is_frozen else ""  # an exact one counts all anew
    grown_config = CurateConfig.from_values(values, where="--input")
    return before, Grown(inside, grown_config, grown.files, grown.modules, before=folder, more=more)


def _path(file: InputFile) -> str:
    return file.part.folder if file.part else file.path


def _with(before: Run, paths: Sequence[str], like: str) -> Run:
    """The run with one more input of these paths, if any, and the settings of the input that it is like."""
    if not paths:
        return before
    inputs = before.config.input
    sources = list(dict.fromkeys(each.source for each in inputs))
    alike = {each.model_copy(update={"paths": ["-"], "name": each.source}).model_dump_json() for each in inputs}
    if not like and len(alike) > 1:
        raise UsageError(
            f"{before.folder}: has inputs {', '.join(sources)}; say with --like which of them this is like"
        )
    if like and like not in sources:
        raise UsageError(f"--like {like}: the run has no such input (there are: {', '.join(sources)})")
    settings = next(each for each in inputs if not like or each.source == like)
    values = before.config.model_dump(mode="json")
    values["input"].append({**settings.model_dump(mode="json"), "name": settings.source, "paths": list(paths)})
    return find_run(CurateConfig.from_values(values, where="--input"), config_path="--input")


def _before(config: CurateConfig, named: Set[str]) -> tuple[Run, tuple[str, ...]]:
    """The run with the input files that it was made of, whatever its globs match by now.

    And which of its folders that are `named` hold other files than they did; these are read as they are now.
    """
    folder, where = config.run.folder, storage.join(config.run.folder, "config.toml")
    facts: Any = storage.read_sealed(storage.join(folder, "run.json"))
    run = find_run(config, config_path=where)
    recorded: list[str] = facts["stages"][STAGES[0]]["reads"]["files"]
    parts = {file.path: file.part for file in run.files if file.part}
    folders = {part.folder for part in parts.values()}
    of_parts = {path: facts["files"].get(path) for path in recorded if path.rpartition("#")[0] in folders}
    now = {path: part.stamp.to_json() for path, part in parts.items()}
    more = {path.rpartition("#")[0] for path in {**of_parts, **now} if of_parts.get(path) != now.get(path)}
    if other := next((path for path in sorted(more) if storage.resolved(path) not in named), None):
        repair = "put it back as it was, or name it as --input too, or curate into another folder"
        raise UsageError(f"{folder}: {reopen.changed_folder(other)}; {repair}")
    files = {path: number for number, path in enumerate(recorded) if path not in of_parts}
    if [file.path for file in run.files if not file.part] != [*files]:
        values = config.model_dump(mode="json")
        for number, of_input in enumerate(values["input"]):
            if of_input["kind"] != "folder":
                of_input["paths"] = [file.path for file in run.files if file.input == number and file.path in files]
        if all(of_input["paths"] for of_input in values["input"]):
            run = find_run(CurateConfig.from_values(values, where=where), config_path=where)
    present = {file.path: file for file in run.files if not file.part}
    if gone := next((path for path in files if path not in present), None):
        raise UsageError(f"{folder}: its input file {gone} is gone; put it back, for all rows are judged again")
    if [*present] != [*files]:
        raise UsageError(f"{folder}: its input is not what it was; curate old and new input into another folder")
    as_numbered = tuple(replace(file, number=files[path]) for path, file in present.items())
    if changed := reopen.changed_file(replace(run, files=as_numbered), facts):
        raise UsageError(f"{folder}: {changed}; put it back as it was, or curate into another folder")
    return run, tuple(sorted(more))


# Adding --------------------------------------------------------------------------------------------------------------


def add(parent: Parent, before: Run, grown: Grown, flags: list[str], *, is_fetched_again: bool) -> str:
    """Make the larger run, and put it in the place of the other; the caller holds the run's lock.

    Returns how many pairs came and went, and what was written, in a line.
    """
    is_whole = before.config.fetch.source != "web" or before.finished(FETCHED.step)
    if not (is_whole or is_fetched_again):
        raise UsageError(
            f"{before.folder}: work/ is gone, and with it what came from the web; --fetch-again asks for all images "
            "again, and takes out those that are gone by now"
        )
    pipeline_options = options(grown.config.engine, flags)
    check_places(grown.config)
    find.check_tables(grown)
    _prepare(before, grown)
    atomic_change.settle(grown.folder)
    new = [*grown.more, *dict.fromkeys(map(_path, grown.files[len(before.files) :]))]
    frozen = {"mode": "frozen"} if grown.config.text.tables else {}
    lineage = remove.lineage_of(parent, "add", {"input": new, **frozen})
    if not grown.is_done(STAGES[-1]):
        grounds = reopen.open_run(grown, rerun=None, is_restart=False)
        try:
            curate.finish(grown, grounds, pipeline_options, until="decontaminate")
        except UsageError:  # nothing can come of this input: the same command would end so again
            storage.delete(storage.join(before.folder, ADDING))
            raise
        with recording(grown, STAGES[-1], grounds[STAGES[-1]]):
            _write(grown, parent, lineage)
    now = parents.opened(grown.folder, grown.config)
    if storage.exists(removed := grown.path(REMOVED_FILE)):  # what was removed before goes again
        removal = remove.find(now, of_run(removed), near=None)
        if len(removal.rows):
            run = Run(grown.folder, grown.config, ())
            remove.remove(run, now, removal, by="", because=REFUSED, lineage=lineage)
            now = parents.opened(grown.folder, grown.config)
        if len(removal.rows) or not grown.config.audit.keep_dropped:
            storage.delete_units([grown.work()])  # it holds what was removed
    return _switch(before, parent, grown, now)


def _prepare(before: Run, grown: Grown) -> None:
    """Have `.adding` hold what is taken over, unless it is there of an earlier call for the same input."""
    path = storage.join(before.folder, ADDING, _BASE)
    base = {
        "manifest": listing.digest(before.path("manifest.json")).digest,
        "files": [file.path for file in grown.files],
        "parts": [file.part.stamp.to_json() for file in grown.files if file.part],
        "tables": grown.config.text.tables,
    }
    with suppress(UnreadableError):
        if {name: storage.read_sealed(path).get(name) for name in base} == base:
            return
    storage.delete(storage.join(before.folder, ADDING))
    if has_work(before):
        as_before = takewhile(lambda file: _path(file) not in grown.more, grown.files)
        extracted = {file.name for file in as_before}.intersection(before.finished(EXTRACTED.step))
        _take_over(before, grown, [(TESTS.step, name) for name in before.finished(TESTS.step)])
        _take_over(before, grown, [(EXTRACTED.step, name) for name in sorted(extracted)])
    for log in storage.files_below(before.path("log", "fetch")):
        storage.write_bytes(grown.path("log", "fetch", storage.name(log)), storage.read_bytes(log))
    if storage.exists(removed := before.path(REMOVED_FILE)):
        rows = parquet.read_table(removed).cast(REMOVED)
        parquet.write(grown.path(REMOVED_FILE), without_places(rows), REMOVED)
    storage.write_sealed(path, base, durable=grown.config.run.durable)


def _take_over(before: Run, run: Run, units: Sequence[tuple[str, str]]) -> None:
    """Link the files of units, each of a step, then their marks."""

    def link(unit: tuple[str, str]) -> None:
        step, name = unit
        mark = before.marks(step).read(name)
        for path in vouched.named(mark):
            if storage.exists(source := before.path(path)):  # a missing one is made anew
                storage.link(source, run.path(path))
        storage.write_sealed(run.mark(step, name), mark)

    for _ in storage.each(link, units, place=run.folder):
        pass


def without_places(rows: pa.Table) -> pa.Table:
    """What was removed (`REMOVED`), without what the counts of an earlier state said of it."""
    rows = rows.filter(pa.array([why != REFUSED for why in rows["because"].to_pylist()], pa.bool_()))
    for name in ("stage", "source", "reason"):
        rows = rows.set_column(rows.column_names.index(name), name, pa.nulls(len(rows), pa.string()))
    return rows


# Shards --------------------------------------------------------------------------------------------------------------


def _write(grown: Grown, parent: Parent, lineage: dict[str, Any]) -> None:
    """Write shards and what comes after them.

    A sample stays where it is when the larger pool keeps it with the same columns and the same bytes. Shards all of
    whose samples stay are not touched: their side-cars are links. The others are written anew without those that go.
    What has no place yet comes into shards of a new generation, in the order of (image_id, key) among itself.
    """
    storage.delete(grown.path("shards"))  # of a command that was killed
    generation = parent.generations + 1
    stay, fresh, images = _compared(grown, parent)

    def old(shard: Shard) -> ShardFacts:
        if not stay[shard.name].all():
            part = Part(parent.path("shards"), shard.name, np.flatnonzero(stay[shard.name]))
            return copy_shards.copied(grown.path("shards"), shard.name, [[part]], grown.config.shards)
        name = f"{shard.name}.parquet"
        storage.link(parent.path("shards", name), grown.path("shards", name))
        size, of_sources = storage.stamp(grown.path("shards", name)).size, remove.source_bytes(parent, shard)
        return ShardFacts(shard.rows, shard.bytes, of_sources, shard.sha256, size, shard.parquet_sha256, 0, "", "")

    left = [shard for shard in parent.shards if stay[shard.name].any()]
    made = in_threads(old, left, copy_shards.at_once(grown.folder), bar=("old shards", "shards"))
    shards = {shard.name: facts for shard, facts in zip(left, made, strict=True)}
    for number, slices in enumerate(write.cut(grown, fresh)):
        name = generations.named(generation, number)
        parts = ((unit, fresh[unit][begin:end]) for unit, begin, end in slices)
        shards[name] = write.write_rows(grown, name, parts)
    listed = {path: file for name, facts in shards.items() for path, file in files_of(name, facts)}
    if storage.exists(path := grown.path(REMOVED_FILE)):
        listed[REMOVED_FILE] = listing.digest(path)
    more = {"lineage": lineage, generations.ENTRY: generation}
    grown = replace(grown, untouched=frozenset(name for name, mask in stay.items() if mask.all()))
    write.end(grown, shards, images=images, listed=listed, more=more)


def _compared(run: Run, parent: Parent) -> tuple[Mapping[str, Mask], Mapping[str, Numbers], int]:
    """Compare what `run` keeps, whose decontamination is done, with the shards of the run that it has grown from.

    Returns by shard which rows stay; by fetch unit the numbers of its kept rows that have no place yet; and how many
    images the pool keeps.
    """
    ends = dict[Shard, tuple[str, str]]()  # the first and the last image
    for shard in parent.shards:
        ids = parent.samples(shard, ["image_id"])["image_id"]
        ends[shard] = str(ids[0]), str(ids[-1])
    stay = {shard.name: np.zeros(shard.rows, bool) for shard in parent.shards}
    fresh, images = dict[str, Numbers](), 0

    @lru_cache(maxsize=_AT_ONCE)
    def samples(shard: Shard) -> pa.Table:
        return _values(parent.samples(shard))

    for name, facts in run.all_facts(DECONTAMINATED):
        if not facts.kept:
            continue
        interrupts.check()
        rows = _values(kept_rows(run, name))
        images += len(first_of_each_image(rows))
        first, last = str(rows["image_id"][0]), str(rows["image_id"][-1])
        is_fresh = np.ones(len(rows), bool)
        for shard, (begin, end) in ends.items():
            if begin <= last and first <= end:
                here, in_shard = parquet.same_rows(rows, samples(shard), by="key")
                is_fresh[here] = False
                stay[shard.name][in_shard] = True
        if is_fresh.any():
            fresh[name] = np.flatnonzero(is_fresh)
    return stay, fresh, images


def _values(rows: pa.Table) -> pa.Table:
    """The columns by which rows are the same: of what was said, not when an answer said it."""
    every: Any = rows["preferences"].to_pylist()
    said = [
        None if each is None else json.dumps([[one["notation"], one["value"], one["where"]] for one in each])
        for each in every
    ]
    return rows.select(_COMPARED).append_column("said", pa.array(said, pa.string())).combine_chunks()


# The change ----------------------------------------------------------------------------------------------------------


def _switch(before: Run, parent: Parent, grown: Run, now: Parent) -> str:
    """Have all files of the larger run come that are not the same, and its `work/`; all others go."""
    change = Change(before.folder, durable=before.config.run.durable)
    old, new = listing.read(before.folder), listing.read(grown.folder)
    for name, written in new.items():
        if old.get(name) != written:
            change.take(name, grown.path(name), written)
    here, logs = (
        {storage.relative(path, run.folder) or path for path in storage.files_below(run.path("log", "fetch"))}
        for run in (before, grown)
    )
    for name in (*listing.CARD, listing.FILE, listing.SETTINGS, "run.json", "manifest.json", *sorted(logs)):
        change.take(name, grown.path(name), listing.digest(grown.path(name)))
    # shards of before that differ now or are gone, and the numbers of their rows that stay
    after, stay = {shard.name: shard for shard in now.shards}, dict[str, tuple[Shard, Numbers]]()
    for shard in parent.shards:
        if shard.name not in after:
            stay[shard.name] = shard, np.zeros(0, np.int64)
        elif after[shard.name].sha256 != shard.sha256:
            of_both = (parent, shard), (now, after[shard.name])
            keys, left = (parquet.values(run.samples(of, ["key"]), "key") for run, of in of_both)
            stay[shard.name] = shard, np.flatnonzero(np.isin(keys, left))
    deleted = [*_GO, *(old.keys() - new.keys()), *(here - logs), *copy_scores.change_scores(change, after, stay)]
    keeps_work = grown.config.run.keep_work and storage.kind(grown.work()) == "folder"
    change.commit([*deleted, *([] if keeps_work else ["work"])], work=f"{ADDING}/run/work" if keeps_work else "")
    more = sum(shard.rows for shard in now.shards) - sum(shard.rows for shard in parent.shards)
    went = sum(shard.rows - len(numbers) for shard, numbers in stay.values())
    anew = [shard for shard in now.shards if f"shards/{shard.name}.tar" in change.files]
    pairs = f"{many(more + went, 'pair')} came, {many(went, 'pair')} went"
    return f"{pairs}; {many(len(anew), 'shard')} written ({sum(shard.bytes for shard in anew) / 1e6:,.1f} MB)"
