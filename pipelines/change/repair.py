"""`altalign curate RUN/config.toml --repair` makes anew the files of a finished run that are not as they were written.

A file is damaged by what manifest and marks say of it. The mark that vouches for it goes, and its unit, or the end of
its stage, is done anew: the same bytes, from what the stages before it have left. Other units stay. Of a run that has
grown nothing is made anew here: `--rerun write` writes all of its shards, as one generation.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from altalign import storage, terminal
from altalign.data import listing
from altalign.data.stages import OUTPUTS, STAGES, own_files
from altalign.errors import AltalignError, UsageError
from altalign.pipelines import curate
from altalign.pipelines.engine.options import check_places, options
from altalign.pipelines.opening import reopen
from altalign.pipelines.opening.find import find_run
from altalign.pipelines.opening.reopen import grounds_of, resolved
from altalign.pipelines.run import marks
from altalign.pipelines.run.marks import Damage
from altalign.pipelines.run.shard_tables import WRITTEN
from altalign.pipelines.run.units import Run
from altalign.settings.curate import CurateConfig

_OF_THE_END = {"manifest.json", listing.FILE, *OUTPUTS["write"]} - {"shards"}  # what `write` ends with


class Plan(NamedTuple):
    """What is damaged: what marks vouch for, why each file is made anew, and why others cannot be."""

    of_marks: list[Damage]
    anew: Mapping[str, str]
    stays: Mapping[str, str]


def repair(config: CurateConfig, flags: list[str]) -> int:
    """Make anew what is damaged and can be; returns 1 if something stays damaged. `flags` go to Beam."""
    pipeline_options = options(config.engine, flags)
    check_places(config)
    run = find_run(config, config_path=storage.join(config.run.folder, "config.toml"))
    out = terminal.stdout()
    with storage.locked(run.folder), own_files(run.folder):
        if not run.is_done(STAGES[-1]):
            said = "`altalign curate` goes on with it, and makes anew what is damaged"
            raise UsageError(f"{run.folder}: not finished; {said}")
        reopen.decide(run, rerun=None)
        plan = planned(run)
        if plan.anew:
            marks.unmark(run, plan.of_marks)
            reopen.write_settings(run)
            curate.finish(run, grounds_of(run.config, run.files, run.modules), pipeline_options)
            left = [path for path in listing.look(run.folder, sizes_alone=False).wrong if path not in plan.stays]
            if left:
                raise AltalignError(f"{run.folder}: {left[0]}: still damaged after it was made anew; look at the disk")
    for path, why in sorted(plan.anew.items()):
        out.print(terminal.shown(f"{path}: {why}; made anew"), highlight=False, soft_wrap=True)
    for path, why in sorted(plan.stays.items()):
        out.print(terminal.shown(f"{path}: {why}"), style="yellow", highlight=False, soft_wrap=True)
    if not plan.anew and not plan.stays:
        out.print(f"{terminal.shown(run.folder)}: nothing is damaged", highlight=False, soft_wrap=True)
    return AltalignError.exit_code if plan.stays else 0


def planned(run: Run) -> Plan:
    """Look at every file of a finished run, and at what is in its `work/`."""
    wrong, found = listing.look(run.folder, sizes_alone=False).wrong, marks.look(run)
    web = {damage.path for damage in found if marks.is_from_the_web(run, damage)}
    of_marks = [damage for damage in found if damage.path not in web]
    can_be = _OF_THE_END | {damage.path for damage in of_marks}
    can_be |= {"config.toml"} if "config.toml" in wrong and _is_as_listed(run) else set()
    gone = "what it is made of is gone"
    if storage.kind(run.path("work")) == "missing":
        can_be, gone = set[str](), "work/ was deleted"
    elif "run.json" in wrong:
        can_be, gone = set[str](), "run.json is damaged"
    elif _has_grown(run):
        again = terminal.command("curate", run.path("config.toml"), "--rerun", "write")
        can_be, gone = set[str](), f"the run has grown; `{again}` makes one generation, and this file with it"
    anew, stays = dict[str, str](), dict[str, str]()
    for path, why in {**wrong, **{damage.path: damage.why for damage in found}}.items():
        if why == listing.SURPLUS:
            stays[path] = why
        elif path == "run.json":
            stays[path] = f"{why}; nothing else has what it says"
        elif path in web:
            stays[path] = f"{why}; it came from the web: `altalign curate` with --rerun fetch asks for it again"
        elif path in can_be:
            anew[path] = why
        else:
            stays[path] = f"{why}; it cannot be made anew: {gone}"
    return Plan(of_marks, anew, stays)


def _has_grown(run: Run) -> bool:
    """Whether the shards came with an addition, or were packed after one: no mark vouches for them."""
    return bool(storage.names(run.path("shards"), ".tar")) and not run.finished(WRITTEN.step)


def _is_as_listed(run: Run) -> bool:
    """Whether the settings say what they said when the run was made, in whatever bytes."""
    said = storage.read_json(run.path("manifest.json")).get("settings_sha256")
    return hashlib.sha256(resolved(run.config).encode()).hexdigest() == said
