"""What a run shows its readers beside shards: `dropped/`, `tables/` and `audit/`, and how each is written."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from altalign import storage
from altalign.audit_tables import AuditTable
from altalign.counts import Counts, FailedCounts
from altalign.errors import UnreadableError
from altalign.pipelines.files import parquet
from altalign.pipelines.run import artefacts
from altalign.pipelines.run.units import Marks, Run
from altalign.reasons import Stage
from altalign.schema import DROPPED
from altalign.stages import STAGES

COUNTED_STAGES = (Stage.EXTRACT, Stage.JUDGE, Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE)


# dropped/ -------------------------------------------------------------------------------------------------------------


def dropped(run: Run, stage: Stage, name: str) -> str:
    """Where the dropped rows of a unit go: Parquet of `DROPPED`."""
    return run.path("dropped", stage.value, f"{name}.parquet")


def repeated(run: Run, partition: str) -> str:
    """Where the repeated pairs of a partition go."""
    return dropped(run, Stage.JUDGE, f"repeated-{partition}")


def write_dropped(path: str, stage: Stage, rows: pa.Table) -> None:
    """Write the dropped rows of a stage; where there are none now, what an earlier try has left is deleted."""
    columns = {name: rows[name] for name in rows.column_names if name in DROPPED.names}
    if not len(rows) and storage.exists(path):
        storage.delete(path)
    parquet.write_any(path, parquet.table({**columns, "stage": stage.value}, DROPPED), DROPPED)


# audit/ ---------------------------------------------------------------------------------------------------------------


def write_audit(run: Run, table: AuditTable, rows: pa.Table) -> None:
    """Write a table of the audit."""
    parquet.write(run.path(*table.path.split("/")), rows, table.schema)


def near_duplicates(run: Run, *name: str) -> str:
    """The folder of what decontamination found and learned, or a file in it."""
    return run.path("audit", "near_duplicates", *name)


def write_found(run: Run, facts: dict[str, Any]) -> None:
    """Write what was looked for and found: `audit/near_duplicates/found.json`."""
    storage.write_json(near_duplicates(run, "found.json"), facts)


def found(run: Run) -> dict[str, Any]:
    """What was looked for and found, of a run whose stage decontaminate is done.

    Raises:
        UnreadableError: it is not there.
    """
    path = near_duplicates(run, "found.json")
    if not (facts := storage.read_json(path)):
        raise UnreadableError(f"{path}: it is not there")
    return facts


# Counts ---------------------------------------------------------------------------------------------------------------

# The steps of each stage whose marks hold counts.
_COUNTED: dict[str, tuple[Marks[Any], ...]] = {
    "extract": (artefacts.EXTRACTED,),
    "judge": (artefacts.JUDGED, artefacts.GROUPED),
    "fetch": (artefacts.FETCHED,),
    "decontaminate": (artefacts.DECONTAMINATED,),
}


def _counted_facts(run: Run) -> Iterator[Any]:
    for steps in _COUNTED.values():
        for marks in steps:
            for _, facts in run.all_facts(marks):
                yield facts


def counts_of(run: Run) -> Counts:
    """Counts of all stages so far."""
    return Counts.total(Counts.from_json(facts.counts) for facts in _counted_facts(run))


def failed_counts_of(run: Run) -> FailedCounts:
    """The rows of all stages by every rule that holds."""
    return FailedCounts.from_json(entry for facts in _counted_facts(run) for entry in facts.failed)


def counted_stages(run: Run, *, and_now: str = "") -> list[Stage]:
    """The stages whose counts are complete; `and_now` is one whose units are finished, but which is not marked as done."""
    done = [stage for stage in STAGES if run.is_done(stage) or stage == and_now]
    return [stage for stage in COUNTED_STAGES if ("fetch" if stage is Stage.IMAGE else stage.value) in done]
