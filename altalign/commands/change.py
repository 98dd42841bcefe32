"""Arguments of `altalign remove` and `altalign add`."""

import argparse
from collections.abc import Sequence

from altalign.commands.arguments import Parser
from altalign.commands.audit import after_curation
from altalign.commands.run_arguments import (
    TO_BEAM,
    add_overrides,
    add_test_sets,
    config_of_curation,
    config_of_run,
    config_with_test_sets,
    fitted,
    parted,
)
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
        description="Take pairs out of a finished run: the shards that hold them are written anew, work/ is deleted, "
        "and dropped rows, galleries, the report and the log forget them. removed.parquet keeps hashes. What is not "
        "there yet is kept out of what is added later. The exit code is 1 where nothing was there. `altalign audit "
        "--full` reads every file again, to see that nothing is left.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    for name, about in _LISTS.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(
            option,
            action="append",
            default=[],
            metavar="FILE",
            help=f"{about}; repeatable",
        )
    parser.add_argument(
        "--near",
        type=_cosine,
        metavar="COSINE",
        help="also images as near to a removed one as this, such as 0.975",
    )
    parser.add_argument("--by", default="", metavar="WHO", help="who asked for it, for removed.parquet")
    parser.add_argument("--because", default="", metavar="WHY", help="why, for removed.parquet")
    parser.add_argument("--dry-run", action="store_true", help="list what would go, and do nothing")
    arguments = parser.parse_args(argv)
    lists = {name: getattr(arguments, name) for name in _LISTS if getattr(arguments, name)}
    if not lists:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in _LISTS)
        raise UsageError(f"nothing is named that should go; give one or more of {options}")
    config = config_of_run(arguments.run, ())

    with startup.imports():
        # Arrow, NumPy, the card: most of a second, which --help need not wait for
        from altalign.pipelines.change import output

    wanted = output.Wanted(lists, arguments.near, arguments.by, arguments.because, is_dry_run=arguments.dry_run)
    code = output.remove(config, wanted)
    if arguments.dry_run:
        return code
    return after_curation(config.run.folder) or code


def add(argv: Sequence[str]) -> int:
    """Add input, or test sets, to a finished run."""
    parser = Parser(
        prog="altalign add",
        description="Add input to a finished run. Afterwards it holds the samples that one run over all the input "
        "would hold: all rows are judged again, images are not fetched again. New samples come into shards of a "
        "generation of their own; what no longer passes is taken out of its shard. Or add test sets: near-duplicates "
        "of their images go, the shards are written anew, and nothing is fetched or judged again.",
        epilog=TO_BEAM,
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    of_input = "a file, glob or folder, as [input] paths has them; repeatable"
    parser.add_argument("--input", action="append", default=[], metavar="PATH", help=of_input)
    parser.add_argument(
        "--like", default="", metavar="NAME", help="the input of the run whose kind and settings it has"
    )
    of_mode = "exact: judge all texts by all counts; frozen: by the run's tables (exact)"
    parser.add_argument("--mode", choices=("exact", "frozen"), default="exact", help=of_mode)
    of_web = "ask the web again for all images of a run whose work/ is gone"
    parser.add_argument("--fetch-again", action="store_true", help=of_web)
    add_test_sets(parser, "instead of input: a folder of images, Parquet files or tars; repeatable")
    add_overrides(parser, "with --test-set: override a setting of the run; repeatable")
    own, flags = parted(argv)
    arguments = parser.parse_args(own)
    if bool(arguments.input) == bool(arguments.test_set):
        raise UsageError("give --input or --test-set, one of the two")
    _check_options(arguments)
    if arguments.test_set:
        return _add_test_sets(arguments, flags)
    if arguments.set:
        raise UsageError(f"--set {arguments.set[0]}: an addition has the settings of the run; leave it out")
    config = fitted(config_of_curation(arguments.run, ()))
    with startup.imports():
        from altalign.pipelines.change import add as adding
        from altalign.pipelines.change import output

    is_frozen = arguments.mode == "frozen"
    wanted = adding.Wanted(arguments.input, arguments.like, arguments.fetch_again, is_frozen)
    try:
        code = output.add(config, wanted, flags)
    except AltalignError as error:  # the settings are those of the run
        raise type(error)(str(error).replace(", or set skip_unreadable = true", "")) from None
    return after_curation(config.run.folder) or code


def _check_options(arguments: argparse.Namespace) -> None:
    """Refuse options of --input that stand beside --test-set, and the other way round."""
    of_input = {
        "--like": arguments.like,
        "--mode frozen": arguments.mode == "frozen",
        "--fetch-again": arguments.fetch_again,
    }
    of_test_sets = {"--image-column": arguments.image_column != "image"}
    other, way = (of_input, "--test-set") if arguments.test_set else (of_test_sets, "--input")
    for option in (option for option, is_given in other.items() if is_given):
        raise UsageError(f"{option}: does not go with {way}; leave it out")


def _add_test_sets(arguments: argparse.Namespace, flags: list[str]) -> int:
    config = config_with_test_sets(arguments)
    with startup.imports():
        from altalign.pipelines.change import add_test_sets as on_run

    code = on_run.add(config, flags)
    return after_curation(config.run.folder) or code


def _cosine(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{word}: no cosine; give a number above 0 and at most 1, such as 0.975")
    return value
