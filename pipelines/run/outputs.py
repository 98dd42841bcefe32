"""The outputs of a run beside shards: `dropped/`, `audit/`, counts; and its end, the manifest last."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.data import audit_tables, generations, listing
from altalign.data.audit_tables import FAILED_ROWS, AuditTable
from altalign.data.counts import Counts, FailedCounts
from altalign.data.reasons import CURATED, Stage
from altalign.data.schema import DROPPED, RULES_VERSION, SCHEMA_VERSION
from altalign.data.stages import STAGES, maker
from altalign.errors import UnreadableError
from altalign.filters import where
from altalign.pipelines import card as dataset_card
from altalign.pipelines.card import CardFacts
from altalign.pipelines.run import image_tables, shard_tables, text_tables
from altalign.pipelines.run.image_tables import DECONTAMINATED, FETCHED, FOUND_FACTS
from altalign.pipelines.run.shard_tables import COUNTS_OF_RUN, LIST_OF_FILES, SUMMARY
from altalign.pipelines.run.text_tables import EXTRACTED, GROUPED, JUDGED
from altalign.pipelines.run.units import Run, Table
from altalign.storage import Written, parquet

DROPPED_ROWS = {
    stage: Table(f"dropped/{stage.value}/*.parquet", f"rows that `{stage.value}` drops", DROPPED) for stage in Stage
}


def written_by(stage: str) -> tuple[Table, ...]:
    """All tables that a stage writes, by their paths: in `work/`, and what stays."""
    declared = [value for module in (text_tables, image_tables, shard_tables) for value in vars(module).values()]
    declared = [each for value in declared for each in (value.values() if isinstance(value, dict) else [value])]
    audited = [each for each in vars(audit_tables).values() if isinstance(each, AuditTable)]
    of_audit = [Table(each.path, "for the report", each.schema) for each in audited]
    tables = dict.fromkeys(each for each in [*declared, *DROPPED_ROWS.values(), *of_audit] if isinstance(each, Table))
    makers = {LIST_OF_FILES: "write"}  # which `maker` does not know
    return tuple(table for table in tables if makers.get(table, maker(table.where)) == stage)


def dropped(run: Run, stage: Stage, name: str) -> str:
    """The file of the dropped rows of a unit: Parquet of `DROPPED`."""
    return DROPPED_ROWS[stage].path(run, name)


def write_dropped(path: str, stage: Stage, rows: pa.Table, schema: pa.Schema = DROPPED) -> None:
    """Write the dropped rows of a stage; where there are none, the file of an earlier try is deleted."""
    columns = {name: rows[name] for name in rows.column_names if name in schema.names}
    if not len(rows) and storage.exists(path):
        storage.delete(path)
    parquet.write_any(path, parquet.table({**columns, "stage": stage.value}, schema), schema)


def write_audit(run: Run, table: AuditTable, rows: pa.Table | Sequence[Mapping[str, object]]) -> None:
    """Write a table of the audit: from Arrow, or from one dict a row."""
    arrow = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist([*map(dict, rows)], schema=table.schema)
    parquet.write(run.path(*table.path.split("/")), arrow, table.schema)


def near_duplicates(run: Run, *name: str) -> str:
    """The folder of what decontamination found and learned, or a file in this folder."""
    return run.path("audit", "near_duplicates", *name)


def near_facts(run: Run) -> dict[str, Any]:
    """What decontamination looked for and found, whose stage is done; UnreadableError where the file is not there."""
    path = FOUND_FACTS.path(run)
    if not (facts := storage.read_json(path)):
        raise UnreadableError(f"{path}: it is not there")
    return facts


# Counts ---------------------------------------------------------------------------------------------------------------


def _counted_facts(run: Run) -> Iterator[Any]:
    """The facts of all units whose marks hold counts."""
    for marks in (EXTRACTED, JUDGED, GROUPED, FETCHED, DECONTAMINATED):
        for _, facts in run.all_facts(marks):
            yield facts


def counts_of(run: Run) -> Counts:
    """The counts of all stages so far."""
    return Counts.from_json(row for facts in _counted_facts(run) for row in facts.counts)


def failed_counts_of(run: Run) -> FailedCounts:
    """The rows of all stages so far by every rule that holds."""
    return FailedCounts.from_json(entry for facts in _counted_facts(run) for entry in facts.failed)


def counted_stages(run: Run, *, and_now: str = "") -> list[Stage]:
    """The stages whose counts are complete, up to the first that is not done; `and_now` names one without its mark."""
    done = list(takewhile(lambda stage: run.is_done(stage) or stage == and_now, STAGES))
    return [stage for stage in CURATED if ("fetch" if stage is Stage.IMAGE else stage.value) in done]


# The end of a run -----------------------------------------------------------------------------------------------------


def write_totals(
    run: Run,
    shards: Mapping[str, Any],
    counts: Counts,
    failed: FailedCounts,
    *,
    images: int,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Write counts and `summary.json`, which has these `images` and `more` entries; returns what it says.

    CountsError: the counts do not add up, or the shards do not hold exactly the kept pairs.
    """
    pairs, size = (sum(getattr(facts, name) for facts in shards.values()) for name in ("rows", "bytes"))
    stages = counts.stages_of_run()
    counts.reconcile(stages, pairs=pairs)
    failed.check(counts)
    write_audit(run, FAILED_ROWS, failed.to_arrow())
    COUNTS_OF_RUN.write(run, counts.to_arrow())
    facts = {"stages": counts.summary(stages), "pairs": pairs, "images": images, "bytes": size}
    facts |= {name: value for name, value in more.items() if name not in facts}
    storage.write_json(SUMMARY.path(run), facts)
    return facts


def write_manifest(
    run: Run,
    shards: Mapping[str, Any],
    files: Mapping[str, Written],
    facts: CardFacts,
    block: storage.Block,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write `files.jsonl`, which names `files` by their paths in the run, the card, and `manifest.json` last.

    `block` is what was written since the last mark: the disk keeps it before there is a manifest. The digest of the
    list is filled into the `facts` of the card. `more` are further entries of the manifest.
    """
    more = more or {}
    list_of_files = listing.to_bytes(files)
    number = hashlib.sha256(list_of_files).hexdigest()
    conditions = where.of_reasons(more.get("lineage"))
    facts = facts._replace(
        digest=number, is_grown=generations.ENTRY in more, conditions=conditions, lineage=more.get("lineage")
    )
    with storage.noted() as of_card:
        storage.write_bytes(run.path(listing.FILE), list_of_files)
        card = dataset_card.write(run.folder, facts)
    if not run.config.run.durable:  # once, at the end: nobody looks again at what a manifest vouches for
        paths = [run.path(name) for name in (listing.SETTINGS, *files)]
        # in a removal only what is new is there yet
        storage.sync(storage.Block(dict.fromkeys(filter(storage.exists, paths))))
    storage.sync(block)
    storage.sync(of_card)
    keys = ("rows", "bytes", "sha256", "parquet_sha256")
    manifest = {
        "shards": [
            {"name": f"{name}.tar", **{key: getattr(shard, key) for key in keys}} for name, shard in shards.items()
        ],
        **{"pairs": facts.summary["pairs"], "schema_version": SCHEMA_VERSION, "rules_version": RULES_VERSION},
        "settings_sha256": listing.digest(run.path(listing.SETTINGS)).digest,
        "files": {"name": listing.FILE, "bytes": len(list_of_files), "sha256": number},
        "card": card,
        **more,
    }
    storage.write_sealed(run.path("manifest.json"), manifest, durable=True)


def files_of(run: Run, block: storage.Block) -> dict[str, Written]:
    """The files that a block has written, by their paths in the run."""
    files = block.files.items()
    return {storage.relative(path, run.folder) or path: file or listing.digest(path) for path, file in files}
