"""What a run says of itself: the plan before any work, and the summary table at its end."""

from rich.console import Console
from rich.table import Table

from altalign import storage
from altalign.counts import Counts
from altalign.pipelines.files import parquet
from altalign.pipelines.near import within_pool
from altalign.pipelines.run import outputs
from altalign.pipelines.run.units import Run
from altalign.reasons import PASSING, DropReason, Stage
from altalign.stages import STAGES
from altalign.terminal import shown

# Measured on 5 million synthetic captions: hashes spilled 110 bytes a row, dropped rows and survivors 130. Files that
# are not read in place are pages or images: candidates or images kept in work/, images fetched, shards.
_UNREACHED = (DropReason.HTTP_UNREACHABLE, DropReason.HTTP_TIMEOUT, DropReason.HTTP_REFUSED)


def print_summary(run: Run, out: Console) -> None:
    """Received, kept and every reason, stage by stage; then where the result is."""
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
        table.add_row(
            "",
            "kept",
            f"{counts.kept(stage):,}",
            f"{counts.kept(stage) / received:.2%}" if received else "",
            style="green",
            end_section=True,
        )
    out.print(table)
    for note in notes(run):
        out.print(note, soft_wrap=True)
    if _nobody_answered(run, counts):
        out.print(
            "no host has answered: look whether this machine has a network, and names, and no proxy between",
            style="yellow",
            soft_wrap=True,
        )
    if passing := sum(counts.dropped(Stage.FETCH).get(reason, 0) for reason in PASSING):
        out.print(
            f"{_many(passing, 'pair')} may come another time ({', '.join(PASSING)}): altalign retry {shown(run.folder)}",
            style="yellow",
            soft_wrap=True,
        )
    facts = storage.read_json(run.path("summary.json"))
    if not storage.exists(run.path("manifest.json")):
        out.print(
            f"not finished: {', '.join(stage for stage in STAGES if not run.is_done(stage))} to do; run without --until to go on"
        )
    elif facts["pairs"]:
        out.print(
            f"{_many(facts['pairs'], 'pair')} of {_many(facts['images'], 'image')}, {facts['bytes'] / 1e6:,.1f} MB, in {shown(run.path('shards'))}",
            highlight=False,
            soft_wrap=True,
        )
    else:
        rows, stage, reason = max(
            ((rows, stage, reason) for stage in stages for reason, rows in counts.dropped(stage).items()),
            default=(0, "", ""),
        )
        most = f", most of it dropped by {stage} as {reason} ({rows:,})" if rows else ""
        out.print(
            f"nothing is left of the pool{most}: no shards were written; `altalign explain` says why for any pair",
            style="yellow",
            soft_wrap=True,
        )


def final_counts(run: Run) -> tuple[Counts, list[Stage]]:
    """Counts of the finished stages: of counts.parquet where the run is finished, of units else."""
    if storage.exists(run.path("counts.parquet")) and storage.exists(run.path("manifest.json")):
        rows = parquet.read_table(run.path("counts.parquet")).to_pylist()
        return Counts.from_json([[row["stage"], row["source"], row["reason"], row["rows"]] for row in rows]), list(
            outputs.COUNTED_STAGES
        )
    return outputs.counts_of(run), outputs.counted_stages(run)


def notes(run: Run) -> list[str]:
    """Which of ALIGN's rules drop nothing in this run, and why."""
    vocabulary = storage.read_json(run.path("tables", "vocabulary.json"))
    found = []
    if vocabulary.get("all"):
        size = run.config.text.vocabulary_size
        found.append(
            f"vocabulary: the pool has {vocabulary['distinct']:,} distinct n-grams, vocabulary_size = {size:,}: all are in it, none is rare"
        )
    if not run.config.image.nsfw.model:
        found.append("NSFW: off ([image.nsfw] model is not set)")
    return [*found, *_of_decontamination(run), *_within_pool(run)]


def _of_decontamination(run: Run) -> list[str]:
    """What was kept out of the data, and what of the paper's way could not be done."""
    if not run.config.decontaminate.test_sets:
        return ["decontamination: off, nothing was looked for ([decontaminate] test_sets is empty)"]
    if not run.is_done("decontaminate"):
        return []
    facts = outputs.found(run)
    near = ", ".join(
        f"{_many(facts['images_near'][name], 'image')} near {shown(name)} ({images:,})"
        for name, images in facts["test_sets"].items()
    )
    by = f" by {shown(run.config.decontaminate.calibration)}" if run.config.decontaminate.calibration else ""
    found = [f"decontamination: {near}; cosine above {facts['similarity_above']:g}{by}"]
    if facts["flat_test_images"]:
        found.append(f"flat test images: {facts['flat_test_images']:,}, found by their bytes alone")
    if facts["clusters"] < (wanted := run.config.decontaminate.clusters):
        found.append(f"clusters: {facts['clusters']:,}, not {wanted:,}: 64 images make one")
    if facts["images_without_a_bucket"]:
        stay, images = ("stay" if facts["require_bucket"] else "go"), _many(facts["images_without_a_bucket"], "image")
        found.append(
            f"buckets: {images} above the threshold share none with a test image, and {stay} ([decontaminate] require_bucket)"
        )
    return found


def _within_pool(run: Run) -> list[str]:
    """How many images had copies in the pool, where they were looked for."""
    if not within_pool.is_wanted(run) or not run.is_done("decontaminate"):
        return []
    facts = outputs.found(run)["within_pool"]
    goes, stays, compared = (
        facts[name] for name in ("images_that_go", "images_that_stay_for_others", "images_compared")
    )
    return [f"near-duplicates in the pool: {goes:,} of {compared:,} images go, in favour of {stays:,}"]


def _nobody_answered(run: Run, counts: Counts) -> bool:
    """Whether images were asked for and no host was ever reached: then hosts are hardly what is gone."""
    dropped = set(counts.dropped(Stage.FETCH))
    return (
        run.config.fetch.source == "web"
        and not counts.kept(Stage.FETCH)
        and DropReason.HTTP_UNREACHABLE in dropped <= {*_UNREACHED}
    )


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
