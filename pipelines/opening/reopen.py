"""Opening a run folder: what is already there, whether it fits these settings and files, and what is done anew."""

import os
import platform
import posixpath
from collections.abc import Iterator, Mapping
from typing import cast

from altalign import __version__, storage, terminal
from altalign.data import lineage
from altalign.data.schema import RULES_VERSION, SCHEMA_VERSION
from altalign.data.stages import OF_FETCHED, OUTPUTS, REMOVED_FILE, STAGES, RunRecord, StageRecord, damaged
from altalign.errors import UsageError
from altalign.pipelines.opening import inputs
from altalign.pipelines.opening.inputs_of_stages import OF_TEST_SET, Grounds, grounds_of, resolved
from altalign.pipelines.run import marks as vouched
from altalign.pipelines.run.sampled import SET_ASIDE, Grown, fetched_before, has_work
from altalign.pipelines.run.tables.extracted import EXTRACTED
from altalign.pipelines.run.tables.fetched import FETCHED
from altalign.pipelines.run.tables.judged import GROUPED
from altalign.pipelines.run.units import Run
from altalign.pipelines.web.journal import journal
from altalign.settings.curate import CurateConfig
from altalign.storage import atomic_change
from altalign.terminal import many


def check_finished(run: Run) -> None:
    """Refuse to call a run finished whose files are not those of its manifest.

    Raises:
        DamagedError: a shard is missing or of another size, or the counts are missing.
    """
    path = run.path("manifest.json")
    entries = storage.read_json(path).get("shards")
    if not isinstance(entries, list) or not all(_has(entry, "name", "bytes") for entry in entries):
        raise damaged(run.folder, path, "no shards are in it")
    wanted = {f"shards/{entry['name']}": entry["bytes"] for entry in entries}
    for name, size in {**wanted, "summary.json": None, "counts.parquet": None}.items():
        path = run.path(*name.split("/"))
        if not storage.exists(path):
            raise damaged(run.folder, path, "it is not there")
        if size not in (None, storage.stamp(path).size):
            raise damaged(run.folder, path, f"it has {storage.stamp(path).size:,} bytes, the manifest says {size:,}")


def _has(entry: object, *names: str) -> bool:
    return isinstance(entry, dict) and entry.keys() >= set(names)


def check_folder(run: Run) -> None:
    """Refuse a folder that holds something else, before anything is written to it.

    Raises:
        UsageError: the folder is no run, or no folder.
    """
    above = next(path for path in _upwards(run.folder) if storage.kind(path) != "missing")
    if storage.kind(above) != "folder":
        what = "a file" if above == run.folder else f"{above} is a file"
        raise UsageError(f"{run.folder}: {what}, where the folder of a run is meant; choose another [run] folder")
    if storage.exists(run.path("run.json")):
        atomic_change.settle(run.folder)
        return
    if any(name != "log" and not storage.is_partial(name) for name in storage.entries(run.folder)):
        what = "a folder that is no run of altalign (it has no run.json)"
        raise UsageError(f"{run.folder}: {what}; choose another [run] folder, or empty it")


def _upwards(folder: str) -> Iterator[str]:
    """Yields the folder and those above it, the nearest first; in a store the folder, then the store itself."""
    yield folder
    above = storage.absolute(folder)
    while not storage.is_remote(folder) and posixpath.dirname(above) != above:
        above = posixpath.dirname(above)
        yield above
    if storage.is_remote(folder):
        yield folder.partition("://")[0] + "://" + folder.partition("://")[2].partition("/")[0]


def open_run(run: Run, *, rerun: str | None, is_restart: bool) -> Mapping[str, Grounds]:
    """Open a run for work: refuse it, or delete what is to be done anew; returns what each stage rests on.

    `rerun` names a stage that is run anew with all that follow; "" stands for the first that rests on other settings or
    files.

    Raises:
        UsageError: its finished stages rest on other settings or files.
    """
    grounds = grounds_of(run.config, run.files, run.modules)
    facts = None if is_restart else _facts(run)
    if not facts and storage.exists(run.path("run.json")):
        _check_nothing_comes_back(run)
        storage.delete_units([run.work(SET_ASIDE)])
        forget(run, STAGES[0], is_restart=True)
    recorded = facts["stages"] if facts else {}
    first = _first_anew(run, facts, grounds, rerun)
    if first:
        _check_nothing_comes_back(run)
        if said := _asked_again(run, facts, grounds, first):
            terminal.stderr().print(terminal.shown(said), soft_wrap=True)
        if lost := _lost_test_sets(run, facts):
            sets = ", ".join(map(terminal.shown, lost))
            said = f"near-duplicates of {sets} are no longer looked for: these settings do not name it"
            terminal.stderr().print(said, style="yellow", soft_wrap=True)
        if files := _lost_files(run, facts):
            what = many(len(files), "input file")
            said = f"the pairs of {what} go, which these settings do not name, such as {files[0]}"
            terminal.stderr().print(terminal.shown(said), style="yellow", soft_wrap=True)
        forget(run, first)
        recorded = {stage: recorded[stage] for stage in STAGES[: STAGES.index(first)] if stage in recorded}
    storage.sweep(run.folder)
    if not run.is_done(STAGES[-1]):
        mend(run)
    stamps = facts.get("files", {}) if facts and recorded else {}
    stated: RunRecord = {**of_this_call(run.config, recorded), "files": stamps}
    storage.write_sealed(run.path("run.json"), stated, durable=run.config.run.durable)
    if not run.is_done(STAGES[-1]):  # a finished run keeps the file that its manifest names by digest
        write_settings(run)
    return grounds


def _check_nothing_comes_back(run: Run) -> None:
    """Refuse to run stages anew of a run from which somebody had pairs removed.

    Raises:
        UsageError: somebody had.
    """
    if not isinstance(run, Grown) and storage.exists(path := run.path(REMOVED_FILE)):  # `add` takes them out
        raise UsageError(
            f"{run.folder}: pairs were removed from it, and stages that run anew would bring them back; curate into "
            f"another folder, and there `altalign remove` with --removed {path}"
        )


def mend(run: Run) -> None:
    """Look once at all that earlier calls have left, and have units anew whose files are not as they were written.

    Raises:
        DamagedError: what came from the web is damaged.
    """
    found = vouched.look(run)
    for damage in found:
        if vouched.is_from_the_web(run, damage):
            raise damaged(run.folder, run.path(damage.path), damage.why)
    vouched.unmark(run, found)
    for path, why, _ in found:
        terminal.stderr().print(terminal.shown(f"{run.path(path)}: {why}; it is made anew"), soft_wrap=True)


def of_this_call(config: CurateConfig, recorded: dict[str, StageRecord]) -> RunRecord:
    """What `run.json` says of versions, engine and machine, and of the stages that were recorded."""
    engine = config.engine.model_dump(mode="json")
    return {
        "altalign": __version__,
        "schema_version": SCHEMA_VERSION,
        "rules_version": RULES_VERSION,
        "engine": engine,
        "machine": _machine(),
        "stages": recorded,
    }


def _machine() -> str:
    """The machine that the command runs on, in words."""
    try:
        gigabytes = f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"
    except (AttributeError, ValueError, OSError):  # a system that does not tell
        gigabytes = ""
    size = f"{os.cpu_count() or 1} cores{gigabytes}"
    return f"{platform.system()} {platform.machine()}, {size}, Python {platform.python_version()}"


def write_settings(run: Run) -> None:
    """Write `config.toml`, and the modules with rules of the run's own."""
    with storage.noted() as block:
        storage.write_bytes(run.path("config.toml"), resolved(run.config).encode())
        for module in run.modules:
            storage.write_bytes(run.path(module.kept_as), module.source.encode())
    if run.config.run.durable:
        storage.sync(block)


def reopen(run: Run, stage: str) -> None:
    """Unmark a finished stage, and delete all that rests on it, the manifest first; the stage's units stay."""
    after = STAGES[STAGES.index(stage) + 1 :]
    forget(run, after[0])
    with storage.noted() as block:
        storage.delete(run.mark(stage, "done"))
    storage.sync(block)
    facts = storage.read_sealed(run.path("run.json"))
    facts["stages"] = {name: entry for name, entry in facts["stages"].items() if name not in after}
    if stage in facts["stages"]:
        facts["stages"][stage]["finished"] = None
    storage.write_sealed(run.path("run.json"), facts, durable=run.config.run.durable)
    write_settings(run)


def check_before(run: Run, stage: str | None) -> None:
    """Refuse a run in which a stage before this one, or with None any stage, would have to run anew.

    Raises:
        UsageError: such a stage rests on other settings or files.
    """
    _first_anew(run, _facts(run), grounds_of(run.config, run.files, run.modules), stage)


def is_settled(run: Run, *, rerun: str | None, is_restart: bool) -> bool:
    """Whether the run is finished, rests on these settings and files, and has nothing left to tidy.

    Then nothing is written, so the run need not be locked.

    Raises:
        UsageError: as `open_run`.
    """
    if is_restart or rerun or not run.is_done(STAGES[-1]):
        return False
    if _first_anew(run, _facts(run), grounds_of(run.config, run.files, run.modules), rerun) is not None:
        return False
    left = run.work("temporary") if run.config.run.keep_work else run.path("work")
    # whoever is killed while the report is made, which is after the manifest, leaves a part of a file
    written_last = (*storage.entries(run.folder), *storage.entries(run.path("audit")))
    is_tidy = storage.kind(left) == "missing" and not any(map(storage.is_partial, written_last))
    return is_tidy or not storage.is_writable(run.folder)


def _facts(run: Run) -> RunRecord | None:
    """The content of run.json; None where there is none yet."""
    facts = storage.read_json(run.path("run.json"))
    stages = facts.get("stages", {})
    if not isinstance(stages, dict) or not all(_has(stage, "digest", "reads") for stage in stages.values()):
        raise damaged(run.folder, run.path("run.json"), "no stages are in it")
    return None if not facts or _has_read_nothing(run, stages) else cast(RunRecord, {**facts, "stages": stages})


def _has_read_nothing(run: Run, stages: Mapping[str, object]) -> bool:
    """Whether earlier tries read no row: then their settings and files bind nobody."""
    if stages.keys() != {STAGES[0]} or run.is_done(STAGES[0]):
        return False
    return not any(facts.counts or facts.places for _, facts in run.all_facts(EXTRACTED))


def _first_anew(run: Run, facts: RunRecord | None, grounds: Mapping[str, Grounds], rerun: str | None) -> str | None:
    """The stage to run anew with all that follow: the one asked for, or the first that rests on something else.

    Raises:
        UsageError: a stage is stale, and the call does not ask to run it anew.
    """
    _check_nothing_lost(run, facts, rerun)
    if rerun == STAGES[0]:
        return rerun
    recorded = facts["stages"] if facts else {}
    changed_stages = (name for name in STAGES if name in recorded and recorded[name]["digest"] != grounds[name].digest)
    stale = next(changed_stages, None)
    difference = _difference(recorded[stale]["reads"], grounds[stale].reads) if stale else ""
    if stale != STAGES[0] and (changed := changed_file(run, facts)):
        stale, difference = STAGES[0], changed
    is_asked_for = rerun == "" or (rerun and stale and STAGES.index(rerun) <= STAGES.index(stale))
    if stale and not is_asked_for:
        repair = f"`altalign curate` with --rerun runs {stale} and what follows anew, --restart everything"
        raise UsageError(f"{run.folder}: its stage {stale} was made with {difference}; {repair}")
    return rerun or stale


def planned(run: Run, *, rerun: str | None, is_restart: bool) -> tuple[str | None, str]:
    """The stage that such a call would run anew with all that follow, and a sentence on what the web is asked for.

    Raises:
        UsageError: as `open_run`.
    """
    facts, grounds = None if is_restart else _facts(run), grounds_of(run.config, run.files, run.modules)
    first = STAGES[0] if is_restart else _first_anew(run, facts, grounds, rerun)
    return first, _asked_again(run, facts, grounds, first) if first else ""


def _asked_again(run: Run, facts: RunRecord | None, grounds: Mapping[str, Grounds], first: str) -> str:
    """Which images of the web are asked for by stages that run anew; empty where none were before."""
    before = facts["stages"].get("fetch", {}).get("reads") if facts else None
    if not before or run.config.fetch.source != "web" or STAGES.index(first) > STAGES.index("fetch"):
        return ""
    now, lists = grounds["fetch"].reads, {f"file {name}" for name in run.config.fetch.blocked_domains}
    for name in sorted({*before, *now} - {"fetch.blocked_urls"}):
        if (name.startswith("fetch.") or name in lists) and before.get(name) != now.get(name):
            return f"all images are asked for again: {_difference({name: before.get(name)}, {name: now.get(name)})}"
    units = [storage.join(folder, "work", FETCHED.step) for folder in (run.folder, *fetched_before(run))]
    stems = [[storage.join(of, name) for name in journal.names(of)] for of in units]
    known = max(sum(len(journal.read(stem).outcomes) for stem in of) for of in stems) if has_work(run) else 0
    if not known:
        return "all images are asked for again: work/ is gone, and with it what came from the web"
    return f"{known:,} images came or failed before, and are taken over where their pairs stay; others are asked for"


def forget(run: Run, stage: str, *, is_restart: bool = False) -> None:
    """Delete what this stage and those after it made, the manifest first.

    Images from the web stay with their journals, which say what they rest on: no image is asked for again that may be
    used again. Where a stage before `fetch` is the first, other units will want them: they are set aside.
    """
    stages = STAGES[STAGES.index(stage) :]
    with storage.noted() as block:
        storage.delete(run.path("manifest.json"))
    storage.sync(block)
    kept = vouched.FROM_THE_WEB if stage == "fetch" and run.config.fetch.source == "web" else ()
    if STAGES.index(stage) < STAGES.index("fetch") and not is_restart:
        _set_aside(run)
    anew = [run.work(name) for name in OF_FETCHED] if "fetch" in stages else []
    storage.delete_units([*(run.work(name) for name in reversed(stages)), *anew], but=kept)
    with storage.noted() as block:
        for output in (output for name in stages for output in OUTPUTS[name]):
            if not (output == "tables" and _has_own_tables(run)):
                storage.delete(run.path(output))
    storage.sync(block)
    if "fetch" in stages:  # the history of tries stays; their progress means nothing now
        for name in storage.names(run.path("log", "fetch"), ".json"):
            storage.delete(run.path("log", "fetch", name))


def _has_own_tables(run: Run) -> bool:
    """Whether the settings name the run's own tables, as those of a frozen addition do: these stay."""
    named = inputs.named_tables(run)
    return bool(named) and storage.resolved(named) == storage.resolved(run.path("tables"))


def _set_aside(run: Run) -> None:
    """Give what came from the web one more name, journals last; whoever is killed on the way does it again."""
    number = max((int(name) for name in storage.entries(run.work(SET_ASIDE)) if name.isdecimal()), default=-1) + 1
    folder = run.work(SET_ASIDE, f"{number:06d}")
    for step, ending in ((GROUPED.step, ".parquet"), (FETCHED.step, ".images"), (FETCHED.step, ".journal")):
        if not has_work(run) or not journal.names(run.work(FETCHED.step)):
            return

        def link(name: str, step: str = step) -> None:
            storage.link(run.work(step, name), storage.join(folder, "work", step, name))

        for _ in storage.each(link, storage.names(run.work(step), ending), of=run.folder):
            pass


def _check_nothing_lost(run: Run, facts: RunRecord | None, rerun: str | None) -> None:
    """Refuse settings that do not name all input files and test sets of the run, those that came later too.

    Whoever names the stage that reads them may go on without; not where the settings are those before an addition.

    Raises:
        UsageError: some are missing.
    """
    lost, sets = _lost_files(run, facts), _lost_test_sets(run, facts)
    of_files, of_sets = f"--rerun {STAGES[0]}", "--rerun decontaminate"
    if lost and all(_known_as(file.path) in _recorded_files(facts) for file in run.files):
        of_files = "--restart" if lineage.has(run.folder, "add") else of_files
    lost = [] if of_files == f"--rerun {rerun}" else lost
    sets = [] if rerun and STAGES.index(rerun) <= STAGES.index("decontaminate") else sets
    if not (lost or sets):
        return
    files = _recorded_files(facts)
    here = f"{len(lost):,} of " * (len(lost) < len(files)) + f"the run's {many(len(files), 'input file')}"
    what = [f"{here} ({', '.join(lost[:3])}{', …' if len(lost) > 3 else ''})"] if lost else []
    what += [f"the test set{'s' * (len(sets) > 1)} {', '.join(sets)}"] if sets else []
    goes = ["takes the pairs of these files out"] if lost else []
    goes += ["lets near-duplicates of test images back in"] if sets else []
    keep = terminal.command("curate", run.path("config.toml"), "--rerun")
    raise UsageError(
        f"{run.folder}: these settings do not name {' and '.join(what)}; `{keep}` keeps them, and "
        f"{of_files if lost else of_sets} with these settings {' and '.join(goes)}"
    )


def _known_as(path: str) -> str:
    """A file, or the folder that it is a part of, whatever its spelling."""
    folder, number = path.rpartition("#")[::2]
    return storage.resolved(folder if folder and number.isdecimal() else path)


def _recorded_files(facts: RunRecord | None) -> dict[str, str]:
    """The input files that `extract` has read, or was to read, by what they are known as."""
    reads = facts["stages"].get(STAGES[0], {}).get("reads", {}) if facts else {}
    return {_known_as(path): path for path in cast(list[str], reads.get("files", []))}


def _lost_files(run: Run, facts: RunRecord | None) -> list[str]:
    """Input files that the run has, and that its settings no longer name."""
    now = {_known_as(file.path) for file in run.files}
    return [path for known, path in _recorded_files(facts).items() if known not in now]


def _lost_test_sets(run: Run, facts: RunRecord | None) -> list[str]:
    """Names of the test sets that the run was decontaminated against, and that its settings no longer name."""
    before = facts["stages"].get("decontaminate", {}).get("reads", {}) if facts else {}
    names = [name.removeprefix(OF_TEST_SET) for name in before if name.startswith(OF_TEST_SET)]
    return [name for name in names if name not in {test_set.name for test_set in run.config.decontaminate.named_sets}]


def _difference(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """The first setting or file that differs, in words."""
    for name in [*now, *before]:
        old, new = before.get(name, "absent"), now.get(name, "absent")
        if isinstance(old, list) and isinstance(new, list) and name == "files" and old != new:
            other = sorted(set(old) ^ set(new))
            how = f"such as {other[0]}" if other else "in another order"
            return f"{len(old)} input file{'s' * (len(old) != 1)}, now {len(new)} ({how})"
        if old != new:
            return f"{name} = {old!r}, now {new!r}"
    return "other results of the stages before it"


def changed_folder(path: str) -> str:
    """A folder of an input that is not what it was, in words."""
    return f"the folder {path}, in which files came, went or changed since"


def changed_file(run: Run, facts: RunRecord | None) -> str:
    """The first finished input file that has changed, in words; empty where there is none."""
    marks, stamps = dict(run.all_facts(EXTRACTED)), facts.get("files", {}) if facts else {}
    for file, stamp in zip(run.files, run.stamps(), strict=True):
        before = marks[file.name].stamp if file.name in marks else stamps.get(file.path)
        now = stamp.to_json()
        if before and before != now and file.part:
            return changed_folder(file.part.folder)
        if before and before != now:
            if before[0] != now[0]:
                return f"the file {file.path} of {before[0]:,} bytes, now {now[0]:,}"
            of_bytes = "digest in the store" if storage.is_remote(file.path) else "content"
            other = of_bytes if stamp.digest else "time of change"
            return f"the file {file.path} of the same size, but another {other} now"
    return ""
