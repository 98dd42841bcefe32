"""`altalign select`: runs of some samples of another one: by a condition, a list or a share."""

import argparse
from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations

from altalign import storage
from altalign.commands.arguments import Parser
from altalign.commands.audit import after_curation
from altalign.commands.run_arguments import TO_BEAM, add_overrides, config_in, config_of_run, parted
from altalign.errors import UsageError
from altalign.machine import startup

_OF_BALANCE = ("balance_limit", "balance_tail", "balance_seed")
_OF_CONDITIONS = ("where", "top", "balance", "nulls", "keys_only", *_OF_BALANCE)
_NEAR = 0.975


def select(argv: Sequence[str]) -> int:
    """Make a run of some samples of another one, or several of shares of it."""
    own, flags = parted(argv)
    arguments = _parser().parse_args(own)
    of_conditions = [name for name in _OF_CONDITIONS if getattr(arguments, name)]
    ways = [name for name in ("list", "share", *of_conditions[:1]) if getattr(arguments, name)]
    if len(ways) > 1:
        raise UsageError(f"{' and '.join(map(_flag, ways))}: do not go together; give one of them")
    if arguments.near is not None and not arguments.share:
        raise UsageError(f"--near {arguments.near}: belongs to --share; give it too, or leave --near out")
    if arguments.share:
        return _share(arguments, flags)
    if len(arguments.out) > 1:
        raise UsageError(f"{len(arguments.out)} folders; one run is made, give one OUT, or --share too")
    return _listed(arguments, flags) if arguments.list else _by_condition(arguments, flags)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="altalign select",
        description="Make a run of those samples of a finished run that a condition on its columns and scores keeps, "
        "or that a list names; or several runs, each of a share of its images. What was not selected is counted and "
        "kept with its reasons. No pixel is touched.",
        epilog=f"A condition: \"language = 'en' AND similarity >= 0.28\". {TO_BEAM}",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("out", metavar="OUT", nargs="+", help="folder of the new run; with --share one a share")
    parser.add_argument("--where", default="", metavar="CONDITION", help="what holds for samples that stay")
    parser.add_argument(
        "--top",
        action="append",
        default=[],
        metavar="COLUMN=SHARE",
        help="keep this share, that of the largest values, of what --where keeps; repeatable",
    )
    parser.add_argument("--balance", default="", metavar="ENTRIES", help="thin out frequent concepts: a file of them")
    parser.add_argument("--balance-limit", type=int, default=0, metavar="CAPTIONS", help="what an entry is thinned to")
    parser.add_argument("--balance-tail", type=float, default=0.0, metavar="SHARE", help="of matches below the limit")
    parser.add_argument("--balance-seed", type=int, default=0, metavar="NUMBER", help="of the lots (0)")
    parser.add_argument(
        "--nulls", choices=("drop", "keep"), default="", help="what becomes of samples whose value is missing"
    )
    parser.add_argument("--keys-only", action="store_true", help="write OUT/keys.parquet alone, and no shards")
    parser.add_argument(
        "--list",
        action="append",
        default=[],
        metavar="FILE",
        help="keys, one a line; Parquet with a column key or uid; or DataComp's .npy of uids; repeatable",
    )
    parser.add_argument(
        "--share",
        default="",
        metavar="SHARE/SHARE…",
        help="shares whose sum is 1, such as 0.99/0.01; an image, its pairs and images near to it stay together",
    )
    parser.add_argument(
        "--near", type=float, metavar="COSINE", help=f"with --share: images nearer than this stay together ({_NEAR})"
    )
    add_overrides(parser, "override a setting of the run")
    return parser


def _by_condition(arguments: argparse.Namespace, flags: list[str]) -> int:
    (out,) = arguments.out
    if not (arguments.where or arguments.top or arguments.balance):
        raise UsageError("nothing is asked for; give --where, --top, --balance, --list or --share")
    if not arguments.balance and (lone := [name for name in _OF_BALANCE if getattr(arguments, name)]):
        raise UsageError(f"{_flag(lone[0])}: nothing is balanced; give --balance ENTRIES too, or leave it out")
    of_run = config_of_run(arguments.run, ())
    config = config_in(arguments.run, out, arguments.set)
    with startup.imports():
        from altalign.pipelines.derive import balance, ordering, selection
        from altalign.pipelines.derive import select as selecting
        from altalign.pipelines.run.units import Run

    of_balance = None
    if arguments.balance:
        limit, tail, seed = arguments.balance_limit, arguments.balance_tail, arguments.balance_seed
        of_balance = balance.asked(arguments.balance, limit=limit, tail=tail, seed=seed)
    wanted = selection.Asked(arguments.where, tuple(map(selection.top, arguments.top)), arguments.nulls, of_balance)
    parent = ordering.opened(of_run.run.folder, of_run)
    code = selecting.select(parent, Run(config.run.folder, config, ()), wanted, flags, is_of_keys=arguments.keys_only)
    return code if arguments.keys_only else after_curation(config.run.folder) or code


def _listed(arguments: argparse.Namespace, flags: list[str]) -> int:
    config = config_of_run(arguments.run, ())
    made = config_in(arguments.run, arguments.out[0], arguments.set)
    with startup.imports():
        from altalign.pipelines.derive import ordering, subset
        from altalign.pipelines.run.units import Run

    parent = ordering.opened(config.run.folder, config)
    code = subset.subset(parent, Run(made.run.folder, made, ()), arguments.list, flags)
    return after_curation(made.run.folder) or code


def _share(arguments: argparse.Namespace, flags: list[str]) -> int:
    shares, near = _shares(arguments.share), _NEAR if arguments.near is None else arguments.near
    if len(shares) != len(arguments.out):
        raise UsageError(
            f"--share {arguments.share}: {len(shares)} shares, and {len(arguments.out)} folders; give one each"
        )
    if not 0 < near <= 1:
        raise UsageError(f"--near {near}: no cosine; give a number above 0 and at most 1, such as {_NEAR}")
    for one, other in permutations(arguments.out, 2):
        if storage.is_inside(one, other):
            raise UsageError(f"{one}: the same folder as {other}, or inside it; give each share a folder apart")
    config = config_of_run(arguments.run, ())
    made = [config_in(arguments.run, out, arguments.set) for out in arguments.out]
    with startup.imports():
        from altalign.pipelines.derive import ordering, subset

    code = subset.split(ordering.opened(config.run.folder, config), made, shares, near, flags)
    return max(code, *(after_curation(each.run.folder) for each in made))


def _shares(text: str) -> list[Fraction]:
    try:
        shares = [Fraction(share) for share in text.split("/")]
    except (ValueError, ZeroDivisionError):
        shares = []
    if len(shares) < 2 or sum(shares) != 1 or min(shares) <= 0:
        raise UsageError(f"--share {text}: not shares that add up to 1; give two or more, such as 0.99/0.01")
    return shares
