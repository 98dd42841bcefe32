"""What is printed of a run: its plan before any work, and its counts at the end."""

import json
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
from altalign.pipelines.web import addresses
from altalign.rules import reason_words
from altalign.settings.common import flatten
from altalign.settings.curate import OWN_TABLES, CurateConfig
from altalign.storage import parquet
from altalign.terminal import command, lines_shown, many, shown

# measured on 5 million synthetic captions: 110 bytes a row for spilled hashes, 130 for dropped rows and survivors
BYTES_PER_ROW = 250
# files that are not read in place hold pages or images, which are copied to work/, fetched, and written to shards
TIMES_INPUT = 3
BYTES_LOOKED_AT = 16_384  # a file of no more is read to see whether anything is in it

# reasons of images of hosts that never answered
_OF_HOSTS = (DropReason.HTTP_UNREACHABLE, DropReason.HTTP_TIMEOUT, DropReason.HTTP_NOT_ASKED, DropReason.HTTP_REFUSED)
UNREACHED = {str(reason) for reason in _OF_HOSTS}


def print_plan(run: Run, out: Console, anew: str = "", requests: str = "") -> None:
    """Print for `--dry-run`: matched files, units, finished stages, resolved settings, and the disk that is needed.

    `anew` is the stage that runs anew with all that follow, `requests` a sentence on images that are asked for again.
    """

    def line(text: str) -> None:
        out.print(text, soft_wrap=True)

    sizes = [stamp.size for stamp in run.stamps()]
    pool.name_empty_files(run, lambda file: _is_empty(run, file, sizes[file.number]))
    rows = list(
        storage.each(partial(_rows_in_place, run), run.files, place=next((file.path for file in run.files), ""))
    )
    changed = _not_defaults(run.config)
    line("settings that are not the defaults:" if changed else "but for inputs and folder, all are the defaults")
    for name, value in changed:
        out.print(f"  {name} = {shown(json.dumps(value, ensure_ascii=False))}", highlight=False, soft_wrap=True)
    line(f"{many(len(run.files), 'input file')}, {sum(sizes) / 1e6:,.1f} MB")
    table = Table("input", "kind")
    for name in ("files", "units", "rows", "MB"):
        table.add_column(name, justify="right")
    for number, settings in enumerate(run.config.input):
        mine = [i for i, file in enumerate(run.files) if file.input == number]
        known = [row for i in mine if (row := rows[i]) is not None]
        units = len(mine) + sum(-(-row // ROWS_PER_UNIT) for row in known)
        numbers = (f"{len(mine)}", f"{units}", f"{sum(known):,}" if known else "")
        table.add_row(shown(settings.source), settings.kind, *numbers, f"{sum(sizes[i] for i in mine) / 1e6:,.1f}")
    out.print(table)
    for file in run.files:
        line(f"  {file.path}")
    for test_set in run.config.decontaminate.named_sets:
        of_set = test_sets.parts(test_set)
        counted = (
            f"{many(len({path for part in of_set for path in part.paths}), 'file')} in {many(len(of_set), 'unit')}"
        )
        line(f"test set {shown(test_set.name)}: {counted}, {shown(test_set.path)}")
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
        for text in filter(None, (requests, addresses.unused_proxies())):
            line(text)
    copied = sum(size for size, row in zip(sizes, rows, strict=True) if row is None)
    needed = BYTES_PER_ROW * sum(row or 0 for row in rows) + TIMES_INPUT * copied
    free = storage.free_bytes(run.folder)
    available = "as much as the store gives" if free is None else f"{free / 1e9:,.1f} GB"
    images = " and the images" * of_web
    line(f"disk: about {needed / 1e9:,.2f} GB{images} in {shown(run.folder)}; free there: {available}")


def _rows_in_place(run: Run, file: InputFile) -> int | None:
    """The rows of a table that is read in place; None for any other file, whose rows are not known yet."""
    with suppress(UnreadableError):  # the run says what is wrong
        if read.is_direct(file.path, run.config.input[file.input]):
            return sum(parquet.row_groups(file.path))
    return None


def _is_empty(run: Run, file: InputFile, size: int) -> bool:
    """Whether nothing is in a file; of a larger one, or one that cannot be read, a run says so."""
    if 0 < size <= BYTES_LOOKED_AT and not file.part:
        with suppress(UnreadableError):
            stretches = read.read(file.path, run.config.input[file.input])
            return not any(each.rows.num_rows or each.broken.num_rows or each.places for each in stretches)
    return not size


def _not_defaults(config: CurateConfig) -> list[tuple[str, object]]:
    """The settings but the run's folder and the inputs' kinds and paths, where they are not the defaults."""
    default = CurateConfig.from_values({"input": [{"paths": ["-"]}] * len(config.input)}, where="the defaults")
    without = {"run": {"folder"}, "input": {"__all__": {"kind", "paths"}}}
    here, plain = (dict(flatten(settings.model_dump(mode="json", exclude=without))) for settings in (config, default))
    return [(name, value) for name, value in here.items() if name not in plain or plain[name] != value]


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
    is_finished = storage.exists(run.path("manifest.json"))
    for line in (*_of_the_web(run, counts), nothing_left * is_finished):
        if line:
            out.print(line, style="yellow", soft_wrap=True)
    if not is_finished:
        to_do = ", ".join(stage for stage in STAGES if not run.is_done(stage))
        out.print(f"not finished: {to_do} to do; run without --until to go on")
    elif not nothing_left:
        facts = storage.read_json(run.path("summary.json"))
        size = f"{many(facts['images'], 'image')}, {facts['bytes'] / 1e6:,.1f} MB"
        line = f"{many(facts['pairs'], 'pair')} of {size}, in {shown(run.path('shards'))}"
        out.print(line, highlight=False, soft_wrap=True)


def _of_the_web(run: Run, counts: Counts) -> Iterator[str]:
    """Sentences on images that did not come: what refused them, and whether they may come another time."""
    dropped = counts.dropped(Stage.FETCH)
    refused = dropped.get(DropReason.HTTP_REFUSED, 0)
    if 2 * refused > counts.received(Stage.FETCH):
        settings = "ports, allow_addresses or blocked_domains"
        yield f"this run's own settings refused {many(refused, 'pair')} ([fetch] {settings}): {_refusal(run)}"
    elif (
        run.config.fetch.source == "web"
        and not counts.kept(Stage.FETCH)
        and DropReason.HTTP_UNREACHABLE in dropped.keys() <= UNREACHED
    ):
        yield "no host has answered: look whether this machine has a network, and names, and no proxy between"
    images = storage.read_json(run.path("log", "fetch", "progress.json")).get("reasons", {})
    passing = dict[str, int]()  # what `altalign retry` would ask for again, by status in the log of the fetch
    for status, count in images.items():
        reason, _, code = status.partition(" ")
        if may_pass(reason, int(code) if code.isdecimal() else None):
            passing[status] = count
    if passing:
        of_reasons = ", ".join(f"{reason} {count:,}" for reason, count in passing.items())
        repair = command("retry", run.folder)
        yield f"{many(sum(passing.values()), 'image')} may come another time ({of_reasons}): {repair}"


def _refusal(run: Run) -> str:
    """What the log says of one image that was refused."""
    for name in storage.names(run.path("log", "fetch"), ".jsonl"):
        for line in storage.read_bytes(run.path("log", "fetch", name)).splitlines():
            with suppress(ValueError):  # a log that somebody changed is no reason to stop
                if (entry := json.loads(line))["reason"] == DropReason.HTTP_REFUSED:
                    return shown(entry["detail"])
    return "`altalign explain` says which"


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
    lines += _of_decontamination(run)
    if within_pool.is_searched(run) and run.is_done("decontaminate"):
        facts = outputs.near_facts(run)["within_pool"]
        goes, stays = facts["images_that_go"], facts["images_that_stay_for_others"]
        compared = f"{goes:,} of {facts['images_compared']:,} images go, in favour of {stays:,}"
        lines.append(f"near-duplicates in the pool: {compared}")
    return lines


def _of_decontamination(run: Run) -> list[str]:
    """Sentences on the images near to test images, and on steps of the paper that could not be taken."""
    settings = run.config.decontaminate
    if not settings.test_sets:
        return ["decontamination: off, nothing was looked for ([decontaminate] test_sets is empty)"]
    if not run.is_done("decontaminate"):
        return []
    facts = outputs.near_facts(run)
    images_near, sets = facts["images_near"], facts["test_sets"].items()
    near = ", ".join(f"{many(images_near[name], 'image')} near {shown(name)} ({images:,})" for name, images in sets)
    by = f" by {shown(settings.calibration)}" if settings.calibration else ""
    lines = [f"decontamination: {near}; cosine above {facts['similarity_above']:g}{by}"]
    if facts["flat_test_images"]:
        lines.append(f"flat test images: {facts['flat_test_images']:,}, found by their bytes alone")
    if facts["clusters"] < settings.clusters:
        lines.append(f"{many(facts['clusters'], 'cluster')} instead of {settings.clusters:,} (each needs 64 images)")
    if facts["images_without_a_bucket"]:
        stay, images = ("stay" if facts["require_bucket"] else "go"), many(facts["images_without_a_bucket"], "image")
        share_none = f"{images} above the threshold share none with a test image, and {stay}"
        lines.append(f"buckets: {share_none} ([decontaminate] require_bucket)")
    return lines
