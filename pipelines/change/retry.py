"""`altalign retry RUN` asks again for the images that could not be fetched, and finishes the run anew.

A journal records how the fetch of each image ended. Only images that are taken out of it are asked for again. The
manifest is deleted first, then what rests on the fetched images, then the mark of each unit before its journal
changes. So a retry that is killed leaves a run that `altalign curate` finishes, and a second retry finds the images
that the first has not taken out.

What was never asked for is asked for first, in all units, so that no host is given up again before its turn comes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from altalign import storage, terminal
from altalign.data.reasons import PASSING, DropReason, may_pass
from altalign.data.stages import STAGES, own_files
from altalign.pipelines import curate
from altalign.pipelines.engine.options import check_places, options
from altalign.pipelines.images.measuring import Outcome
from altalign.pipelines.opening import reopen
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.run.image_tables import FETCHED, first_of_each_image, survivors
from altalign.pipelines.run.units import Run
from altalign.pipelines.stages import fetch
from altalign.pipelines.web import journal, log
from altalign.settings.curate import CurateConfig


def retry(config: CurateConfig, reasons: Sequence[str], flags: list[str]) -> int:
    """Ask again for the images that failed for these reasons, and finish the run; `flags` go to Beam.

    Without reasons: those that may pass (`PASSING`), and http_status of 429 and 5xx.
    """
    pipeline_options = options(config.engine, flags)
    check_places(config)
    run = find_run(config, config_path=storage.join(config.run.folder, "config.toml"))
    with storage.locked(run.folder), own_files(run.folder):
        grounds = reopen.open_run(run, rerun=None, is_restart=False)
        failed = failed_images(run, lambda outcome: is_wanted(outcome, reasons))
        terminal.stderr().print(_said(failed, reasons), soft_wrap=True)
        if not failed and run.is_done(STAGES[-1]):
            return 0
        for images in _in_turn(failed):
            reopen.reopen(run, "fetch")
            forget(run, images)
            curate.finish(run, grounds, pipeline_options, until="fetch")
        said = _came(run, failed)  # now, for finishing may delete the journals
        curate.finish(run, grounds, pipeline_options)
    if said:
        terminal.stderr().print(said, soft_wrap=True)
    return curate.show(run)


def is_wanted(outcome: Outcome, reasons: Sequence[str]) -> bool:
    """Whether an image with this outcome is asked for again; without reasons as `retry` says."""
    return outcome.reason in reasons if reasons else may_pass(outcome.reason, outcome.http_code)


def failed_images(run: Run, is_wanted: Callable[[Outcome], bool]) -> dict[str, dict[int, Outcome]]:
    """The images with a wanted outcome, by name of their unit, then by number."""
    found = {}
    for name in journal.names(run.work(FETCHED.step)):
        outcomes = journal.read(run.work(FETCHED.step, name)).outcomes
        if wanted := {number: outcome for number, outcome in outcomes.items() if is_wanted(outcome)}:
            found[name] = wanted
    return found


def _in_turn(failed: Mapping[str, Mapping[int, Outcome]]) -> Iterator[dict[str, list[int]]]:
    """Yields the numbers of what was never asked for, by unit; then those of the others. None where there are none."""
    for is_first in (True, False):
        images = {
            name: [n for n, outcome in wanted.items() if (outcome.reason is DropReason.HTTP_NOT_ASKED) == is_first]
            for name, wanted in failed.items()
        }
        if any(images.values()):
            yield {name: numbers for name, numbers in images.items() if numbers}


def forget(run: Run, failed: Mapping[str, Sequence[int]]) -> None:
    """Take images out of the journals of their units, and delete the marks of these units."""
    for unit in fetch.plan(run):
        if unit["name"] in failed:
            storage.delete(run.mark(FETCHED.step, unit["name"]))
            outcomes = journal.forget(run.work(FETCHED.step, unit["name"]), failed[unit["name"]])
            rows = survivors(run, unit)
            urls = rows.take(first_of_each_image(rows))["image_url"].to_pylist()
            log.restate(run, unit["name"], outcomes, urls)


def _came(run: Run, asked: Mapping[str, Mapping[int, Outcome]]) -> str:
    """A sentence on what became of the images that were asked for again; empty where there were none."""
    if not asked:
        return ""
    came, failed = 0, Counter[str]()
    for name, numbers in asked.items():
        outcomes = journal.read(run.work(FETCHED.step, name)).outcomes
        again = [outcomes[number] for number in numbers]
        came += sum(outcome.reason is None for outcome in again)
        failed.update(log.status_of(outcome) for outcome in again if outcome.reason is not None)
    ended = ", ".join([f"{came:,} came", *(f"{n:,} {why}" for why, n in failed.most_common())])
    return f"{sum(map(len, asked.values())):,} asked again: {ended}"


def _said(failed: Mapping[str, Mapping[int, Outcome]], reasons: Sequence[str]) -> str:
    asked = ", ".join(reasons) or f"{DropReason.HTTP_STATUS} 429 and 5xx, {', '.join(PASSING)}"
    images = sum(map(len, failed.values()))
    if not images:
        return f"nothing to retry: no image of the run failed for {asked}"
    units = len(failed)
    return f"{images:,} image{'s' * (images > 1)} of {units:,} unit{'s' * (units > 1)} to ask for again: {asked}"
