"""Opening a run folder: what is already there, whether it fits these settings and files, and what is to be done anew."""

import os
import platform
import posixpath
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from altalign import __version__, storage, terminal
from altalign.counts import Counts
from altalign.curation import CurateConfig
from altalign.errors import AltalignError, UsageError
from altalign.failed import FailedCounts
from altalign.pipelines import read
from altalign.pipelines.images import calibration_files, measuring
from altalign.pipelines.read import test_sets
from altalign.pipelines.run.units import OF_TEST_SET, Basis, Grounds, InputFile, Run, resolved
from altalign.pipelines.web.allowed.domains import Domains
from altalign.reasons import Stage
from altalign.schema import RULES_VERSION, SCHEMA_VERSION
from altalign.stages import OF_FETCHED, OUTPUTS, STAGES, damaged

# What counts rows for which stage.
COUNTED = {
    "extract": ("extract",),
    "tables": (),
    "judge": ("judge/units", "judge/grouped"),
    "fetch": ("fetch/units",),
    "decontaminate": ("decontaminate/units",),
    "write": (),
}
FROM_THE_WEB = (".images", ".journal")  # endings of files
COUNTED_STAGES = (Stage.EXTRACT, Stage.JUDGE, Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE)


def find_run(config: CurateConfig, *, config_path: str) -> Run:
    """The run of these settings, its input files found and checked; nothing is written.

    Raises:
        UsageError: no file matches, a file has not the columns that are named, or a list or a model cannot be read.
    """
    _check(config.run.folder, f"{config_path} [run] folder")
    files: list[InputFile] = []
    for number, settings in enumerate(config.input):
        found = [path for pattern in settings.paths for path in _matching(pattern, config_path)]
        paths = sorted(dict.fromkeys(found))
        for path in paths:
            _check_file(path, config.run.folder, f"{config_path} [input] paths")
        read.check(paths, settings)
        files += [InputFile(len(files) + i, path, number) for i, path in enumerate(paths)]
    hooks = measuring.hooks_of(config)
    for test_set in config.decontaminate.named_sets:
        if storage.is_inside(config.run.folder, test_set.path):
            raise UsageError(
                f"[decontaminate] test_sets: {test_set.path}: the run's own folder {config.run.folder} is in it; keep test set and run apart"
            )
        for folder in sorted({storage.folder_of(path) for part in test_sets.parts(test_set) for path in part.paths}):
            _check_apart(folder, config.run.folder, f"[decontaminate] test_sets: {folder}")
    if config.decontaminate.calibration:
        calibration_files.named(config.decontaminate.calibration, hooks.embedder)
        _check_apart(
            config.decontaminate.calibration,
            config.run.folder,
            f"[decontaminate] calibration = {config.decontaminate.calibration!r}",
        )
    if config.fetch.source == "web":
        Domains.load(config.fetch.blocked_domains)
    return Run(config.run.folder, config, tuple(files))


def _matching(pattern: str, config_path: str) -> list[str]:
    """The files of a glob; a path that is there as it is written is itself, whatever brackets it has."""
    _check(pattern, f"{config_path} [input] paths")
    found = storage.find(pattern)
    if not found and storage.is_remote(pattern):
        raise UsageError(
            f"{config_path} [input] paths: nothing matches {pattern!r}; look at what is there, and whether it may be listed"
        )
    if not found:
        raise UsageError(
            f"{config_path} [input] paths: nothing matches {pattern!r} (from {Path.cwd()}); give paths relative to the working directory"
        )
    return found


def _check(path: str, where: str) -> None:
    try:
        storage.check(path)
        os.fsencode(path)
    except UnicodeEncodeError:
        raise UsageError(
            f"{where}: the file system cannot have a name like {path!r} in this locale; set LC_ALL=C.UTF-8, or rename it"
        ) from None
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _check_file(path: str, run_folder: str, where: str) -> None:
    """Refuse what is no plain file of somebody else's."""
    kind = storage.kind(path)
    if kind == "folder":
        raise UsageError(f"{where}: {path} is a folder, where a file is meant; name its files, such as {path}/*")
    if kind == "other":
        raise UsageError(f"{where}: {path} is no regular file (a pipe or a device); write it to a file first")
    if storage.is_inside(path, run_folder):
        raise UsageError(f"{where}: {path} is in the run's own folder {run_folder}; keep input and run apart")
    if not path.isprintable() or any("\ud800" <= character <= "\udfff" for character in path):
        raise UsageError(f"{where}: {path!r} has a name that is not UTF-8 or holds control characters; rename it")


def _check_apart(path: str, run_folder: str, where: str) -> None:
    """Refuse a folder that decontamination reads where the run makes and deletes files of its own."""
    if storage.is_inside(path, run_folder):
        raise UsageError(
            f"{where}: in the run's own folder {run_folder}, whose files are made anew; copy it to another place, and name that"
        )


def check_finished(run: Run) -> None:
    """Refuse to call a run finished whose files are not those of its manifest.

    Raises:
        DamagedError: a shard is missing or of another size, or the counts are missing.
    """
    path = run.path("manifest.json")
    entries = storage.read_json(path).get("shards")
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and {"name", "bytes"} <= entry.keys() for entry in entries
    ):
        raise damaged(run.folder, path, "no shards are in it")
    wanted = {f"shards/{entry['name']}": entry["bytes"] for entry in entries} | dict.fromkeys(
        ("summary.json", "counts.parquet")
    )
    for name, size in wanted.items():
        path = run.path(*name.split("/"))
        if not storage.exists(path):
            raise damaged(run.folder, path, "it is not there")
        if size not in (None, storage.stamp(path).size):
            raise damaged(run.folder, path, f"it has {storage.stamp(path).size:,} bytes, the manifest says {size:,}")


def check_folder(run: Run) -> None:
    """Refuse a folder that holds something else, before anything is written to it.

    Raises:
        UsageError: the folder is no run, or no folder.
    """
    above = next(path for path in _upwards(run.folder) if storage.kind(path) != "missing")
    if storage.kind(above) != "folder":
        what = "a file" if above == run.folder else f"{above} is a file"
        raise UsageError(f"{run.folder}: {what}, where the folder of a run is meant; choose another [run] folder")
    if not storage.exists(run.path("run.json")) and any(
        name != "log" and not storage.is_partial(name) for name in storage.entries(run.folder)
    ):
        raise UsageError(
            f"{run.folder}: a folder that is no run of altalign (it has no run.json); choose another [run] folder, or empty it"
        )


def _upwards(folder: str) -> Iterator[str]:
    """The folder, and those above it, the nearest first; of a store itself alone, for names of objects need no folder."""
    yield folder
    above = storage.absolute(folder)
    while not storage.is_remote(folder) and posixpath.dirname(above) != above:
        above = posixpath.dirname(above)
        yield above
    if storage.is_remote(folder):
        yield folder.partition("://")[0] + "://" + folder.partition("://")[2].partition("/")[0]


def open_run(run: Run, *, rerun: str | None, is_restart: bool) -> Mapping[str, Grounds]:
    """Make the folder fit to be worked on: refuse, or delete what is to be done anew; returns what each stage rests on.

    `rerun` is a stage that is to be run anew, with what follows; an empty one is the first that rests on other settings
    or files.

    Raises:
        UsageError: its finished stages rest on other settings or files.
    """
    grounds = Basis(run.config, run.files).of
    if is_restart:
        forget(run, STAGES[0])
    facts = {} if is_restart else _facts(run)
    recorded: dict[str, Any] = facts.get("stages", {})
    first = _first_anew(run, facts, grounds, rerun)
    if first:
        if lost := _lost_test_sets(run, facts):
            said = f"near-duplicates of {', '.join(map(terminal.shown, lost))} are no longer looked for: these settings do not name it"
            terminal.stderr().print(said, style="yellow", soft_wrap=True)
        forget(run, first)
        recorded = {stage: recorded[stage] for stage in STAGES[: STAGES.index(first)] if stage in recorded}
    storage.sweep(run.folder)
    engine = run.config.engine.model_dump(mode="json")
    versions = {"altalign": __version__, "schema_version": SCHEMA_VERSION, "rules_version": RULES_VERSION}
    stamps = facts.get("files", {}) if recorded else {}
    storage.write_json(
        run.path("run.json"), {**versions, "engine": engine, "machine": _machine(), "stages": recorded, "files": stamps}
    )
    if not run.is_done(STAGES[-1]):  # a finished run keeps the file that its manifest names by digest
        _write_settings(run)
    return grounds


def _machine() -> str:
    """What the command runs on, in words."""
    try:
        gigabytes = f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"
    except (AttributeError, ValueError, OSError):  # a system that does not tell
        gigabytes = ""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count() or 1} cores{gigabytes}, Python {platform.python_version()}"


def _write_settings(run: Run) -> None:
    storage.write_bytes(run.path("config.toml"), resolved(run.config).encode())


def reopen(run: Run, stage: str) -> None:
    """Make a stage one that is not done, with all its units as they are; what rests on it is deleted, the manifest first."""
    after = STAGES[STAGES.index(stage) + 1 :]
    forget(run, after[0])
    storage.delete(run.mark(stage, "done"))
    facts = storage.read_json(run.path("run.json"))
    facts["stages"] = {name: entry for name, entry in facts["stages"].items() if name not in after}
    if stage in facts["stages"]:
        facts["stages"][stage]["finished"] = None
    storage.write_json(run.path("run.json"), facts)
    _write_settings(run)


def check_before(run: Run, stage: str) -> None:
    """Refuse where a stage before this one would have to run anew.

    Raises:
        UsageError: it rests on other settings or files than these.
    """
    _first_anew(run, _facts(run), Basis(run.config, run.files).of, stage)


def is_settled(run: Run, *, rerun: str | None, is_restart: bool) -> bool:
    """Whether the run is finished, rests on these settings and files, and has nothing left to tidy: then nothing is written, nor need it be locked.

    Raises:
        UsageError: as `open_run`.
    """
    if is_restart or rerun or not run.is_done(STAGES[-1]):
        return False
    if _first_anew(run, _facts(run), Basis(run.config, run.files).of, rerun) is not None:
        return False
    is_tidy = storage.kind(run.work("temporary")) == "missing" and (
        run.config.run.keep_work or storage.kind(run.path("work")) == "missing"
    )
    return is_tidy or not storage.is_writable(run.folder)


def _facts(run: Run) -> dict[str, Any]:
    """run.json; empty where there is none yet."""
    facts = storage.read_json(run.path("run.json"))
    stages = facts.get("stages", {})
    if not isinstance(stages, dict) or not all(
        isinstance(stage, dict) and {"digest", "reads"} <= stage.keys() for stage in stages.values()
    ):
        raise damaged(run.folder, run.path("run.json"), "no stages are in it")
    return facts


def _first_anew(run: Run, facts: Mapping[str, Any], grounds: Mapping[str, Grounds], rerun: str | None) -> str | None:
    """The stage that is to be run anew with what follows: the one that is asked for, or the first that rests on something else."""
    if rerun == STAGES[0]:
        return rerun
    recorded: dict[str, Any] = facts.get("stages", {})
    stale = next(
        (stage for stage in STAGES if stage in recorded and recorded[stage]["digest"] != grounds[stage].digest), None
    )
    difference = _difference(recorded[stale]["reads"], grounds[stale].reads) if stale else ""
    if stale != STAGES[0] and (changed := _changed_file(run, facts)):
        stale, difference = STAGES[0], changed
    is_asked_for = rerun == "" or (rerun and stale and STAGES.index(rerun) <= STAGES.index(stale))
    if stale == "decontaminate" and not is_asked_for and (lost := _lost_test_sets(run, facts)):
        what = (
            "a test set that these settings do not name"
            if len(lost) == 1
            else "test sets that these settings do not name"
        )
        repair = "name it in [decontaminate] test_sets; `altalign curate` with --rerun lets its near-duplicates back in"
        raise UsageError(f"{run.folder}: its stage decontaminate was made with {what} ({', '.join(lost)}); {repair}")
    if stale and not is_asked_for:
        repair = f"`altalign curate` with --rerun runs {stale} and what follows anew, --restart everything"
        raise UsageError(f"{run.folder}: its stage {stale} was made with {difference}; {repair}")
    return rerun or stale


def forget(run: Run, stage: str) -> None:
    """Delete what this stage and those after it made; the manifest goes first.

    Of `fetch` what came over the web stays, with its journal, which says what it rests on: nothing is asked for again
    that may be used again.
    """
    stages = STAGES[STAGES.index(stage) :]
    storage.delete(run.path("manifest.json"))
    kept = FROM_THE_WEB if stage == "fetch" and run.config.fetch.source == "web" else ()
    anew = [run.work(name) for name in OF_FETCHED] if "fetch" in stages else []
    storage.delete_units([*(run.work(name) for name in reversed(stages)), *anew], but=kept)
    for output in (output for name in stages for output in OUTPUTS[name]):
        storage.delete(run.path(output))
    if "fetch" in stages:  # the history of tries stays; how far they were says nothing any more
        for name in storage.names(run.path("log", "fetch"), ".json"):
            storage.delete(run.path("log", "fetch", name))


def _lost_test_sets(run: Run, facts: Mapping[str, Any]) -> list[str]:
    """Names of the test sets that the run was kept clean of, and that its settings no longer name."""
    before = facts.get("stages", {}).get("decontaminate", {}).get("reads", {})
    names = [name.removeprefix(OF_TEST_SET) for name in before if name.startswith(OF_TEST_SET)]
    return [name for name in names if name not in {test_set.name for test_set in run.config.decontaminate.named_sets}]


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first setting or file that differs, in words."""
    for name in [*now, *before]:
        old, new = before.get(name, "absent"), now.get(name, "absent")
        if name == "files" and old != new:
            other = sorted(set(old) ^ set(new))
            return f"{len(old)} input files, now {len(new)}" + (
                f" (such as {other[0]})" if other else " (in another order)"
            )
        if old != new:
            return f"{name} = {old!r}, now {new!r}"
    return "other results of the stages before it"


def _changed_file(run: Run, facts: Mapping[str, Any]) -> str:
    """In words, the first finished input file whose size or time is another now; empty where there is none."""
    marks = dict(run.all_facts("extract"))
    for file, stamp in zip(run.files, storage.stamps([file.path for file in run.files]), strict=True):
        before, now = marks.get(file.name, {}).get("stamp") or facts.get("files", {}).get(file.path), stamp.to_json()
        if before and before != now:
            another = "digest in the store" if stamp.digest else "time of change"
            what = (
                f"{before[0]:,} bytes, now {now[0]:,}"
                if before[0] != now[0]
                else f"the same size, but another {another} now"
            )
            return f"the file {file.path} of {what}"
    return ""


@contextmanager
def recording(run: Run, stage: str, grounds: Grounds) -> Iterator[None]:
    """Record in run.json what a stage rests on before it begins, and how long it took."""
    facts = storage.read_json(run.path("run.json"))
    before = facts["stages"].get(stage, {})
    entry = {
        "digest": grounds.digest,
        "reads": dict(grounds.reads),
        "attempts": before.get("attempts", 0) + 1,
        "started": _now(),
        "finished": None,
        "seconds": before.get("seconds", 0.0),
    }
    facts["stages"][stage] = entry
    storage.write_json(run.path("run.json"), facts)
    begin = time.monotonic()
    try:
        yield
        entry["finished"] = _now()
        if stage == STAGES[0]:
            marks = dict(run.all_facts(stage))
            facts["files"] = {file.path: marks[file.name]["stamp"] for file in run.files}
    except BaseException:
        # what went wrong first is what the user has to know
        _end(run, facts, entry, begin, suppressed=(OSError, AltalignError))
        raise
    _end(run, facts, entry, begin)


def _end(
    run: Run, facts: dict[str, Any], entry: dict[str, Any], begin: float, suppressed: tuple[type[Exception], ...] = ()
) -> None:
    entry["seconds"] = round(entry["seconds"] + time.monotonic() - begin, 2)
    with suppress(*suppressed):
        storage.write_json(run.path("run.json"), facts)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def counts_of(run: Run) -> Counts:
    """Counts of all stages so far."""
    return Counts.total(run.counts(step) for stage in STAGES for step in COUNTED[stage])


def failed_counts_of(run: Run) -> FailedCounts:
    """The rows of all stages by every rule that holds."""
    steps = [step for stage in STAGES for step in COUNTED[stage]]
    return FailedCounts.from_json(
        entry for step in steps for _, facts in run.all_facts(step) for entry in facts.get("failed", ())
    )


def counted_stages(run: Run, *, and_now: str = "") -> list[Stage]:
    """The stages whose counts are complete; `and_now` is one whose units are all finished, but not yet marked as done."""
    done = [stage for stage in STAGES if run.is_done(stage) or stage == and_now]
    return [stage for stage in COUNTED_STAGES if ("fetch" if stage is Stage.IMAGE else stage.value) in done]
