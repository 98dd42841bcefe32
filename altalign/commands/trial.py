"""`altalign trial`: arguments, and what it prints and writes."""

from collections.abc import Sequence
from pathlib import Path

from altalign import storage, terminal
from altalign.commands.arguments import Parser
from altalign.commands.run_arguments import TO_BEAM, add_overrides, config_of_file, fitted, parted
from altalign.errors import UsageError
from altalign.machine import startup

_IMAGES = 20_000


def trial(argv: Sequence[str]) -> int:
    """Try a curation on a sample of its images."""
    parser = Parser(
        prog="altalign trial",
        description="Do the text stages of a curation, and the others on a sample of its images. Predict pairs, "
        "images, bytes and hours of the whole run with 95 % intervals, and write RUN/trial: trial.json and "
        "report.html. A later `altalign curate` uses all that the trial has fetched.",
        epilog=TO_BEAM,
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help="settings (TOML), as of `altalign curate`")
    parser.add_argument("--images", type=int, default=_IMAGES, metavar="N", help=f"about so many images ({_IMAGES})")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another number draws other images (0)")
    add_overrides(parser, "override a setting; repeatable")
    own, flags = parted(argv)
    arguments = parser.parse_args(own)
    if arguments.images < 1:
        raise UsageError(f"--images {arguments.images}: not a number of images; give 1 or more, such as {_IMAGES}")
    if not 0 <= arguments.seed < 1 << 32:
        raise UsageError(f"--seed {arguments.seed}: no seed; give a whole number from 0 to {(1 << 32) - 1}")

    config = fitted(config_of_file(str(arguments.config), arguments.set))
    with startup.imports():
        from altalign.audit.report import FOLDER
        from altalign.pages import frame
        from altalign.pipelines.trial import report
        from altalign.pipelines.trial.trial import run_trial

    done = run_trial(config, arguments.images, arguments.seed, flags, config_path=str(arguments.config))
    paths = [done.run.path(report.FOLDER, name) for name in (report.FACTS, report.PAGE)]
    page = frame.rendered(
        FOLDER,
        "trial.html",
        run=done.run.folder,
        lead=report.lead(done),
        lines=report.lines(done),
        amounts=report.amounts(done),
        notes=[*report.notes(done)],
    )
    storage.write_bytes(paths[1], page)
    storage.write_json(paths[0], report.facts(done, arguments.images, arguments.seed))
    out = terminal.stdout()
    report.show(done, out)
    for path in paths:
        out.print(terminal.shown(path), highlight=False, soft_wrap=True)
    return 0 if done.prediction else 1
