"""`altalign add RUN --test-set NAME=PATH` adds a test set and repeats only the steps that depend on it."""

from altalign import storage
from altalign.data.stages import own_files
from altalign.errors import UsageError
from altalign.pipelines import curate
from altalign.pipelines.engine.jobs import started
from altalign.pipelines.engine.options import check_places, options
from altalign.pipelines.opening import reopen
from altalign.pipelines.opening.find import find_run
from altalign.settings.curate import CurateConfig


def add(config: CurateConfig, flags: list[str]) -> int:
    """Drop near-duplicates of the test sets in these settings, and finish the run; `flags` go to Beam.

    All test images are read before anything of the run is deleted: an unreadable one leaves the run as it is.
    """
    pipeline_options = options(config.engine, flags)
    check_places(config)
    run = find_run(config, config_path=storage.join(config.run.folder, "config.toml"))
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
