"""Verbs that change a finished run, or make another of its samples: `add`, `remove`, `score`, `select`, `merge`."""

import argparse
from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations

from altalign import storage
from altalign.commands.arguments import (
    TO_BEAM,
    Parser,
    config_in,
    config_of_curation,
    config_of_run,
    config_with_test_sets,
    fitted,
    positive,
)
from altalign.commands.audit import after_curation
from altalign.data.purposes import OPPOSABLE
from altalign.errors import AltalignError, UsageError
from altalign.machine import startup

_LISTS = {
    "keys": "keys of pairs, one a line",
    "urls": "URLs of images or of pages",
    "image_ids": "image_ids; each goes with all its pairs",
    "hashes": "SHA-256 of images, as they were found or as they are stored",
    "domains": "domains of images or pages, and what is below these",
    "source_keys": "names of rows in the input",
    "removed": "what another run has removed: its removed.parquet",
}


def remove(argv: Sequence[str]) -> int:
    """Take pairs out of a finished run."""
    parser = Parser(
        prog="altalign remove",
        description="Take pairs out of a finished run, for good: shards that hold them are written anew, work/ is "
        "deleted, and no file names them any more (`altalign audit --full` looks). Exit code 1: none was there.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    for name, about in _LISTS.items():
        parser.add_repeatable(f"--{name.replace('_', '-')}", "FILE", f"{about}; repeatable")
    parser.add_argument("--near", type=_cosine, metavar="COSINE", help="also images as near to one (such as 0.975)")
    parser.add_argument("--by", default="", metavar="WHO", help="who asked for it, for removed.parquet")
    parser.add_argument("--because", default="", metavar="WHY", help="why, for removed.parquet")
    parser.add_argument("--dry-run", action="store_true", help="list what would go, and do nothing")
    arguments = parser.parse_args(argv)
    lists = {name: getattr(arguments, name) for name in _LISTS if getattr(arguments, name)}
    if not lists:
        raise UsageError("nothing is named that should go; give one or more lists, such as --keys FILE")
    config = config_of_run(arguments.run)
    startup.place_kernels()
    # Arrow, NumPy, the card: most of a second, which --help need not wait for
    from altalign.pipelines.change import remove as removing

    code = removing.main(
        config, lists, arguments.near, by=arguments.by, because=arguments.because, is_dry_run=arguments.dry_run
    )
    return code if arguments.dry_run else after_curation(config.run.folder) or code


def _cosine(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{word}: no cosine; give a number above 0 and at most 1, such as 0.975")
    return value


def add(argv: Sequence[str]) -> int:
    """Add input, or test sets, to a finished run."""
    parser = Parser(
        prog="altalign add",
        description="Add input to a finished run: then it holds what one run over all the input would hold, and new "
        "samples are a generation of shards. Or add test sets: near-duplicates of their images go.",
        epilog=TO_BEAM,
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_repeatable("--input", "PATH", "a file, glob or folder, as [input] paths has them; repeatable")
    parser.add_argument("--like", default="", metavar="NAME", help="the input of the run whose settings it has")
    of_mode = "exact: judge all texts by all counts; frozen: by the run's tables (exact)"
    parser.add_argument("--mode", choices=("exact", "frozen"), default="exact", help=of_mode)
    parser.add_argument("--fetch-again", action="store_true", help="where work/ is gone: ask the web for all images")
    parser.add_test_sets("instead of input: a folder of images, Parquet files or tars; repeatable")
    parser.add_overrides("with --test-set: override a setting of the run; repeatable")
    arguments, flags = parser.parse(argv)
    if arguments.test_set:
        parser.only(arguments, "--test-set", "test_set", "image_column", "set")
    elif arguments.input:
        parser.only(arguments, "--input", "input", "like", "mode", "fetch_again")
    else:
        raise UsageError("give --input or --test-set, one of the two")
    config = config_with_test_sets(arguments) if arguments.test_set else config_of_curation(arguments.run)
    startup.place_kernels()
    from altalign.pipelines.change import add as adding
    from altalign.pipelines.change import finish_anew

    if arguments.test_set:
        code = finish_anew.add_test_sets(config, flags)
    else:
        again, like = arguments.fetch_again, arguments.like
        try:
            code = adding.main(
                config, arguments.input, flags, like=like, is_fetched_again=again, is_frozen=arguments.mode == "frozen"
            )
        except AltalignError as error:  # the settings are those of the run
            raise type(error)(str(error).replace(", or set skip_unreadable = true", "")) from None
    return after_curation(config.run.folder) or code


def score(argv: Sequence[str]) -> int:
    """Measure scores on the samples of a finished run."""
    parser = Parser(
        prog="altalign score",
        description="Measure scores on the samples of a finished run, to RUN/scores/NAME; shards that have a score "
        "are not measured again. With --clusters, sort its images into clusters by k-means, in RUN/clusters.",
        epilog=TO_BEAM,
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("--with", dest="scores", metavar="FILE", default="", help="what to measure (TOML)")
    parser.add_argument("--clusters", type=positive, metavar="K", help="instead: sort images into so many at most")
    parser.add_argument("--embedder", metavar="NAME", default="dct", help="of clusters: an embedder (dct)")
    parser.add_argument("--anew", action="store_true", help="replace values that rest on other settings or files")
    parser.add_overrides("override a setting of the run, as engine.workers")
    arguments, flags = parser.parse(argv)
    if arguments.clusters:
        parser.only(arguments, "--clusters", "clusters", "embedder")
        if flags:
            raise UsageError(f"-- {flags[0]}: clusters are made in this process; leave flags for Beam out")
        startup.place_kernels()
        from altalign.pipelines.near import shard_images

        return shard_images.cluster(arguments.run, k=arguments.clusters, embedder=arguments.embedder)
    parser.only(arguments, "--with", "scores", "anew", "set")
    if not arguments.scores:
        raise UsageError("give --with FILE or --clusters K, one of the two")

    from altalign.settings.score import ScoreConfig

    scores = ScoreConfig.load(arguments.scores)
    config = fitted(config_of_run(arguments.run, arguments.set))
    startup.place_kernels()
    from altalign.pipelines.score import scoring

    return scoring.score(config, scores, str(arguments.scores), flags, anew=arguments.anew)


def select(argv: Sequence[str]) -> int:
    """Make a run of some samples of another one, or several of shares of it."""
    parser = _parser_of_select()
    arguments, flags = parser.parse(argv)
    if arguments.share:
        parser.only(arguments, "--share", "share", "set")
        return _share(arguments, flags)
    if arguments.list:
        parser.only(arguments, "--list", "list", "set")
    else:
        of_balance = ("balance", "balance_limit", "balance_tail", "balance_seed") if arguments.balance else ()
        parser.only(arguments, "a condition", "where", "respect", "top", "nulls", "set", *of_balance)
        if not (arguments.where or arguments.respect or arguments.top or arguments.balance):
            raise UsageError("nothing is asked for; give --where, --respect, --top, --balance, --list or --share")
    if len(arguments.out) > 1:
        raise UsageError(f"{len(arguments.out)} folders; one run is made, give one OUT, or --share too")
    of_run = config_of_run(arguments.run)
    config = config_in(arguments.run, arguments.out[0], arguments.set)
    startup.place_kernels()
    from altalign.pipelines.derive import balance, parents
    from altalign.pipelines.derive import select as selecting
    from altalign.pipelines.run.units import Run

    run = Run(config.run.folder, config, ())
    if arguments.list:
        code = selecting.subset(parents.opened(of_run.run.folder, of_run), run, arguments.list, flags)
    else:
        of_balance, tops = None, tuple(map(selecting.top, arguments.top))
        if arguments.balance:
            limit, tail, seed = arguments.balance_limit, arguments.balance_tail, arguments.balance_seed
            of_balance = balance.opened(arguments.balance, limit=limit, tail=tail, seed=seed)
        parent = parents.opened(of_run.run.folder, of_run)
        selection = selecting.Selection(
            arguments.where, tops, arguments.nulls, of_balance, parent, respect=arguments.respect
        )
        code = selecting.select(selection, run, flags)
    return after_curation(config.run.folder) or code


def _parser_of_select() -> Parser:
    parser = Parser(
        prog="altalign select",
        description="Make a run of those samples of a finished run that a condition or a list keeps; or several runs, "
        "each of a share of its images, with which their pairs and near images go. What was not selected is counted.",
        epilog=f"A condition: \"language = 'en' AND similarity >= 0.28\". {TO_BEAM}",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("out", metavar="OUT", nargs="+", help="folder of the new run; with --share one a share")
    parser.add_argument("--where", default="", metavar="CONDITION", help="what holds for samples that stay")
    parser.add_argument("--respect", choices=OPPOSABLE, default="", help="leave out what is reserved from this purpose")
    parser.add_repeatable("--top", "COLUMN=SHARE", "keep the share of largest values of what stays; repeatable")
    parser.add_argument("--balance", default="", metavar="ENTRIES", help="thin out frequent concepts: a file of them")
    parser.add_argument("--balance-limit", type=int, default=0, metavar="CAPTIONS", help="what an entry is thinned to")
    parser.add_argument("--balance-tail", type=float, default=0.0, metavar="SHARE", help="of matches below the limit")
    parser.add_argument("--balance-seed", type=int, default=0, metavar="NUMBER", help="of the lots (0)")
    parser.add_argument("--nulls", choices=("drop", "keep"), default="", help="what becomes of samples without a value")
    parser.add_repeatable("--list", "FILE", "keys, one a line; Parquet of key or uid; DataComp's .npy; repeatable")
    share = "shares whose sum is 1, such as 0.99/0.01; images near to each other stay together"
    parser.add_argument("--share", default="", metavar="SHARE/SHARE…", help=share)
    parser.add_overrides("override a setting of the run")
    return parser


def _share(arguments: argparse.Namespace, flags: list[str]) -> int:
    try:
        shares = [Fraction(share) for share in arguments.share.split("/")]
    except (ValueError, ZeroDivisionError):
        shares = []
    if len(shares) < 2 or sum(shares) != 1 or min(shares) <= 0:
        raise UsageError(f"--share {arguments.share}: not shares that add up to 1; give two or more, such as 0.99/0.01")
    if len(shares) != len(arguments.out):
        raise UsageError(
            f"--share {arguments.share}: {len(shares)} shares, and {len(arguments.out)} folders; give one each"
        )
    for one, other in permutations(arguments.out, 2):
        if storage.is_inside(one, other):
            raise UsageError(f"{one}: the same folder as {other}, or inside it; give each share a folder apart")
    config = config_of_run(arguments.run)
    made = [config_in(arguments.run, out, arguments.set) for out in arguments.out]
    startup.place_kernels()
    from altalign.pipelines.derive import parents
    from altalign.pipelines.derive import select as selecting

    code = selecting.split(parents.opened(config.run.folder, config), made, shares, flags)
    return max(code, *(after_curation(each.run.folder) for each in made))


def merge(argv: Sequence[str]) -> int:
    """Make one run of several, or one generation of a run that has grown."""
    parser = Parser(
        prog="altalign merge",
        description="Make one run of several finished ones whose settings are the same; texts and images are counted "
        "over all of them. Of one run: its samples come as one generation, in full shards and one order.",
        epilog=TO_BEAM,
    )
    parser.add_argument("run", metavar="RUN", nargs="+", help="folders of finished runs")
    parser.add_argument("--to", metavar="OUT", required=True, help="folder of the new run")
    arguments, flags = parser.parse(argv)
    configs = [config_of_run(run) for run in arguments.run]
    made = config_in(arguments.run[0], arguments.to)
    startup.place_kernels()
    from altalign.pipelines.change import merge as merging
    from altalign.pipelines.derive import parents

    runs = [parents.opened(config.run.folder, config) for config in configs]
    code = merging.merge(runs, made, flags)
    return after_curation(made.run.folder) or code
