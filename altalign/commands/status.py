"""`altalign status RUN`: shows how far a run is. It reads nothing but the run's files."""

from collections.abc import Sequence
from datetime import UTC, datetime

from altalign import storage, terminal
from altalign.audit.run_folder import RunFolder
from altalign.commands import lineage
from altalign.commands.arguments import Parser
from altalign.data.stages import REPORT, finished_units, own_files
from altalign.errors import UsageError
from altalign.storage.atomic_change import ADDING
from altalign.terminal import command, shown

MOST = 8  # reasons, and hosts, to name


def main(argv: Sequence[str]) -> int:
    """Prints the state of every stage."""
    about = "Show how far a run is: units, rows, failures and time left, read from its files."
    parser = Parser(prog="altalign status", description=about)
    parser.add_argument("run", metavar="RUN", help="folder of a run; for --lineage also of a training, or a checkpoint")
    parser.add_argument(
        "--lineage", action="store_true", help="what the run was made of, or the runs that a model was trained on"
    )
    parser.add_argument("--key", default="", help="of a training: every step that had this pair, by its key")
    parser.add_argument(
        "--removed",
        default="",
        metavar="RUN",
        help="of a training: checkpoints that have seen what this run (or removed.parquet) removed",
    )
    parser.add_argument("--json", action="store_true", help="with --lineage: print the same as JSON")
    arguments = parser.parse_args(argv)
    if arguments.lineage or arguments.key or arguments.removed:
        return lineage.show(arguments.run, arguments.key, arguments.removed, is_json=arguments.json)
    if arguments.json:
        raise UsageError("--json: belongs to --lineage; give it too")
    folder = arguments.run
    with own_files(folder):
        _print(RunFolder.open(folder))
    return 0


def _print(run: RunFolder) -> None:
    from rich.table import Table  # a tenth of a second, which --help need not wait for

    out = terminal.stdout()
    process = storage.holder(run.folder)
    state = f"running (process {process})" if process else "finished" if run.is_finished else "not finished"
    out.print(f"{shown(run.folder)}: {state}", soft_wrap=True)
    table = Table()
    for name in ("stage", "state"):
        table.add_column(name)
    for name in ("units", "rows", "time", "left", "tries"):
        table.add_column(name, justify="right")
    for stage, facts in run.facts["stages"].items():
        done, planned, rows = _units(run, stage)
        state, left = ("finished", "") if facts["finished"] else ("begun", _left(facts["started"], done, planned))
        units, of_rows = f"{done:,} of {planned:,}" if planned else "", f"{rows:,}" if rows else ""
        table.add_row(stage, state, units, of_rows, f"{facts['seconds']:.1f} s", left, str(facts["attempts"]))
    out.print(table)
    for line in _from_the_web(run):
        out.print(line, soft_wrap=True)
    trouble = storage.read_json(run.path("log", "trouble.json"))
    if trouble and not run.is_finished:
        out.print(f"last failure: {shown(trouble['message'])}", soft_wrap=True)
    if run.is_finished and not process and storage.kind(run.path(ADDING)) == "folder":
        out.print("an addition to it was cut off: run the same `altalign add` again, which continues it")
    if run.is_finished and not process and not all(storage.exists(run.path(*name.split("/"))) for name in REPORT):
        out.print(f"it has no report as it is now: `{command('audit', run.folder)}` writes it", soft_wrap=True)
    if not run.is_finished and not process:
        out.print("run the same `altalign curate` again to continue")


def _units(run: RunFolder, stage: str) -> tuple[int, int, int]:
    """Finished units, planned units and rows of the steps of a stage that have begun."""
    done = planned = rows = 0
    for plan in storage.below(run.path("work", stage), "plan/plan.json"):
        facts = storage.read_json(plan)
        done += len(finished_units(plan.removesuffix("/plan/plan.json")))
        planned, rows = planned + facts["units"], rows + facts["rows"]
    return done, planned, rows


def _from_the_web(run: RunFolder) -> list[str]:
    """Lines about the fetch from its last progress.json; empty if the images came with the input."""
    said = storage.read_json(run.path("log", "fetch", "progress.json"))
    if not said:
        return []
    is_under_way = said["units_finished"] < said["units"]
    ended, images = said["ended"], said["images"]
    parts = [
        f"fetch: {ended:,} of {images:,} images",
        f"{said['fetched'] / max(1, ended):.1%} fetched",
        f"{said['bytes'] / 1e6:,.1f} MB",
    ]
    if is_under_way:
        left = said["seconds_left"]
        parts += [
            f"{said['images_per_s']:,.0f} images/s",
            "time left unknown" if left is None else f"about {left} s left",
            f"as of {said['updated']}",
        ]
    found = {"not fetched": said["reasons"], "most failures": said["hosts"]}
    lines = [", ".join(parts)]
    for what, of in found.items():
        if of:
            numbers = list(of.items())
            most = ", ".join(f"{shown(name)} {number:,}" for name, number in numbers[:MOST])
            if rest := sum(number for _, number in numbers[MOST:]):
                most += f", … {rest:,} of {len(numbers) - MOST:,} others"
            lines.append(f"  {what}: {most}")
    return lines


def _left(started: str, done: int, planned: int) -> str:
    """The time left for a stage, estimated from the units that have finished."""
    if not done:
        return "unknown"
    begun = datetime.strptime(started, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return f"{(datetime.now(UTC) - begun).total_seconds() * (planned - done) / done:.0f} s"
