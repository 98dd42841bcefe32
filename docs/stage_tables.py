"""Tables of what each stage hands on, from what the stages declare."""

import pyarrow as pa

from altalign.data.stages import STAGES
from altalign.pipelines.run.outputs import written_by
from altalign.pipelines.run.units import Table
from altalign.pipelines.stages import decontaminate, extract, fetch, judge, tables, write

DECLARED = dict(zip(STAGES, (extract, tables, judge, fetch, decontaminate, write), strict=True))


def stage_tables() -> dict[str, list[list[str]]]:
    """The tables in `work/` that each stage writes, by stage; under `caption` all tables that have captions."""
    handed_on = {
        stage: [
            [f"`{table.where}`", _readers(table), table.holds]
            for table in written_by(stage)
            if table.where.startswith("work/")
        ]
        for stage in STAGES
    }
    captions = [
        [f"`{stage}`", ", ".join(f"`{table.where}`" for table in written_by(stage) if _has_caption(table))]
        for stage in STAGES
        if any(map(_has_caption, written_by(stage)))
    ]
    head = ["File", "Read by", "What it holds"]
    return {
        "caption": [["Stage", "Files with captions"], *captions],
        **{stage: [head, *rows] for stage, rows in handed_on.items() if rows},
    }


def _readers(table: Table) -> str:
    return ", ".join(f"`{stage}`" for stage, module in DECLARED.items() if table in module.READS)


def _has_caption(table: Table) -> bool:
    has_column = isinstance(table.columns, pa.Schema) and "caption" in table.columns.names
    return has_column or table.where.endswith(".tar")
