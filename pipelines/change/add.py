"""`altalign add RUN --input …`: afterwards the run holds the samples that one run over all the input would hold.

RUN/.adding/run is an ordinary run over the old input and the new, with the same settings; with `--mode frozen` its
texts are judged by the tables of the run (`[text] tables`). Of `work/` it takes over what was extracted of unchanged
files, test images, and, as any stage that runs anew, what came from the web. A folder of the run that holds more files
now is read anew, and all behind it. Only `write` is another: it compares with the shards that are there (`growing`).

What was removed earlier is taken out of it as `altalign remove` does. Then all of its files come at once
(`altalign.storage.atomic_change`). Killed before that, the run is the old one, and the same command goes on with
`.adding`.
"""

from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.data import generations, listing
from altalign.data.schema import REMOVED
from altalign.data.stages import REMOVED_FILE, REPORT, STAGES
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines import curate
from altalign.pipelines.change import conclude, follow_scores, remove
from altalign.pipelines.change import generations as growing
from altalign.pipelines.derive import parents, units
from altalign.pipelines.derive.copy_shards import Numbers
from altalign.pipelines.derive.parents import Parent, Shard
from altalign.pipelines.engine.options import check_places, options
from altalign.pipelines.opening import inputs, reopen
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.opening.record import recording
from altalign.pipelines.read import folder as image_folder
from altalign.pipelines.run import marks as vouched
from altalign.pipelines.run.removal_list import of_run
from altalign.pipelines.run.sampled import Grown, has_work
from altalign.pipelines.run.tables.decontaminated import TESTS
from altalign.pipelines.run.tables.extracted import EXTRACTED
from altalign.pipelines.run.tables.fetched import FETCHED
from altalign.pipelines.run.units import Facts, InputFile, Marks, Run
from altalign.pipelines.stages import write
from altalign.settings.curate import OWN_TABLES, CurateConfig
from altalign.storage import atomic_change, parquet
from altalign.storage.atomic_change import ADDING, Change

REFUSED = "refused by altalign add"  # in removed.parquet: why a pair did not come again
_BASE = "base.json"  # beside the run in `.adding`: what it is made of
_GO = ("trial", "clusters", *REPORT)  # rest on the shards as they were


class Wanted(NamedTuple):
    """An addition: inputs; like which one; whether the web may be asked again; whether the run's tables judge."""

    inputs: Sequence[str]
    like: str
    is_fetched_again: bool
    is_frozen: bool = False


class Added(NamedTuple):
    """What came of an addition: shards that are new or written anew, and their bytes; samples that came and went."""

    shards: int
    bytes: int
    came: int
    went: int


# The larger run ------------------------------------------------------------------------------------------------------


def planned(config: CurateConfig, wanted: Wanted) -> tuple[Run, Grown] | None:
    """The run as it is and the larger one, with their input files; None where all files are in the run already.

    Raises:
        UsageError: a file of the run is gone or has changed, or the input is not like those.
    """
    folder = config.run.folder
    before, more = _before(config, {storage.resolved(path) for path in wanted.inputs})
    there = {storage.resolved(_path(file)) for file in before.files}
    new = [path for path in wanted.inputs if storage.resolved(path) not in there]
    grown = _with(before, new, wanted.like)
    found = {storage.resolved(path): path for path in map(_path, grown.files[len(before.files) :])}
    left = [path for resolved, path in found.items() if resolved not in there]
    if not (left or more):
        return None
    if len(left) < len(found):  # files of the run are left out
        grown = _with(before, left, wanted.like)
    values = grown.config.model_dump(mode="json")
    values["run"]["folder"] = inside = storage.join(folder, ADDING, "run")
    values["text"]["tables"] = _tables(before, is_frozen=wanted.is_frozen)
    grown_config = CurateConfig.from_values(values, where="--input")
    of = Grown(inside, grown_config, grown.files, grown.modules, before=folder, more=more)
    return before, of


def _tables(before: Run, *, is_frozen: bool) -> str:
    """By which tables the larger run is judged; an exact addition leaves those that a frozen one has kept."""
    named = before.config.text.tables
    is_own = named == OWN_TABLES or (named and storage.resolved(named) == storage.resolved(before.path("tables")))
    if is_own or not named:
        return OWN_TABLES if is_frozen else ""
    return named


def _path(file: InputFile) -> str:
    return file.part.folder if file.part else file.path


def _with(before: Run, paths: Sequence[str], like: str) -> Run:
    """The run with one more input of these paths, where there are some."""
    if not paths:
        return before
    values, of_run = before.config.model_dump(mode="json"), _like(before, like)
    values["input"].append({**of_run, "name": of_run["name"] or of_run["kind"], "paths": list(paths)})  # one source
    return find_run(CurateConfig.from_values(values, where="--input"), config_path="--input")


def _before(config: CurateConfig, named: Set[str]) -> tuple[Run, tuple[str, ...]]:
    """The run with the input files that it was made of, whatever its globs match by now.

    And which of its folders that are `named` hold other files than they did; these are read as they are now.

    Raises:
        UsageError: one is gone, or has changed.
    """
    folder = config.run.folder
    where = storage.join(folder, "config.toml")
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
                of_input["paths"] = [file.path for file in run.files if file.of == number and file.path in files]
        if all(of_input["paths"] for of_input in values["input"]):
            run = find_run(CurateConfig.from_values(values, where=where), config_path=where)
    there = {file.path: file for file in run.files if not file.part}
    if gone := next((path for path in files if path not in there), None):
        raise UsageError(f"{folder}: its input file {gone} is gone; put it back, for all rows are judged again")
    if [*there] != [*files]:
        raise UsageError(f"{folder}: its input is not what it was; curate old and new input into another folder")
    as_numbered = tuple(replace(file, number=files[path]) for path, file in there.items())
    if changed := reopen.changed_file(replace(run, files=as_numbered), facts):
        raise UsageError(f"{folder}: {changed}; put it back as it was, or curate into another folder")
    if more:
        _check_there(run)
    return run, tuple(sorted(more))


def _check_there(run: Run) -> None:
    """Refuse folders from which images of the run's pairs have gone.

    Raises:
        UsageError: some have.
    """
    there, others = dict[str, set[str]](), {each.source for each in run.config.input if each.kind != "folder"}
    of_folders = {(file.of, file.named): file.part.folder for file in run.files if file.part}
    for (of, named), folder in of_folders.items():
        settings = run.config.input[of]
        if settings.source not in others:
            there.setdefault(settings.source, set()).update(image_folder.row_names(folder, settings, named))
    for shard in parents.opened(run.folder, run.config).shards:
        rows = parquet.read_table(run.path("shards", f"{shard.name}.parquet"), ["source", "source_key"])
        for source, name in zip(*(parquet.values(rows, column) for column in rows.column_names), strict=True):
            if name not in there.get(source, {name}):
                raise UsageError(
                    f"{run.folder}: the image {name} of {source} is gone; put it back under this name, for all "
                    f"rows are judged again, or `altalign remove` its pair"
                )


def _like(run: Run, name: str) -> dict[str, Any]:
    """The settings of the input that a new one is like.

    Raises:
        UsageError: there is none of the name, or several and none is named.
    """
    inputs = run.config.input
    sources = list(dict.fromkeys(each.source for each in inputs))
    alike = {each.model_copy(update={"paths": ["-"], "name": each.source}).model_dump_json() for each in inputs}
    if not name and len(alike) > 1:
        raise UsageError(f"{run.folder}: has inputs {', '.join(sources)}; say with --like which of them this is like")
    if name and name not in sources:
        raise UsageError(f"--like {name}: the run has no such input (there are: {', '.join(sources)})")
    return next(each for each in inputs if not name or each.source == name).model_dump(mode="json")


# Adding --------------------------------------------------------------------------------------------------------------


def add(before: Run, grown: Grown, wanted: Wanted, flags: list[str]) -> Added:
    """Make the larger run, and put it in the place of the other; the caller holds the run's lock."""
    parent = parents.opened(before.folder, before.config)
    _check_fetched(before, wanted)
    pipeline_options = options(grown.config.engine, flags)
    check_places(grown.config)
    inputs.check_tables(grown)
    _prepare(before, grown)
    atomic_change.settle(grown.folder)
    generation = generations.in_manifest(storage.read_json(before.path("manifest.json"))) + 1
    if not grown.is_done(STAGES[-1]):
        grounds = reopen.open_run(grown, rerun=None, is_restart=False)
        try:
            curate.finish(grown, grounds, pipeline_options, until="decontaminate")
        except UsageError:  # nothing can come of this input: the same command would end so again
            storage.delete(storage.join(before.folder, ADDING))
            raise
        with recording(grown, STAGES[-1], grounds[STAGES[-1]]):
            _write(grown, parent, generation, _lineage(before, parent, grown))
    if storage.exists(grown.path(REMOVED_FILE)):
        _refuse(grown, _lineage(before, parent, grown))
    return _switch(before, parent, grown)


def _check_fetched(before: Run, wanted: Wanted) -> None:
    if before.config.fetch.source != "web" or wanted.is_fetched_again or before.finished(FETCHED.step):
        return
    raise UsageError(
        f"{before.folder}: work/ is gone, and with it what came from the web; --fetch-again asks for all images again, "
        "and takes out those that are gone by now"
    )


def _prepare(before: Run, grown: Grown) -> None:
    """Have `.adding` hold what is taken over, unless it is there of an earlier call for the same input."""
    path = storage.join(before.folder, ADDING, _BASE)
    said = {
        "manifest": listing.digest(before.path("manifest.json")).digest,
        "files": [of.path for of in grown.files],
        "parts": [of.part.stamp.to_json() for of in grown.files if of.part],
        "tables": grown.config.text.tables,
    }
    with suppress(UnreadableError):
        if {name: storage.read_sealed(path).get(name) for name in said} == said:
            return
    storage.delete(storage.join(before.folder, ADDING))
    if has_work(before):
        _take_over(before, grown, TESTS)
        as_before = takewhile(lambda file: _path(file) not in grown.more, grown.files)
        _take_over(before, grown, EXTRACTED, {file.name for file in as_before})
    for log in storage.files_below(before.path("log", "fetch")):
        storage.write_bytes(grown.path("log", "fetch", storage.name(log)), storage.read_bytes(log))
    if storage.exists(removed := before.path(REMOVED_FILE)):
        rows = parquet.read_table(removed).cast(REMOVED)
        parquet.write(grown.path(REMOVED_FILE), without_places(rows), REMOVED)
    storage.write_sealed(path, said, durable=grown.config.run.durable)


def _take_over(before: Run, run: Run, marks: Marks[Facts], units: Set[str] | None = None) -> None:
    """Link the files of units of a step, all or these, then their marks."""

    def link(name: str) -> None:
        mark = before.mark(marks.step, name)
        for path in vouched.named(storage.read_sealed(mark)):
            if storage.exists(source := before.path(*path.split("/"))):  # a missing one is made anew
                storage.link(source, run.path(*path.split("/")))
        storage.link(mark, run.mark(marks.step, name))

    names = (name for name in before.finished(marks.step) if units is None or name in units)
    for _ in storage.each(link, list(names), of=run.folder):
        pass


def without_places(rows: pa.Table) -> pa.Table:
    """What was removed (`REMOVED`), without what the counts of an earlier state said of it."""
    rows = rows.filter(pa.array([why != REFUSED for why in rows["because"].to_pylist()], pa.bool_()))
    for name in ("stage", "source", "reason"):
        rows = rows.set_column(rows.column_names.index(name), name, pa.nulls(len(rows), pa.string()))
    return rows


def _lineage(before: Run, parent: Parent, grown: Grown) -> dict[str, Any]:
    new = [*grown.more, *dict.fromkeys(map(_path, grown.files[len(before.files) :]))]
    frozen = {"mode": "frozen"} if grown.config.text.tables else {}
    return conclude.lineage(parent, "add", {"input": new, **frozen})


def _write(grown: Grown, parent: Parent, generation: int, lineage: dict[str, Any]) -> None:
    """Write shards and what comes after them."""
    storage.delete(grown.path("shards"))  # of a command that was killed
    found = growing.compared(grown, parent)
    made = growing.written(grown, parent, found, generation)
    listed = dict(made.files)
    if storage.exists(path := grown.path(REMOVED_FILE)):
        listed[REMOVED_FILE] = listing.digest(path)
    more = {"lineage": lineage, generations.ENTRY: generation}
    grown = replace(grown, untouched=frozenset(name for name, stay in found.stay.items() if stay.all()))
    write.end(grown, made.shards, images=found.images, listed=listed, more=more)


def _refuse(grown: Run, lineage: dict[str, Any]) -> None:
    """Take out of the larger run what was removed from the smaller one."""
    parent = parents.opened(grown.folder, grown.config)
    found = remove.find(parent, of_run(grown.path(REMOVED_FILE)), near=None)
    if found.has_rows:
        run = Run(grown.folder, grown.config, ())
        remove.remove(run, parent, found, by="", because=REFUSED, lineage=lineage)
    if found.has_rows or not grown.config.audit.keep_dropped:
        storage.delete_units([grown.work()])  # it holds what was removed


# The change ----------------------------------------------------------------------------------------------------------


def _switch(before: Run, parent: Parent, grown: Run) -> Added:
    """Have all files of the larger run come that are not the same, and its `work/`; all others go."""
    change = Change(before.folder, durable=before.config.run.durable)
    old, new = listing.read(before.folder), listing.read(grown.folder)
    for name, of in new.items():
        if old.get(name) != of:
            change.take(name, grown.path(*name.split("/")), of)
    logs = {storage.relative(path, grown.folder) or path for path in storage.files_below(grown.path("log", "fetch"))}
    for name in (*listing.CARD, listing.FILE, listing.SETTINGS, "run.json", "manifest.json", *sorted(logs)):
        path = grown.path(*name.split("/"))
        change.take(name, path, listing.digest(path))
    here = {storage.relative(path, before.folder) or path for path in storage.files_below(before.path("log", "fetch"))}
    deleted = [*_GO, *(old.keys() - new.keys()), *(here - logs)]
    now = parents.opened(grown.folder, grown.config)
    stay = _stay(parent, now)
    shards = [(shard.name, shard) for shard in now.shards]
    deleted += follow_scores.follow(change, shards, stay.keys(), partial(follow_scores.of_rows_that_stay, stay))
    has_work = grown.config.run.keep_work and storage.kind(grown.work()) == "folder"
    change.commit([*deleted, *([] if has_work else ["work"])], work=f"{ADDING}/run/work" if has_work else "")
    came = sum(of.rows for of in now.shards) - sum(of.rows for of in parent.shards)
    went = sum(shard.rows - len(numbers) for shard, numbers in stay.values())
    anew = [of for of in now.shards if f"shards/{of.name}.tar" in change.files]
    return Added(len(anew), sum(of.bytes for of in anew), came + went, went)


def _stay(parent: Parent, now: Parent) -> dict[str, tuple[Shard, Numbers]]:
    """The shards of before that differ now or are gone, and the numbers of their rows that stay."""
    after, stay = {shard.name: shard for shard in now.shards}, dict[str, tuple[Shard, Numbers]]()
    for shard in parent.shards:
        there = after.get(shard.name)
        if there is None:
            stay[shard.name] = shard, np.zeros(0, np.int64)
        elif there.sha256 != shard.sha256:
            before, left = (parquet.values(units.sidecar(of, shard, ["key"]), "key") for of in (parent, now))
            stay[shard.name] = shard, np.flatnonzero(np.isin(before, left))
    return stay
