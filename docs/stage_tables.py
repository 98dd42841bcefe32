"""Tables of what each stage reads and writes, from what the stages declare."""

import numpy as np
import pyarrow as pa

from altalign.data.schema import DROPPED
from altalign.data.stages import STAGES
from altalign.pipelines.run.tables.table import Format, Table
from altalign.pipelines.stages import decontaminate, extract, fetch, judge, tables, write

DECLARED = dict(zip(STAGES, (extract, tables, judge, fetch, decontaminate, write), strict=True))
_HEAD = ["File", "Format", "What it holds", "Columns", "Read by"]


def stage_tables() -> dict[str, list[list[str]]]:
    """The tables that each stage writes, by stage; under `caption` those that have captions."""
    written = {stage: [_row(table) for table in module.WRITES] for stage, module in DECLARED.items()}
    captions = [
        [f"`{stage}`", f"`{table.where}`", table.format.value, _readers(table)]
        for stage, module in DECLARED.items()
        for table in module.WRITES
        if _has_caption(table)
    ]
    head = ["Written by", "File", "Format", "Read by"]
    return {"caption": [head, *captions], **{stage: [_HEAD, *rows] for stage, rows in written.items()}}


def _row(table: Table) -> list[str]:
    return [f"`{table.where}`", table.format.value, table.holds, _columns(table), _readers(table)]


def _readers(table: Table) -> str:
    return ", ".join(f"`{stage}`" for stage, module in DECLARED.items() if table in module.READS) or "no stage"


def _columns(table: Table) -> str:
    if table.columns is DROPPED:
        return "[of dropped rows](files.md#droppedstageparquet)"
    match table.columns:
        case pa.Schema():
            return ", ".join(f"`{name}`" for name in table.columns.names)
        case np.dtype() if table.columns.names:
            return ", ".join(f"`{name}`" for name in table.columns.names)
        case np.dtype():
            return table.columns.name
    return ""


def _has_caption(table: Table) -> bool:
    has_column = isinstance(table.columns, pa.Schema) and "caption" in table.columns.names
    return has_column or table.format is Format.TAR
