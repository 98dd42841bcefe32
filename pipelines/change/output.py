"""What `altalign remove`, `add` and `merge` of one run print: what goes, what came, whether anything is left."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

from rich.table import Table

from altalign import storage, terminal
from altalign.data.stages import REMOVED_FILE, own_files
from altalign.errors import AltalignError
from altalign.pipelines import curate
from altalign.pipelines.change import add as adding
from altalign.pipelines.change import compact as compacting
from altalign.pipelines.change import remove as removing
from altalign.pipelines.change.remove import Found
from altalign.pipelines.derive import parents
from altalign.pipelines.run.removal_list import Request, of_files, of_run
from altalign.pipelines.run.units import Run
from altalign.settings.curate import CurateConfig
from altalign.storage import atomic_change
from altalign.terminal import many, shown

_SHOWN = 20  # rows, and entries that are not there


class Wanted(NamedTuple):
    """What is wanted of a removal."""

    lists: Mapping[str, Sequence[str]]  # files by the field of `Request`
    near: float | None
    by: str
    because: str
    is_dry_run: bool


def remove(config: CurateConfig, wanted: Wanted) -> int:
    """Remove what is listed, now and of what is added later.

    Returns 1 where nothing of it was there, nor was asked for before; else 0.
    """
    asked = of_files(wanted.lists)
    folder = config.run.folder
    held = nullcontext() if wanted.is_dry_run else storage.locked(folder)
    with held, own_files(folder):
        atomic_change.check_none(folder)
        if not wanted.is_dry_run:
            storage.sweep(folder)  # what a command left that was killed while it wrote the report
        parent = parents.opened(folder, config)
        found = removing.find(parent, asked, near=wanted.near)
        found = replace(found, request=found.request.of_one_input(found.rows))
        before = of_run(path) if storage.exists(path := parent.path(REMOVED_FILE)) else Request()
        is_new = not {*asked.entries()} <= {*before.entries()}
        _show(folder, found, asked, is_dry_run=wanted.is_dry_run, is_new=is_new)
        if (found.has_rows or is_new) and not wanted.is_dry_run:
            removing.remove(Run(folder, config, ()), parent, found, by=wanted.by, because=wanted.because)
    return 0 if found.has_rows or not is_new else AltalignError.exit_code


def add(config: CurateConfig, wanted: "adding.Wanted", flags: list[str]) -> int:
    """Add input to a run; returns 1 where nothing is left of the pool, else 0."""
    folder = config.run.folder
    with own_files(folder):
        parents.opened(folder, config)  # finished, and of these rules
    with storage.locked(folder):
        atomic_change.check_none(folder)
        storage.sweep(folder)
        with own_files(folder):
            found = adding.planned(config, wanted)
        if found is None:
            said = f"{folder}: all of this is in the run already; it stays as it is"
            terminal.stderr().print(shown(said), soft_wrap=True)
            return 0
        before, grown = found
        added = adding.add(before, grown, wanted, flags)
    code = curate.show(Run(folder, grown.config, ()))
    said = f"{many(added.came, 'pair')} came, {many(added.went, 'pair')} went; "
    said += f"{many(added.shards, 'shard')} written ({added.bytes / 1e6:,.1f} MB)"
    terminal.stdout().print(said, highlight=False, soft_wrap=True)
    return code


def compact(config: CurateConfig) -> None:
    """Make one generation of the shards of a run."""
    folder = config.run.folder
    with storage.locked(folder), own_files(folder):
        atomic_change.check_none(folder)
        storage.sweep(folder)
        made = compacting.compact(Run(folder, config, ()), parents.opened(folder, config))
    said = f"{shown(folder)}: {many(made, 'shard')} of one generation" if made is not None else ""
    said = said or f"{shown(folder)}: of one generation already; it stays as it is"
    terminal.stdout().print(said, highlight=False, soft_wrap=True)


def _show(folder: str, found: Found, asked: Request, *, is_dry_run: bool, is_new: bool) -> None:
    rows, out = found.rows, terminal.stdout()
    if len(rows):
        table = Table()
        for name in ("in", "key", "caption", "image"):
            table.add_column(name, overflow="fold")
        places = [f"shards/{each.shard.name}.tar" for each in found.in_shards for _ in each.numbers]
        places += [each.name for each in found.in_dropped for _ in range(len(each.rows))]
        for place, row in zip(places, rows.slice(0, _SHOWN).to_pylist(), strict=False):
            caption, url = (shown(row[name] or "") for name in ("caption", "image_url"))
            table.add_row(place, row["key"] or "", caption[:60], url[:80])
        out.print(table)
        if len(rows) > _SHOWN:
            _say(f"… and {len(rows) - _SHOWN:,} more")
    for name, entries in asked.not_in(rows).items():
        few = ", ".join(map(shown, entries[:_SHOWN])) + (" …" if len(entries) > _SHOWN else "")
        _say(f"not there, of --{name.replace('_', '-')}: {len(entries):,} ({few})")
    if not found.has_rows:
        later = "keep" if is_dry_run else "keeps"
        stands = f"{'would ' * is_dry_run}{later} it out of what is added" if is_new else "was asked for before"
        _say(f"{shown(folder)}: nothing of it is there; {REMOVED_FILE} {stands}")
    else:
        _show_what_goes(found, is_dry_run=is_dry_run)
    if (found.has_rows or is_new) and found.forgets_work and storage.kind(storage.join(folder, "work")) != "missing":
        deleted = "would be" if is_dry_run else "is"
        _say(f"work/ {deleted} deleted: it has what was fetched; `retry` and `add --test-set` need it")


def _show_what_goes(found: Found, *, is_dry_run: bool) -> None:
    size = sum(each.shard.bytes for each in found.in_shards)
    go = "would go" if is_dry_run else "goes" if found.pairs == 1 else "go"
    _say(
        f"{many(found.pairs, 'pair')} {go}, {many(len(found.images.image_ids), 'image')} that no other pair has, and "
        f"{many(found.dropped, 'dropped row')}"
    )
    verb = "is" if len(found.in_shards) == 1 else "are"
    anew = "would be written anew" if is_dry_run else f"{verb} written anew"
    _say(f"{many(len(found.in_shards), 'shard')} {anew} ({size / 1e6:,.1f} MB)")


def _say(line: str) -> None:
    terminal.stdout().print(line, highlight=False, soft_wrap=True)
