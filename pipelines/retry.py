"""`altalign retry RUN`: the images that could not be had are asked for again, and the run is finished anew.

A journal keeps how fetching each image ended; what is taken out of it is asked for again, and nothing else is. The
manifest goes first, then what rests on the fetched images, then the mark of each unit before its journal changes:
whoever is killed on the way leaves a run that `altalign curate` finishes and in which a second retry finds what the
first has not taken out.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from altalign import storage, terminal
from altalign.curation import CurateConfig
from altalign.pipelines import curate
from altalign.pipelines.engine.options import check_places, options
from altalign.pipelines.images.measuring import Outcome
from altalign.pipelines.opening import reopen
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.run.artefacts import Fetched, first_of_each_image, survivors
from altalign.pipelines.run.units import Run
from altalign.pipelines.stages import fetch
from altalign.pipelines.web.kept import journal, log
from altalign.reasons import PASSING, DropReason
from altalign.stages import STAGES, own_files


def retry(config: CurateConfig, reasons: Sequence[str], flags: list[str]) -> int:
    """Ask again for what failed for these reasons (none: those that may pass), and finish the run; `flags` of Beam."""
    pipeline_options = options(config.engine, flags)
    check_places(config)
    run = find_run(config, config_path=storage.join(config.run.folder, "config.toml"))
    with storage.locked(run.folder), own_files(run.folder):
        grounds = reopen.open_run(run, rerun=None, is_restart=False)
        failed = failed_images(run, lambda outcome: is_wanted(outcome, reasons))
        terminal.stderr().print(_said(failed, reasons), soft_wrap=True)
        if not failed and run.is_done(STAGES[-1]):
            return 0
        if failed:
            reopen.reopen(run, "fetch")
            forget(run, failed)
            curate.finish(run, grounds, pipeline_options, until="fetch")
        said = _came(run, failed)  # now: a run may keep no journals to its end
        curate.finish(run, grounds, pipeline_options)
    if said:
        terminal.stderr().print(said, soft_wrap=True)
    curate.show(run)
    return 0


def is_wanted(outcome: Outcome, reasons: Sequence[str]) -> bool:
    """Whether an image that could not be had is to be asked for again."""
    if outcome.reason is None or reasons:
        return outcome.reason in reasons
    if outcome.reason is DropReason.HTTP_STATUS:
        return outcome.http_code == 429 or 500 <= (outcome.http_code or 0) < 600
    return outcome.reason in PASSING


def failed_images(run: Run, is_wanted: Callable[[Outcome], bool]) -> dict[str, list[int]]:
    """By unit, the numbers of the images whose outcome is wanted."""
    found = {}
    for name in journal.names(run.work(Fetched.step)):
        outcomes = journal.read(Fetched(run, name).stem).outcomes
        if numbers := [number for number, outcome in outcomes.items() if is_wanted(outcome)]:
            found[name] = numbers
    return found


def forget(run: Run, failed: Mapping[str, Sequence[int]]) -> None:
    """Take images out of the journals of their units, which are then not finished."""
    for unit in fetch.plan(run):
        if unit["name"] in failed:
            storage.delete(run.mark(Fetched.step, unit["name"]))
            outcomes = journal.forget(Fetched(run, unit["name"]).stem, failed[unit["name"]])
            rows = survivors(run, unit)
            urls = rows.take(first_of_each_image(rows))["image_url"].to_pylist()
            log.restate(run, unit["name"], outcomes, urls)


def _came(run: Run, asked: Mapping[str, Sequence[int]]) -> str:
    """What became of the images that were asked for again; empty where none was."""
    ended = Counter[str]()
    for name, numbers in asked.items():
        outcomes = journal.read(Fetched(run, name).stem).outcomes
        ended.update(
            "came" if outcomes[number].reason is None else log.status_of(outcomes[number]) for number in numbers
        )
    came = f"{ended.pop('came', 0):,} came"
    return (
        f"{sum(map(len, asked.values())):,} asked again: {', '.join([came, *(f'{n:,} {why}' for why, n in ended.most_common())])}"
        if asked
        else ""
    )


def _said(failed: Mapping[str, Sequence[int]], reasons: Sequence[str]) -> str:
    asked = ", ".join(reasons) or f"{DropReason.HTTP_STATUS} 429 and 5xx, {', '.join(PASSING)}"
    images = sum(map(len, failed.values()))
    if not images:
        return f"nothing to retry: no image of the run failed for {asked}"
    return f"{images:,} image{'s' * (images > 1)} of {len(failed):,} unit{'s' * (len(failed) > 1)} to ask for again: {asked}"
