"""`altalign audit RUN` checks a finished run and writes its report; with RUN_A RUN_B it compares two runs."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from altalign import storage
from altalign.audit.run_folder import RunFolder
from altalign.commands.arguments import Parser, positive
from altalign.data import generations, listing
from altalign.data.stages import REPORT, own_files
from altalign.errors import AltalignError, UnreadableError, UsageError
from altalign.machine import startup
from altalign.terminal import command, shown

if TYPE_CHECKING:
    from altalign.audit.checks import Check

PAGE, CHECKS, NUMBERS = REPORT
SHARDS_AFTER_A_CURATION = 8  # read when a curation ends, of its newest generation; `altalign audit` reads all
NOT_WRITTEN = (AltalignError, OSError, MemoryError)  # what `reported` may raise: the run is whole nevertheless


def main(argv: Sequence[str]) -> int:
    """Checks a finished run and writes its report, or compares two runs."""
    arguments = _arguments(argv)
    if arguments.summary:
        return _summarised(arguments.run, arguments.to or ".")
    if arguments.digest or arguments.quick:
        return _of_files(arguments.run, is_quick=arguments.quick, is_digest=arguments.digest, as_json=arguments.json)
    if arguments.other is not None:
        from altalign.audit import compare

        return compare.main(arguments.run, arguments.other, as_json=arguments.json, page=arguments.page)
    words = dict[str, str]()
    for each in arguments.words:
        name, _, path = each.partition("=")
        if not name or not path or name in words:
            raise UsageError(f"--words {each}: not of the form NAME=FILE, or of a name that is there already")
        words[name] = path
    most, is_written = arguments.shards, not arguments.json
    run, checks = checked(
        arguments.run, shards_at_most=most, is_written=is_written, words=words, is_full=arguments.full
    )
    if arguments.json:
        sys.stdout.write(json.dumps({"run": run.folder, **_to_json(checks)}, indent=2) + "\n")
    else:
        _print(run, checks)
    return _exit_code(checks)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments. Raises UsageError: they do not go together."""
    about = (
        "Check a finished run and write RUN/report.html: what was dropped, by which rule, and whether that was right. "
        "The exit code is 1 if a check fails (0 if one could not be asked). "
        "With two runs: show what differs, and which pairs changed their verdict."
    )
    parser = Parser(prog="altalign audit", description=about)
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("other", metavar="RUN_B", nargs="?", help="another run to compare RUN with")
    as_json = "print the checks, or the differences, as JSON and write nothing"
    parser.add_argument("--json", action="store_true", help=as_json)
    parser.add_argument("--shards", type=positive, default=None, metavar="N", help="read at most N shards (all)")
    full = "also search every file for what was removed, as removed.parquet names it"
    parser.add_argument("--full", action="store_true", help=full)
    parser.add_argument("--page", metavar="FILE", help="with two runs: also write an HTML page with pictures")
    digest = "compare every byte with what was written, and print the run's number"
    parser.add_argument("--digest", action="store_true", help=digest)
    parser.add_argument("--quick", action="store_true", help="compare only names and sizes of all files; write nothing")
    summary = "write the summary of training content in the form of the EU's AI Office"
    parser.add_argument("--summary", choices=("eu",), help=summary)
    words = "report the share kept of captions with a word of this list; repeatable"
    parser.add_repeatable("--words", "NAME=FILE", words)
    parser.add_argument("--to", metavar="FOLDER", default="", help="with --summary: where it is written (.)")
    given = parser.parse_args(argv)
    is_of_two, is_of_files = given.other is not None, given.digest or given.quick
    is_of_report = not (is_of_two or is_of_files or given.json)
    why = ""
    if given.summary and (not is_of_report or given.shards or given.page is not None or given.words):
        why = "--summary: is written alone; leave RUN_B and the other options but --to out"
    elif given.full and (is_of_two or is_of_files or given.shards) and not given.summary:
        why = "--full: reads every file of one run; leave out RUN_B, --digest, --quick and --shards"
    elif given.to and not given.summary:
        why = f"--to {given.to}: belongs to --summary; give it too, or leave --to out"
    elif given.words and not is_of_report:
        why = f"--words {given.words[0]}: belongs to the report of one run; leave it out"
    elif is_of_files and (is_of_two or given.shards):
        why = "--digest and --quick look at all files of one run; leave out RUN_B and --shards"
    elif given.page is not None and not is_of_two and not is_of_files:
        why = "--page is for two runs; the page of one run is RUN/report.html, which is always written"
    elif is_of_two and given.shards:
        why = "--shards is for the checks of one run; leave it out to compare two runs"
    if why:
        raise UsageError(why)
    return given


def _summarised(folder: str, to: str) -> int:
    """Writes the summary of training content of a finished run, outside of the run."""
    with own_files(folder):
        run = RunFolder.open(folder)
        run.check_finished("there is nothing to sum up yet")
        if storage.is_inside(to, run.folder):
            raise UsageError(f"--to {to}: inside the run, whose files are listed; give another folder")
        from altalign.audit import training_content

        for path in training_content.write(run, to):
            sys.stdout.write(f"{shown(path)}\n")
    return 0


def _of_files(folder: str, *, is_quick: bool, is_digest: bool, as_json: bool) -> int:
    """Looks at every file of a run and nothing else; names each that is not as it was written."""
    with own_files(folder):
        run = RunFolder.open(folder)
        run.check_finished("it has no list of its files yet")
        number, files = listing.number(run.folder), listing.look(run.folder, sizes_alone=is_quick)
    if as_json:
        facts = {"run": run.folder, "digest": number, "files": files.files, "wrong": files.wrong}
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    elif files.wrong:
        sys.stdout.write("".join(f"{shown(f'{name}: {why}')}\n" for name, why in sorted(files.wrong.items())))
        sys.stdout.write(f"{len(files.wrong):,} of {files.files:,} files are not as they were written\n")
    else:
        sys.stdout.write(f"{number}\n" if is_digest else f"{files.files:,} files, each of its size\n")
    return AltalignError.exit_code if files.wrong else 0


# The report ----------------------------------------------------------------------------------------------------------


def checked(
    folder: str,
    *,
    shards_at_most: int | None,
    is_written: bool,
    words: Mapping[str, str] | None = None,
    is_full: bool = False,
) -> "tuple[RunFolder, list[Check]]":
    """Checks a finished run, and writes its report where `is_written`, with the slices of lists of words.

    `is_full`: also that no file has anything of what was removed.

    Raises:
        UsageError: it is no finished run.
        DamagedError: a file of the run cannot be read.
    """
    with own_files(folder):
        run = RunFolder.open(folder)
        run.check_finished("there is nothing to report yet")
        if is_written:
            startup.place_kernels()
        # Arrow, NumPy, templates: half a second, which --help need not wait for
        from altalign.audit import checks

        results = checks.run_checks(run, shards_at_most=shards_at_most)
        results += checks.check_absence(run) if is_full else []
        if is_written:
            _write(run, results, words)
        return run, results


def _write(run: RunFolder, checks: "list[Check]", words: Mapping[str, str] | None = None) -> None:
    """Writes `audit/checks.json`, `audit/report.json` and, last, `report.html`."""
    from altalign.audit.report import page

    report = page.gather(run, checks, words)
    # ASCII, for names of files may be any bytes
    storage.write_bytes(run.path(CHECKS), (json.dumps(_to_json(checks), indent=1) + "\n").encode())
    storage.write_bytes(run.path(NUMBERS), (json.dumps(report.to_json(), indent=1) + "\n").encode())
    storage.write_bytes(run.path(PAGE), page.html(report))


def reported(folder: str) -> "tuple[RunFolder, list[Check]] | None":
    """The run and the checks of its report, which is written where there is none; None of an unfinished run."""
    with own_files(folder):
        run = RunFolder.open(folder)
        if not run.is_finished:
            return None
        startup.place_kernels()
        from altalign.audit.checks import Check
        from altalign.audit.report import page

        path = run.path(PAGE)  # of an existing report; another manifest or version has another
        if storage.exists(path) and page.generator(run).encode() in storage.read_range(path, 0, 1_000):
            with suppress(UnreadableError, KeyError, TypeError):
                return run, [Check(**check) for check in run.json(CHECKS)["checks"]]
        # of a run that has grown, the shards that came are read, for the others were read before
        entries = run.json("manifest.json").get("shards", [])
        numbers = [generations.number_of(str(entry["name"])) for entry in entries if "name" in entry]
        newest = max(numbers, default=1)
        came = numbers.count(newest) if newest > 1 else SHARDS_AFTER_A_CURATION
    return checked(folder, shards_at_most=min(SHARDS_AFTER_A_CURATION, came), is_written=True)


def after_curation(folder: str) -> int:
    """Writes the report at the end of a curation, unless a finished run already has one; returns the exit code.

    An error in writing the report is only printed, for the shards are whole; a check that fails gives exit code 1.
    """
    try:
        report = reported(folder)
    except NOT_WRITTEN as error:
        sys.stderr.write(f"altalign: {why_no_report(folder, error)}\n")
        return 0
    if report is None:
        return 0
    _print(*report)
    return _exit_code(report[1])


def why_no_report(folder: str, error: BaseException) -> str:
    """Why no report was written, in a line."""
    why, repair = shown(str(error) or "out of memory"), f"`{command('audit', folder)}` tries again"
    return f"no report was written: {why}; the run is whole, and {repair}"


def _to_json(checks: "Sequence[Check]") -> dict[str, object]:
    return {"passed": _exit_code(checks) == 0, "checks": [asdict(check) for check in checks]}


def _exit_code(checks: "Sequence[Check]") -> int:
    """1 if a check failed. One that could not be asked is no fault of the data, so it gives 0."""
    return AltalignError.exit_code if any(check.passed is False for check in checks) else 0


def _print(run: RunFolder, checks: "Sequence[Check]") -> None:
    from altalign.audit.checks.findings import failed, not_asked, summed_up

    for check in (*failed(checks), *not_asked(checks)):
        sys.stdout.write(f"{shown(str(check))}\n")
    sys.stdout.write(f"report: {shown(run.path(PAGE))} ({summed_up(checks)})\n")
