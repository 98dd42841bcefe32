"""Arguments of `altalign trial`."""

from collections.abc import Sequence
from pathlib import Path

from altalign import terminal
from altalign.arguments import Parser
from altalign.errors import UsageError
from altalign.machine import startup
from altalign.pipelines.run_arguments import TO_BEAM, add_overrides, config_of_file, fitted, parted

_IMAGES = 20_000


def trial(argv: Sequence[str]) -> int:
    """Try a curation on a sample of its images."""
    parser = Parser(
        prog="altalign trial",
        description="Do the text stages of a curation, and the others on a sample of its images. Predict pairs, "
        "images, bytes, hours and cost with 95 % intervals, and write RUN/trial: trial.json, report.html and "
        "policy.toml. A later `altalign curate` uses all that the trial has fetched.",
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
        from altalign.pipelines.trial import told, trying

    wanted = trying.Wanted(arguments.images, arguments.seed, flags)
    tried = trying.tried(config, wanted, config_path=str(arguments.config))
    told.write(tried, wanted, str(arguments.config))
    told.show(tried, terminal.stdout())
    return 0 if tried.prediction else 1
