"""`altalign clean RUN`: deletes intermediate files (work/). Shards, dropped rows, tables and counts stay."""

import sys
from collections.abc import Sequence

from altalign import storage
from altalign.audit.run_folder import RunFolder
from altalign.commands.arguments import Parser
from altalign.data.stages import own_files
from altalign.errors import UsageError
from altalign.storage.atomic_change import ADDING
from altalign.terminal import shown


def main(argv: Sequence[str]) -> int:
    """Deletes RUN/work of a finished run."""
    about = "Delete the intermediate files of a finished run (RUN/work). A rerun then starts from the input again."
    parser = Parser(prog="altalign clean", description=about)
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    unfinished = "also delete them in an unfinished run, which then starts over"
    parser.add_argument("--unfinished", action="store_true", help=unfinished)
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
            f"{run.folder}: not finished, and without work/ it would start over; finish it, or give --unfinished"
        )
    storage.delete_units([run.path("work")])
    storage.delete(run.path(ADDING))  # of an addition that was killed
