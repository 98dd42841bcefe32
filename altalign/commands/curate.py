"""Arguments and settings of `altalign init`, `curate` and `retry`.

They are read before anything heavy is imported, so that --help and a wrong setting answer at once.
"""

import argparse
import difflib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from altalign import terminal
from altalign.commands.arguments import Parser
from altalign.commands.audit import after_curation
from altalign.commands.run_arguments import (
    TO_BEAM,
    add_overrides,
    check_work,
    config_of_curation,
    config_of_file,
    fitted,
    parted,
)
from altalign.data.stages import STAGES
from altalign.errors import AltalignError, UsageError
from altalign.machine import startup

if TYPE_CHECKING:
    from altalign.pipelines.run.progress import Progress
    from altalign.settings.curate import CurateConfig


def main(argv: Sequence[str]) -> int:
    """Run, or continue, a curation."""
    arguments, flags = _parse(argv)
    if arguments.repair:
        return _repair(arguments, flags)

    config = fitted(config_of_file(str(arguments.config), arguments.set))
    with startup.imports():
        # Beam, kernels and codecs take most of a second
        from altalign.pipelines import curate

    wanted = curate.Request(arguments.until, arguments.rerun, arguments.restart, flags)
    if arguments.dry_run:
        curate.plan(config, wanted, config_path=str(arguments.config))
        return 0
    code = curate.show(curate.curate(config, wanted, config_path=str(arguments.config)))
    return _reported(config) or code


def _repair(arguments: argparse.Namespace, flags: list[str]) -> int:
    """Make anew what is damaged of a finished run, whose own settings count; returns the exit code."""
    is_whole = arguments.until == STAGES[-1] and arguments.rerun is None
    if arguments.dry_run or arguments.restart or arguments.set or not is_whole:
        raise UsageError("--repair: makes the files of a run as they were; leave the other options out")
    config = fitted(config_of_curation(config_of_file(str(arguments.config), ()).run.folder, ()))

    with startup.imports():
        from altalign.pipelines.change import repair

    return repair.repair(config, flags)


def curated(
    config: "CurateConfig",
    *,
    where: str,
    rerun: str | None,
    is_restart: bool,
    progress: "bool | Callable[[Progress], None]",
) -> str:
    """Run, or continue, a curation for a Python program; errors name the settings by `where`. Returns the run's folder.

    Raises:
        AltalignError: nothing is left of the pool.
    """
    with startup.imports():
        from altalign.pipelines import curate

    shown = progress if callable(progress) else None if progress else terminal.into(io.StringIO())
    wanted = curate.Request(rerun=rerun, is_restart=is_restart, shown=shown)
    run = curate.curate(fitted(config), wanted, config_path=where)
    if nothing_left := curate.check(run):
        raise AltalignError(f"{run.folder}: {nothing_left}")
    return run.folder


def init(argv: Sequence[str]) -> int:
    """Write a first config for files that somebody has."""
    parser = Parser(
        prog="altalign init",
        description="Look at files and folders, and write a commented config for them: what they are, which columns "
        "are URLs and captions, and whether images are in hand or on the web.",
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="file, folder or glob; several are several inputs")
    parser.add_argument("--to", metavar="CONFIG", type=Path, default=Path("altalign.toml"), help="(altalign.toml)")
    parser.add_argument(
        "--run", metavar="FOLDER", default="", help="the run's folder (runs/ and the first path's name)"
    )
    arguments = parser.parse_args(argv)
    if arguments.to.exists():
        raise UsageError(f"{arguments.to}: is there already; give another file with --to, or remove it")

    with startup.imports(compiles=False):
        from altalign.pipelines.opening import first_config

    name = arguments.paths[0].rstrip("/").rpartition("/")[2].partition(".")[0].strip("*?[]") or "mine"
    text = first_config.first_config(arguments.paths, run_folder=arguments.run or f"runs/{name}")
    try:
        arguments.to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{arguments.to}: cannot be written ({error.strerror}); give another file with --to") from None
    out = terminal.stdout()
    out.print(terminal.lines_shown(text), highlight=False, soft_wrap=True)
    out.print(
        f"written to {terminal.shown(str(arguments.to))}; run it: {terminal.command('curate', str(arguments.to))}",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def retry(argv: Sequence[str]) -> int:
    """Ask again for images that could not be fetched, and finish the run anew."""
    parser = Parser(
        prog="altalign retry",
        description="Ask again for the images of a run that could not be fetched from the web, then finish the run "
        "anew. What was fetched is not asked for again, and log/fetch/ keeps the history.",
        epilog=(
            "Without --reason: http_status of 429 and 5xx, http_not_asked, http_timeout, http_unreachable, "
            f"http_broken. {TO_BEAM}"
        ),
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--reason",
        action="append",
        default=[],
        metavar="REASON",
        help="ask again for what failed for this; repeatable, or several with commas",
    )
    add_overrides(parser, "override a setting of the run; repeatable")
    own, flags = parted(argv)
    arguments = parser.parse_args(own)
    reasons = [reason.strip() for named in arguments.reason for reason in named.split(",")]
    _check_reasons(reasons)
    config = fitted(config_of_curation(arguments.run, arguments.set))
    if config.fetch.source != "web":
        terminal.stderr().print(
            f"{terminal.shown(config.run.folder)}: nothing to retry: its images were in hand, not on the web",
            soft_wrap=True,
        )
        return 0
    check_work(config.run.folder)

    with startup.imports():
        from altalign.pipelines.change import retry as of_run

    code = of_run.retry(config, reasons, flags)
    return _reported(config) or code


def _reported(config: "CurateConfig") -> int:
    """Write the report of a run that is finished now; returns the exit code."""
    return after_curation(config.run.folder)


def _check_reasons(named: Sequence[str]) -> None:
    """Refuse names that are no reasons for a failed fetch.

    Raises:
        UsageError: a name is none; the error proposes the one that was probably meant.
    """
    from altalign.data.reasons import REASONS, DropReason, Stage  # Arrow, which --help need not wait for

    known = [reason for reason in REASONS[Stage.FETCH] if reason not in (DropReason.NOT_IN_ARCHIVE, DropReason.REMOVED)]
    for reason in (reason for reason in named if reason not in known):
        near = difflib.get_close_matches(reason, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        raise UsageError(f"--reason {reason}: nothing fails to be fetched for that ({hint})")


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    own, flags = parted(argv)
    parser = Parser(
        prog="altalign curate",
        description="Curate image/alt-text pairs into training shards. Run again, it continues where it stopped.",
        epilog=TO_BEAM,
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help="settings (TOML)")
    add_overrides(parser, "override a setting; repeatable")
    parser.add_argument("--until", choices=STAGES, default=STAGES[-1], help="stop after this stage")
    parser.add_argument(
        "--dry-run", action="store_true", help="show files, units, resolved settings and the disk needed; do nothing"
    )
    rerun_help = "run STAGE and what follows anew; without a name, from the first that changed"
    parser.add_argument("--rerun", nargs="?", choices=("", *STAGES), const="", metavar="STAGE", help=rerun_help)
    parser.add_argument("--restart", action="store_true", help="run everything anew")
    of_repair = "make damaged files of the finished run anew"
    parser.add_argument("--repair", action="store_true", help=of_repair)
    return parser.parse_args(list(_joined(own))), flags


def _joined(argv: Sequence[str]) -> Iterator[str]:
    """The words with `--rerun STAGE` joined to one; before any other word `--rerun` stands alone.

    So `--rerun mine.toml` names no stage.
    """
    is_taken = False
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        if is_taken:
            is_taken = False
        elif word == "--rerun":
            is_taken = after in STAGES
            yield f"--rerun={after if is_taken else ''}"
        else:
            yield word
