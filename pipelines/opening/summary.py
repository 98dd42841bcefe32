"""What is printed of a run: its plan before any work, and its counts at the end."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from rich.console import Console
from rich.table import Table

from altalign import storage
from altalign.data.counts import Counts
from altalign.data.reasons import DropReason, Stage, may_pass
from altalign.data.stages import STAGES
from altalign.errors import UnreadableError
from altalign.pipelines import read
from altalign.pipelines.near import within_pool
from altalign.pipelines.opening.reopen import resolved
from altalign.pipelines.read import test_sets
from altalign.pipelines.run import outputs, pool
from altalign.pipelines.run.units import ROWS_PER_UNIT, InputFile, Run
from altalign.rules import reason_words
from altalign.settings.curate import OWN_TABLES
from altalign.storage import parquet
from altalign.terminal import command, lines_shown, many, shown

# measured on 5 million synthetic captions: 110 bytes a row for spilled hashes, 130 for dropped rows and survivors
BYTES_PER_ROW = 250
# files that are not read in place hold pages or images, which are copied to work/, fetched, and written to shards
TIMES_INPUT = 3


def print_plan(run: Run, out: Console, anew: str = "") -> None:
    """Print for `--dry-run`: matched files, units, finished stages, resolved settings, and the disk that is needed.

    `anew` is the stage that runs anew with all that follow.
    """
    line = partial(out.print, soft_wrap=True)
    sizes = [stamp.size for stamp in run.stamps()]
    pool.name_empty_files(run, lambda file: not sizes[file.number])

    def rows_in_place(file: InputFile) -> int | None:  # of any other file, they are not known yet
        with suppress(UnreadableError):  # the run says what is wrong
            if read.is_direct(file.path, run.config.input[file.input]):
                return sum(parquet.row_groups(file.path))
        return None

    rows = list(storage.each(rows_in_place, run.files, place=next((file.path for file in run.files), "")))
    line(f"{many(len(run.files), 'input file')}, {sum(sizes) / 1e6:,.1f} MB")
    for number, settings in enumerate(run.config.input):
        mine = [file for file in run.files if file.input == number]
        units = sum(1 + -(-(rows[file.number] or 0) // ROWS_PER_UNIT) for file in mine)
        line(f"input {shown(settings.source)} ({settings.kind}): {many(len(mine), 'file')}, {many(units, 'unit')}")
        for file in mine:
            line(f"  {file.path}")
    for test_set in run.config.decontaminate.named_sets:
        of_set = test_sets.parts(test_set)
        files = many(len({path for part in of_set for path in part.paths}), "file")
        units = many(len(of_set), "unit")
        line(f"test set {shown(test_set.name)}: {files} in {units}, {shown(test_set.path)}")
    line("all settings:")
    line(lines_shown(resolved(run.config)))
    done = [stage for stage in STAGES[: STAGES.index(anew) if anew else None] if run.is_done(stage)]
    to_do = [stage for stage in STAGES if stage not in done]
    line(f"done already: {', '.join(done) or 'nothing'}; to do: {', '.join(to_do) or 'nothing'}")
    pace, of_web = run.config.fetch, run.config.fetch.source == "web"
    if of_web:
        line(
            f"images: downloaded for the pairs that judge keeps, with {pace.threads:,} requests at a time; "
            f"{pace.connections_per_host:,} of them to one host, and {pace.requests_per_host_s:g} a second; "
            "each image takes its bytes twice, in work/ and in shards/"
        )
    copied = sum(size for size, row in zip(sizes, rows, strict=True) if row is None)
    needed = BYTES_PER_ROW * sum(row or 0 for row in rows) + TIMES_INPUT * copied
    free = storage.free_bytes(run.folder)
    available = "as much as the store gives" if free is None else f"{free / 1e9:,.1f} GB"
    images = " and the images" * of_web
    line(f"disk: about {needed / 1e9:,.2f} GB{images} in {shown(run.folder)}; free there: {available}")


def print_summary(run: Run, out: Console, nothing_left: str) -> None:
    """Print received and kept pairs and every reason, stage by stage; then where the result is, or why not."""
    counts, stages = final_counts(run)
    out.print(shown(run.folder), soft_wrap=True)
    table = Table("stage", "")
    for name in ("pairs", "share"):
        table.add_column(name, justify="right")
    for stage in stages:
        received, kept = counts.received(stage), counts.kept(stage)
        table.add_row(stage.value, "received", f"{received:,}", "", style="bold")
        for reason, rows in counts.dropped(stage).items():
            table.add_row("", reason, f"{rows:,}", f"{rows / received:.2%}")
        share = f"{kept / received:.2%}" if received else ""
        table.add_row("", "kept", f"{kept:,}", share, style="green", end_section=True)
    out.print(table)
    for note in notes(run):
        out.print(note, soft_wrap=True)
    for line in _of_the_web(run, counts):
        out.print(line, style="yellow", soft_wrap=True)
    if not storage.exists(run.path("manifest.json")):
        to_do = ", ".join(stage for stage in STAGES if not run.is_done(stage))
        out.print(f"not finished: {to_do} to do; run without --until to go on")
    elif nothing_left:
        out.print(nothing_left, style="yellow", soft_wrap=True)
    else:
        facts = storage.read_json(run.path("summary.json"))
        size = f"{many(facts['images'], 'image')}, {facts['bytes'] / 1e6:,.1f} MB"
        out.print(f"{many(facts['pairs'], 'pair')} of {size}, in {shown(run.path('shards'))}", soft_wrap=True)


def _of_the_web(run: Run, counts: Counts) -> Iterator[str]:
    """Sentences on images that did not come: what refused them, and whether they may come another time."""
    dropped = counts.dropped(Stage.FETCH)
    refused, unanswered = dropped.get(DropReason.HTTP_REFUSED, 0), ("unreachable", "timeout", "not_asked", "refused")
    if 2 * refused > counts.received(Stage.FETCH):
        settings = "ports, allow_addresses or blocked_domains; `altalign explain` says which"
        yield f"this run's own settings refused {many(refused, 'pair')} ([fetch] {settings})"
    elif (
        run.config.fetch.source == "web"
        and not counts.kept(Stage.FETCH)
        and DropReason.HTTP_UNREACHABLE in dropped.keys() <= {f"http_{why}" for why in unanswered}
    ):
        yield "no host has answered: look whether this machine has a network, and names, and no proxy between"
    passing = dict[str, int]()  # what `altalign retry` would ask for again, by status in the log of the fetch
    for status, count in storage.read_json(run.path("log", "fetch", "progress.json")).get("reasons", {}).items():
        reason, _, code = status.partition(" ")
        if may_pass(reason, int(code) if code.isdecimal() else None):
            passing[status] = count
    if passing:
        of_reasons = ", ".join(f"{reason} {count:,}" for reason, count in passing.items())
        images = many(sum(passing.values()), "image")
        yield f"{images} may come another time ({of_reasons}): {command('retry', run.folder)}"


def nothing_left(run: Run) -> str:
    """A sentence on why nothing is left of the pool of a finished run; empty where something is."""
    if storage.read_json(run.path("summary.json"))["pairs"]:
        return ""
    most = reason_words.largest_drop(final_counts(run)[0], run.config)
    why = f"; {most}" if most else ""
    return f"nothing is left of the pool{why}. No shards were written; `altalign explain` says why for any pair"


def final_counts(run: Run) -> tuple[Counts, list[Stage]]:
    """The counts of the finished stages: from counts.parquet where the run is finished, else from marks of units."""
    if storage.exists(run.path("counts.parquet")) and storage.exists(run.path("manifest.json")):
        rows = parquet.read_table(run.path("counts.parquet")).to_pylist()
        counts = Counts.from_json([[row["stage"], row["source"], row["reason"], row["rows"]] for row in rows])
        return counts, list(counts.stages_of_run())
    return outputs.counts_of(run), outputs.counted_stages(run)


def notes(run: Run) -> list[str]:
    """Sentences on ALIGN's rules that drop nothing in this run, and why; and on what decontamination found."""
    lines, vocabulary = list[str](), storage.read_json(run.path("tables", "vocabulary.json"))
    if tables := run.config.text.tables:
        whose = "the run's own, from before what was added" if tables == OWN_TABLES else f"those of {shown(tables)}"
        lines.append(f"tables: {whose} ([text] tables); the counts of this pool decide nothing")
    if vocabulary.get("all"):
        distinct, size = f"{vocabulary['distinct']:,} distinct n-grams", f"{run.config.text.vocabulary_size:,}"
        lines.append(f"vocabulary: the pool has {distinct}, vocabulary_size = {size}: all are in it, none is rare")
    if not run.config.image.nsfw.model:
        lines.append("NSFW: off ([image.nsfw] model is not set)")
    settings = run.config.decontaminate
    if not settings.test_sets:
        lines.append("decontamination: off, nothing was looked for ([decontaminate] test_sets is empty)")
    elif run.is_done("decontaminate"):
        facts = outputs.near_facts(run)
        images_near, sets = facts["images_near"], facts["test_sets"].items()
        near = ", ".join(f"{many(images_near[name], 'image')} near {shown(name)} ({images:,})" for name, images in sets)
        by = f" by {shown(settings.calibration)}" if settings.calibration else ""
        lines.append(f"decontamination: {near}; cosine above {facts['similarity_above']:g}{by}")
        if facts["flat_test_images"]:
            lines.append(f"flat test images: {facts['flat_test_images']:,}, found by their bytes alone")
        if facts["clusters"] < settings.clusters:
            clusters = many(facts["clusters"], "cluster")
            lines.append(f"{clusters} instead of {settings.clusters:,} (each needs 64 images)")
        if facts["images_without_a_bucket"]:
            images = many(facts["images_without_a_bucket"], "image")
            share_none = f"{images} above the threshold share none with a test image"
            stay = "stay" if facts["require_bucket"] else "go"
            lines.append(f"buckets: {share_none}, and {stay} ([decontaminate] require_bucket)")
    if within_pool.is_searched(run) and run.is_done("decontaminate"):
        facts = outputs.near_facts(run)["within_pool"]
        goes, stays = facts["images_that_go"], facts["images_that_stay_for_others"]
        compared = f"{goes:,} of {facts['images_compared']:,} images go, in favour of {stays:,}"
        lines.append(f"near-duplicates in the pool: {compared}")
    return lines
