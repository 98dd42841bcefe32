"""Finished runs that are finished anew: what failed is fetched again, test sets are added, damaged files are repaired.

They are `altalign retry`, `altalign add --test-set` and `altalign curate --repair`.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from altalign import storage, terminal
from altalign.data import listing
from altalign.data.reasons import PASSING, DropReason, may_pass
from altalign.data.stages import OUTPUTS, STAGES, own_files
from altalign.errors import AltalignError, UsageError
from altalign.pipelines import curate
from altalign.pipelines.engine.jobs import started
from altalign.pipelines.engine.options import check_places, options
from altalign.pipelines.images.judging import Outcome
from altalign.pipelines.opening import reopen
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.opening.reopen import grounds_of, resolved
from altalign.pipelines.run import marks
from altalign.pipelines.run.image_tables import FETCHED, first_of_each_image, survivors
from altalign.pipelines.run.marks import Damage
from altalign.pipelines.run.shard_tables import WRITTEN
from altalign.pipelines.run.units import Run
from altalign.pipelines.stages import fetch
from altalign.pipelines.web import journal, log
from altalign.settings.curate import CurateConfig
from altalign.terminal import many

_OF_THE_END = {"manifest.json", listing.FILE, *OUTPUTS["write"]} - {"shards"}  # what `write` ends with


def _opened(config: CurateConfig, flags: list[str]) -> tuple[Run, Any]:
    """The run, and the options of Beam."""
    pipeline_options = options(config.engine, flags)
    check_places(config)
    return find_run(config, config_path=storage.join(config.run.folder, "config.toml")), pipeline_options


# Fetching again ------------------------------------------------------------------------------------------------------


def retry(config: CurateConfig, reasons: Sequence[str], flags: list[str]) -> int:
    """Ask again for the images that failed for these reasons, and finish the run; `flags` go to Beam.

    Without reasons: those that may pass (`PASSING`), and http_status of 429 and 5xx. What was never asked for is asked
    for first, in all units, so that no host is given up again before its turn comes. A journal records how each fetch
    ended, and only what is taken out of it is asked for again. The manifest goes first, and the mark of a unit before
    its journal changes: a retry that is killed leaves a run that `altalign curate` finishes.
    """
    run, pipeline_options = _opened(config, flags)
    with storage.locked(run.folder), own_files(run.folder):
        grounds = reopen.open_run(run, rerun=None, is_restart=False)
        failed, came, again = _failed_images(run, reasons), 0, Counter[str]()
        images = sum(map(len, failed.values()))
        of_what = ", ".join(reasons) or f"{DropReason.HTTP_STATUS} 429 and 5xx, {', '.join(PASSING)}"
        message = f"nothing to retry: no image of the run failed for {of_what}"
        if images:
            bound = "at most " * bool(run.config.fetch.blocked_urls)  # some may be listed by now
            message = f"{bound}{many(images, 'image')} of {many(len(failed), 'unit')} to ask for again: {of_what}"
        terminal.stderr().print(message, soft_wrap=True)
        if not failed and run.is_done(STAGES[-1]):
            return 0
        for is_first in (True, False):
            numbers = {
                name: [n for n, of in of_unit.items() if (of.reason is DropReason.HTTP_NOT_ASKED) == is_first]
                for name, of_unit in failed.items()
            }
            if any(numbers.values()):
                reopen.reopen(run, "fetch")
                _forget(run, numbers)
                curate.finish(run, grounds, pipeline_options, until="fetch")
        for name, of_unit in failed.items():  # now, for finishing may delete the journals
            now = journal.read(run.work(FETCHED.step, name)).outcomes
            outcomes = [now[number] for number in of_unit if number in now]  # none of what is not asked for any more
            came += sum(outcome.reason is None for outcome in outcomes)
            again.update(log.status_of(outcome) for outcome in outcomes if outcome.reason is not None)
        curate.finish(run, grounds, pipeline_options)
    if images:
        counted = ", ".join([f"{came:,} came", *(f"{n:,} {why}" for why, n in again.most_common())])
        terminal.stderr().print(f"{came + again.total():,} asked again: {counted}", soft_wrap=True)
    return curate.show(run)


def _failed_images(run: Run, reasons: Sequence[str]) -> dict[str, dict[int, Outcome]]:
    """The images that are asked for again, by name of their unit, then by number."""
    by_unit = dict[str, dict[int, Outcome]]()
    for name in journal.names(run.work(FETCHED.step)):
        for number, outcome in journal.read(run.work(FETCHED.step, name)).outcomes.items():
            if outcome.reason in reasons if reasons else may_pass(outcome.reason, outcome.http_code):
                by_unit.setdefault(name, {})[number] = outcome
    return by_unit


def _forget(run: Run, numbers: Mapping[str, Sequence[int]]) -> None:
    """Take images out of the journals of their units, and delete the marks of these units."""
    units = [unit for unit in fetch.plan(run) if numbers.get(unit["name"])]
    run.marks(FETCHED.step).drop([unit["name"] for unit in units])
    for unit in units:
        outcomes = journal.forget(run.work(FETCHED.step, unit["name"]), numbers[unit["name"]])
        rows = survivors(run, unit)
        urls = rows.take(first_of_each_image(rows))["image_url"].to_pylist()
        log.restate(run, unit["name"], outcomes, urls)


# Test sets -----------------------------------------------------------------------------------------------------------


def add_test_sets(config: CurateConfig, flags: list[str]) -> int:
    """Drop near-duplicates of the test sets in these settings, and finish the run; `flags` go to Beam.

    All test images are read before anything of the run is deleted: an unreadable one leaves the run as it is.
    """
    run, pipeline_options = _opened(config, flags)
    with storage.locked(run.folder), own_files(run.folder):
        if not run.is_done("fetch"):
            raise UsageError(
                f"{run.folder}: its images are not all fetched yet; "
                "name the test set in its settings and go on with `altalign curate`"
            )
        reopen.decide(run, rerun="decontaminate")  # else a stale earlier stage would delete fetched images
        with storage.temporary(run.work("temporary")), started(run, pipeline_options):
            curate.run_step(run, curate.TEST_IMAGES, pipeline_options)
        if not reopen.is_settled(run, rerun="", is_restart=False):
            curate.finish(run, reopen.open_run(run, rerun="", is_restart=False), pipeline_options)
    return curate.show(run)


# Repair --------------------------------------------------------------------------------------------------------------


def repair(config: CurateConfig, flags: list[str]) -> int:
    """Make anew what is damaged and can be; returns 1 if something stays damaged. `flags` go to Beam.

    The mark that vouches for a file goes, and its unit, or the end of its stage, is done anew: the same bytes.
    """
    run, pipeline_options = _opened(config, flags)
    with storage.locked(run.folder), own_files(run.folder):
        if not run.is_done(STAGES[-1]):
            raise UsageError(f"{run.folder}: not finished; `altalign curate` makes anew what is damaged, and goes on")
        reopen.decide(run, rerun=None)
        of_marks, anew, stays = _planned(run)
        if anew:
            marks.unmark(run, of_marks)
            reopen.write_settings(run)
            curate.finish(run, grounds_of(run.config, run.files, run.modules), pipeline_options)
            if left := [path for path in listing.look(run.folder, sizes_alone=False).wrong if path not in stays]:
                raise AltalignError(f"{run.folder}: {left[0]}: still damaged after it was made anew; look at the disk")
    lines = [f"{path}: {why}; made anew" for path, why in sorted(anew.items())]
    lines += [f"{path}: {why}" for path, why in sorted(stays.items())]
    for line in lines or [f"{run.folder}: nothing is damaged"]:
        terminal.stdout().print(terminal.shown(line), highlight=False, soft_wrap=True)
    return AltalignError.exit_code if stays else 0


def _planned(run: Run) -> tuple[list[Damage], dict[str, str], dict[str, str]]:
    """Look at every file of a run: what marks vouch for, why each file is made anew, and why others cannot be."""
    wrong, damages = listing.look(run.folder, sizes_alone=False).wrong, marks.look(run)
    web = {damage.path for damage in damages if marks.is_from_the_web(run, damage)}
    of_marks = [damage for damage in damages if damage.path not in web]
    can_be, gone = _OF_THE_END | {damage.path for damage in of_marks}, "what it is made of is gone"
    if "config.toml" in wrong:
        before = storage.read_json(run.path("manifest.json")).get("settings_sha256")
        can_be |= {"config.toml"} if hashlib.sha256(resolved(run.config).encode()).hexdigest() == before else set()
    if storage.kind(run.path("work")) == "missing":
        can_be, gone = set[str](), "work/ was deleted"
    elif "run.json" in wrong:
        can_be, gone = set[str](), "nothing else has what run.json says"
    elif storage.names(run.path("shards"), ".tar") and not run.finished(WRITTEN.step):
        # the shards came with an addition: no mark vouches for them
        again = terminal.command("curate", run.path("config.toml"), "--rerun", "write")
        can_be, gone = set[str](), f"the run has grown; `{again}` makes one generation, and this file with it"
    every = {**wrong, **{damage.path: damage.why for damage in damages}}
    anew = {path: why for path, why in every.items() if path in can_be and why != listing.SURPLUS}
    stays = dict[str, str]()
    of_web = "it came from the web: `altalign curate` with --rerun fetch asks for it again"
    for path, why in every.items():
        if path not in anew:
            because = of_web if path in web else f"it cannot be made anew: {gone}"
            stays[path] = why if why == listing.SURPLUS else f"{why}; {because}"
    return of_marks, anew, stays
