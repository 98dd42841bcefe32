"""`altalign merge`: one run of several, or one generation of the shards of one."""

from collections.abc import Sequence

from altalign.commands.arguments import Parser
from altalign.commands.audit import after_curation
from altalign.commands.run_arguments import TO_BEAM, config_in, config_of_run, parted
from altalign.errors import UsageError
from altalign.machine import startup


def merge(argv: Sequence[str]) -> int:
    """Make one run of several, or one generation of a run that has grown."""
    parser = Parser(
        prog="altalign merge",
        description="Make one run of several finished ones, in shards of their own and in one order, without touching "
        "a pixel. Texts on too many images of all runs go, images with too many texts, and of pairs that several runs "
        "have all but one. Settings that decide a pair have to be the same. Of one run, without --to: its shards are "
        "written anew as one generation, full and in one order.",
        epilog=TO_BEAM,
    )
    parser.add_argument("run", metavar="RUN", nargs="+", help="folders of finished runs")
    parser.add_argument("--to", metavar="OUT", default="", help="folder of the new run, of two runs or more")
    own, flags = parted(argv)
    arguments = parser.parse_args(own)
    if len(arguments.run) == 1:
        return _of_one(arguments.run[0], arguments.to, flags)
    if not arguments.to:
        raise UsageError("several runs make a new one; give its folder, --to OUT")
    configs = [config_of_run(run, ()) for run in arguments.run]
    made = config_in(arguments.run[0], arguments.to)
    with startup.imports():
        from altalign.pipelines.change import merge as merging
        from altalign.pipelines.derive import ordering

    opened = [ordering.opened(config.run.folder, config) for config in configs]
    code = merging.merge(opened, made, flags)
    return after_curation(made.run.folder) or code


def _of_one(run: str, to: str, flags: list[str]) -> int:
    if to:
        raise UsageError(f"--to {to}: one run becomes no other; give two or more to merge, or leave --to out")
    if flags:
        raise UsageError(f"-- {flags[0]}: the shards of one run are copied in this process; leave flags for Beam out")
    config = config_of_run(run, ())
    with startup.imports():
        from altalign.pipelines.change import output

    output.compact(config)
    return after_curation(config.run.folder)
