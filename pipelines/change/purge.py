"""What is left of removed pairs beside the shards: dropped rows, galleries, names in the audit, lines of the log.

Each function writes the files anew that have anything of what goes, and returns the paths of those that go altogether.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.audit_tables import FREQUENT, GALLERY, HOSTS, SAMPLES, AuditTable
from altalign.machine.threads import in_threads
from altalign.pipelines.change.rows_to_remove import InDropped, at_once
from altalign.pipelines.figures.text_figures import CHARACTERS_AT_MOST
from altalign.pipelines.run.removal_list import Request
from altalign.storage import parquet
from altalign.storage.atomic_change import Change

_SUMS = ("_stats.json", "progress.json", "trouble.json")  # of the log: what sums it up, and the words of an error


def dropped_rows(change: Change, found: Iterable[InDropped], gone: Request) -> list[str]:
    """Rows of `dropped/`; where only `kept_key` names a pair that went, that is taken out."""

    def write(each: InDropped) -> str | None:
        rows = parquet.read_table(storage.join(change.run_folder, *each.name.split("/")))  # `select` has a column more
        left = _without(rows, gone)
        if not len(left):
            return each.name
        with change.noted():
            parquet.write(change.path(each.name), left, left.schema)
        return None

    emptied = in_threads(write, list(found), at_once(change.run_folder))
    return [name for name in emptied if name]


def _without(rows: pa.Table, gone: Request) -> pa.Table:
    """The rows that do not go; a `kept_key` of one that goes is null."""
    left = rows.filter(pa.array(~gone.matches(rows)))
    if "kept_key" not in left.column_names or not gone.keys:
        return left
    names_gone = pc.is_in(left["kept_key"], value_set=pa.array(sorted(gone.keys), pa.string()))
    kept: Any = pc.if_else(names_gone, pa.scalar(None, pa.string()), left["kept_key"])
    return left.set_column(left.column_names.index("kept_key"), "kept_key", kept)


def of_audit(change: Change, gone: Request, rows: pa.Table, tests: Collection[tuple[str, str]]) -> None:
    """Tables of the audit that have rows of pairs: galleries with thumbnails, frequent texts and images, hosts.

    `rows` are all that went: what they say is not to be found there either. `tests` are test images of the same bytes,
    by set and name.
    """
    strings = (text for name in ("caption", "image_url") for text in rows[name].to_pylist())
    said = {text[:CHARACTERS_AT_MOST] for text in strings if text}

    def stays(table: AuditTable, found: pa.Table) -> pa.Table:
        if table is SAMPLES:
            return _without(found, gone)
        if table is GALLERY:  # of pictures alone: one that has other pairs need not be shown either
            images = frozenset(filter(None, parquet.values(rows, "image_id")))
            goes = gone.with_images(images).matches(found)
            of_tests = list(zip(*(found[name].to_pylist() for name in ("test_set", "test_image")), strict=True))
            copied = np.flatnonzero(goes & (found["similarity"].to_numpy() == 1)).tolist()
            shown = {*tests, *(of_tests[row] for row in copied)}
            return found.filter(pa.array(~goes & [each not in shown for each in of_tests]))
        if table is FREQUENT:
            is_said = [value in said for value in found["value"].to_pylist()]
        else:
            is_said = [gone.has_host_of(f"https://{host}/") for host in found["host"].to_pylist()]
        return found.filter(pa.array(~np.array(is_said, bool)))

    for table in (SAMPLES, GALLERY, FREQUENT, HOSTS):
        path = storage.join(change.run_folder, *table.path.split("/"))
        if storage.exists(path):
            found = parquet.read_table(path).cast(table.schema)
            left = stays(table, found)
            if not left.equals(found):
                with change.noted():
                    parquet.write(change.path(table.path), left, table.schema)


def of_log(change: Change, gone: Request) -> list[str]:
    """Lines on the images that went, in `log/fetch/`; and all of what sums these up or has the words of an error."""
    emptied = list[str]()
    for name in _below(change.run_folder, "log", ".jsonl"):
        lines = storage.read_bytes(storage.join(change.run_folder, *name.split("/"))).splitlines(keepends=True)
        left = [line for line in lines if not is_of(line, gone)]
        if left and len(left) < len(lines):
            with change.writing(name) as file:
                file.write(b"".join(left))
        elif lines and not left:
            emptied.append(name)
    return [*emptied, *(name for name in _below(change.run_folder, "log", ".json") if name.endswith(_SUMS))]


def is_of(line: bytes, gone: Request) -> bool:
    """Whether a line of a log is of an image that went, or cannot be read."""
    try:
        said = json.loads(line)
    except ValueError:
        return True  # half a line, of a killed command
    url = str(said.get("url", ""))
    return said.get("image_id") in gone.images or gone.has_host_of(url) or gone.has_url(url)


def _below(folder: str, name: str, ending: str) -> Iterator[str]:
    for path in sorted(storage.files_below(storage.join(folder, name))):
        if path.endswith(ending) and (inside := storage.relative(path, folder)):
            yield inside
