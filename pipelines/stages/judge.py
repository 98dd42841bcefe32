"""Judge: every candidate against the text rules, map-only; then survivors are grouped by image_id.

The grouping drops repeated pairs and finds where each surviving image is. What it writes is sorted by (image_id, key),
one row group a fetch unit.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.pvalue import PCollection

from altalign import storage
from altalign.data import audit_tables
from altalign.data.counts import FailedCounts, combinations
from altalign.data.reasons import DropReason, Stage, Verdict, ask, reasons_of
from altalign.data.schema import DROPPED, STRINGS
from altalign.filters import identity
from altalign.pipelines.engine.jobs import create
from altalign.pipelines.engine.map_units import pooled
from altalign.pipelines.engine.spilled_groups import (
    SLICE,
    Element,
    Groups,
    MergePartitions,
    Spilled,
    SpillWriter,
    elements,
)
from altalign.pipelines.figures import dropped_texts
from altalign.pipelines.figures.dropped_texts import Judged
from altalign.pipelines.figures.judge_figures import Notes
from altalign.pipelines.figures.text_measures import Tables, TextMeasures, measure
from altalign.pipelines.run import outputs, pool, text_tables
from altalign.pipelines.run.image_places import PLACE, as_bytes, first_of_each, in_order
from altalign.pipelines.run.text_tables import (
    EXTRACTED,
    GROUPED,
    GROUPED_SURVIVORS,
    JUDGE_SAMPLE,
    JUDGED,
    MEASURED_TEXTS,
    PLACED_SURVIVOR,
    PLACES,
    REVISITS,
    SEEN_STRINGS,
    SLICES_OF_PLACES,
    SURVIVOR,
    SURVIVORS,
    GroupFacts,
    JudgeFacts,
    PoolUnit,
    RowGroup,
)
from altalign.pipelines.run.units import IMAGES_PER_UNIT, Run, Table, map_unit
from altalign.pipelines.stages.survivors import Sorted, equals_previous
from altalign.rules import own, reason_words
from altalign.storage import arrays, parquet

READS = (text_tables.CANDIDATES, PLACES, REVISITS, text_tables.POOL_SIZE, *text_tables.FINAL)
WRITES = (
    SURVIVORS,
    SLICES_OF_PLACES,
    GROUPED_SURVIVORS,
    MEASURED_TEXTS,
    SEEN_STRINGS,
    JUDGE_SAMPLE,
    outputs.DROPPED_ROWS[Stage.JUDGE],
    *map(
        Table.of_audit,
        (audit_tables.TEXT_MEASURES, audit_tables.FREQUENT, audit_tables.EDGE_NGRAMS, audit_tables.SCRIPTS),
    ),
)

ROWS_PER_PARTITION = 200_000
SURVIVORS_BYTES = 192 << 20  # a unit's survivors are spilled when they have so many; most units' have fewer
LONG_SURVIVORS_BYTES = 32 << 20  # the same where rows are long
REPEATS_AT_MOST = 4096  # of a batch that are grouped: all rows of a pair meet in one partition, and may be millions
UNIT_BYTES = 32 << 20  # of the texts of a fetch unit, but for those of its last image
FOLLOWED = -1  # in place of a file's number: what revisit records lead to
OF_SURVIVORS, OF_PLACES = range(2)  # kinds of slices

Ids = npt.NDArray[np.uint8]  # uint8[n, 16]
Numbers = npt.NDArray[np.int64]  # int64[n]

# The rules ---------------------------------------------------------------------------------------------------------


def verdicts(
    run: Run, candidates: pa.RecordBatch, measured: TextMeasures, *, file: int, first_row: int
) -> list[Verdict]:
    """The verdicts of every rule but `pair_repeated`, n each; the candidates begin at this row of this file."""
    caption = parquet.strings(candidates, "caption")
    columns = {
        "caption": caption,
        "url": parquet.strings(candidates, "image_url"),
        "page_url": parquet.strings(candidates, "page_url"),
        "extra": parquet.strings(candidates, "extra"),
        "has_identity": candidates["image_identity"].is_valid(),
        "words": measured.words,
        "has_rare_ngram": measured.has_rare_ngram,
        "images_per_text": measured.images_per_text,
        "texts_per_image": measured.texts_per_image,
    }

    def name_row(row: int) -> str:
        return f"row {first_row + row:,} of {run.files[file].path}, caption {caption[row].as_py()!r:.80}"

    return ask(own.rules(Stage.JUDGE, run.config, run.modules), columns, run.config, name_row)


def judge(run: Run, unit: PoolUnit) -> JudgeFacts:
    """Judge the candidates of a unit: dropped ones go to dropped/, survivors to the unit's spill file."""
    source, row, tables = run.source_of(unit["file"]), unit["row"], Tables.of(run)
    failed_counts, notes, names = FailedCounts(), Notes(run), reason_words.of_stage(Stage.JUDGE, run.config)
    survivors = _Survivors(run)
    with ExitStack() as stack:
        spill = SpillWriter(stack.enter_context(storage.write(SURVIVORS.path(run, unit["name"]))))
        path = outputs.dropped(run, Stage.JUDGE, unit["name"])
        keeps_dropped = run.config.audit.keep_dropped
        dropped = stack.enter_context(parquet.writing(path, dropped_texts.WRITTEN)) if keeps_dropped else None
        for batch in pool.candidates(run, unit):
            measured = measure(batch, tables, notes.seen)
            verdict, failed = reasons_of(verdicts(run, batch, measured, file=unit["file"], first_row=row))
            image_ids, keys = identity.ids(parquet.strings(batch, "image_identity"), parquet.strings(batch, "caption"))
            for reasons, rows in combinations(failed):
                if reasons:  # survivors are counted when they are grouped
                    failed_counts.add_rows(Stage.JUDGE, source, reasons, rows)
            judged = Judged(batch, measured, failed, image_ids, keys, names)
            notes.add(judged, verdict)
            if dropped is not None:
                dropped.write(gone := judged.to_arrow(source))
                notes.add_dropped(judged, gone)
            kept = np.flatnonzero(verdict.is_null().to_numpy(zero_copy_only=False))
            ids = identity.rows_of(image_ids, kept), identity.rows_of(keys, kept)
            rows = _survivors(batch, measured, kept, *ids, file=unit["file"], first_row=row)
            if _repeats(ids[1]) > REPEATS_AT_MOST:
                rows, repeated = _once(rows)
                failed_counts.add_rows(Stage.JUDGE, source, [DropReason.PAIR_REPEATED], len(repeated))
                if dropped is not None:
                    dropped.write(_as_dropped(run, repeated).cast(dropped_texts.WRITTEN))
            survivors.add(rows, spill)
            row += batch.num_rows
        survivors.spill(spill)
        spilled = spill.finish()
    notes.write(unit["name"])
    return JudgeFacts(unit["rows"], spilled, **failed_counts.facts())


def _repeats(keys: Ids) -> int:
    """About how many of these keys are there once more: those whose first 8 bytes are."""
    return len(keys) - len(np.unique(np.ascontiguousarray(keys[:, :8]).view("<u8")))


def _once(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The survivors of a batch of which each pair is kept once, as grouping chooses it, and those that repeat it."""
    found = Sorted(rows.to_batches, rows.nbytes)
    return found.take(np.flatnonzero(~found.repeated)), found.take(np.flatnonzero(found.repeated))


class _Survivors:
    """The survivors of a unit, until they are spilled: all at once, or when they have many bytes."""

    def __init__(self, run: Run):
        self._buckets, self._waiting = buckets_of(run), [SURVIVOR.empty_table()]
        self._rows = self._bytes = 0

    def add(self, rows: pa.Table, spill: SpillWriter) -> None:
        """Add rows (`SURVIVOR`)."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        self._rows += len(rows)
        is_long = self._bytes > self._rows * pool.BYTES_PER_ROW
        if self._bytes >= (LONG_SURVIVORS_BYTES if is_long else SURVIVORS_BYTES):
            self.spill(spill)

    def spill(self, spill: SpillWriter) -> None:
        """Write what waits in the order of buckets.

        In that order a partition is one range of the file, which a store reads in one request.
        """
        buckets = self._buckets
        kept = dict(_partitioned(pa.concat_tables(self._waiting), buckets.partitions))
        for partition in range(buckets.partitions):
            spill.add(
                buckets.bucket(partition, OF_SURVIVORS), _as_message(kept[partition]) if partition in kept else b""
            )
        self._waiting, self._rows, self._bytes = [SURVIVOR.empty_table()], 0, 0


def _survivors(
    candidates: pa.RecordBatch,
    measured: TextMeasures,
    kept: Numbers,
    image_ids: Ids,
    keys: Ids,
    *,
    file: int,
    first_row: int,
) -> pa.Table:
    """Rows of `SURVIVOR` for the candidates of these numbers, whose ids are given."""
    rows = candidates.take(kept)
    columns = {
        **{name: rows[name] for name in STRINGS},
        **{"key": _as_binary(keys), "image_id": _as_binary(image_ids)},
        "file": pa.repeat(pa.scalar(file, pa.int32()), len(kept)),
        "row": pa.array(first_row + kept, pa.int64()),
        "words": measured.words.take(kept),
    }
    return parquet.table(columns, SURVIVOR)


def _as_binary(ids: Ids) -> "pa.Array[Any]":
    data = pa.py_buffer(np.ascontiguousarray(ids).data)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, data])


# The grouping --------------------------------------------------------------------------------------------------------


def buckets_of(run: Run) -> Groups:
    """The buckets of a file of survivors or of places; the size of the pool alone decides how many partitions."""
    partitions = pool.partitions(run, ROWS_PER_PARTITION, at_least=8, at_most=4096)
    return Groups.of(partitions, kinds=2)


def _partitioned(rows: pa.Table, count: int) -> Iterator[tuple[int, pa.Table]]:
    of = _partition_of(arrays.ids_of(rows["image_id"]), count)
    order = np.argsort(of.astype(np.uint16), kind="stable")  # 16 bits: a radix sort
    ends = np.searchsorted(of[order], np.arange(count), side="right")
    rows = rows.take(order)
    for partition, (begin, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
        if end > begin:
            yield partition, rows.slice(begin, end - begin)


def _partition_of(ids: Ids, count: int) -> Numbers:
    return (ids[:, 0].astype(np.int64) * 256 + ids[:, 1]) * count >> 16


def _as_message(rows: pa.Table) -> Any:
    """The rows as one message of Arrow's IPC, without the schema.

    In a large pool a unit has few rows for each partition, and a schema would outweigh them.
    """
    (batch,) = rows.combine_chunks().to_batches()
    return batch.serialize()


def _from_messages(data: bytes) -> Iterator[pa.RecordBatch]:
    """The inverse of `_as_message`, of one or more messages."""
    reader = pa.BufferReader(data)
    while reader.tell() < len(data):
        yield pa.ipc.read_record_batch(pa.ipc.read_message(reader), SURVIVOR)


def _slices_of_places(path: str, buckets: Groups) -> npt.NDArray[np.void]:
    """The slices (`SLICE`) of a file of places, sorted by image_id, by partition."""
    found = np.frombuffer(storage.read_bytes(path), PLACE)
    of = _partition_of(np.ascontiguousarray(found["image_id"]).view(np.uint8).reshape(-1, 16), buckets.partitions)
    begins = np.searchsorted(of, np.arange(buckets.partitions + 1)) * PLACE.itemsize
    lengths = np.diff(begins)
    partition = np.flatnonzero(lengths)
    slices = np.empty(len(partition), SLICE)
    slices["bucket"] = buckets.bucket(partition, OF_PLACES)
    slices["offset"], slices["length"] = begins[partition], lengths[partition]
    return slices


def group(run: Run, partition: int, spilled: Spilled) -> GroupFacts:
    """Sort the survivors of a partition, drop repeated pairs, join the places of images, and cut fetch units."""
    buckets = buckets_of(run)
    bucket = buckets.bucket(partition, OF_SURVIVORS)
    places = b"".join(part for _, part in spilled.slices([buckets.bucket(partition, OF_PLACES)]))
    rows = Sorted(
        lambda: (batch for _, part in spilled.slices([bucket]) for batch in _from_messages(part)),
        spilled.size([bucket]),
    )
    name, kept, dropped = f"{partition:05d}", np.flatnonzero(~rows.repeated), np.flatnonzero(rows.repeated)
    if run.config.audit.keep_dropped and len(dropped):
        with parquet.writing(outputs.repeated(run, name), DROPPED) as file:
            for stretch in rows.stretches(dropped):
                file.write_row_group(_as_dropped(run, stretch))
    groups = _write_grouped(run, name, rows, kept, in_order(np.frombuffer(places, PLACE)))
    of_kept, of_dropped = (rows.short.take(at) for at in (kept, dropped))
    failed_counts = FailedCounts()
    for failed, part in (([], of_kept), ([DropReason.PAIR_REPEATED], of_dropped)):
        for file, file_rows in parquet.tally(part["file"]):
            failed_counts.add_rows(Stage.JUDGE, run.source_of(file), failed, file_rows)
    return GroupFacts(groups, **failed_counts.facts())


def _as_dropped(run: Run, rows: pa.Table) -> pa.Table:
    """Survivors that repeat a pair, as rows of `DROPPED`."""
    key, reason = identity.hexed(arrays.ids_of(rows["key"])), DropReason.PAIR_REPEATED.value
    columns = {
        **{column: rows[column] for column in (*STRINGS, "words")},
        **{"key": key, "image_id": identity.hexed(arrays.ids_of(rows["image_id"])), "kept_key": key},
        **{"source": pool.sources(run, rows["file"]), "stage": Stage.JUDGE.value, "reason": reason},
        "failed": pa.array([[reason]] * len(rows), pa.list_(pa.string())),
    }
    return parquet.table(columns, DROPPED)


def _write_grouped(run: Run, name: str, rows: Sorted, kept: Numbers, found: npt.NDArray[np.void]) -> list[RowGroup]:
    """Write the survivors that are kept with the places of their images; `found`: rows of `PLACE`, sorted."""
    ids = arrays.ids_of(rows.short["image_id"])[kept]
    place, is_found = first_of_each(found, as_bytes(ids))
    first_rows = np.flatnonzero(~equals_previous(ids))
    groups = list[RowGroup]()
    with parquet.writing(GROUPED_SURVIVORS.path(run, name), PLACED_SURVIVOR) as file:
        for first, last in pairwise(_cuts(rows.bytes[kept], first_rows)):
            begin, end = np.append(first_rows, len(kept))[[first, last]].tolist()
            of_group = rows.take(kept[begin:end])
            for field in ("file", "kind", "offset", "length"):
                of_schema = PLACED_SURVIVOR.field(f"place_{field}")
                values = place[field][begin:end].astype(np.int64)
                column = pa.array(values, of_schema.type, mask=~is_found[begin:end])
                of_group = of_group.append_column(of_schema, column)
            file.write_row_group(of_group)
            groups.append({"rows": end - begin, "images": last - first})
    return groups


def _cuts(sizes: Numbers, first_rows: Numbers) -> list[int]:
    """Where fetch units begin and end, in images: so many images, or rows of so many bytes. `first_rows`: of images."""
    before = np.concatenate([[0], np.cumsum(sizes)])[np.append(first_rows, len(sizes))]  # bytes before each image
    cuts = [0]
    while cuts[-1] < len(first_rows):
        within = int(np.searchsorted(before, before[cuts[-1]] + UNIT_BYTES, side="right")) - 1
        cuts.append(min(max(within, cuts[-1] + 1), cuts[-1] + IMAGES_PER_UNIT, len(first_rows)))
    return cuts


class Judge(beam.PTransform[Any, Any]):
    """Units of the pool in, numbers of finished partitions out."""

    def __init__(self, run: Run):
        super().__init__()
        self._run = run
        self._groups = buckets_of(run)

    def expand(self, input_or_inputs: PCollection[Any]) -> PCollection[Any]:
        """Judge every unit, and group what survives."""
        judged = pooled(self._run, self._judge).with_output_types(tuple[int, bytes])
        found = pooled(self._run, self._places, at_once=1).with_output_types(tuple[int, bytes])
        facts = ((file.number, self._run.facts_of(EXTRACTED, file.name)) for file in self._run.files)
        with_places = [number for number, of_file in facts if of_file.places is not None]
        with_places += [FOLLOWED] * storage.exists(REVISITS.path(self._run))
        survivors = input_or_inputs | "JudgeUnits" >> judged
        places = input_or_inputs.pipeline | "NameFiles" >> create(self._run, with_places) | "FindPlaces" >> found
        return (survivors, places) | "GroupSurvivors" >> MergePartitions(self._run, GROUPED, self._groups, group)

    def _judge(self, unit: PoolUnit) -> Iterator[Element]:
        facts = map_unit(self._run, JUDGED, unit, judge)
        path = SURVIVORS.path(self._run, unit["name"])
        yield from elements(path, unit["order"], path, facts.spilled, self._groups)

    def _places(self, file: int) -> Iterator[Element]:
        name = "revisits" if file == FOLLOWED else self._run.files[file].name
        path = REVISITS.path(self._run) if file == FOLLOWED else PLACES.path(self._run, name)
        index = SLICES_OF_PLACES.path(self._run, name)
        slices = _slices_of_places(path, self._groups)
        storage.write_bytes(index, slices.tobytes())
        yield from elements(path, file, index, (0, len(slices)), self._groups)
