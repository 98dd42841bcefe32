"""The plan of a run: prints what would be read and done, before any work."""

import json
from contextlib import suppress

from rich.console import Console
from rich.table import Table

from altalign import storage
from altalign.data.stages import STAGES
from altalign.errors import UnreadableError
from altalign.pipelines import read
from altalign.pipelines.opening.inputs_of_stages import resolved
from altalign.pipelines.read import test_sets
from altalign.pipelines.run import pool
from altalign.pipelines.run.units import ROWS_PER_UNIT, InputFile, Run
from altalign.pipelines.web.policy import proxies
from altalign.settings.common import flatten
from altalign.settings.curate import CurateConfig
from altalign.storage import parquet
from altalign.terminal import lines_shown, many, shown

# measured on 5 million synthetic captions: 110 bytes a row for spilled hashes, 130 for dropped rows and survivors
BYTES_PER_ROW = 250
# files that are not read in place hold pages or images, which are copied to work/, fetched, and written to shards
TIMES_INPUT = 3
BYTES_LOOKED_AT = 16_384  # a file of no more is read to see whether anything is in it


def print_plan(run: Run, out: Console, anew: str = "", asked: str = "") -> None:
    """Print for `--dry-run`: matched files, units, finished stages, resolved settings, and the disk that is needed.

    `anew` is the stage that runs anew with all that follow, `asked` a sentence on images that were asked for before.
    """
    sizes = [stamp.size for stamp in run.stamps()]
    pool.name_empty_files(run, lambda file: not sizes[file.number] or _holds_nothing(run, file, sizes[file.number]))
    first = next((file.path for file in run.files), "")
    rows = list(storage.each(lambda file: _rows_in_place(run, file), run.files, of=first))
    changed = _not_defaults(run.config)
    out.print("settings that are not the defaults:" if changed else "but for inputs and folder, all are the defaults")
    for name, value in changed:
        out.print(f"  {name} = {shown(json.dumps(value, ensure_ascii=False))}", highlight=False, soft_wrap=True)
    out.print(f"{many(len(run.files), 'input file')}, {sum(sizes) / 1e6:,.1f} MB")
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
        numbers = (f"{len(mine)}", f"{units}", f"{sum(known):,}" if known else "", f"{size:,.1f}")
        table.add_row(shown(settings.source), settings.kind, *numbers)
    out.print(table)
    for file in run.files:
        out.print(f"  {file.path}", soft_wrap=True)
    for test_set in run.config.decontaminate.named_sets:
        of_set = test_sets.parts(test_set)
        files = len({path for part in of_set for path in part.paths})
        counted = f"{many(files, 'file')} in {many(len(of_set), 'unit')}"
        out.print(f"test set {shown(test_set.name)}: {counted}, {shown(test_set.path)}", soft_wrap=True)
    out.print("all settings:")
    out.print(lines_shown(resolved(run.config)), soft_wrap=True)
    stay = STAGES[: STAGES.index(anew)] if anew else STAGES
    done = [stage for stage in stay if run.is_done(stage)]
    to_do = [stage for stage in STAGES if stage not in done]
    out.print(f"done already: {', '.join(done) or 'nothing'}; to do: {', '.join(to_do) or 'nothing'}")
    copied = sum(size for size, row in zip(sizes, rows, strict=True) if row is None)
    needed = BYTES_PER_ROW * sum(row or 0 for row in rows) + TIMES_INPUT * copied
    free = storage.free_bytes(run.folder)
    there = "as much as the store gives" if free is None else f"{free / 1e9:,.1f} GB"
    if run.config.fetch.source == "web":
        pace = run.config.fetch
        out.print(
            f"images: downloaded for the pairs that judge keeps, with {pace.threads:,} requests at a time; "
            f"{pace.connections_per_host:,} of them to one host, and {pace.requests_per_host_s:g} a second; "
            "each image takes its bytes twice, in work/ and in shards/",
            soft_wrap=True,
        )
        if asked:
            out.print(asked, soft_wrap=True)
        if said := proxies.unused():
            out.print(said, soft_wrap=True)
    more = " and the images" if run.config.fetch.source == "web" else ""
    out.print(f"disk: about {needed / 1e9:,.2f} GB{more} in {shown(run.folder)}; free there: {there}", soft_wrap=True)


def _not_defaults(config: CurateConfig) -> list[tuple[str, object]]:
    """The settings but the run's folder and the inputs' kinds and paths, where they are not the defaults."""
    default = CurateConfig.from_values({"input": [{"paths": ["-"]}] * len(config.input)}, where="the defaults")
    without = {"run": {"folder"}, "input": {"__all__": {"kind", "paths"}}}
    here, there = (dict(flatten(settings.model_dump(mode="json", exclude=without))) for settings in (config, default))
    return [(name, value) for name, value in here.items() if name not in there or there[name] != value]


def _holds_nothing(run: Run, file: InputFile, size: int) -> bool:
    """Whether a small file has been read and nothing is in it; of a larger one a run says so."""
    if size > BYTES_LOOKED_AT or file.part:
        return False
    with suppress(UnreadableError):  # the run says what is wrong
        return not any(
            found.rows.num_rows or found.broken.num_rows or found.places
            for found in read.read(file.path, run.config.input[file.of])
        )
    return False


def _rows_in_place(run: Run, file: InputFile) -> int | None:
    """The rows of a table that is read in place; None for any other file, whose rows are not known yet."""
    try:
        is_direct = read.is_direct(file.path, run.config.input[file.of])
        return sum(parquet.row_groups(file.path)) if is_direct else None
    except UnreadableError:
        return None
