"""Extract: input files -> the pool of candidates, with a verdict on every image element, record, line and row.

One unit is one input file, or a part of a folder. A Parquet table of one caption a row, without images, is its own
pool: here only its footer is read, and the text passes read its row groups. Every other file is read once; its
candidates, the places of its images and a sample of its dropped rows stay in work/.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from typing import cast

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.data.counts import FailedCounts
from altalign.data.reasons import DropReason, Stage
from altalign.data.schema import BROKEN, CANDIDATE, DROPPED, STRINGS
from altalign.errors import AltalignError, UnreadableError
from altalign.filters import identity
from altalign.machine import interrupts
from altalign.pipelines import read
from altalign.pipelines.figures.gallery_rows import smallest_keys
from altalign.pipelines.read import folder
from altalign.pipelines.read.stretches import STRETCH_BYTES
from altalign.pipelines.read.tables import table
from altalign.pipelines.run import image_places, outputs, pool, progress, text_tables
from altalign.pipelines.run.units import InputFile, Run, Table
from altalign.storage import parquet

# measured on the books in examples/: docs/concepts/speed.md
SECONDS_PER_BYTE = 30e-9
SIZES_ASKED = 100  # the sizes of so many files stand for all
SECONDS_BETWEEN_NOTES = 2.0  # of how far a file is read
SAMPLE_PER_REASON = 1_000  # dropped rows that are kept: those of the smallest keys, the same whatever the units were

READS: tuple[Table, ...] = ()  # input files
WRITES = (
    text_tables.CANDIDATES,
    text_tables.BROKEN_RECORDS,
    text_tables.EXTRACT_SAMPLE,
    text_tables.COPIED_IMAGES,
    text_tables.FOLDER_FILES,
    text_tables.PLACES,
    text_tables.PAYLOADS,
    text_tables.REVISITS,
    text_tables.POOL_SIZE,
    outputs.DROPPED_ROWS[Stage.EXTRACT],
)

Stamp = list[int | str]  # tells whether an input file has changed


def plan(run: Run) -> list[text_tables.FileUnit]:
    """One unit a file, in input order."""
    return [{"name": file.name, "file": file.number} for file in run.files]


def seconds(run: Run, units: Sequence[text_tables.FileUnit]) -> float:
    """About how long the archives among these units take one core, by the sizes of the first of them; 0 for tables."""
    files = [run.files[unit["file"]] for unit in units]
    archives = [file for file in files if run.config.input[file.of].kind != "table"]
    with suppress(OSError, AltalignError):  # reading a missing file reports it
        sizes = [pool.stamp(run, file.number)[0] for file in archives[:SIZES_ASKED]]
        return SECONDS_PER_BYTE * sum(map(int, sizes)) * len(archives) / max(1, len(sizes))
    return 0.0


def extract(run: Run, unit: text_tables.FileUnit) -> text_tables.ExtractFacts:
    """Read one input file.

    Raises:
        UnreadableError: the file cannot be read as a whole, and its input does not skip such files.
    """
    file = run.files[unit["file"]]
    stamp = pool.stamp(run, file.number)
    with pool.reading(run, [file.number], stamp):  # around what skips a file: one that changed is none of those
        return _extract(run, file, stamp)


def _extract(run: Run, file: InputFile, stamp: Stamp) -> text_tables.ExtractFacts:
    settings = run.config.input[file.of]
    try:
        is_direct = read.is_direct(file.path, settings) and not settings.skip_unreadable
        direct = table.direct(file.path, settings) if is_direct else None
        return _extract_direct(run, file, stamp, direct) if direct else _extract_file(run, file, stamp)
    except UnreadableError as error:
        if not settings.skip_unreadable:
            raise
        return _skip_file(run, file, stamp, error)


def _extract_direct(run: Run, file: InputFile, stamp: Stamp, of: table.Direct) -> text_tables.ExtractFacts:
    failed_counts = FailedCounts()
    failed_counts.add_rows(Stage.EXTRACT, run.source_of(file.number), [], sum(of.row_groups))
    facts = failed_counts.facts()
    return text_tables.ExtractFacts(stamp, direct=True, **of._asdict(), places=None, broken=None, **facts)


def _extract_file(run: Run, file: InputFile, stamp: Stamp) -> text_tables.ExtractFacts:
    settings, source, name = run.config.input[file.of], run.source_of(file.number), file.name
    failed_counts, sample = FailedCounts(), _Sample()
    reading, kind = _Reading(run, file.name), image_places.Kind
    found_places = image_places.Collected(
        file.number,
        plain=kind.ROW if settings.kind == "table" else kind.RECORD,
        ranged=kind.FILE if file.part else kind.RANGE,
    )
    with ExitStack() as stack:
        candidates = stack.enter_context(parquet.writing(text_tables.CANDIDATES.path(run, name), CANDIDATE))
        broken = stack.enter_context(parquet.writing(text_tables.BROKEN_RECORDS.path(run, name), DROPPED))
        images = stack.enter_context(storage.write(text_tables.COPIED_IMAGES.path(run, name)))
        for found in _read_part(run, file, file.part) if file.part else read.read(file.path, settings, file.named):
            interrupts.check()
            reading.note(found.read)
            rows = pa.Table.from_batches([found.rows])
            verdict = parquet.strings(found.rows, "reason")
            failed_counts.add(Stage.EXTRACT, pa.repeat(pa.scalar(source), len(rows)), found.rows["failed"])
            failed_counts.add_rows(Stage.EXTRACT, source, [DropReason.RECORD_BROKEN], found.broken.num_rows)
            candidates.write(rows.filter(verdict.is_null()).select(CANDIDATE.names))
            broken.write(_broken_rows(found.broken, source))
            sample.add(_dropped_rows(rows.filter(verdict.is_valid()), source))
            found_places.add(found.places, images, found.payloads)
    text_tables.PLACES.save(run, found_places.sorted(), name)
    if len(payloads := found_places.payloads()):
        text_tables.PAYLOADS.save(run, payloads, name)
    text_tables.EXTRACT_SAMPLE.write(run, sample.rows, name)
    return text_tables.ExtractFacts(
        stamp,
        direct=False,
        row_groups=candidates.row_groups,
        rows_at_once=min(parquet.ROWS_PER_BATCH, max(1, STRETCH_BYTES // max(1, candidates.row_bytes))),
        bytes=candidates.bytes,
        places=len(found_places),
        broken=failed_counts.counts().dropped(Stage.EXTRACT).get("record_broken", 0),
        **failed_counts.facts(),
    )


def _read_part(run: Run, file: InputFile, part: folder.FolderPart) -> Iterator[read.Stretch]:
    """Read a part of a folder; its files are noted, so that nobody has to list them again."""
    settings = run.config.input[file.of]
    files = folder.files(part, settings)
    columns = {
        "name": [os.fsencode(each.name) for each in files],
        "size": [each.stamp.size for each in files],
        "time_ns": [each.stamp.time_ns for each in files],
        "digest": [each.stamp.digest for each in files],
    }
    text_tables.FOLDER_FILES.write(run, parquet.table(columns, text_tables.FOLDER_FILE), file.name)
    yield from folder.read(part, files, settings, file.named)


def _skip_file(run: Run, file: InputFile, stamp: Stamp, error: UnreadableError) -> text_tables.ExtractFacts:
    source = run.source_of(file.number)
    failed_counts = FailedCounts()
    failed_counts.add_rows(Stage.EXTRACT, source, [DropReason.RECORD_BROKEN], 1)
    broken = pa.record_batch([[file.path], [0], [str(error)]], schema=BROKEN)
    text_tables.BROKEN_RECORDS.write(run, _broken_rows(broken, source), file.name)
    facts = failed_counts.facts()
    return text_tables.ExtractFacts(
        stamp, direct=False, row_groups=[], rows_at_once=0, bytes=0, places=None, broken=1, **facts
    )


class _Reading:
    """Notes, for whoever watches, how far a file is read."""

    def __init__(self, run: Run, name: str):
        self._path, self._noted_at = _reading(run, name), time.monotonic()

    def note(self, read: int) -> None:
        """Write it down, now and then."""
        if read and time.monotonic() >= self._noted_at + SECONDS_BETWEEN_NOTES:
            self._noted_at = time.monotonic()
            with storage.noted():  # in a block of its own: how slow a machine was is not for the unit's mark
                storage.write_json(self._path, {"read": read})


def _reading(run: Run, name: str) -> str:
    return run.work(text_tables.EXTRACTED.step, "reading", f"{name}.json")


class Watch(progress.Watch):
    """Shows the bytes of few, large files: a unit is a whole file."""

    @cached_property
    def _sizes(self) -> dict[str, int]:
        files = [file for file in self._run.files if file.name in self._rows]
        if len(files) > SIZES_ASKED:
            return {}
        return {file.name: int(pool.stamp(self._run, file.number)[0]) for file in files}

    def _speed(self, finished: set[str]) -> str:
        with suppress(OSError, AltalignError):  # whoever reads the file reports it
            sizes = self._sizes
            notes = {name: _reading(self._run, name) for name in sizes.keys() - finished}
            read = sum(sizes[name] for name in finished & sizes.keys())
            read += sum(storage.read_json(path).get("read", 0) for path in notes.values())
            return f"{read / 1e6:,.1f} of {sum(sizes.values()) / 1e6:,.1f} MB" if sizes else ""
        return ""


class _Sample:
    """The dropped rows with the smallest keys, up to SAMPLE_PER_REASON for each reason."""

    def __init__(self) -> None:
        self.rows = DROPPED.empty_table()

    def add(self, rows: pa.Table) -> None:
        """Let these rows compete."""
        if len(rows):
            self.rows = smallest_keys(pa.concat_tables([self.rows, rows]), SAMPLE_PER_REASON)


def _broken_rows(broken: pa.RecordBatch, source: str) -> pa.Table:
    failed = pa.array([[DropReason.RECORD_BROKEN.value]] * broken.num_rows, pa.list_(pa.string()))
    columns = {name: broken[name] for name in BROKEN.names} | {"source": source, "stage": Stage.EXTRACT.value}
    return parquet.table({**columns, "reason": DropReason.RECORD_BROKEN.value, "failed": failed}, DROPPED)


def _dropped_rows(rows: pa.Table, source: str) -> pa.Table:
    rows = rows.combine_chunks()
    identities, captions = (parquet.strings(rows, name) for name in ("image_identity", "caption"))
    image_ids, keys = identity.ids(identities, cast(pa.StringArray, captions.fill_null("")))
    columns = {name: rows[name].combine_chunks() for name in (*STRINGS, "reason", "failed")}
    ids = {"key": identity.hexed(keys), "image_id": identity.hexed(image_ids, identities.is_valid())}
    return parquet.table({**ids, **columns, "source": source, "stage": Stage.EXTRACT.value}, DROPPED)


def _is_empty(run: Run, file: InputFile) -> bool:
    facts = run.facts_of(text_tables.EXTRACTED, file.name)
    return not facts.counts and not facts.places


def _follow_revisits(run: Run) -> None:
    """Write the places of images that revisit records have: their payloads may be in any archive."""
    none = np.zeros(0, image_places.PLACE)

    def payloads(name: str) -> image_places.Places:
        return text_tables.PAYLOADS.array(run, name) if storage.exists(text_tables.PAYLOADS.path(run, name)) else none

    names = [file.name for file in run.files if run.facts_of(text_tables.EXTRACTED, file.name).places]
    of_files = map(payloads, names)
    revisits = np.concatenate([none, *(rows[rows["kind"] == image_places.REVISIT] for rows in of_files)])
    found = revisits
    if len(revisits):
        found = image_places.followed(
            revisits, ((text_tables.PLACES.array(run, name), payloads(name)) for name in names)
        )
    if len(found) or storage.exists(text_tables.REVISITS.path(run)):
        text_tables.REVISITS.save(run, found)


def conclude(run: Run) -> None:
    """Write `dropped/extract/`: every broken record, and of the rest the rows with the smallest keys."""
    pool.name_empty_files(run, partial(_is_empty, run))
    pool.write_size(run)
    _follow_revisits(run)
    if not run.config.audit.keep_dropped:
        return
    sample = _Sample()
    for file in run.files:
        if run.facts_of(text_tables.EXTRACTED, file.name).broken:
            path = outputs.dropped(run, Stage.EXTRACT, f"broken-{file.name}")
            storage.write_bytes(path, storage.read_bytes(text_tables.BROKEN_RECORDS.path(run, file.name)))
        if storage.exists(text_tables.EXTRACT_SAMPLE.path(run, file.name)):
            sample.add(text_tables.EXTRACT_SAMPLE.read(run, file.name))
    parquet.write_any(outputs.dropped(run, Stage.EXTRACT, "sample"), sample.rows, DROPPED)
