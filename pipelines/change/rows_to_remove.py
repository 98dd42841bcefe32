"""What is to go: rows of shards, rows that were dropped, images; and what is left of these beside the shards."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data.audit_tables import FREQUENT, GALLERY, HOSTS, SAMPLES, AuditTable
from altalign.data.reasons import DropReason, Stage
from altalign.data.schema import DROPPED
from altalign.machine import interrupts
from altalign.machine.threads import in_threads
from altalign.pipelines.derive.copy_shards import at_once
from altalign.pipelines.derive.parents import Parent, Shard
from altalign.pipelines.figures.text_figures import CHARACTERS_AT_MOST
from altalign.pipelines.run.removal_list import COLUMNS, Request
from altalign.storage import parquet
from altalign.storage.atomic_change import Change

_SUMS = ("_stats.json", "progress.json", "trouble.json")  # of the log: what sums it up, and the words of an error
_OF_SHARDS = [*COLUMNS, "source", "caption"]
_OF_NEAR = ("similarity", "test_set", "test_image")
_OF_DROPPED = [*(name for name in COLUMNS if name in DROPPED.names), "source", "caption", "stage", "reason", "kept_key"]
_OF_DROPPED += _OF_NEAR


class InShard(NamedTuple):
    """The rows of a shard that go: their numbers, and some columns."""

    shard: Shard
    numbers: npt.NDArray[np.int64]  # rising
    rows: pa.Table


class InDropped(NamedTuple):
    """The rows of a file of `dropped/` that go; and whether others name one of these as what was kept instead."""

    name: str  # path in the run
    rows: pa.Table


def in_shards(parent: Parent, request: Request) -> list[InShard]:
    """The rows of all shards that match; shards without any are left out."""

    def look(shard: Shard) -> InShard:
        rows = parent.samples(shard, _OF_SHARDS)
        numbers = np.flatnonzero(request.matches(rows))
        return InShard(shard, numbers, rows.take(numbers))

    in_all = in_threads(look, parent.shards, at_once(parent.folder), bar=("looking", "shards"))
    return [each for each in in_all if len(each.numbers)]


def in_dropped(folder: str, request: Request, keys: frozenset[str]) -> list[InDropped]:
    """The dropped rows that match, by file; files that only name one of `keys` as kept instead have no such rows."""
    gone = Request(keys=keys)

    def look(name: str) -> InDropped | None:
        rows = parquet.read_table(storage.join(folder, name), _OF_DROPPED)
        matching = rows.filter(pa.array(request.matches(rows)))
        points = gone.matches(rows.select(["kept_key"]).rename_columns(["key"])).any()
        return InDropped(name, matching) if len(matching) or points else None

    in_all = in_threads(look, list(dropped_files(folder)), at_once(folder), bar=("looking", "files"))
    return [each for each in in_all if each is not None]


def copies(folder: str, above: float) -> pa.Table:
    """The dropped rows whose image is nearer than this to one that was kept: `kept_key` is a pair of that one.

    Those that other images connect with it have no cosine, and count as near.
    """
    files = [parquet.read_table(storage.join(folder, name), _OF_DROPPED) for name in dropped_files(folder)]
    is_copy = pc.field("reason") == DropReason.NEAR_DUPLICATE_IN_POOL.value
    is_near = is_copy & (pc.field("similarity").is_null() | (pc.field("similarity") > above))
    return pa.concat_tables([DROPPED.empty_table().select(_OF_DROPPED), *(rows.filter(is_near) for rows in files)])


def copied_tests(in_dropped: Sequence[InDropped]) -> frozenset[tuple[str, str]]:
    """Set and name of the test images that have the bytes of what goes: their pictures are its pictures."""
    rows = [row for each in in_dropped for row in each.rows.select(_OF_NEAR).to_pylist()]
    return frozenset((row["test_set"], row["test_image"]) for row in rows if row["test_set"] and row["similarity"] == 1)


def dropped_files(folder: str) -> Iterator[str]:
    """Paths of all files of dropped rows, in the run."""
    for stage in Stage:
        for name in storage.names(storage.join(folder, "dropped", stage.value), ".parquet"):
            yield f"dropped/{stage.value}/{name}"


def together(in_shards: Sequence[InShard], in_dropped: Sequence[InDropped]) -> pa.Table:
    """All rows that go, with `COLUMNS`, sources and captions; of dropped rows the digests are null."""
    schema = pa.schema([pa.field(name, pa.string()) for name in (*COLUMNS, "source", "caption")])
    tables = [schema.empty_table()]
    for each in (*in_shards, *in_dropped):
        columns = {name: each.rows[name] for name in schema.names if name in each.rows.column_names}
        tables.append(parquet.table(columns, schema))
    return pa.concat_tables(tables)


def images_gone(parent: Parent, in_shards: Sequence[InShard]) -> tuple[frozenset[str], Counter[str | None]]:
    """Which images no shard has any more, and how many of each source; None: of any source."""
    going = Counter(pair for each in in_shards for pair in _images_of_sources(each.rows))
    images = pa.array(sorted({image for image, _ in going}), pa.string())

    def look(shard: Shard) -> Counter[tuple[str, str]]:
        interrupts.check()
        rows = parent.samples(shard, ["image_id", "source"])
        return Counter(_images_of_sources(rows.filter(pc.is_in(rows["image_id"], value_set=images))))

    left = Counter[tuple[str, str]]()
    for counted in in_threads(look, parent.shards, at_once(parent.folder)) if going else ():
        left.update(counted)
    left -= going
    by_source = Counter[str | None](source for _, source in going.keys() - left.keys())
    gone = frozenset(image for image, _ in going) - {image for image, _ in left}
    by_source[None] = len(gone)
    return gone, by_source


def _images_of_sources(rows: pa.Table) -> Iterator[tuple[str, str]]:
    return zip(*(parquet.values(rows, name) for name in ("image_id", "source")), strict=True)


# What is left beside the shards --------------------------------------------------------------------------------------


def purge_dropped(change: Change, in_dropped: Iterable[InDropped], gone: Request) -> list[str]:
    """Write `dropped/` anew; where only `kept_key` names a pair that went, that is taken out.

    Returns the paths of files that go altogether.
    """

    def write(each: InDropped) -> str | None:
        rows = parquet.read_table(storage.join(change.run_folder, each.name))  # `select` has a column more
        left = _without(rows, gone)
        if not len(left):
            return each.name
        change.write_table(each.name, left)
        return None

    emptied = in_threads(write, list(in_dropped), at_once(change.run_folder))
    return [name for name in emptied if name]


def _without(rows: pa.Table, gone: Request) -> pa.Table:
    """The rows that do not go; a `kept_key` of one that goes is null."""
    left = rows.filter(pa.array(~gone.matches(rows)))
    if "kept_key" not in left.column_names or not gone.keys:
        return left
    names_gone = pc.is_in(left["kept_key"], value_set=pa.array(sorted(gone.keys), pa.string()))
    kept: Any = pc.if_else(names_gone, pa.scalar(None, pa.string()), left["kept_key"])
    return left.set_column(left.column_names.index("kept_key"), "kept_key", kept)


def purge_audit(change: Change, gone: Request, rows: pa.Table, tests: Collection[tuple[str, str]]) -> None:
    """Write tables of the audit anew that have rows of pairs: galleries, frequent texts and images, hosts.

    `rows` are all that went: their texts are not to be found there either. `tests` are test images of the same bytes,
    by set and name.
    """
    strings = (text for name in ("caption", "image_url") for text in rows[name].to_pylist())
    texts = {text[:CHARACTERS_AT_MOST] for text in strings if text}

    def stays(table: AuditTable, before: pa.Table) -> pa.Table:
        if table is SAMPLES:
            return _without(before, gone)
        if table is GALLERY:  # of pictures alone: one that has other pairs need not be shown either
            images = frozenset(filter(None, parquet.values(rows, "image_id")))
            goes = gone.with_images(images).matches(before)
            of_tests = list(zip(*(before[name].to_pylist() for name in ("test_set", "test_image")), strict=True))
            copied = np.flatnonzero(goes & (before["similarity"].to_numpy() == 1)).tolist()
            shown = {*tests, *(of_tests[row] for row in copied)}
            return before.filter(pa.array(~goes & [each not in shown for each in of_tests]))
        if table is FREQUENT:
            goes = [value in texts for value in before["value"].to_pylist()]
        else:
            goes = [gone.has_host_of(f"https://{host}/") for host in before["host"].to_pylist()]
        return before.filter(pa.array(~np.array(goes, bool)))

    for table in (SAMPLES, GALLERY, FREQUENT, HOSTS):
        path = storage.join(change.run_folder, table.path)
        if storage.exists(path):
            before = parquet.read_table(path).cast(table.schema)
            left = stays(table, before)
            if not left.equals(before):
                change.write_table(table.path, left)


def purge_log(change: Change, gone: Request) -> list[str]:
    """Write files of `log/` anew without lines on the images that went; returns the paths of files that go altogether.

    What sums these up, or has the words of an error, goes.
    """
    files = sorted(storage.files_below(storage.join(change.run_folder, "log")))
    names, emptied = [storage.relative(path, change.run_folder) or path for path in files], list[str]()
    for name in (name for name in names if name.endswith(".jsonl")):
        lines = storage.read_bytes(storage.join(change.run_folder, name)).splitlines(keepends=True)
        left = [line for line in lines if not is_line_of(line, gone)]
        if left and len(left) < len(lines):
            with change.writing(name) as file:
                file.write(b"".join(left))
        elif lines and not left:
            emptied.append(name)
    return [*emptied, *(name for name in names if name.endswith(_SUMS))]


def is_line_of(line: bytes, gone: Request) -> bool:
    """Whether a line of a log is of an image that went, or cannot be read."""
    try:
        entry = json.loads(line)
    except ValueError:
        return True  # half a line, of a killed command
    url = str(entry.get("url", ""))
    return entry.get("image_id") in gone.images or gone.has_host_of(url) or gone.has_url(url)
