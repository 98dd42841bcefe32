"""Arguments of `altalign score`, `altalign select` and `altalign entries`."""

from collections.abc import Sequence

from altalign import cli
from altalign.commands.arguments import Parser
from altalign.commands.run_arguments import TO_BEAM, add_overrides, config_in, config_of_run, fitted, parted
from altalign.errors import UsageError
from altalign.machine import startup

_OF_BALANCE = ("balance_limit", "balance_tail", "balance_seed")


def score(argv: Sequence[str]) -> int:
    """Measure scores on the samples of a finished run."""
    parser = Parser(
        prog="altalign score",
        description="Measure scores on the samples of a finished run: RUN/scores/NAME has a file for each shard. "
        "Shards that have a score are not measured again. `altalign select` decides by scores.",
        epilog=TO_BEAM,
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("--with", dest="scores", metavar="FILE", required=True, help="what to measure (TOML)")
    parser.add_argument("--anew", action="store_true", help="replace values that rest on other settings or files")
    add_overrides(parser, "override a setting of the run, as engine.workers")
    own, flags = parted(argv)
    arguments = parser.parse_args(own)

    from altalign.settings.score import ScoreConfig

    scores = ScoreConfig.load(arguments.scores)
    config = fitted(config_of_run(arguments.run, arguments.set))
    with startup.imports():
        from altalign.pipelines.score import scoring

    return scoring.score(config, scores, str(arguments.scores), flags, anew=arguments.anew)


def select(argv: Sequence[str]) -> int:
    """Make a run of the samples of another one that a condition keeps."""
    parser = Parser(
        prog="altalign select",
        description="Make a run of those samples of a finished run that a condition on its columns and scores keeps. "
        "What was not selected is counted and kept with its reasons.",
        epilog=f"A condition: \"language = 'en' AND similarity >= 0.28\". {TO_BEAM}",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("out", metavar="OUT", help="folder of the new run")
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
    add_overrides(parser, "override a setting of the run")
    own, flags = parted(argv)
    arguments = parser.parse_args(own)
    if not (arguments.where or arguments.top or arguments.balance):
        raise UsageError("nothing is asked for; give --where, --top or --balance")
    if not arguments.balance:
        given = {f"--{name.replace('_', '-')}": getattr(arguments, name) for name in _OF_BALANCE}
        if lone := [name for name, value in given.items() if value]:
            raise UsageError(f"{lone[0]}: nothing is balanced; give --balance ENTRIES too, or leave it out")
    of_run = config_of_run(arguments.run, ())
    config = config_in(arguments.run, arguments.out, arguments.set)
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
    return code if arguments.keys_only else cli.call(cli.AFTER_A_CURATION, config.run.folder) or code


def entries(argv: Sequence[str]) -> int:
    """Write a file of concepts."""
    parser = Parser(
        prog="altalign entries",
        description="Write a file of concepts, one a line, by which `altalign select` balances: from titles of "
        "Wikipedia and from WordNet's files, which you have. Entries of the same words are written once.",
    )
    parser.add_argument("out", metavar="OUT", help="the file")
    parser.add_argument(
        "--titles", action="append", default=[], metavar="FILE", help="titles, one a line, plain or gzip; repeatable"
    )
    parser.add_argument(
        "--wordnet",
        action="append",
        default=[],
        metavar="PATH",
        help="WordNet's folder, or wn-data-XXX.tab; repeatable",
    )
    arguments = parser.parse_args(argv)
    if not (arguments.titles or arguments.wordnet):
        raise UsageError("nothing to take entries from; give --titles, --wordnet or both")
    with startup.imports():
        from altalign.pipelines.derive import entries

    return entries.write(arguments.out, arguments.titles, arguments.wordnet)
