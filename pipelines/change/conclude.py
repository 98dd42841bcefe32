"""The end of a change in a finished run: sizes in the funnel, the list of files, the card, and the manifest last."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.data import generations, listing, scores
from altalign.data.audit_tables import FUNNEL
from altalign.data.counts import Counts
from altalign.pipelines.card import CardFacts
from altalign.pipelines.derive.parents import Parent
from altalign.pipelines.opening import summary
from altalign.pipelines.run import outputs
from altalign.pipelines.run.units import Run
from altalign.storage import parquet
from altalign.storage.atomic_change import Change

_NOT_LISTED = (listing.SETTINGS, "log", scores.FOLDER)


def lineage(parent: Parent, operation: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest says of a change: the verb, what it was given, and the run before it."""
    before = listing.digest(parent.path("manifest.json")).digest
    runs = {"parents": [parent.digest], "before": [parent.lineage], "manifests": [before]}
    return {"operation": operation, "settings": dict(settings), **runs}


def write_funnel(run: Run, change: Change, update: Callable[[dict[str, Any]], None]) -> None:
    """Write `audit/funnel.parquet`; `update` changes a row of what is in the shards, where there are such rows."""
    rows = parquet.read_table(run.path(FUNNEL.path)).to_pylist()
    for row in rows:
        if row["step"] == "shards":
            update(row)
    change.write_table(FUNNEL.path, pa.Table.from_pylist(rows, FUNNEL.schema))


def conclude(
    run: Run,
    change: Change,
    shards: outputs.Shards,
    deleted: Sequence[str],
    *,
    counts: Counts,
    lineage: Mapping[str, Any],
    images_gone: int = 0,
    newest: int = 1,
) -> None:
    """Write summary, settings, list, card and manifest into a change, and have all of it come at once.

    `shards`, `counts` and the number of the `newest` generation are those of then, `deleted` the paths of files and
    folders that go.
    """
    pairs, size = (sum(getattr(facts, name) for _, facts in shards) for name in ("rows", "bytes"))
    counts.reconcile(counts.stages_of_run(), pairs=pairs)
    before, stages = storage.read_json(run.path("summary.json")), counts.summary(counts.stages_of_run())
    facts = {**before, "stages": stages, "pairs": pairs, "images": before["images"] - images_gone, "bytes": size}
    with change.noted():
        storage.write_json(change.path("summary.json"), facts)
        with storage.open_read(run.path(listing.SETTINGS)) as file:
            storage.write_bytes(change.path(listing.SETTINGS), file.read())
    listed = {name: file for name, file in listing.read(run.folder).items() if name not in deleted}
    listed |= {name: file for name, file in change.files.items() if name.split("/")[0] not in _NOT_LISTED}
    card = CardFacts(run.config, counts, facts, summary.notes(run), scores=tuple(scores.all_of(run.folder)))
    more = {"lineage": lineage, **({generations.ENTRY: newest} if newest > 1 else {})}
    with change.noted():
        outputs.write_manifest(Run(change.folder, run.config, ()), shards, listed, card, storage.Block(), more)
    change.files |= {name: listing.digest(change.path(name)) for name in (listing.FILE, *listing.CARD)}
    change.commit(deleted)
