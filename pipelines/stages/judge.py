"""Judge: every candidate against the text rules, map-only; survivors are then grouped by image_id, where repeated pairs go.

The grouping also finds where each surviving image is. What it writes is sorted by (image_id, key), one row group a
fetch unit.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.pvalue import PCollection

from altalign import storage
from altalign.counts import FailedCounts, combinations
from altalign.curation import CurateConfig
from altalign.filters import identity, text
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
from altalign.pipelines.evidence import pairs_joint
from altalign.pipelines.evidence.of_judge import Notes
from altalign.pipelines.evidence.text_joint import combined
from altalign.pipelines.files import arrays, parquet
from altalign.pipelines.run import outputs, pool
from altalign.pipelines.run.artefacts import (
    EXTRACTED,
    GROUPED,
    JUDGED,
    PLACED_SURVIVOR,
    SURVIVOR,
    Extracted,
    GroupedPartition,
    GroupFacts,
    JudgedUnit,
    JudgeFacts,
    PoolUnit,
    RowGroup,
    slices_of_places,
)
from altalign.pipelines.run.units import IMAGES_PER_UNIT, Run, map_unit
from altalign.pipelines.stages import dropped_texts
from altalign.pipelines.stages.dropped_texts import Judged
from altalign.pipelines.stages.image_places import PLACE, as_bytes, first_of_each, in_order
from altalign.pipelines.stages.text_measures import Measured, Tables, measure
from altalign.reasons import DropReason, Stage, Verdict, reasons_of
from altalign.schema import DROPPED

ROWS_PER_PARTITION = 200_000
SURVIVORS, OTHERS, PLACES = range(3)  # kinds of slices; others: `pairs.PAIR` of what only thresholds drop

# The rules ---------------------------------------------------------------------------------------------------------


def verdicts(candidates: pa.RecordBatch, measured: Measured, config: CurateConfig) -> list[Verdict]:
    """The verdict of every rule but `pair_repeated`, in the order of reasons."""
    return [
        text.url_invalid(candidates["image_identity"].is_valid()),
        text.empty(parquet.strings(candidates, "caption")),
        text.too_short(measured.words, words_at_least=config.text.words_at_least),
        text.too_long(measured.words, words_at_most=config.text.words_at_most),
        text.on_too_many_images(measured.images_per_text),
        text.has_rare_ngram(measured.has_rare_ngram),
        text.image_has_too_many_texts(measured.texts_per_image),
    ]


def judge(run: Run, unit: PoolUnit) -> JudgeFacts:
    """Judge the candidates of a unit: dropped ones to dropped/, survivors to the unit's spill file."""
    source, tables = run.source_of(unit["file"]), Tables.of(run)
    failed_counts, notes, survivors, others, row = (
        FailedCounts(),
        Notes(run),
        [],
        [np.zeros(0, pairs_joint.PAIR)],
        unit["row"],
    )
    with ExitStack() as stack:
        path = outputs.dropped(run, Stage.JUDGE, unit["name"])
        dropped = stack.enter_context(dropped_texts.writing(path, source)) if run.config.audit.keep_dropped else None
        for batch in pool.candidates(run, unit):
            measured = measure(batch, tables, notes.seen)
            verdict, failed = reasons_of(verdicts(batch, measured, run.config))
            image_ids, keys = identity.ids(parquet.strings(batch, "image_identity"), parquet.strings(batch, "caption"))
            for reasons, rows in combinations(failed):
                if reasons:  # what stays is counted when it is grouped
                    failed_counts.add_rows(Stage.JUDGE, source, reasons, rows)
            if dropped is not None:
                judged = Judged(batch, measured, failed, image_ids, keys)
                dropped.write(judged)
                notes.add_dropped(judged, source)
            combination = combined(batch, measured)
            notes.add(batch, verdict, keys, combination)
            movable = pairs_joint.only_of_thresholds(failed)
            others.append(pairs_joint.entries(identity.rows_of(keys, movable), combination[movable]))
            kept = np.flatnonzero(verdict.is_null().to_numpy(zero_copy_only=False))
            ids = identity.rows_of(image_ids, kept), identity.rows_of(keys, kept)
            survivors.append(_survivor_rows(batch.take(kept), measured, kept, *ids, unit["file"], row + kept))
            row += batch.num_rows
    spilled = _spill(
        run, unit, pa.concat_tables([SURVIVOR.empty_table(), *survivors]), pairs_joint.distinct(np.concatenate(others))
    )
    notes.write(JudgedUnit(run, unit["name"]))
    return JudgeFacts(unit["rows"], spilled, **failed_counts.facts())


def _spill(run: Run, unit: PoolUnit, survivors: pa.Table, others: np.ndarray) -> list[int]:
    """Write what is to be grouped, in the order of buckets, which a store then reads as one; returns where the places of the slices are."""
    with storage.write(JudgedUnit(run, unit["name"]).survivors) as file:
        spill, buckets = SpillWriter(file), buckets_of(run)
        kept, dropped = (
            dict(_partitioned(survivors, buckets.partitions)),
            dict(pairs_joint.partitioned(others, buckets.partitions)),
        )
        for partition in range(buckets.partitions):
            spill.add(buckets.bucket(partition, SURVIVORS), _as_message(kept[partition]) if partition in kept else b"")
            spill.add(buckets.bucket(partition, OTHERS), dropped.get(partition, b""))
        return spill.finish()


def _survivor_rows(
    batch: pa.RecordBatch,
    measured: Measured,
    kept: np.ndarray,
    image_ids: np.ndarray,
    keys: np.ndarray,
    file: int,
    rows: np.ndarray,
) -> pa.Table:
    columns = {name: batch[name] for name in ("image_url", "caption", "page_url")}
    fixed = {"key": _as_binary(keys), "image_id": _as_binary(image_ids)}
    place = {"file": pa.repeat(pa.scalar(file, pa.int32()), len(rows)), "row": pa.array(rows, pa.int64())}
    return parquet.table(
        {
            **fixed,
            **columns,
            **place,
            "words": measured.words.take(kept),
            "rarest_log2": pa.array(measured.rarest[kept]),
        },
        SURVIVOR,
    )


def _as_binary(ids: np.ndarray) -> "pa.Array[Any]":
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(ids), [None, pa.py_buffer(np.ascontiguousarray(ids).data)]
    )


# The grouping --------------------------------------------------------------------------------------------------------


def buckets_of(run: Run) -> Groups:
    """The buckets of a file of survivors, and of one of places: partitions of the size of the pool alone."""
    return Groups.of(
        pool.partitions(run, ROWS_PER_PARTITION, at_least=8, at_most=4096), run.config.engine.shuffle, kinds=3
    )


def _partitioned(rows: pa.Table, count: int) -> Iterator[tuple[int, pa.Table]]:
    of = _partition_of(arrays.ids_of(rows["image_id"]), count)
    order = np.argsort(of.astype(np.uint16), kind="stable")  # 16 bits: a radix sort
    ends = np.searchsorted(of[order], np.arange(count), side="right")
    rows = rows.take(order)
    for partition, (begin, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
        if end > begin:
            yield partition, rows.slice(begin, end - begin)


def _partition_of(ids: np.ndarray, count: int) -> np.ndarray:
    return (ids[:, 0].astype(np.int64) * 256 + ids[:, 1]) * count >> 16


def _as_message(rows: pa.Table) -> Any:
    """As one message of Arrow's IPC, without the schema: of large pools a unit has few rows of each partition, and a schema would outweigh them."""
    (batch,) = rows.combine_chunks().to_batches()
    return batch.serialize()


def _slices_of_places(path: str, buckets: Groups) -> np.ndarray:
    """Where in a file of places, sorted by image_id, those of each partition lie."""
    found = np.frombuffer(storage.read_bytes(path), PLACE)
    of = _partition_of(np.ascontiguousarray(found["image_id"]).view(np.uint8).reshape(-1, 16), buckets.partitions)
    begins = np.searchsorted(of, np.arange(buckets.partitions + 1)) * PLACE.itemsize
    partition = np.flatnonzero(np.diff(begins))
    slices = np.empty(len(partition), SLICE)
    slices["bucket"], slices["offset"], slices["length"] = (
        buckets.bucket(partition, PLACES),
        begins[partition],
        np.diff(begins)[partition],
    )
    return slices


def group(run: Run, partition: int, spilled: Spilled) -> GroupFacts:
    """Sort the survivors of a partition, drop repeated pairs, join the places of images, and cut into fetch units."""
    buckets = buckets_of(run)
    of_kind: dict[int, list[bytes]] = {SURVIVORS: [], OTHERS: [], PLACES: []}
    for bucket, part in spilled.slices([buckets.bucket(partition, kind) for kind in of_kind]):
        of_kind[bucket % buckets.kinds].append(part)
    rows = pa.Table.from_batches([pa.ipc.read_record_batch(part, SURVIVOR) for part in of_kind[SURVIVORS]], SURVIVOR)
    # Any: the stubs know no place of nulls here
    by: Any = [(name, "ascending", "at_start") for name in ("image_id", "key", "page_url", "file", "row")]
    rows = rows.take(pc.sort_indices(rows, by)).combine_chunks()
    repeated = _equals_previous(arrays.ids_of(rows["key"]))
    name = f"{partition:05d}"
    if run.config.audit.keep_dropped:
        _write_repeated(run, name, rows.filter(pa.array(repeated)))
    kept = rows.filter(pa.array(~repeated))
    groups = _write_grouped(run, name, kept, in_order(np.frombuffer(b"".join(of_kind[PLACES]), PLACE)))
    others = np.frombuffer(b"".join(of_kind[OTHERS]), pairs_joint.PAIR)
    joint = pairs_joint.counted(kept["words"].to_numpy(), kept["rarest_log2"].to_numpy(), others)
    storage.write_bytes(GroupedPartition(run, name).pairs, joint.to_bytes())
    failed_counts = FailedCounts()
    for failed, part in (([], kept), ([DropReason.PAIR_REPEATED], rows.filter(pa.array(repeated)))):
        for file, file_rows in parquet.tally(part["file"]):
            failed_counts.add_rows(Stage.JUDGE, run.source_of(file), failed, file_rows)
    return GroupFacts(groups, **failed_counts.facts())


def _equals_previous(ids: np.ndarray) -> np.ndarray:
    return np.r_[np.zeros(min(1, len(ids)), bool), (ids[1:] == ids[:-1]).all(axis=1)]


def _write_repeated(run: Run, name: str, rows: pa.Table) -> None:
    key = identity.hexed(arrays.ids_of(rows["key"]))
    reason = DropReason.PAIR_REPEATED.value
    columns = {column: rows[column] for column in ("image_url", "caption", "page_url", "words")}
    source = pool.sources(run, rows["file"])
    ids = {"key": key, "image_id": identity.hexed(arrays.ids_of(rows["image_id"])), "kept_key": key}
    failed = pa.array([[reason]] * len(rows), pa.list_(pa.string()))
    parquet.write_any(
        outputs.repeated(run, name),
        parquet.table(
            {**ids, **columns, "source": source, "stage": Stage.JUDGE.value, "reason": reason, "failed": failed},
            DROPPED,
        ),
        DROPPED,
    )


def _write_grouped(run: Run, name: str, rows: pa.Table, found: np.ndarray) -> list[RowGroup]:
    ids = arrays.ids_of(rows["image_id"])
    place, is_found = first_of_each(found, as_bytes(ids))
    for column, field in (
        ("place_file", "file"),
        ("place_kind", "kind"),
        ("place_offset", "offset"),
        ("place_length", "length"),
    ):
        rows = rows.append_column(
            column, pa.array(place[field].astype(np.int64), PLACED_SURVIVOR.field(column).type, mask=~is_found)
        )
    image_of = np.cumsum(~_equals_previous(ids)) - 1
    cuts = np.searchsorted(
        image_of, np.arange(0, (image_of[-1] + 1 if len(rows) else 0) + IMAGES_PER_UNIT, IMAGES_PER_UNIT)
    )
    groups = list[RowGroup]()
    with parquet.writing(GroupedPartition(run, name).rows, PLACED_SURVIVOR) as file:
        for begin, end in zip(cuts.tolist(), cuts[1:].tolist(), strict=False):
            if end > begin:
                file.write_row_group(rows.slice(begin, end - begin))
                groups.append({"rows": end - begin, "images": int(image_of[end - 1] - image_of[begin]) + 1})
    return groups


class Judge(beam.PTransform[Any, Any]):
    """Units of the pool in, numbers of finished partitions out."""

    def __init__(self, run: Run):
        super().__init__()
        self._run = run
        self._groups = buckets_of(run)

    def expand(self, input_or_inputs: PCollection[Any]) -> PCollection[Any]:
        """Judge every unit, group what survives."""
        survivors = input_or_inputs | "JudgeUnits" >> pooled(self._run, self._judge).with_output_types(
            tuple[int, bytes]
        )
        facts = ((file.number, self._run.facts_of(EXTRACTED, file.name)) for file in self._run.files)
        with_places = [number for number, of_file in facts if of_file.places is not None]
        places = (
            input_or_inputs.pipeline
            | "NameFiles" >> create(self._run, with_places)
            | "FindPlaces" >> pooled(self._run, self._places, at_once=1).with_output_types(tuple[int, bytes])
        )
        return (survivors, places) | "GroupSurvivors" >> MergePartitions(self._run, GROUPED, self._groups, group)

    def _judge(self, unit: PoolUnit) -> Iterator[Element]:
        facts = map_unit(self._run, JUDGED, unit, judge)
        path = JudgedUnit(self._run, unit["name"]).survivors
        yield from elements(path, unit["order"], path, facts.spilled, self._groups, self._run.config.engine.shuffle)

    def _places(self, file: int) -> Iterator[Element]:
        name = self._run.files[file].name
        path, index = Extracted(self._run, name).places, slices_of_places(self._run, name)
        slices = _slices_of_places(path, self._groups)
        storage.write_bytes(index, slices.tobytes())
        yield from elements(path, file, index, (0, len(slices)), self._groups, self._run.config.engine.shuffle)
