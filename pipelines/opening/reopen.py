"""Opening a run folder: what its stages rest on, whether that fits these settings and files, and what is done anew."""

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from altalign import __version__, storage, terminal
from altalign.data import lineage
from altalign.data.schema import ROWS_VERSION, RULES_VERSION, SCHEMA_VERSION
from altalign.data.stages import OF_FETCHED, OUTPUTS, REMOVED_FILE, STAGES, RunRecord, StageRecord, damaged
from altalign.errors import AltalignError, UsageError
from altalign.filters.reservations import product_token
from altalign.pipelines.images import calibration_files
from altalign.pipelines.opening.find import named_tables
from altalign.pipelines.read import test_sets
from altalign.pipelines.run import marks, units
from altalign.pipelines.run.image_tables import FETCHED
from altalign.pipelines.run.text_tables import EXTRACTED, GROUPED
from altalign.pipelines.run.units import Grown, InputFile, Module, Run
from altalign.pipelines.web import journal
from altalign.rules import own
from altalign.settings.common import dump, flatten, stage_of
from altalign.settings.curate import CurateConfig
from altalign.storage import atomic_change
from altalign.terminal import many

OF_TEST_SET = "files of test set "  # begins the name under which the files of a test set are recorded


class Grounds(NamedTuple):
    """What a stage's result rests on, and a digest of that and of the grounds of all stages before it."""

    reads: Mapping[str, object]
    digest: str


def grounds_of(config: CurateConfig, files: Sequence[InputFile], modules: Sequence[Module] = ()) -> dict[str, Grounds]:
    """The grounds of every stage, in the order of stages."""
    reads: dict[str, dict[str, object]] = {stage: {} for stage in STAGES}
    versions = {"schema_version": ROWS_VERSION, "rules_version": RULES_VERSION, "work_version": units.WORK_VERSION}
    reads["extract"] |= versions
    reads["write"]["schema_version"] = SCHEMA_VERSION
    for name, value in flatten(config.model_dump(mode="json")):
        if (stage := stage_of(CurateConfig, name)) is not None:
            reads[stage if stage in STAGES else "write"][name] = value
    if any(each.kind in ("warc", "wat") for each in config.input):  # whose pages may address this robot by its name
        reads["extract"]["robot of fetch.user_agent"] = product_token(config.fetch.user_agent_sent)
    reads["extract"]["files"] = [file.path for file in files]
    of_fetch = [*units.files_named(config), *config.fetch.blocked_domains, *config.fetch.blocked_urls]
    of_calibration = calibration_files.files_of(config.decontaminate.calibration)
    for module in modules:
        for stage, entries in (("judge", config.text.filters), ("fetch", config.image.filters)):
            if any(entry.startswith(f"{module.name}:") for entry in entries):
                reads[stage][f"module {module.name}"] = module.digest
    for test_set in config.decontaminate.named_sets:
        stamps = list(test_sets.stamps(test_sets.parts(test_set)))
        reads["decontaminate"][f"{OF_TEST_SET}{test_set.name}"] = units.digest(stamps)
    for stage, names in (("fetch", of_fetch), ("decontaminate", of_calibration)):
        reads[stage] |= {f"file {name}": units.content(name) for name in names}
    grounds, before = dict[str, Grounds](), ""
    for stage in STAGES:
        before = hashlib.sha256((before + json.dumps(reads[stage], sort_keys=True)).encode()).hexdigest()
        grounds[stage] = Grounds(reads[stage], before)
    return grounds


def resolved(config: CurateConfig) -> str:
    """The content of `config.toml`: the resolved settings, defaults included, without [engine] and run.folder."""
    return dump(config.model_dump(mode="json", exclude={"engine": True, "run": {"folder"}}))


@contextmanager
def recording(run: Run, stage: str, grounds: Grounds) -> Iterator[None]:
    """Record in run.json what a stage rests on before it begins, and how long it took."""
    facts = cast(RunRecord, storage.read_sealed(run.path("run.json")))
    before, now = facts["stages"].get(stage, {}), lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry: StageRecord = {
        "digest": grounds.digest,
        "reads": dict(grounds.reads),
        "attempts": before.get("attempts", 0) + 1,
        "started": now(),
        "finished": None,
        "seconds": before.get("seconds", 0.0),
    }
    facts["stages"][stage] = entry
    storage.write_sealed(run.path("run.json"), facts, durable=run.config.run.durable)
    begin, suppressed = time.monotonic(), (OSError, AltalignError)  # the user has to see the first error
    try:
        yield
        entry["finished"] = now()
        if stage == STAGES[0]:
            extracted = dict(run.all_facts(EXTRACTED))
            facts["files"] = {file.path: extracted[file.name].stamp for file in run.files}
        suppressed = ()
    finally:
        entry["seconds"] = round(entry["seconds"] + time.monotonic() - begin, 2)
        with suppress(*suppressed):
            storage.write_sealed(run.path("run.json"), facts, durable=run.config.run.durable)


def check_finished(run: Run) -> None:
    """Refuse to call a run finished whose files are not those of its manifest.

    Raises:
        DamagedError: a shard is missing or of another size, or the counts are missing.
    """
    path = run.path("manifest.json")
    try:
        sizes = {f"shards/{entry['name']}": entry["bytes"] for entry in storage.read_json(path)["shards"]}
    except (KeyError, TypeError):
        raise damaged(run.folder, path, "no shards are in it") from None
    for name, size in {**sizes, "summary.json": None, "counts.parquet": None}.items():
        path = run.path(*name.split("/"))
        if not storage.exists(path):
            raise damaged(run.folder, path, "it is not there")
        if size not in (None, storage.stamp(path).size):
            raise damaged(run.folder, path, f"it has {storage.stamp(path).size:,} bytes, the manifest says {size:,}")


def check_folder(run: Run) -> None:
    """Refuse a folder that holds something else, or is none, before anything is written to it."""
    if storage.kind(run.folder) not in ("folder", "missing"):
        raise UsageError(f"{run.folder}: a file, where the folder of a run is meant; choose another [run] folder")
    if not storage.is_remote(run.folder):
        above = next((str(each) for each in Path(storage.absolute(run.folder)).parents if each.exists()), "/")
        if storage.kind(above) != "folder":
            what = f"{above} is a file, where the folder of a run is meant"
            raise UsageError(f"{run.folder}: {what}; choose another [run] folder")
    if storage.exists(run.path("run.json")):
        atomic_change.settle(run.folder)
    elif any(name != "log" and not storage.is_partial(name) for name in storage.entries(run.folder)):
        what = "a folder that is no run of altalign (it has no run.json)"
        raise UsageError(f"{run.folder}: {what}; choose another [run] folder, or empty it")


class Decision(NamedTuple):
    """What a call does with what is there; `record` is run.json, None where it binds nobody."""

    record: RunRecord | None
    grounds: Mapping[str, Grounds]
    first: str | None  # the stage that runs anew with all that follow
    is_all: bool = False  # all is deleted, what came from the web too


def decide(run: Run, *, rerun: str | None, is_restart: bool = False) -> Decision:
    """Decide which stages run anew; nothing is written.

    | What is there                  | no `--rerun` | `--rerun` | `--rerun STAGE`                      | `--restart` |
    |--------------------------------|--------------|-----------|--------------------------------------|-------------|
    | no stage that has read a row   | all          | all       | all                                  | all         |
    | stages that fit the call       | none         | none      | from STAGE                           | all         |
    | stage S rests on other things  | an error     | from S    | from STAGE, or an error: S is before | all         |
    | more input than settings name  | an error     | an error  | from extract, unless it was added    | all         |
    | more test sets than these name | an error     | an error  | from one up to decontaminate         | all         |

    Raises:
        UsageError: a stage is stale and the call does not ask to run it anew, or files or test sets would be lost.
    """
    record, grounds = None if is_restart else _record(run), grounds_of(run.config, run.files, run.modules)
    if record is None:
        is_all = storage.exists(run.path("run.json"))
        return Decision(None, grounds, STAGES[0] if is_all else None, is_all=is_all)
    recorded, now = record["stages"], {_known_as(file.path) for file in run.files}
    recorded_files = cast(list[str], recorded.get(STAGES[0], {}).get("reads", {}).get("files", []))
    files = {_known_as(path): path for path in recorded_files}
    named = {f"{OF_TEST_SET}{test_set.name}" for test_set in run.config.decontaminate.named_sets}
    sets = [name for name in recorded.get("decontaminate", {}).get("reads", {}) if name.startswith(OF_TEST_SET)]
    for stage, what, lost in (
        (STAGES[0], "input", [path for known, path in files.items() if known not in now]),
        ("decontaminate", "test set", [name.removeprefix(OF_TEST_SET) for name in sets if name not in named]),
    ):
        was_added = what == "input" and now <= files.keys() and lineage.has(run.folder, "add")
        if lost and (was_added or not (rerun and STAGES.index(rerun) <= STAGES.index(stage))):
            way = "--restart" if was_added else f"--rerun {stage}"
            keep = f"`{terminal.command('curate', run.path('config.toml'), '--rerun')}` keeps what the run has"
            if what == "input" and (gone := [path for path in lost if storage.kind(_known_as(path)) == "missing"]):
                lost, keep = gone, f"put back what is gone, {gone[0]}"
            raise UsageError(
                f"{run.folder}: these settings do not name the {what} {', '.join(lost[:3])}{', …' * (len(lost) > 3)}; "
                f"{keep}, and {way} with these settings goes on without"
            )
    stale, difference = _stale(recorded, grounds)
    if rerun != STAGES[0] and stale != STAGES[0] and (changed := changed_file(run, record)):
        stale, difference = STAGES[0], changed
    if stale and not (rerun == "" or (rerun and STAGES.index(rerun) <= STAGES.index(stale))):
        repair = f"`altalign curate` with --rerun runs {stale} and what follows anew, --restart everything"
        raise UsageError(f"{run.folder}: its stage {stale} was made with {difference}; {repair}")
    return Decision(record, grounds, rerun or stale or None)


def check_fetched(run: Run) -> None:
    """Refuse a run whose images are not fetched, or were with other settings, files or versions."""
    if not run.is_done("fetch"):
        raise UsageError(f"{run.folder}: its images are not fetched yet; `altalign curate` with --until fetch does it")
    recorded = cast(RunRecord, storage.read_json(run.path("run.json")))["stages"]
    files = cast(list[str], recorded[STAGES[0]]["reads"]["files"])
    modules = own.modules(run.config, run.path("config.toml"))
    grounds = grounds_of(run.config, [InputFile(number, path, 0) for number, path in enumerate(files)], modules)
    stale, difference = _stale({name: recorded[name] for name in STAGES[: STAGES.index("decontaminate")]}, grounds)
    if stale:
        repair = "`altalign curate` with --rerun makes its images anew"
        raise UsageError(f"{run.folder}: its stage {stale} was made with {difference}; {repair}")


def _record(run: Run) -> RunRecord | None:
    """The content of run.json; None where there is none yet, or earlier tries have read no row."""
    facts = storage.read_json(run.path("run.json"))
    stages = facts.get("stages", {})
    if not isinstance(stages, dict) or not all(
        isinstance(stage, dict) and stage.keys() >= {"digest", "reads"} for stage in stages.values()
    ):
        raise damaged(run.folder, run.path("run.json"), "no stages are in it")
    if stages.keys() == {STAGES[0]} and not run.is_done(STAGES[0]):
        has_read = any(facts.counts or facts.places for _, facts in run.all_facts(EXTRACTED))
        return cast(RunRecord, facts) if has_read else None
    return cast(RunRecord, {**facts, "stages": stages}) if facts else None


def _known_as(path: str) -> str:
    """A file, or the folder that it is a part of, whatever its spelling."""
    folder, number = path.rpartition("#")[::2]
    return storage.resolved(folder if folder and number.isdecimal() else path)


def _stale(recorded: Mapping[str, StageRecord], grounds: Mapping[str, Grounds]) -> tuple[str, str]:
    """The first recorded stage that rests on other things now, and the first of these in words; empty where none."""
    for stage in (name for name in STAGES if name in recorded):
        if recorded[stage]["digest"] != grounds[stage].digest:
            difference = _difference(recorded[stage]["reads"], grounds[stage].reads)
            return stage, difference or "other results of the stages before it"
    return "", ""


def _difference(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """The first setting or file that differs, in words; empty where none does."""
    for name in [*now, *before]:
        old, new = before.get(name, "absent"), now.get(name, "absent")
        if name == "files" and isinstance(old, list) and isinstance(new, list) and old != new:
            other = sorted(set(old) ^ set(new))
            how = f"such as {other[0]}" if other else "in another order"
            return f"{many(len(old), 'input file')}, now {len(new)} ({how})"
        if old != new:
            return f"{name} = {old!r}, now {new!r}"
    return ""


def changed_file(run: Run, record: RunRecord | None) -> str:
    """The first finished input file that has changed, in words; empty where there is none."""
    extracted, stamps = dict(run.all_facts(EXTRACTED)), record.get("files", {}) if record else {}
    for file, stamp in zip(run.files, run.stamps(), strict=True):
        before = extracted[file.name].stamp if file.name in extracted else stamps.get(file.path)
        now = stamp.to_json()
        if before and before != now:
            if file.part:
                return changed_folder(file.part.folder)
            if before[0] != now[0]:
                return f"the file {file.path} of {before[0]:,} bytes, now {now[0]:,}"
            other = "content" if stamp.digest else "time of change"
            return f"the file {file.path} of the same size, but another {other} now"
    return ""


def changed_folder(path: str) -> str:
    """A folder of an input that is not what it was, in words."""
    return f"the folder {path}, in which files came, went or changed since"


def open_run(run: Run, *, rerun: str | None, is_restart: bool) -> Mapping[str, Grounds]:
    """Open a run for work: delete what is to be done anew (`decide`); returns what each stage rests on.

    Raises:
        UsageError: as `decide`, or pairs were removed that would come back.
    """
    decision = decide(run, rerun=rerun, is_restart=is_restart)
    record, grounds, first = decision.record, decision.grounds, decision.first
    # pairs that somebody had removed must not come back; `add` takes them out again
    if first and not isinstance(run, Grown) and storage.exists(path := run.path(REMOVED_FILE)):
        raise UsageError(
            f"{run.folder}: pairs were removed from it, and stages that run anew would bring them back; curate into "
            f"another folder, and there `altalign remove` with --removed {path}"
        )
    recorded = record["stages"] if record else {}
    if decision.is_all:
        storage.delete_units([run.work(units.SET_ASIDE)])
        forget(run, STAGES[0], is_restart=True)
    elif first and record:
        forget(run, first)
        recorded = {stage: recorded[stage] for stage in STAGES[: STAGES.index(first)] if stage in recorded}
    storage.sweep(run.folder)
    if not run.is_done(STAGES[-1]):
        mend(run)
    stamps = record.get("files", {}) if record and recorded else {}
    stated: RunRecord = {**of_this_call(run.config, recorded), "files": stamps}
    storage.write_sealed(run.path("run.json"), stated, durable=run.config.run.durable)
    if not run.is_done(STAGES[-1]):  # a finished run keeps the file that its manifest names by digest
        write_settings(run)
    return grounds


def is_settled(run: Run, *, rerun: str | None, is_restart: bool) -> bool:
    """Whether the run is finished, fits these settings and files, and has nothing to tidy: then nothing is written."""
    if is_restart or rerun or not run.is_done(STAGES[-1]) or decide(run, rerun=rerun).first is not None:
        return False
    left = (run.work("temporary"), run.work(units.DISCARDED)) if run.config.run.keep_work else (run.path("work"),)
    # whoever is killed while the report is made, which is after the manifest, leaves a part of a file
    written_last = (*storage.entries(run.folder), *storage.entries(run.path("audit")))
    is_tidy = all(storage.kind(path) == "missing" for path in left) and not any(map(storage.is_partial, written_last))
    return is_tidy or not storage.is_writable(run.folder)


def forget(run: Run, stage: str, *, is_restart: bool = False) -> None:
    """Delete what this stage and those after it made, the manifest first; a disk does so while the stages run anew.

    Images from the web stay with their journals, which say what they rest on: no image is asked for again that may be
    used again. Where a stage before `fetch` is the first, other units will want them: they are set aside.
    """
    stages = STAGES[STAGES.index(stage) :]
    marks.delete_files([run.path("manifest.json")])
    kept = marks.FROM_THE_WEB if stage == "fetch" and run.config.fetch.source == "web" else ()
    if STAGES.index(stage) < STAGES.index("fetch") and not is_restart:
        _set_aside(run)
    anew = [run.work(name) for name in OF_FETCHED] if "fetch" in stages else []
    made = [*(run.work(name) for name in reversed(stages)), *anew]
    discard = partial(storage.discard, folder=run.work(units.DISCARDED))
    storage.delete_units(made, but=kept) if kept else discard(made)
    named = named_tables(run)  # the run's own, as of a frozen addition, stay
    has_own_tables = bool(named) and storage.resolved(named) == storage.resolved(run.path("tables"))
    outputs = [output for name in stages for output in OUTPUTS[name]]
    discard([run.path(output) for output in outputs if not (output == "tables" and has_own_tables)])
    if "fetch" in stages:  # the history of tries stays; their progress means nothing now
        for name in storage.names(run.path("log", "fetch"), ".json"):
            storage.delete(run.path("log", "fetch", name))


def _set_aside(run: Run) -> None:
    """Give what came from the web one more name, journals last; whoever is killed on the way does it again."""
    if not units.has_work(run) or not journal.names(run.work(FETCHED.step)):
        return
    number = max((int(name) for name in storage.entries(run.work(units.SET_ASIDE)) if name.isdecimal()), default=-1) + 1
    folder = run.work(units.SET_ASIDE, f"{number:06d}", "work")
    for step, ending in ((GROUPED.step, ".parquet"), (FETCHED.step, ".images"), (FETCHED.step, ".journal")):
        names = storage.names(run.work(step), ending)
        links = [(run.work(step, name), storage.join(folder, step, name)) for name in names]
        list(storage.each(lambda link: storage.link(*link), links, place=run.folder))


def mend(run: Run) -> None:
    """Look once at all that earlier calls have left, and have units anew whose files are not as they were written."""
    damages = marks.look(run)
    for damage in damages:
        if marks.is_from_the_web(run, damage):
            raise damaged(run.folder, run.path(damage.path), damage.why)
    marks.unmark(run, damages)
    for path, why, _ in damages:
        terminal.stderr().print(terminal.shown(f"{run.path(path)}: {why}; it is made anew"), soft_wrap=True)


def of_this_call(config: CurateConfig, recorded: dict[str, StageRecord]) -> RunRecord:
    """What `run.json` says of versions, engine and machine, and of the stages that were recorded."""
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    size = f"{os.cpu_count() or 1} cores, {gigabytes:.0f} GB"
    return {
        "altalign": __version__,
        "schema_version": SCHEMA_VERSION,
        "rules_version": RULES_VERSION,
        "engine": config.engine.model_dump(mode="json"),
        "machine": f"{platform.system()} {platform.machine()}, {size}, Python {platform.python_version()}",
        "stages": recorded,
    }


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
    marks.delete_files([run.end(stage)])
    facts = storage.read_sealed(run.path("run.json"))
    facts["stages"] = {name: entry for name, entry in facts["stages"].items() if name not in after}
    if stage in facts["stages"]:
        facts["stages"][stage]["finished"] = None
    storage.write_sealed(run.path("run.json"), facts, durable=run.config.run.durable)
    write_settings(run)
