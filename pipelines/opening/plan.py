"""The plan of a run: what would be read and done, printed before any work."""

from rich.console import Console
from rich.table import Table

from altalign import storage
from altalign.errors import UnreadableError
from altalign.pipelines import read
from altalign.pipelines.files import parquet
from altalign.pipelines.opening.grounds import resolved
from altalign.pipelines.read import test_sets
from altalign.pipelines.run.units import ROWS_PER_UNIT, InputFile, Run
from altalign.stages import STAGES
from altalign.terminal import lines_shown, shown

# Measured on 5 million synthetic captions: hashes spilled 110 bytes a row, dropped rows and survivors 130. Files that
# are not read in place are pages or images: candidates or images kept in work/, images fetched, shards.

BYTES_PER_ROW = 250
TIMES_INPUT = 3


def print_plan(run: Run, out: Console) -> None:
    """`--dry-run`: matched files, units, what is done already, resolved settings, and the disk that the run needs."""
    sizes = [stamp.size for stamp in storage.stamps([file.path for file in run.files])]
    rows = list(
        storage.each(lambda file: _rows_in_place(run, file), run.files, of=next((file.path for file in run.files), ""))
    )
    out.print(f"{len(run.files)} input files, {sum(sizes) / 1e6:,.1f} MB")
    table = Table()
    table.add_column("input")
    table.add_column("kind")
    for name in ("files", "units", "rows", "MB"):
        table.add_column(name, justify="right")
    for number, settings in enumerate(run.config.input):
        mine = [i for i, file in enumerate(run.files) if file.of == number]
        known = [row for i in mine if (row := rows[i]) is not None]
        units = len(mine) + sum(-(-row // ROWS_PER_UNIT) for row in known)
        size = sum(sizes[i] for i in mine) / 1e6
        table.add_row(
            shown(settings.source),
            settings.kind,
            f"{len(mine)}",
            f"{units}",
            f"{sum(known):,}" if known else "",
            f"{size:,.1f}",
        )
    out.print(table)
    for file in run.files:
        out.print(f"  {file.path}", soft_wrap=True)
    for test_set in run.config.decontaminate.named_sets:
        of_set = test_sets.parts(test_set)
        files = len({path for part in of_set for path in part.paths})
        out.print(
            f"test set {shown(test_set.name)}: {_many(files, 'file')} in {_many(len(of_set), 'unit')}, {shown(test_set.path)}",
            soft_wrap=True,
        )
    out.print(lines_shown(resolved(run.config)), soft_wrap=True)
    done = [stage for stage in STAGES if run.is_done(stage)]
    out.print(
        f"done already: {', '.join(done) or 'nothing'}; to do: {', '.join(s for s in STAGES if s not in done) or 'nothing'}"
    )
    copied = sum(size for size, row in zip(sizes, rows, strict=True) if row is None)
    needed = BYTES_PER_ROW * sum(row or 0 for row in rows) + TIMES_INPUT * copied
    free = storage.free_bytes(run.folder)
    there = "as much as the store gives" if free is None else f"{free / 1e9:,.1f} GB"
    if run.config.fetch.source == "web":
        pace = run.config.fetch
        at_once = f"{pace.threads:,} requests at a time, of one host {pace.connections_per_host:,} and {pace.requests_per_host_s:g} a second"
        out.print(
            f"images: from the web, those of pairs that judge keeps; {at_once}; each takes its bytes twice, in work/ and in shards/",
            soft_wrap=True,
        )
    more = " and the images" if run.config.fetch.source == "web" else ""
    out.print(f"disk: about {needed / 1e9:,.2f} GB{more} in {shown(run.folder)}; free there: {there}", soft_wrap=True)


def _rows_in_place(run: Run, file: InputFile) -> int | None:
    """Rows of a table that is read where it is; None for a file that is read once first, whose rows nobody knows yet."""
    if not read.is_direct(file.path, run.config.input[file.of]):
        return None
    try:
        return sum(parquet.row_groups(file.path))
    except UnreadableError:
        return None


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
