"""What Python programs call: `altalign.open`, `altalign.curate` and `altalign.audit`.

As `altalign.cli` does, it imports what a function needs when it is called, and so may reach above the contract. Errors
are those of the commands, as exceptions of `altalign.errors`; nothing is printed but progress, and the process stays
the caller's: no exit, and no handler of signals but that of Ctrl-C, in the main thread, while a function works.
"""

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, overload

from altalign.errors import AltalignError, UsageError
from altalign.machine import interrupts, startup
from altalign.storage import full_disk

if TYPE_CHECKING:
    from altalign.audit.checks import Check
    from altalign.audit.compare import Comparison
    from altalign.audit.opened import Run
    from altalign.pipelines.run.progress import Progress

Folder = str | os.PathLike[str]

_ONE_AT_A_TIME = threading.Lock()  # the processes beside us are one command's


def open(run: Folder) -> "Run":  # noqa: A001 - as in gzip and tarfile
    """Open a run folder: local, `s3://BUCKET/…` or `gs://BUCKET/…`. Reads one small file."""
    from altalign.audit.opened import Run

    return Run.open(os.fspath(run))


def curate(
    config: Folder | Mapping[str, object],
    *,
    rerun: bool | str = False,
    restart: bool = False,
    progress: "bool | Callable[[Progress], None]" = True,
) -> "Run":
    """Run a curation, or continue it, and write its report: `altalign curate`.

    Args:
        config: the path of a settings file (TOML), or a dict of its sections: `{"input": {"paths": […]}, …}`.
        rerun: as `--rerun`: from the first stage that changed, or from the stage of this name.
        restart: run everything anew.
        progress: whether progress goes to standard error; or a function that gets it, called twice a second from
            another thread.

    Returns:
        The finished run.
    """
    from altalign.commands import curate as command
    from altalign.commands.arguments import config_of_file
    from altalign.data.stages import STAGES
    from altalign.settings.curate import CurateConfig

    if isinstance(rerun, str) and rerun not in STAGES:
        raise UsageError(f"rerun = {rerun!r}: no such stage (there are: {', '.join(STAGES)})")
    anew = rerun if isinstance(rerun, str) else "" if rerun else None
    with _at_work():
        if isinstance(config, Mapping):
            where, settings = "settings", CurateConfig.from_values(config, where="settings")
        else:
            where, settings = os.fspath(config), config_of_file(os.fspath(config), ())
        folder = command.curated(settings, where=where, rerun=anew, is_restart=restart, progress=progress)
        _report(folder)
    return open(folder)


@overload
def audit(run: Folder) -> "list[Check]": ...
@overload
def audit(run: Folder, other: Folder) -> "Comparison": ...
def audit(run: Folder, other: Folder | None = None) -> "list[Check] | Comparison":
    """Check a finished run and write its report, or compare two finished runs: `altalign audit`.

    Returns:
        The checks, which may have failed; of two runs, what differs.
    """
    with _at_work():
        if other is None:
            from altalign.commands import audit as command

            return command.checked(os.fspath(run), shards_at_most=None, is_written=True)[1]
        from altalign.audit.compare import Comparison

        return Comparison.of_runs(os.fspath(run), os.fspath(other))


def _report(folder: str) -> None:
    """Write the report of a run that has none yet, a warning where it cannot be; AltalignError where a check fails."""
    from altalign.audit.checks.findings import failed
    from altalign.commands import audit as command

    try:
        found = command.reported(folder)
    except command.NOT_WRITTEN as error:
        warnings.warn(command.why_no_report(folder, error), stacklevel=3)
        return
    if found and (wrong := failed(found[1])):
        raise AltalignError("\n".join(map(str, wrong)))


@contextmanager
def _at_work() -> Iterator[None]:
    """Runs a command's work: Ctrl-C ends it cleanly, its processes end with it, and Beam logs nothing."""
    with _ONE_AT_A_TIME, interrupts.handled(in_a_call=True):
        startup.place_kernels()
        from altalign.machine import processes

        def is_for_users(record: logging.LogRecord) -> bool:
            return "apache_beam" not in record.pathname

        root, of_beam = logging.getLogger(), logging.getLogger("apache_beam")
        before = of_beam.level
        root.addFilter(is_for_users)
        of_beam.setLevel(logging.CRITICAL)
        try:
            yield
        except OSError as error:
            if (full := full_disk(error, error.filename or "")) is None:
                raise
            raise full from error
        finally:
            root.removeFilter(is_for_users)
            of_beam.setLevel(before)
            processes.OF_COMMAND.close()
