"""Extract: input files -> the pool of candidates, with a verdict on every image element, record, line and row.

One unit is one input file, or a part of a folder. A Parquet table of one caption a row, without images, is its own
pool: here only its footer is read, and the text passes read its row groups. Every other file is read once; its
candidates, the places of its images and a sample of its dropped rows stay in work/.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import cast

import numpy as np
import pyarrow as pa

from altalign import storage
from altalign.data import preferences
from altalign.data.counts import FailedCounts
from altalign.data.reasons import DropReason, Stage
from altalign.data.schema import BROKEN, CANDIDATE, DROPPED, STRINGS
from altalign.errors import AltalignError, UnreadableError
from altalign.filters import identity
from altalign.filters.reservations import product_token
from altalign.machine import interrupts
from altalign.pipelines import read
from altalign.pipelines.figures.text_figures import smallest_keys
from altalign.pipelines.read import folder
from altalign.pipelines.read.stretches import STRETCH_BYTES
from altalign.pipelines.read.tables import table
from altalign.pipelines.run import image_places, outputs, pool, text_tables
from altalign.pipelines.run.units import InputFile, Run, Table
from altalign.storage import parquet

# measured on the books in examples/: docs/concepts/speed.md
SECONDS_PER_BYTE = 30e-9
SIZES_ASKED = 100  # the sizes of so many files stand for all
SAMPLE_PER_REASON = 1_000  # dropped rows that are kept: those of the smallest keys, the same whatever the units were

READS: tuple[Table, ...] = ()  # input files


def plan(run: Run) -> list[text_tables.FileUnit]:
    """One unit a file, in input order."""
    return [{"name": file.name, "file": file.number} for file in run.files]


def seconds(run: Run, units: Sequence[text_tables.FileUnit]) -> float:
    """About how long the archives among these units take one core, by the sizes of the first of them; 0 for tables."""
    files = [run.files[unit["file"]] for unit in units]
    archives = [file for file in files if run.config.input[file.input].kind != "table"]
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
    settings, stamp, counts = run.config.input[file.input], pool.stamp(run, file.number), FailedCounts()
    with pool.reading(run, [file.number], stamp):  # around what skips a file: one that changed is none of those
        try:
            is_direct = read.is_direct(file.path, settings) and not settings.skip_unreadable
            if is_direct and (direct := table.direct(file.path, settings)):
                counts.add_rows(Stage.EXTRACT, settings.source, [], sum(direct.row_groups))
                facts = {**direct._asdict(), **counts.facts()}
                return text_tables.ExtractFacts(stamp, direct=True, places=None, broken=None, **facts)
            return _extract_file(run, file, stamp)
        except UnreadableError as error:
            if not settings.skip_unreadable:
                raise
            broken = pa.record_batch([[file.path], [0], [str(error)]], schema=BROKEN)
            text_tables.BROKEN_RECORDS.write(run, _broken_rows(broken, settings.source), file.name)
            counts.add_rows(Stage.EXTRACT, settings.source, [DropReason.RECORD_BROKEN], 1)
            facts = {"row_groups": [], "rows_at_once": 0, "bytes": 0, **counts.facts()}
            return text_tables.ExtractFacts(stamp, direct=False, places=None, broken=1, **facts)


def _extract_file(run: Run, file: InputFile, stamp: list[int | str]) -> text_tables.ExtractFacts:
    settings, name = run.config.input[file.input], file.name
    source, failed_counts, sample = settings.source, FailedCounts(), DROPPED.empty_table()
    places = image_places.Collected(
        file.number,
        plain=image_places.Kind.ROW if settings.kind == "table" else image_places.Kind.RECORD,
        ranged=image_places.Kind.FILE if file.part else image_places.Kind.RANGE,
    )
    with ExitStack() as stack:
        candidates = stack.enter_context(parquet.writing(text_tables.CANDIDATES.path(run, name), CANDIDATE))
        broken = stack.enter_context(parquet.writing(text_tables.BROKEN_RECORDS.path(run, name), DROPPED))
        images = stack.enter_context(storage.write(text_tables.COPIED_IMAGES.path(run, name)))
        token = product_token(run.config.fetch.user_agent_sent)
        whole = () if file.part else read.read(file.path, settings, file.named, token)
        for stretch in _read_part(run, file, file.part) if file.part else whole:
            interrupts.check()
            rows = pa.Table.from_batches([stretch.rows])
            verdict = parquet.strings(stretch.rows, "reason")
            failed_counts.add(Stage.EXTRACT, pa.repeat(pa.scalar(source), len(rows)), stretch.rows["failed"])
            failed_counts.add_rows(Stage.EXTRACT, source, [DropReason.RECORD_BROKEN], stretch.broken.num_rows)
            candidates.write(rows.filter(verdict.is_null()).select(CANDIDATE.names))
            broken.write(_broken_rows(stretch.broken, source))
            if len(dropped := rows.filter(verdict.is_valid())):
                sample = smallest_keys(pa.concat_tables([sample, _dropped_rows(dropped, source)]), SAMPLE_PER_REASON)
            places.add(stretch.places, images, stretch.payloads, stretch.notices)
    text_tables.PLACES.save(run, places.sorted(), name)
    if len(payloads := places.payloads()):
        text_tables.PAYLOADS.save(run, payloads, name)
    if len(notices := places.notices()):
        text_tables.NOTICES.save(run, notices, name)
    text_tables.EXTRACT_SAMPLE.write(run, sample, name)
    return text_tables.ExtractFacts(
        stamp,
        direct=False,
        row_groups=candidates.row_groups,
        rows_at_once=min(parquet.ROWS_PER_BATCH, max(1, STRETCH_BYTES // max(1, candidates.row_bytes))),
        bytes=candidates.bytes,
        places=len(places),
        broken=failed_counts.counts().dropped(Stage.EXTRACT).get("record_broken", 0),
        **failed_counts.facts(),
    )


def _read_part(run: Run, file: InputFile, part: folder.FolderPart) -> Iterator[read.Stretch]:
    """Read a part of a folder; its files are noted, so that nobody has to list them again."""
    settings = run.config.input[file.input]
    files = folder.files(part, settings)
    columns = {
        "name": [os.fsencode(each.name) for each in files],
        "size": [each.stamp.size for each in files],
        "time_ns": [each.stamp.time_ns for each in files],
        "digest": [each.stamp.digest for each in files],
    }
    text_tables.FOLDER_FILES.write(run, parquet.table(columns, text_tables.FOLDER_FILE), file.name)
    yield from folder.read(part, files, settings, file.named)


def _broken_rows(broken: pa.RecordBatch, source: str) -> pa.Table:
    failed = pa.array([[DropReason.RECORD_BROKEN.value]] * broken.num_rows, pa.list_(pa.string()))
    columns = {name: broken[name] for name in BROKEN.names} | {"source": source, "stage": Stage.EXTRACT.value}
    return parquet.table({**columns, "reason": DropReason.RECORD_BROKEN.value, "failed": failed}, DROPPED)


def _dropped_rows(rows: pa.Table, source: str) -> pa.Table:
    rows = rows.combine_chunks()
    identities, captions = (parquet.strings(rows, name) for name in ("image_identity", "caption"))
    image_ids, keys = identity.ids(identities, cast(pa.StringArray, captions.fill_null("")))
    columns = {name: rows[name].combine_chunks() for name in (*STRINGS, "reason", "failed")}
    columns["preferences"] = preferences.of_texts(rows["page_said"])
    ids = {"key": identity.hexed(keys), "image_id": identity.hexed(image_ids, identities.is_valid())}
    return parquet.table({**ids, **columns, "source": source, "stage": Stage.EXTRACT.value}, DROPPED)


def _follow_revisits(run: Run) -> None:
    """Write the places of images that revisit records have: their payloads may be in any archive."""
    none = np.zeros(0, image_places.PLACE)

    def payloads(name: str) -> image_places.Places:
        return text_tables.PAYLOADS.array(run, name) if storage.exists(text_tables.PAYLOADS.path(run, name)) else none

    names = [file.name for file in run.files if run.facts_of(text_tables.EXTRACTED, file.name).places]
    revisits = np.concatenate([none, *(rows[rows["kind"] == image_places.REVISIT] for rows in map(payloads, names))])
    if len(revisits):
        files = ((text_tables.PLACES.array(run, name), payloads(name)) for name in names)
        revisits = image_places.followed(revisits, files)
    if len(revisits) or storage.exists(text_tables.REVISITS.path(run)):
        text_tables.REVISITS.save(run, revisits)


def _gather_notices(run: Run) -> None:
    """Write the places of what origins say, of all archives: of each the last in input order."""
    names = [file.name for file in run.files if storage.exists(text_tables.NOTICES.path(run, file.name))]
    if names or storage.exists(text_tables.ALL_NOTICES.path(run)):
        none = np.zeros(0, image_places.PLACE)
        every = np.concatenate([none, *(text_tables.NOTICES.array(run, name) for name in names)])[::-1]
        text_tables.ALL_NOTICES.save(run, every[np.unique(every["image_id"], return_index=True)[1]])


def conclude(run: Run) -> None:
    """Write `dropped/extract/`: every broken record, and of the rest the rows with the smallest keys."""
    facts = dict(run.all_facts(text_tables.EXTRACTED))
    pool.name_empty_files(run, lambda file: not facts[file.name].counts and not facts[file.name].places)
    pool.write_size(run)
    _follow_revisits(run)
    _gather_notices(run)
    if not run.config.audit.keep_dropped:
        return
    sample = DROPPED.empty_table()
    for file in run.files:
        if facts[file.name].broken:
            path = outputs.dropped(run, Stage.EXTRACT, f"broken-{file.name}")
            storage.write_bytes(path, storage.read_bytes(text_tables.BROKEN_RECORDS.path(run, file.name)))
        if storage.exists(text_tables.EXTRACT_SAMPLE.path(run, file.name)):
            of_file = text_tables.EXTRACT_SAMPLE.read(run, file.name)
            sample = smallest_keys(pa.concat_tables([sample, of_file]), SAMPLE_PER_REASON)
    parquet.write_any(outputs.dropped(run, Stage.EXTRACT, "sample"), sample, DROPPED)
