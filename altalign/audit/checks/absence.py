"""Reads every file of a run again and looks for what `removed.parquet` names (`altalign audit --full`).

The tars have what their side-cars have, which the other checks compare. `work/` is deleted by a removal.
"""

import pyarrow as pa

from altalign import storage
from altalign.audit.checks.findings import Findings
from altalign.audit.run_folder import RunFolder
from altalign.data.stages import REMOVED_FILE
from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.pipelines.change import rows_to_remove
from altalign.pipelines.run import removal_list
from altalign.pipelines.run.removal_list import Request
from altalign.storage import parquet

CHECK = "removed"  # its name in `ABOUT`


def check(run: RunFolder, findings: Findings) -> None:
    """Counts the files of the run that were read; a removed row, image or URL in one of them fails."""
    path = run.path(REMOVED_FILE)
    if not storage.exists(path):
        return
    request = removal_list.of_run(path)
    names = (storage.relative(file, run.folder) or file for file in sorted(storage.files_below(run.folder)))
    for name in names:
        interrupts.check()
        if name == REMOVED_FILE or name.startswith("work/") or not name.endswith((".parquet", ".jsonl")):
            continue
        findings.saw(CHECK)
        try:
            rows = _in_parquet(run.path(name), request) if name.endswith(".parquet") else _in_log(run, name, request)
        except (OSError, UnreadableError) as error:
            findings.fails(CHECK, f"{name}: cannot be read ({error})")
            continue
        if rows:
            findings.fails(CHECK, f"{name}: {rows:,} of its rows are named by {REMOVED_FILE}")


def _in_parquet(path: str, request: Request) -> int:
    """How many rows have a key, an image, a URL or a name that was removed, or name a removed pair as the kept one."""
    found = 0
    for batch in parquet.read_whole(path):
        rows = pa.Table.from_batches([batch])
        is_removed = request.matches(rows)
        if "kept_key" in rows.column_names:
            is_removed |= Request(keys=request.keys).matches(pa.table({"key": rows["kept_key"]}))
        found += int(is_removed.sum())
    return found


def _in_log(run: RunFolder, name: str, request: Request) -> int:
    """How many lines of a log are of a removed image; the list of the run's files has lines of another form."""
    lines = storage.read_bytes(run.path(name)).splitlines() if name.startswith("log/") else []
    whole = (line for line in lines if line.endswith(b"}"))  # half a line is of a kill
    return sum(rows_to_remove.is_line_of(line, request) for line in whole)
