"""The summary of a run, printed at its end: the table of counts, and notes on rules that were off."""

from contextlib import suppress

import orjson
from rich.console import Console
from rich.table import Table

from altalign import storage
from altalign.data.counts import Counts
from altalign.data.reasons import DropReason, Stage, may_pass
from altalign.data.stages import STAGES
from altalign.pipelines.near import within_pool
from altalign.pipelines.run import outputs
from altalign.pipelines.run.units import Run
from altalign.rules import reason_words
from altalign.settings.curate import OWN_TABLES
from altalign.storage import parquet
from altalign.terminal import command, many, shown

_UNREACHED = (
    DropReason.HTTP_UNREACHABLE,
    DropReason.HTTP_TIMEOUT,
    DropReason.HTTP_NOT_ASKED,
    DropReason.HTTP_REFUSED,
)


def print_summary(run: Run, out: Console, nothing_left: str) -> None:
    """Print received and kept pairs and every reason, stage by stage; then where the result is.

    `nothing_left` is the sentence on why there is none.
    """
    counts, stages = final_counts(run)
    out.print(shown(run.folder), soft_wrap=True)
    table = Table()
    for name in ("stage", ""):
        table.add_column(name)
    for name in ("pairs", "share"):
        table.add_column(name, justify="right")
    for stage in stages:
        received = counts.received(stage)
        table.add_row(stage.value, "received", f"{received:,}", "", style="bold")
        for reason, rows in counts.dropped(stage).items():
            table.add_row("", reason, f"{rows:,}", f"{rows / received:.2%}")
        kept = counts.kept(stage)
        share = f"{kept / received:.2%}" if received else ""
        table.add_row("", "kept", f"{kept:,}", share, style="green", end_section=True)
    out.print(table)
    for note in notes(run):
        out.print(note, soft_wrap=True)

    def warn(line: str) -> None:
        out.print(line, style="yellow", soft_wrap=True)

    fetched = counts.dropped(Stage.FETCH)
    refused = fetched.get(DropReason.HTTP_REFUSED, 0)
    if 2 * refused > counts.received(Stage.FETCH):
        settings = "ports, allow_addresses or blocked_domains"
        warn(f"this run's own settings refused {many(refused, 'pair')} ([fetch] {settings}): {_refusal(run)}")
    elif _nobody_answered(run, counts):
        warn("no host has answered: look whether this machine has a network, and names, and no proxy between")
    if passing := _passing(run):
        of_reasons = ", ".join(f"{reason} {images:,}" for reason, images in passing.items())
        repair = command("retry", run.folder)
        warn(f"{many(sum(passing.values()), 'image')} may come another time ({of_reasons}): {repair}")
    if not storage.exists(run.path("manifest.json")):
        to_do = ", ".join(stage for stage in STAGES if not run.is_done(stage))
        out.print(f"not finished: {to_do} to do; run without --until to go on")
    elif nothing_left:
        warn(nothing_left)
    else:
        facts = storage.read_json(run.path("summary.json"))
        size = f"{many(facts['images'], 'image')}, {facts['bytes'] / 1e6:,.1f} MB"
        line = f"{many(facts['pairs'], 'pair')} of {size}, in {shown(run.path('shards'))}"
        out.print(line, highlight=False, soft_wrap=True)


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
        counts = [[row["stage"], row["source"], row["reason"], row["rows"]] for row in rows]
        found = Counts.from_json(counts)
        return found, list(found.stages_of_run())
    return outputs.counts_of(run), outputs.counted_stages(run)


def notes(run: Run) -> list[str]:
    """Sentences on ALIGN's rules that drop nothing in this run, and why; and on what decontamination found."""
    vocabulary = storage.read_json(run.path("tables", "vocabulary.json"))
    found = []
    if vocabulary.get("all"):
        distinct, size = f"{vocabulary['distinct']:,} distinct n-grams", f"{run.config.text.vocabulary_size:,}"
        found.append(f"vocabulary: the pool has {distinct}, vocabulary_size = {size}: all are in it, none is rare")
    if not run.config.image.nsfw.model:
        found.append("NSFW: off ([image.nsfw] model is not set)")
    return [*_of_tables(run), *found, *_of_decontamination(run), *_within_pool(run)]


def _of_tables(run: Run) -> list[str]:
    """A sentence on tables of another pool, by which texts were judged."""
    if not (folder := run.config.text.tables):
        return []
    whose = "the run's own, from before what was added" if folder == OWN_TABLES else f"those of {shown(folder)}"
    return [f"tables: {whose} ([text] tables); the counts of this pool decide nothing"]


def _of_decontamination(run: Run) -> list[str]:
    """Sentences on the images near to test images, and on steps of the paper that could not be taken."""
    if not run.config.decontaminate.test_sets:
        return ["decontamination: off, nothing was looked for ([decontaminate] test_sets is empty)"]
    if not run.is_done("decontaminate"):
        return []
    facts = outputs.found(run)
    images_near, sets = facts["images_near"], facts["test_sets"].items()
    near = ", ".join(f"{many(images_near[name], 'image')} near {shown(name)} ({images:,})" for name, images in sets)
    by = f" by {shown(run.config.decontaminate.calibration)}" if run.config.decontaminate.calibration else ""
    found = [f"decontamination: {near}; cosine above {facts['similarity_above']:g}{by}"]
    if facts["flat_test_images"]:
        found.append(f"flat test images: {facts['flat_test_images']:,}, found by their bytes alone")
    if facts["clusters"] < (wanted := run.config.decontaminate.clusters):
        found.append(f"{many(facts['clusters'], 'cluster')} instead of {wanted:,} (each needs 64 images)")
    if facts["images_without_a_bucket"]:
        stay, images = ("stay" if facts["require_bucket"] else "go"), many(facts["images_without_a_bucket"], "image")
        share_none = f"{images} above the threshold share none with a test image, and {stay}"
        found.append(f"buckets: {share_none} ([decontaminate] require_bucket)")
    return found


def _within_pool(run: Run) -> list[str]:
    """A sentence on the images that had copies in the pool, where these were looked for."""
    if not within_pool.is_wanted(run) or not run.is_done("decontaminate"):
        return []
    facts = outputs.found(run)["within_pool"]
    names = ("images_that_go", "images_that_stay_for_others", "images_compared")
    goes, stays, compared = (facts[name] for name in names)
    return [f"near-duplicates in the pool: {goes:,} of {compared:,} images go, in favour of {stays:,}"]


def _passing(run: Run) -> dict[str, int]:
    """How many images `altalign retry` would ask for again, by status in the log of the fetch."""
    said = storage.read_json(run.path("log", "fetch", "progress.json")) or {}
    parts = {status: status.partition(" ") for status in said.get("reasons", {})}
    return {
        status: said["reasons"][status]
        for status, (reason, _, code) in parts.items()
        if may_pass(reason, int(code) if code.isdecimal() else None)
    }


def _refusal(run: Run) -> str:
    """What the log says of one image that was refused."""
    for name in storage.names(run.path("log", "fetch"), ".jsonl"):
        for line in storage.read_bytes(run.path("log", "fetch", name)).splitlines():
            with suppress(ValueError):  # a log that somebody changed is no reason to stop
                if (said := orjson.loads(line))["reason"] == DropReason.HTTP_REFUSED:
                    return shown(said["detail"])
    return "`altalign explain` says which"


def _nobody_answered(run: Run, counts: Counts) -> bool:
    """Whether images were asked for and no host was ever reached: then this machine's network is to blame."""
    dropped = set(counts.dropped(Stage.FETCH))
    return (
        run.config.fetch.source == "web"
        and not counts.kept(Stage.FETCH)
        and DropReason.HTTP_UNREACHABLE in dropped <= {*_UNREACHED}
    )
