"""Verbs that make a run: `init`, `demo`, `trial`, `curate`, `retry`, `calibrate`."""

import io
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from altalign import storage, terminal
from altalign.commands.arguments import (
    TO_BEAM,
    Parser,
    check_work,
    config_of_curation,
    config_of_file,
    config_with_test_sets,
    fitted,
    positive,
)
from altalign.commands.audit import after_curation
from altalign.data.stages import STAGES
from altalign.errors import AltalignError, UsageError
from altalign.machine import startup

if TYPE_CHECKING:
    from altalign.pipelines.run.progress import Progress
    from altalign.settings.curate import CurateConfig

_IMAGES = 20_000  # of a trial


def init(argv: Sequence[str]) -> int:
    """Write a first config for files that somebody has."""
    parser = Parser(
        prog="altalign init",
        description="Look at files and folders, guess what they are, and write a commented config for them.",
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="file, folder or glob; several are several inputs")
    parser.add_argument("--to", metavar="CONFIG", type=Path, default=Path("altalign.toml"), help="(altalign.toml)")
    parser.add_argument("--run", metavar="FOLDER", default="", help="the run's folder (runs/ and the first name)")
    arguments = parser.parse_args(argv)
    if arguments.to.exists():
        raise UsageError(f"{arguments.to}: is there already; give another file with --to, or remove it")
    startup.place_kernels()
    from altalign.pipelines.opening import first_config

    name = arguments.paths[0].rstrip("/").rpartition("/")[2].partition(".")[0].strip("*?[]") or "mine"
    text = first_config.first_config(arguments.paths, run_folder=arguments.run or f"runs/{name}")
    arguments.to.write_text(text, encoding="utf-8")
    name, run_it = terminal.shown(str(arguments.to)), terminal.command("curate", str(arguments.to))
    written = f"{terminal.lines_shown(text)}\nwritten to {name}; run it: {run_it}"
    terminal.stdout().print(written, highlight=False, soft_wrap=True)
    return 0


def demo(argv: Sequence[str]) -> int:
    """Write the demo web where there is none yet, and serve it if asked."""
    parser = Parser(
        prog="altalign demo",
        description="Write a small web of drawn pictures and captions, as WARC files, without a network.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="where to write it")
    parser.add_argument("--serve", action="store_true", help="then serve it on 127.0.0.1, with DIR/served.csv")
    parser.add_argument("--port", type=int, default=8642, help="port (8642); 0 finds a free one")
    arguments = parser.parse_args(argv)

    from altalign.demo import serve, web  # imports what draws, for which --help need not wait

    folder: Path = arguments.folder
    if (folder / "README.md").is_file():
        sys.stdout.write(f"{folder}: the demo web is there already\n")
    elif folder.is_file() or (folder.exists() and any(folder.iterdir())):
        raise UsageError(f"{folder}: a file, or a folder that holds something else; choose another, or empty it")
    else:
        partial = folder.with_name(f"{folder.name}.partial")  # an interrupted command leaves no folder that seems whole
        shutil.rmtree(partial, ignore_errors=True)
        summary = web.write(partial)
        partial.replace(folder)  # which may be empty
        sys.stdout.write(
            f"{folder}: {summary.pages:,} pages, {summary.image_elements:,} image elements, {summary.images:,} images, "
            f"{summary.test_images} test images, {summary.bytes / 1e6:.1f} MB\n"
        )
    if arguments.serve:
        serve.serve(folder, arguments.port)
    return 0


def curate(argv: Sequence[str]) -> int:
    """Run, or continue, a curation."""
    parser = Parser(
        prog="altalign curate",
        description="Curate image/alt-text pairs into training shards. Run again, it continues where it stopped.",
        epilog=TO_BEAM,
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help="settings (TOML)")
    parser.add_overrides("override a setting; repeatable")
    parser.add_argument("--until", choices=STAGES, default=STAGES[-1], help="stop after this stage")
    parser.add_argument("--dry-run", action="store_true", help="show files, units, settings, disk needed; do nothing")
    rerun = "run STAGE and what follows anew; without a name, from the first that changed"
    parser.add_argument("--rerun", nargs="?", choices=("", *STAGES), const="", metavar="STAGE", help=rerun)
    parser.add_argument("--restart", action="store_true", help="run everything anew")
    parser.add_argument("--repair", action="store_true", help="make damaged files of the finished run anew")
    words = list(argv)
    for at in (at for at, word in enumerate(words) if word == "--rerun"):
        if words[at + 1 : at + 2] and words[at + 1] not in (*STAGES, "--"):
            words[at] = "--rerun="  # `--rerun mine.toml` names no stage
    arguments, flags = parser.parse(words)
    if arguments.repair:
        parser.only(arguments, "--repair", "repair")
        config = config_of_curation(config_of_file(str(arguments.config), ()).run.folder)
        startup.place_kernels()
        from altalign.pipelines.change import finish_anew

        return finish_anew.repair(config, flags)

    config = fitted(config_of_file(str(arguments.config), arguments.set))
    startup.place_kernels()
    # Beam, kernels and codecs take most of a second
    from altalign.pipelines import curate

    request = curate.Request(arguments.until, arguments.rerun, arguments.restart, flags)
    if arguments.dry_run:
        curate.plan(config, request, config_path=str(arguments.config))
        return 0
    code = curate.show(curate.curate(config, request, config_path=str(arguments.config)))
    return after_curation(config.run.folder) or code


def curated(
    config: "CurateConfig",
    *,
    where: str,
    rerun: str | None,
    is_restart: bool,
    progress: "bool | Callable[[Progress], None]",
) -> str:
    """Run, or continue, a curation for a Python program; errors name the settings by `where`. Returns the folder."""
    startup.place_kernels()
    from altalign.pipelines import curate

    shown = progress if callable(progress) else None if progress else terminal.into(io.StringIO())
    request = curate.Request(rerun=rerun, is_restart=is_restart, shown=shown)
    run = curate.curate(fitted(config), request, config_path=where)
    if nothing_left := curate.check(run):
        raise AltalignError(f"{run.folder}: {nothing_left}")
    return run.folder


def retry(argv: Sequence[str]) -> int:
    """Ask again for images that could not be fetched, and finish the run anew."""
    parser = Parser(
        prog="altalign retry",
        description="Ask again for the images of a run that could not be fetched from the web, then finish the run "
        "anew. What was fetched is not asked for again, and log/fetch/ keeps the history.",
        epilog="Without --reason: http_status of 429 and 5xx, http_not_asked, http_timeout, http_unreachable, "
        f"http_broken. {TO_BEAM}",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    parser.add_repeatable("--reason", "REASON", "ask again for what failed for this; repeatable, or with commas")
    parser.add_overrides("override a setting of the run; repeatable")
    arguments, flags = parser.parse(argv)
    reasons = [reason.strip() for named in arguments.reason for reason in named.split(",")]

    from altalign.data.reasons import REASONS, DropReason, Stage  # Arrow, which --help need not wait for

    known = [reason for reason in REASONS[Stage.FETCH] if reason not in (DropReason.NOT_IN_ARCHIVE, DropReason.REMOVED)]
    for reason in (reason for reason in reasons if reason not in known):
        raise UsageError(f"--reason {reason}: nothing fails to be fetched for that (there are: {', '.join(known)})")
    config = config_of_curation(arguments.run, arguments.set)
    if config.fetch.source != "web":
        why = "nothing to retry: its images were in hand, not on the web"
        terminal.stderr().print(f"{terminal.shown(config.run.folder)}: {why}", soft_wrap=True)
        return 0
    check_work(config.run.folder)
    startup.place_kernels()
    from altalign.pipelines.change import finish_anew

    code = finish_anew.retry(config, reasons, flags)
    return after_curation(config.run.folder) or code


def trial(argv: Sequence[str]) -> int:
    """Try a curation on a sample of its images."""
    parser = Parser(
        prog="altalign trial",
        description="Do the text stages of a curation, and the others on a sample of its images; predict the whole "
        "run with 95 % intervals, in RUN/trial/trial.json. A later `altalign curate` uses all that was fetched.",
        epilog=TO_BEAM,
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help="settings (TOML), as of `altalign curate`")
    parser.add_argument("--images", type=positive, default=_IMAGES, metavar="N", help=f"about so many ({_IMAGES})")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another number draws other images (0)")
    parser.add_overrides("override a setting; repeatable")
    arguments, flags = parser.parse(argv)
    if not 0 <= arguments.seed < 1 << 32:
        raise UsageError(f"--seed {arguments.seed}: no seed; give a whole number from 0 to {(1 << 32) - 1}")
    config = fitted(config_of_file(str(arguments.config), arguments.set))
    startup.place_kernels()
    from altalign.pipelines.trial import trial

    return trial.trial(config, arguments.images, arguments.seed, flags, config_path=str(arguments.config))


def calibrate(argv: Sequence[str]) -> int:
    """Measure the search for near-duplicates on a run's own images, and choose its threshold."""
    parser = Parser(
        prog="altalign calibrate",
        description="Measure on a run's own images which copies of test images the search finds and how often it is "
        "wrong, and choose the threshold. OUT can then be named as [decontaminate] calibration.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run whose images are fetched")
    parser.add_argument("out", metavar="OUT", help="folder of the calibration: its files, and report.html")
    parser.add_test_sets("a test set beside those of the run; repeatable")
    parser.add_argument("--pairs", default="", metavar="PARQUET", help="labelled pairs: image_a, image_b, relation")
    parser.add_argument("--images", default="", metavar="PARQUET", help="their images: image, image_bytes")
    budget = "test images that a pool image may match by mistake, on average (1e-3)"
    parser.add_argument("--false-positives", type=float, default=1e-3, metavar="N", help=budget)
    parser.add_argument("--sample", type=int, default=2_000, metavar="IMAGES", help="images to make copies of (2000)")
    parser.add_overrides("override a setting of the run; repeatable")
    arguments, flags = parser.parse(argv)
    if flags:
        raise UsageError(f"-- {flags[0]}: calibrating runs in this process, and has no flags for Beam; leave them out")
    arguments.set.insert(0, 'engine.runner="embedded"')  # the threads belong to this process, too
    config = config_with_test_sets(arguments)
    startup.place_kernels()
    from altalign.pipelines.near import calibration
    from altalign.pipelines.opening import find, reopen

    out, run = arguments.out.rstrip("/") or "/", find.find_run(config, config_path=f"{config.run.folder}/config.toml")
    reopen.check_fetched(run)
    made = calibration.calibrate(
        run,
        out,
        pairs=arguments.pairs,
        images=arguments.images,
        false_positives=arguments.false_positives,
        sample=arguments.sample,
    )
    console = terminal.stdout()
    calibration.show(*made, console)
    console.print(
        f'to use it: [decontaminate] calibration = "{terminal.shown(out)}"; '
        f"pairs to look at: {terminal.shown(storage.join(out, calibration.PAGE))}",
        soft_wrap=True,
    )
    return 0
