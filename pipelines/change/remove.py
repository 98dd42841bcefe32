"""`altalign remove RUN`: takes pairs out of a finished run, and all that is known of them; their hashes stay.

The shards that hold them are written anew, the others are not touched, and all files come at once. Nothing joins the
run because of a removal: the copy of a removed image that was dropped stays dropped.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from altalign import storage, terminal
from altalign.data import generations, listing, scores
from altalign.data.audit_tables import FUNNEL
from altalign.data.counts import Counts, FailedCounts
from altalign.data.reasons import CURATED, KEPT, DropReason, Stage
from altalign.data.schema import REMOVED
from altalign.data.stages import REMOVED_FILE, REPORT, own_files
from altalign.errors import AltalignError
from altalign.machine.threads import in_threads
from altalign.pipelines.card import CardFacts
from altalign.pipelines.change import rows_to_remove
from altalign.pipelines.change.rows_to_remove import InDropped, InShard
from altalign.pipelines.derive import copy_scores, copy_shards, parents
from altalign.pipelines.derive.copy_shards import Numbers, Part
from altalign.pipelines.derive.parents import Parent, Shard
from altalign.pipelines.near import shard_images
from altalign.pipelines.opening import summary
from altalign.pipelines.run import outputs, shard_files
from altalign.pipelines.run.removal_list import Request, of_files, of_run
from altalign.pipelines.run.shard_tables import ShardFacts, files_of
from altalign.pipelines.run.units import Run
from altalign.settings.curate import CurateConfig
from altalign.storage import atomic_change, parquet
from altalign.storage.atomic_change import Change
from altalign.terminal import many, shown

# what holds more than is looked through, or rests on the shards as they were
_GO = ("work", "trial", "clusters", *REPORT)
_NOT_LISTED = (listing.SETTINGS, "log", scores.FOLDER)
_SHARDS_AT_ONCE_IN_STORE = 4  # each has much of what was read ahead in memory, and of what is uploaded
_SHOWN = 20  # rows, and entries that are not in the run


@dataclass(frozen=True)
class Removal:
    """What of a run goes."""

    request: Request  # with the images whose bytes were named, and those near to what goes
    in_shards: Sequence[InShard]
    in_dropped: Sequence[InDropped]
    rows: pa.Table  # all that go
    images: frozenset[str]  # that no shard has afterwards
    images_of_sources: Counter[str | None]  # how many of these; None: of any source
    tests: frozenset[shard_images.Test]  # that are near to what goes, where nearness counts
    forgets_work: bool  # something goes, or what was dropped may be in `work/` alone

    @property
    def pairs(self) -> int:
        """How many samples go."""
        return sum(len(each.numbers) for each in self.in_shards)


def main(
    config: CurateConfig,
    lists: Mapping[str, Sequence[str]],
    near: float | None,
    *,
    by: str,
    because: str,
    is_dry_run: bool,
) -> int:
    """Remove what is listed (files by the field of `Request`), now and of what is added later.

    Returns 1 where nothing of it was there, nor was asked for before; else 0.
    """
    request = of_files(lists)
    folder = config.run.folder
    held = nullcontext() if is_dry_run else storage.locked(folder)
    with held, own_files(folder):
        atomic_change.check_none(folder)
        if not is_dry_run:
            storage.sweep(folder)  # what a command left that was killed while it wrote the report
        parent = parents.opened(folder, config)
        removal = find(parent, request, near=near)
        removal = replace(removal, request=removal.request.of_one_input(removal.rows))
        before = of_run(path) if storage.exists(path := parent.path(REMOVED_FILE)) else Request()
        is_new = not {*request.entries()} <= {*before.entries()}
        _show(folder, removal, request, is_dry_run=is_dry_run, is_new=is_new)
        if (len(removal.rows) or is_new) and not is_dry_run:
            remove(Run(folder, config, ()), parent, removal, by=by, because=because)
    return 0 if len(removal.rows) or not is_new else AltalignError.exit_code


def _show(folder: str, removal: Removal, request: Request, *, is_dry_run: bool, is_new: bool) -> None:
    """Print what goes, and what is not there."""
    rows, lines = removal.rows, list[str]()
    if len(rows):
        table = Table()
        for name in ("in", "key", "caption", "image"):
            table.add_column(name, overflow="fold")
        places = [f"shards/{each.shard.name}.tar" for each in removal.in_shards for _ in each.numbers]
        places += [each.name for each in removal.in_dropped for _ in range(len(each.rows))]
        for place, row in zip(places, rows.slice(0, _SHOWN).to_pylist(), strict=False):
            caption, url = (shown(row[name] or "") for name in ("caption", "image_url"))
            table.add_row(place, row["key"] or "", caption[:60], url[:80])
        terminal.stdout().print(table)
        if len(rows) > _SHOWN:
            lines.append(f"… and {len(rows) - _SHOWN:,} more")
    for name, entries in request.not_in(rows).items():
        few = ", ".join(map(shown, entries[:_SHOWN])) + (" …" if len(entries) > _SHOWN else "")
        lines.append(f"not there, of --{name.replace('_', '-')}: {len(entries):,} ({few})")
    if len(rows):
        size, shards = sum(each.shard.bytes for each in removal.in_shards), many(len(removal.in_shards), "shard")
        lines.append(
            f"{many(removal.pairs, 'pair')} {'would go' if is_dry_run else 'goes' if removal.pairs == 1 else 'go'}, "
            f"{many(len(removal.images), 'image')} that no other pair has, and "
            f"{many(len(rows) - removal.pairs, 'dropped row')}"
        )
        are = "would be" if is_dry_run else "is" if len(removal.in_shards) == 1 else "are"
        lines.append(f"{shards} {are} written anew ({size / 1e6:,.1f} MB)")
    else:
        keeps = "would keep" if is_dry_run else "keeps"
        stands = f"{keeps} it out of what is added" if is_new else "was asked for before"
        lines.append(f"{shown(folder)}: nothing of it is there; {REMOVED_FILE} {stands}")
    has_work = storage.kind(storage.join(folder, "work")) != "missing"
    if (len(rows) or is_new) and removal.forgets_work and has_work:
        deleted = "would be" if is_dry_run else "is"
        lines.append(f"work/ {deleted} deleted: it has what was fetched; `retry` and `add --test-set` need it")
    for line in lines:
        terminal.stdout().print(line, highlight=False, soft_wrap=True)


# Finding -------------------------------------------------------------------------------------------------------------


def find(parent: Parent, request: Request, *, near: float | None) -> Removal:
    """Look for what goes, in all side-cars and all dropped rows; with `near` also images nearer than this cosine.

    A pair that a page of the request repeats goes, on whichever page it was kept.
    """
    named = replace(request.of_rows, hashes=request.hashes)
    dropped = rows_to_remove.in_dropped(parent.folder, named, frozenset()) if named.entries() else []
    repeated = [each.rows.filter(pa.array(request.of_rows.matches(each.rows))) for each in dropped]
    keys = frozenset(key for rows in repeated for key in parquet.values(rows, "key") if key)
    wider = replace(request, keys=request.keys | keys)
    copies = rows_to_remove.copies(parent.folder, near) if near is not None else None
    if copies is not None:  # of what was dropped as a copy, the image that was kept
        of_copies = copies.filter(pa.array(wider.matches(copies)))
        wider = replace(wider, keys=wider.keys.union(filter(None, parquet.values(of_copies, "kept_key"))))
    in_shards, tests = rows_to_remove.in_shards(parent, wider), frozenset[shard_images.Test]()
    of_images = replace(named, source_keys={})
    if of_images.entries():  # the other pairs of these images, and lines of the log
        images = _images([*in_shards, *dropped], lambda rows: rows.filter(pa.array(of_images.are_images(rows))))
        request, wider = request.with_images(images), wider.with_images(images)
        in_shards = rows_to_remove.in_shards(parent, wider)
    if near is not None and copies is not None:
        embedder = parent.config.decontaminate.embedder
        given = _images([*in_shards, *dropped]) | wider.images
        images, tests = shard_images.near(parent.folder, given, embedder=embedder, above=near)
        in_shards = rows_to_remove.in_shards(parent, wider.with_images(images))
        of_kept = Request(keys=frozenset(key for each in in_shards for key in parquet.values(each.rows, "key")))
        is_copy = of_kept.matches(copies.select(["kept_key"]).rename_columns(["key"]))
        images |= frozenset(parquet.values(copies.filter(pa.array(is_copy)), "image_id"))
        request, wider = request.with_images(images), wider.with_images(images)
    keys |= frozenset(key for each in in_shards for key in parquet.values(each.rows, "key"))
    in_dropped = rows_to_remove.in_dropped(parent.folder, replace(wider, keys=wider.keys | keys), keys)
    gone, of_sources = rows_to_remove.images_gone(parent, in_shards)
    rows = rows_to_remove.together(in_shards, in_dropped)
    forgets_work = bool(len(rows)) or not parent.config.audit.keep_dropped
    return Removal(request, in_shards, in_dropped, rows, gone, of_sources, tests, forgets_work)


def _images(
    rows_that_go: Sequence[InShard | InDropped], some: Callable[[pa.Table], pa.Table] = lambda rows: rows
) -> frozenset[str]:
    return frozenset(image for each in rows_that_go for image in parquet.values(some(each.rows), "image_id") if image)


# Removing ------------------------------------------------------------------------------------------------------------


def lineage_of(parent: Parent, operation: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest says of a change: the verb, what it was given, and the run before it."""
    before = listing.digest(parent.path("manifest.json")).digest
    runs = {"parents": [parent.digest], "before": [parent.lineage], "manifests": [before]}
    return {"operation": operation, "settings": dict(settings), **runs}


def remove(
    run: Run, parent: Parent, removal: Removal, *, by: str, because: str, lineage: Mapping[str, Any] | None = None
) -> None:
    """Take what was found out of a run, whose lock the caller holds.

    `lineage` is that of an addition, which takes out again what was asked for before.
    """
    change = Change(run.folder, durable=run.config.run.durable)
    stay = {each.shard.name: (each.shard, _others(each)) for each in removal.in_shards}
    emptied = [name for name, (_, left) in stay.items() if not len(left)]
    shards: dict[str, ShardFacts | Shard] = {each.name: each for each in parent.shards if each.name not in emptied}
    shards |= _shards(change, parent, stay)
    deleted = [f"shards/{name}.{end}" for name in emptied for end in ("tar", "parquet")]
    deleted += _GO if removal.forgets_work else ()
    # not to be found afterwards: the request, and the keys of all pairs that went
    keys = frozenset(filter(None, parquet.values(removal.rows, "key")))
    gone = replace(removal.request, keys=removal.request.keys | keys)
    deleted += rows_to_remove.purge_dropped(change, removal.in_dropped, gone)
    tests = rows_to_remove.copied_tests(removal.in_dropped) | removal.tests
    rows_to_remove.purge_audit(change, gone, removal.rows, tests)
    deleted += copy_scores.change_scores(change, shards, stay)
    deleted += rows_to_remove.purge_log(change, gone.with_images(removal.images))
    change.write_table(REMOVED_FILE, _removed(run, removal, by, because, is_asked=lineage is None))
    _write_funnel(run, change, parent, removal, shards)
    counts, failed = _counts(parent, removal)
    before, anew = storage.read_json(run.path("summary.json")), Run(change.folder, run.config, ())
    with change.noted():
        images = before["images"] - len(removal.images)
        facts = outputs.write_totals(anew, shards, counts, failed, images=images, more=before)
        storage.write_bytes(anew.path(listing.SETTINGS), storage.read_bytes(run.path(listing.SETTINGS)))
    listed = {name: file for name, file in listing.read(run.folder).items() if name not in deleted}
    listed |= {name: file for name, file in change.files.items() if name.split("/")[0] not in _NOT_LISTED}
    card = CardFacts(run.config, counts, facts, summary.notes(run), scores=tuple(scores.all_of(run.folder)))
    more: dict[str, Any] = {"lineage": lineage or lineage_of(parent, "remove", {"pairs": removal.pairs})}
    if parent.generations > 1:
        more[generations.ENTRY] = parent.generations
    with change.noted():
        outputs.write_manifest(anew, shards, listed, card, storage.Block(), more)
    change.files |= {name: listing.digest(change.path(name)) for name in (listing.FILE, *listing.CARD)}
    change.commit(deleted)


def _shards(change: Change, parent: Parent, stay: Mapping[str, tuple[Shard, Numbers]]) -> dict[str, ShardFacts]:
    """Write the shards anew of which something goes and something stays."""

    def write(name: str) -> ShardFacts:
        part = Part(parent.path("shards"), name, stay[name][1])
        return copy_shards.copied(change.path("shards"), name, [[part]], parent.config.shards)

    names = [name for name, (_, left) in stay.items() if len(left)]
    at_once = copy_shards.at_once(change.folder, in_store=_SHARDS_AT_ONCE_IN_STORE)
    made = in_threads(write, names, at_once, bar=("writing anew", "shards"))
    anew = dict(zip(names, made, strict=True))
    for name, facts in anew.items():
        change.files |= dict(files_of(name, facts))
    return anew


def _write_funnel(
    run: Run, change: Change, parent: Parent, removal: Removal, shards: Mapping[str, ShardFacts | Shard]
) -> None:
    """Write `audit/funnel.parquet` with what is in the shards then."""
    size, less = sum(shard.bytes for shard in shards.values()), Counter[str]()
    for each in removal.in_shards:
        less.update(source_bytes(parent, each.shard))
        if isinstance(anew := shards.get(each.shard.name), ShardFacts):
            less.subtract(anew.source_bytes)
    rows = parquet.read_table(run.path(FUNNEL.path)).to_pylist()
    for row in rows:
        if row["step"] == "shards":
            row["images"] -= removal.images_of_sources[row["source"]]
            row["bytes"] = size if row["source"] is None else row["bytes"] - less[row["source"]]
    change.write_table(FUNNEL.path, pa.Table.from_pylist(rows, FUNNEL.schema))


def _others(each: InShard) -> Numbers:
    return np.setdiff1d(np.arange(each.shard.rows, dtype=np.int64), each.numbers, assume_unique=True)


def source_bytes(parent: Parent, shard: Shard) -> Mapping[str, int]:
    """The bytes that the samples of each source have in a tar: from the header of an image to that of the next."""
    return shard_files.source_bytes(parent.samples(shard, ["source", "tar_offset"]), shard.bytes)


def _counts(parent: Parent, removal: Removal) -> tuple[Counts, FailedCounts]:
    """The counts of the run with those of `select`, by reason and by every rule that holds."""
    rows = parents.counts_of(parent)
    last = Stage.SELECT if any(row[0] == Stage.SELECT.value for row in rows) else CURATED[-1]
    kept = {row[1]: row[3] for row in rows if row[0] == last.value and row[2] == KEPT}
    gone = Counter(source for each in removal.in_shards for source in parquet.values(each.rows, "source"))
    counts = Counts.from_json(parents.received(rows))
    failed = FailedCounts.from_json(parents.failed_of(parent))
    for source, rows_kept in kept.items() if len(removal.rows) or last == Stage.SELECT else ():
        counts.add_rows(Stage.SELECT, source, KEPT, rows_kept - gone[source])
        counts.add_rows(Stage.SELECT, source, DropReason.REMOVED, gone[source])
        failed.add_rows(Stage.SELECT, source, (), rows_kept - gone[source])
        failed.add_rows(Stage.SELECT, source, (DropReason.REMOVED,), gone[source])
    return counts, failed


def _removed(run: Run, removal: Removal, by: str, because: str, *, is_asked: bool) -> pa.Table:
    """All that was ever removed, and this; `is_asked`: with the request."""
    path = run.path(REMOVED_FILE)
    before = parquet.read_table(path).cast(REMOVED) if storage.exists(path) else REMOVED.empty_table()
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    manifest = listing.digest(run.path("manifest.json")).digest
    of_all = {"manifest_sha256": manifest, "time": now, "by": by, "because": because}
    rows: list[dict[str, Any]] = [
        {"kind": kind, "hash": name, **of_all} for kind, name in removal.request.entries() if is_asked
    ]
    of_pair = {"kind": "pair", "stage": Stage.SELECT.value, "reason": DropReason.REMOVED.value}
    for each in removal.in_shards:
        keys, sources = (each.rows[name].to_pylist() for name in ("key", "source"))
        for row, key, source in zip(each.numbers.tolist(), keys, sources, strict=True):
            rows.append({**of_pair, "hash": key, "row": row, "source": source, "shard": each.shard.name, **of_all})
    for each in removal.in_dropped:
        for row in each.rows.select(["key", "stage", "source", "reason"]).to_pylist():
            rows.append({"kind": "pair", "hash": row.pop("key"), **row, **of_all})
    return pa.concat_tables([before, pa.Table.from_pylist(rows, REMOVED)])
