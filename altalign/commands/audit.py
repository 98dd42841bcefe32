"""`altalign audit RUN` checks a finished run and writes its report; with RUN_A RUN_B it compares two runs."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
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
# when a curation ends, so many shards of its newest generation are read, and about so many of their images decoded;
# `altalign audit` looks at all
SHARDS_AFTER_A_CURATION, IMAGES_AFTER_A_CURATION = 8, 1_000
FORMS = ("eu", "eu-small", "ca")  # of `training_content`
NOT_WRITTEN = (AltalignError, OSError, MemoryError)  # what `reported` may raise: the run is whole nevertheless


def main(argv: Sequence[str]) -> int:
    """Checks a finished run and writes its report, or compares two runs."""
    parser = Parser(
        prog="altalign audit",
        description="Check a finished run and write RUN/report.html: what was dropped, by which rule. The exit code "
        "is 1 if a check fails. With two runs: show what differs, and which pairs changed their verdict.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("other", metavar="RUN_B", nargs="?", help="another run to compare RUN with")
    parser.add_argument("--json", action="store_true", help="print checks or differences as JSON and write nothing")
    parser.add_argument("--shards", type=positive, default=None, metavar="N", help="read at most N shards (all)")
    parser.add_argument("--full", action="store_true", help="also search every file for what removed.parquet names")
    parser.add_argument("--page", metavar="FILE", help="with two runs: also write an HTML page with pictures")
    parser.add_argument("--digest", action="store_true", help="only compare every byte; print the run's number")
    parser.add_argument("--quick", action="store_true", help="compare only names and sizes of all files; write nothing")
    parser.add_argument("--summary", choices=FORMS, help="write the form of the EU (of small firms) or California")
    parser.add_argument("--reservations", action="store_true", help="write what rights holders said, by domain")
    parser.add_argument("--to", metavar="FOLDER", default="", help="with these two: where it is written (.)")
    parser.add_repeatable("--words", "NAME=FILE", "report the share kept of captions with a word of a list; repeatable")
    given = parser.parse_args(argv)
    if given.summary:
        parser.only(given, "--summary", "summary", "to")
    elif given.reservations:
        parser.only(given, "--reservations", "reservations", "to")
    elif given.digest or given.quick:
        parser.only(given, "--digest or --quick", "digest", "quick", "json")
    elif given.other is not None:
        from altalign.audit import compare

        parser.only(given, "two runs", "json", "page")
        return compare.main(given.run, given.other, as_json=given.json, page=given.page)
    elif given.json:
        parser.only(given, "--json", "json", "shards", "full")
    else:
        parser.only(given, "the report of one run", "shards", "full", "words")
    if given.other is not None:
        raise UsageError(f"{given.other}: --summary, --reservations, --digest and --quick are of one run; leave it out")
    if given.summary or given.reservations or given.digest or given.quick:
        return _of_files(given)

    lists = dict[str, str]()
    for each in given.words:
        name, _, path = each.partition("=")
        if not name or not path or name in lists:
            raise UsageError(f"--words {each}: not of the form NAME=FILE, or of a name that is there already")
        lists[name] = path
    run, checks = checked(
        given.run, shards_at_most=given.shards, is_written=not given.json, words=lists, is_full=given.full
    )
    if given.json:
        sys.stdout.write(json.dumps({"run": run.folder, **_to_json(checks)}, indent=2) + "\n")
    else:
        _print(run, checks)
    return _exit_code(checks)


def _of_files(given: argparse.Namespace) -> int:
    """Looks at every file of a run and names each that is not as it was written; or writes a form."""
    with own_files(given.run):
        run = RunFolder.open(given.run)
        run.check_finished("there is nothing to sum up, and no list of its files yet")
        if given.summary or given.reservations:
            if storage.is_inside(given.to or ".", run.folder):
                raise UsageError(f"--to {given.to or '.'}: inside the run, whose files are listed; give another folder")
            from altalign.audit import reservations, training_content

            write = reservations.write if given.reservations else partial(training_content.write, form=given.summary)
            paths = write(run, folder=given.to or ".")
            sys.stdout.write("".join(f"{shown(path)}\n" for path in paths))
            return 0
        number, files = listing.number(run.folder), listing.look(run.folder, sizes_alone=given.quick)
    if given.json:
        facts = {"run": run.folder, "digest": number, "files": files.files, "wrong": files.wrong}
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    elif files.wrong:
        sys.stdout.write("".join(f"{shown(f'{name}: {why}')}\n" for name, why in sorted(files.wrong.items())))
        sys.stdout.write(f"{len(files.wrong):,} of {files.files:,} files are not as they were written\n")
    else:
        sys.stdout.write(f"{number}\n" if given.digest else f"{files.files:,} files, each of its size\n")
    return AltalignError.exit_code if files.wrong else 0


def checked(
    folder: str,
    *,
    shards_at_most: int | None,
    images_at_most: int | None = None,
    is_written: bool,
    words: Mapping[str, str] | None = None,
    is_full: bool = False,
) -> "tuple[RunFolder, list[Check]]":
    """Checks a finished run, and writes its report where `is_written`, with the slices of lists of words.

    `is_full`: also that no file has anything of what was removed. UsageError: it is no finished run.
    """
    with own_files(folder):
        run = RunFolder.open(folder)
        run.check_finished("there is nothing to report yet")
        if is_written:
            startup.place_kernels()
        # Arrow, NumPy, templates: half a second, which --help need not wait for
        from altalign.audit import checks

        results = checks.run_checks(run, shards_at_most=shards_at_most, images_at_most=images_at_most)
        results += checks.check_absence(run) if is_full else []
        if is_written:
            from altalign.audit.report import page

            report = page.gather(run, results, words)
            # ASCII, for names of files may be any bytes
            for path, facts in ((CHECKS, _to_json(results)), (NUMBERS, report.to_json())):
                storage.write_bytes(run.path(path), (json.dumps(facts, indent=1) + "\n").encode())
            storage.write_bytes(run.path(PAGE), page.html(report))  # last
        return run, results


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
    shards = min(SHARDS_AFTER_A_CURATION, came)
    return checked(folder, shards_at_most=shards, images_at_most=IMAGES_AFTER_A_CURATION, is_written=True)


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
