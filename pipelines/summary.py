"""What a run says of itself: the plan before any work, and the summary table at its end."""

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from altalign import storage
from altalign.counts import Counts
from altalign.curation import CurateConfig
from altalign.reasons import Stage
from pipelines import runs
from pipelines.units import STAGES, Run, resolved


def print_plan(run: Run, out: Console) -> None:
    """`--dry-run`: matched files, what is done already, resolved settings, and the disk that the run needs at most."""
    sizes = [storage.stamp(file.path).size for file in run.files]
    table = Table(title=f"{len(run.files)} input files, {sum(sizes) / 1e6:,.1f} MB", title_justify="left")
    table.add_column("input")
    table.add_column("kind")
    table.add_column("files", justify="right")
    table.add_column("MB", justify="right")
    for number, settings in enumerate(run.config.input):
        mine = [size for file, size in zip(run.files, sizes, strict=True) if file.of == number]
        table.add_row(settings.source, settings.kind, f"{len(mine)}", f"{sum(mine) / 1e6:,.1f}")
    out.print(table)
    for file in run.files:
        out.print(f"  {file.path}", highlight=False, soft_wrap=True)
    out.print(resolved(run.config), highlight=False, markup=False, soft_wrap=True)
    done = [stage for stage in STAGES if run.is_done(stage)]
    out.print(f"done already: {', '.join(done) or 'nothing'}; to do: {', '.join(s for s in STAGES if s not in done) or 'nothing'}", highlight=False)
    needed = 3 * sum(sizes)
    out.print(
        f"disk: at most about {needed / 1e9:,.2f} GB in {run.folder} (candidates, hashes, images and shards); free: {storage.free_bytes(run.folder) / 1e9:,.1f} GB",
        highlight=False,
        soft_wrap=True,
    )


def print_summary(run: Run, out: Console) -> None:
    """Received, kept and every reason, stage by stage; then where the result is."""
    counts, stages = final_counts(run)
    table = Table(title=f"{run.folder}", title_justify="left")
    for name, justify in (("stage", "left"), ("", "left"), ("pairs", "right"), ("share", "right")):
        table.add_column(name, justify=justify)
    for stage in stages:
        received = counts.received(stage)
        table.add_row(stage.value, "received", f"{received:,}", "", style="bold")
        for reason, rows in counts.dropped(stage).items():
            table.add_row("", reason, f"{rows:,}", f"{rows / received:.2%}")
        table.add_row("", "kept", f"{counts.kept(stage):,}", f"{counts.kept(stage) / received:.2%}" if received else "", style="green", end_section=True)
    out.print(table)
    facts = storage.read_json(run.path("summary.json"))
    if not storage.exists(run.path("manifest.json")):
        out.print(f"not finished: {', '.join(stage for stage in STAGES if not run.is_done(stage))} to do; run without --until to go on", highlight=False)
    elif facts["pairs"]:
        out.print(
            f"{facts['pairs']:,} pairs of {facts['images']:,} images, {facts['bytes'] / 1e6:,.1f} MB, in {run.path('shards')}", highlight=False, soft_wrap=True
        )
    else:
        out.print("[yellow]nothing is left of the pool: no shards were written[/]; `altalign explain` says why for any pair", highlight=False)


def final_counts(run: Run) -> tuple[Counts, list[Stage]]:
    """Counts of the finished stages: of counts.parquet where the run is finished, of units else."""
    if storage.exists(run.path("counts.parquet")) and storage.exists(run.path("manifest.json")):
        with storage.open_read(run.path("counts.parquet")) as file:
            rows = pq.read_table(file).to_pylist()
        return Counts.from_json([[row["stage"], row["source"], row["reason"], row["rows"]] for row in rows]), list(runs.COUNTED_STAGES)
    return runs.counts_of(run), runs.counted_stages(run)


def fidelity_notes(config: CurateConfig) -> list[str]:
    """What of ALIGN's rules these settings leave off."""
    notes = []
    if not config.image.nsfw.model:
        notes.append("NSFW: off (no [image.nsfw] model)")
    if not config.decontaminate.test_sets:
        notes.append("decontamination: off (no test sets)")
    return notes
