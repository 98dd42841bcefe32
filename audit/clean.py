"""`altalign clean RUN`: delete intermediate files. Shards, dropped rows, tables and counts stay."""

import argparse
import sys
from collections.abc import Sequence

from altalign import storage
from altalign.audit.run_folder import RunFolder
from altalign.errors import UsageError
from altalign.stages import own_files
from altalign.terminal import shown


def main(argv: Sequence[str]) -> int:
    """Delete RUN/work of a finished run."""
    about = "Delete RUN/work of a finished run; a later run with other settings begins with the input again."
    parser = argparse.ArgumentParser(prog="altalign clean", description=about)
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--unfinished", action="store_true", help="also of a run that is not finished: it will begin anew"
    )
    arguments = parser.parse_args(argv)
    with own_files(arguments.run):
        run = RunFolder.open(arguments.run)
    with storage.locked(run.folder):
        _clean(run, is_any=arguments.unfinished)
    sys.stdout.write(f"{shown(run.folder)}/work deleted\n")
    return 0


def _clean(run: RunFolder, *, is_any: bool) -> None:
    if not run.is_finished and not is_any:
        raise UsageError(
            f"{run.folder}: not finished, and without work/ it would begin anew; finish it, or give --unfinished"
        )
    storage.delete_units([run.path("work")])
