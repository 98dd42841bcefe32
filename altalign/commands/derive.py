"""Arguments of `altalign subset`, `altalign split` and `altalign merge`."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations

from altalign import cli, storage
from altalign.commands import score
from altalign.commands.arguments import Parser
from altalign.commands.run_arguments import TO_BEAM, config_in, config_of_run, parted
from altalign.errors import UsageError
from altalign.machine import startup


def subset(argv: Sequence[str]) -> int:
    """Make a run of the pairs that a list names, or for which a condition holds."""
    parser = Parser(
        prog="altalign subset",
        description="Make a run of those pairs of a finished run that a list names, or for which a condition holds, in "
        "shards of their own, without touching a pixel. The other pairs are counted.",
        epilog=TO_BEAM,
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("out", metavar="OUT", help="folder of the new run")
    parser.add_argument(
        "--keys",
        action="append",
        default=[],
        metavar="FILE",
        help="keys, one a line; Parquet with a column key or uid; or DataComp's .npy of uids; repeatable",
    )
    parser.add_argument(
        "--where", default="", metavar="CONDITION", help="the same as `altalign select` with this condition"
    )
    own, flags = parted(argv)
    arguments = parser.parse_args(own)
    if bool(arguments.keys) == bool(arguments.where):
        raise UsageError("give --keys or --where, one of the two")
    if arguments.where:
        return score.select([arguments.run, arguments.out, "--where", arguments.where, "--", *flags])
    config = config_of_run(arguments.run, ())
    made = config_in(arguments.run, arguments.out)
    with startup.imports():
        from altalign.pipelines.derive import ordering
        from altalign.pipelines.derive import subset as listed
        from altalign.pipelines.run.units import Run

    parent = ordering.opened(config.run.folder, config)
    code = listed.subset(parent, Run(made.run.folder, made, ()), arguments.keys, flags)
    return cli.call(cli.AFTER_A_CURATION, made.run.folder) or code


def merge(argv: Sequence[str]) -> int:
    """Make one run of several."""
    parser = Parser(
        prog="altalign merge",
        description="Make one run of several finished ones, in shards of their own and in one order, without touching "
        "a pixel. Texts on too many images of all runs go, images with too many texts, and of pairs that several runs "
        "have all but one. Settings that decide a pair have to be the same.",
        epilog=TO_BEAM,
    )
    parser.add_argument("run", metavar="RUN", nargs="+", help="folders of two finished runs, or more")
    parser.add_argument("--to", metavar="OUT", required=True, help="folder of the new run")
    own, flags = parted(argv)
    arguments = parser.parse_args(own)
    if len(arguments.run) < 2:
        raise UsageError(f"{arguments.run[0]}: one run; give two or more to merge")
    configs = [config_of_run(run, ()) for run in arguments.run]
    made = config_in(arguments.run[0], arguments.to)
    with startup.imports():
        from altalign.pipelines.change import merge as merging
        from altalign.pipelines.derive import ordering

    opened = [ordering.opened(config.run.folder, config) for config in configs]
    code = merging.merge(opened, made, flags)
    return cli.call(cli.AFTER_A_CURATION, made.run.folder) or code


def split(argv: Sequence[str]) -> int:
    """Make several runs of shares of a run."""
    parser = Parser(
        prog="altalign split",
        description="Make several runs of a finished one, each of a share of its images. All pairs of an image are in "
        "the same one, and so are images that are near to each other. Shares are drawn by a hash of the image.",
        epilog=TO_BEAM,
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("out", metavar="OUT", nargs="+", help="folders of the new runs, one a share")
    parser.add_argument(
        "--share", required=True, metavar="SHARE/SHARE…", help="shares, such as 0.99/0.01; their sum is 1"
    )
    parser.add_argument(
        "--near", type=float, default=0.975, metavar="COSINE", help="images nearer than this stay together (0.975)"
    )
    own, flags = parted(argv)
    arguments = parser.parse_args(own)
    shares = _shares(arguments.share)
    if len(shares) != len(arguments.out):
        raise UsageError(
            f"--share {arguments.share}: {len(shares)} shares, and {len(arguments.out)} folders; give one each"
        )
    if not 0 < arguments.near <= 1:
        raise UsageError(f"--near {arguments.near}: no cosine; give a number above 0 and at most 1, such as 0.975")
    for one, other in permutations(arguments.out, 2):
        if storage.is_inside(one, other):
            raise UsageError(f"{one}: the same folder as {other}, or inside it; give each share a folder apart")
    config = config_of_run(arguments.run, ())
    made = [config_in(arguments.run, out) for out in arguments.out]
    with startup.imports():
        from altalign.pipelines.derive import ordering
        from altalign.pipelines.derive import subset as listed

    code = listed.split(ordering.opened(config.run.folder, config), made, shares, arguments.near, flags)
    return max(code, *(cli.call(cli.AFTER_A_CURATION, each.run.folder) for each in made))


def _shares(text: str) -> list[Fraction]:
    try:
        shares = [Fraction(share) for share in text.split("/")]
    except (ValueError, ZeroDivisionError):
        shares = []
    if len(shares) < 2 or sum(shares) != 1 or min(shares) <= 0:
        raise UsageError(f"--share {text}: not shares that add up to 1; give two or more, such as 0.99/0.01")
    return shares
