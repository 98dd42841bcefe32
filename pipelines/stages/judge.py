"""Judge: every candidate against the text rules, map-only; then survivors are grouped by image.

The first pass reads every candidate, so it also notes for the audit what is measured, and samples what is dropped. The
grouping drops repeated pairs and finds where each image is; its rows are sorted by (image_id, key), one row group a
fetch unit.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.pvalue import PCollection

from altalign import storage
from altalign.data.audit_tables import TEXT_MEASURES
from altalign.data.counts import FailedCounts, combinations
from altalign.data.reasons import DropReason, Stage, Verdict, ask, reasons_of
from altalign.data.schema import DROPPED, STRINGS
from altalign.dedup.hash_tables import HashTable
from altalign.filters import identity, words
from altalign.pipelines.engine.jobs import create
from altalign.pipelines.engine.map_units import pooled
from altalign.pipelines.engine.spilled_groups import Element, Groups, MergePartitions, Spilled, SpillWriter, elements
from altalign.pipelines.figures import text_figures
from altalign.pipelines.figures.text_figures import Seen
from altalign.pipelines.run import outputs, pool, text_tables
from altalign.pipelines.run.image_places import PLACE, as_bytes, first_of_each, in_order
from altalign.pipelines.run.text_tables import (
    GROUPED_SURVIVORS,
    JUDGED,
    PLACED_SURVIVOR,
    SURVIVOR,
    SURVIVORS,
    GroupFacts,
    JudgeFacts,
    PoolUnit,
    RowGroup,
)
from altalign.pipelines.run.units import IMAGES_PER_UNIT, Run, map_unit
from altalign.rules import own
from altalign.storage import arrays, parquet

READS = (
    text_tables.CANDIDATES,
    text_tables.PLACES,
    text_tables.REVISITS,
    text_tables.POOL_SIZE,
    *text_tables.FINAL,
)
WRITES = outputs.written_by("judge")

SURVIVORS_BYTES = 192 << 20  # a unit's survivors are spilled when they have so many; most units' have fewer
LONG_SURVIVORS_BYTES = 32 << 20  # the same where rows are long
REPEATS_AT_MOST = 4096  # of a batch that are grouped: all rows of a pair meet in one partition, and may be millions
ROWS_PER_PARTITION = 200_000
HELD_BYTES = 128 << 20  # of the survivors of a partition; an even one has some 50 MB
STRETCH_BYTES = 32 << 20  # read at a time where there are more
UNIT_BYTES = 32 << 20  # of the texts of a fetch unit, but for those of its last image
FOLLOWED = -1  # in place of a file's number: what revisit records lead to
OF_SURVIVORS, OF_PLACES = range(2)  # kinds of slices
DROPPED_TEXT = parquet.with_dictionaries(DROPPED)  # as it is written: Arrow would hash these strings again

Ids = npt.NDArray[np.uint8]  # uint8[n, 16]
Numbers = npt.NDArray[np.int64]  # int64[n]

# Measuring ------------------------------------------------------------------------------------------------------

_LOADING = threading.Lock()


class Tables(NamedTuple):
    """The finished tables, mapped into memory; each process has one of each."""

    vocabulary: HashTable | None  # None: it has every n-gram
    texts: HashTable
    images: HashTable


def tables_of(run: Run) -> Tables:
    """The tables of a run; the first thread that needs them loads them, the others wait."""
    with _LOADING:
        return _tables(storage.absolute(run.path("tables")), storage.stamp(run.path("tables", "vocabulary.json")))


@lru_cache(maxsize=1)
def _tables(folder: str, _changed: storage.Stamp) -> Tables:
    def table(name: str, counts: str) -> HashTable:
        return HashTable(arrays.mapped(f"{folder}/{name}.npy"), arrays.mapped(f"{folder}/{name}_{counts}.npy"))

    vocabulary = None if storage.read_json(f"{folder}/vocabulary.json")["all"] else table("vocabulary", "log2")
    return Tables(vocabulary, table("over_shared_texts", "counts"), table("over_captioned_images", "counts"))


class TextMeasures(NamedTuple):
    """What the text rules compare with their limits, for n rows."""

    words: pa.Int32Array
    has_rare_ngram: pa.BooleanArray
    # uint8[n]: log2 of the smallest count of a row's n-grams, as in the vocabulary; 0: not in it; 255: no table
    rarest: npt.NDArray[np.uint8]
    images_per_text: pa.Int64Array  # null: within the limit
    texts_per_image: pa.Int64Array  # null: within the limit, or no image is known


def measure(batch: pa.RecordBatch, tables: Tables, seen: Seen) -> TextMeasures:
    """Measure candidates (`schema.CANDIDATE`) against the tables, and show them to `seen`."""
    n, captions = batch.num_rows, parquet.strings(batch, "caption")
    row_words, images_per_text = np.empty(n, np.int32), np.empty(n, np.int64)
    is_rare, rarest = np.zeros(n, np.bool_), np.full(n, 255, np.uint8)
    for begin in range(0, n, words.BLOCK):
        block, end = captions.slice(begin, words.BLOCK), min(n, begin + words.BLOCK)
        scan = words.scan(block, words.thread_scratch())
        row_words[begin:end] = scan.words
        images_per_text[begin:end] = tables.texts.lookup(scan.texts)
        if tables.vocabulary is not None:
            is_rare[begin:end], rarest[begin:end] = tables.vocabulary.measure_rows(scan.ngrams, scan.ends)
        seen.captions(block, scan, images_per_text[begin:end])
    image_hashes = identity.image_hash(parquet.strings(batch, "image_identity"))
    texts_per_image = tables.images.lookup(image_hashes)
    texts_per_image[~batch["image_identity"].is_valid().to_numpy(zero_copy_only=False)] = 0
    seen.images(parquet.strings(batch, "image_url"), image_hashes, texts_per_image)
    return TextMeasures(
        pa.array(row_words, pa.int32()),
        pa.array(is_rare),
        rarest,
        pa.array(images_per_text, pa.int64(), mask=images_per_text == 0),
        pa.array(texts_per_image, pa.int64(), mask=texts_per_image == 0),
    )


# Judging a unit ---------------------------------------------------------------------------------------------------


def judge(run: Run, unit: PoolUnit) -> JudgeFacts:
    """Judge the candidates of a unit: dropped ones go to dropped/, survivors to the unit's spill file."""
    file, row, name, source = unit["file"], unit["row"], unit["name"], run.source_of(unit["file"])
    tables, buckets, reasons = tables_of(run), buckets_of(run), own.reasons(Stage.JUDGE, run.config)
    failed_counts, waiting = FailedCounts(), [SURVIVOR.empty_table()]
    seen, histograms = Seen(text_figures.sought_hashes(run)), text_figures.Histograms(text_figures.OF_TEXT)
    scripts, one_in = Counter[tuple[str, str]](), _scripts_of_one_in(run)
    smallest, samples = text_figures.Smallest(len(reasons)), DROPPED.empty_table()
    with ExitStack() as stack:
        spill = SpillWriter(stack.enter_context(storage.write(SURVIVORS.path(run, name))))
        dropped = None
        if run.config.audit.keep_dropped:
            path = outputs.DROPPED_ROWS[Stage.JUDGE].path(run, name)
            dropped = stack.enter_context(parquet.writing(path, DROPPED_TEXT))
        for batch in pool.candidates(run, unit):
            captions, measured = parquet.strings(batch, "caption"), measure(batch, tables, seen)
            verdict, failed = reasons_of(verdicts(run, batch, measured, file=file, first_row=row))
            for names, rows in combinations(failed):
                if names:  # survivors are counted when they are grouped
                    failed_counts.add_rows(Stage.JUDGE, source, names, rows)
            ids = identity.ids(parquet.strings(batch, "image_identity"), captions)
            judged = Judged(batch, measured, failed, *ids, reasons)
            values = text_figures.values_of(
                measured.words, measured.rarest, measured.images_per_text, measured.texts_per_image
            )
            histograms.add(values, judged.combinations, judged.codes)
            scripts += text_figures.count_scripts(captions, verdict, judged.keys, one_in=one_in)
            if dropped is not None:
                gone = judged.to_arrow(source)
                dropped.write(gone)
                chosen = smallest.choose(judged.reasons, identity.rows_of(judged.keys, judged.dropped))
                if len(chosen):
                    shortened = text_figures.shortened(gone.take(chosen).cast(DROPPED))
                    samples = text_figures.smallest_pairs(pa.concat_tables([samples, shortened]))
            rows, repeats = _without_repeats(judged.survivors(file, row))
            if len(repeats):
                failed_counts.add_rows(Stage.JUDGE, source, [DropReason.PAIR_REPEATED], len(repeats))
                if dropped is not None:
                    dropped.write(as_dropped(run, repeats).cast(DROPPED_TEXT))
            waiting.append(rows)
            size = sum(part.nbytes for part in waiting)
            is_long = size > sum(map(len, waiting)) * pool.BYTES_PER_ROW
            if size >= (LONG_SURVIVORS_BYTES if is_long else SURVIVORS_BYTES):
                _spill(pa.concat_tables(waiting), buckets, spill)
                waiting = [SURVIVOR.empty_table()]
            row += batch.num_rows
        _spill(pa.concat_tables(waiting), buckets, spill)
        spilled = spill.finish()
    text_tables.MEASURED_TEXTS.write(run, histograms.to_arrow(), name)
    of_scripts = [(*script, rows) for script, rows in sorted(scripts.items())]
    storage.write_json(text_tables.SEEN_STRINGS.path(run, name), {**seen.to_json(), "scripts": of_scripts})
    text_tables.JUDGE_SAMPLE.write(run, samples, name)
    return JudgeFacts(unit["rows"], spilled, **failed_counts.facts())


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


class Judged:
    """n candidates, what was measured of them, all reasons that hold (`reasons_of`), and their ids (uint8[n, 16]).

    Attributes:
        combinations: the combinations of reasons that occur.
        codes: the combination of each row, by its number: integers[n].
        dropped, kept: numbers of the rows that have a reason, and that have none: int64, rising.
        reasons: the verdict of each dropped row, by its number among `names`, all reasons of the stage in order: uint8.
    """

    def __init__(
        self,
        candidates: pa.RecordBatch,
        measured: TextMeasures,
        failed: "pa.DictionaryArray[Any, Any]",
        image_ids: Ids,
        keys: Ids,
        names: Sequence[str],
    ):
        self.image_ids, self.keys = image_ids, keys
        self._candidates, self._measured, self._failed, self._names = candidates, measured, failed, names
        self.combinations = [tuple(reasons) for reasons in cast(Any, failed.dictionary).to_pylist()]
        number = {name: at for at, name in enumerate(names)}
        self._numbered = [[number[reason] for reason in reasons] for reasons in self.combinations]
        self.codes: npt.NDArray[np.integer] = failed.indices.to_numpy()
        has_reason = np.array([bool(reasons) for reasons in self.combinations], np.bool_)[self.codes]
        self.dropped, self.kept = np.flatnonzero(has_reason), np.flatnonzero(~has_reason)
        first = np.array([next(iter(numbers), 0) for numbers in self._numbered], np.uint8)
        self.reasons = first[self.codes[self.dropped]]

    def to_arrow(self, source: str) -> pa.Table:
        """The dropped rows, of schema `DROPPED_TEXT`."""
        rows = self.dropped
        texts = self._candidates.select(list(STRINGS)).take(rows)
        is_known = cast(pa.BooleanArray, self._candidates["image_identity"].is_valid().take(rows))
        failed: Any = pa.array(self._numbered, pa.list_(pa.int8())).take(self._failed.indices.take(rows))

        def named(numbers: "pa.Array[Any]") -> "pa.DictionaryArray[Any, Any]":
            encoded: Any = numbers.dictionary_encode()  # of those that occur, in the order in which they do
            return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(self._names).take(encoded.dictionary))

        measures = ("words", "images_per_text", "texts_per_image")
        columns: dict[str, object] = {
            "key": identity.hexed(identity.rows_of(self.keys, rows)),
            "image_id": identity.hexed(identity.rows_of(self.image_ids, rows), is_known),
            **{name: texts[name] for name in STRINGS},
            **{name: getattr(self._measured, name).take(rows) for name in measures},
            "reason": named(failed.flatten().take(failed.offsets[:-1])),
            "failed": pa.ListArray.from_arrays(failed.offsets, named(failed.flatten())),
        }
        return parquet.table({**columns, "source": source, "stage": Stage.JUDGE.value}, DROPPED_TEXT)

    def survivors(self, file: int, first_row: int) -> pa.Table:
        """The rows that no rule drops, of `SURVIVOR`; the candidates begin at this row of this file."""
        rows = self._candidates.take(self.kept)

        def ids(every: Ids) -> "pa.Array[Any]":
            data = pa.py_buffer(np.ascontiguousarray(identity.rows_of(every, self.kept)).data)
            return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(self.kept), [None, data])

        columns = {
            **{name: rows[name] for name in STRINGS},
            **{"key": ids(self.keys), "image_id": ids(self.image_ids)},
            "file": pa.repeat(pa.scalar(file, pa.int32()), len(self.kept)),
            "row": pa.array(first_row + self.kept, pa.int64()),
            "words": self._measured.words.take(self.kept),
        }
        return parquet.table(columns, SURVIVOR)


def _without_repeats(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Survivors of a batch, each pair once, and the rows that repeat one; few repeats are left to the grouping."""
    first_bytes = np.ascontiguousarray(arrays.ids_of(rows["key"])[:, :8]).view("<u8")
    if len(rows) - len(np.unique(first_bytes)) <= REPEATS_AT_MOST:
        return rows, rows.slice(0, 0)
    every = Sorted(rows.to_batches, rows.nbytes)  # each pair stays once, as grouping chooses it
    return every.take(np.flatnonzero(~every.repeated)), every.take(np.flatnonzero(every.repeated))


def _spill(rows: pa.Table, buckets: Groups, spill: SpillWriter) -> None:
    """Write survivors in the order of partitions: each is one range, which a store reads in one request."""
    partitions = _partition_of(arrays.ids_of(rows["image_id"]), buckets.partitions)
    rows = rows.take(np.argsort(partitions.astype(np.uint16), kind="stable"))  # 16 bits: a radix sort
    ends = np.cumsum(np.bincount(partitions, minlength=buckets.partitions)).tolist()
    for partition, (begin, end) in enumerate(pairwise([0, *ends])):
        if begin < end:
            (batch,) = rows.slice(begin, end - begin).combine_chunks().to_batches()
            message: Any = batch.serialize()  # without the schema, which would outweigh the few rows of a partition
            spill.add(buckets.bucket(partition, OF_SURVIVORS), message)


def _scripts_of_one_in(run: Run) -> int:
    """One candidate in so many is looked at for scripts."""
    return text_figures.one_in(pool.rows(run), text_figures.CANDIDATES_AT_MOST)


# Grouping ---------------------------------------------------------------------------------------------------------


def buckets_of(run: Run) -> Groups:
    """The buckets of a file of survivors or of places; the size of the pool alone decides how many partitions."""
    return Groups(pool.partitions(run, ROWS_PER_PARTITION, at_least=8, at_most=4096), kinds=2)


def _partition_of(ids: Ids, count: int) -> Numbers:
    return (ids[:, 0].astype(np.int64) * 256 + ids[:, 1]) * count >> 16


class Judge(beam.PTransform[Any, Any]):
    """Units of the pool in, numbers of finished partitions out: judges every unit, and groups what survives."""

    def __init__(self, run: Run):
        super().__init__()
        self._run, self._groups = run, buckets_of(run)

    def expand(self, input_or_inputs: PCollection[Any]) -> PCollection[Any]:  # noqa: D102
        judged = pooled(self._run, self._judge).with_output_types(tuple[int, bytes])
        placed = pooled(self._run, self._places, at_once=1).with_output_types(tuple[int, bytes])
        facts = ((file.number, self._run.facts_of(text_tables.EXTRACTED, file.name)) for file in self._run.files)
        with_places = [number for number, of_file in facts if of_file.places is not None]
        with_places += [FOLLOWED] * storage.exists(text_tables.REVISITS.path(self._run))
        survivors = input_or_inputs | "JudgeUnits" >> judged
        places = input_or_inputs.pipeline | "NameFiles" >> create(self._run, with_places) | "FindPlaces" >> placed
        grouped = MergePartitions(self._run, text_tables.GROUPED, self._groups, group)
        return (survivors, places) | "GroupSurvivors" >> grouped

    def _judge(self, unit: PoolUnit) -> Iterator[Element]:
        facts = map_unit(self._run, JUDGED, unit, judge)
        path = SURVIVORS.path(self._run, unit["name"])
        yield from elements(path, unit["order"], path, facts.spilled, self._groups)

    def _places(self, file: int) -> Iterator[Element]:
        """Write how partitions cut the places of a file, which are sorted by image_id."""
        name = "revisits" if file == FOLLOWED else self._run.files[file].name
        table = text_tables.REVISITS if file == FOLLOWED else text_tables.PLACES
        ids = table.array(self._run, name)["image_id"]
        partitions = _partition_of(np.ascontiguousarray(ids).view(np.uint8).reshape(-1, 16), self._groups.partitions)
        begins = np.searchsorted(partitions, np.arange(self._groups.partitions + 1)) * PLACE.itemsize
        lengths = np.diff(begins)
        partition = np.flatnonzero(lengths)
        slices = np.empty(len(partition), text_tables.SLICE)
        slices["bucket"] = self._groups.bucket(partition, OF_PLACES)
        slices["offset"], slices["length"] = begins[partition], lengths[partition]
        text_tables.SLICES_OF_PLACES.save(self._run, slices, name)
        index = text_tables.SLICES_OF_PLACES.path(self._run, name)
        yield from elements(table.path(self._run, name), file, index, (0, len(slices)), self._groups)


class Sorted:
    """n survivors in the order of image, key, page and place in the input.

    All are in memory where they have few bytes, as most partitions. One image may have all rows of a pool, and its
    texts may be long: then what decides the order is in memory alone, and texts are read again for each stretch.

    Attributes:
        short: n rows, in that order, with all columns but strings.
        bytes: of the strings of each row: int64[n].
        repeated: whether a row has the key of the one before it: bool[n].
    """

    def __init__(self, batches: Callable[[], Iterable[pa.RecordBatch]], size: int):
        """`batches` yields them (`SURVIVOR`), the same each time that it is called; `size` is how many bytes."""
        self._batches, self._held = batches, None
        columns = ["key", "image_id", "file", "row", "words"]
        if size <= HELD_BYTES:
            rows = pa.Table.from_batches(batches(), SURVIVOR)
            order = _order(rows, rows["page_url"])
            self._held = rows.take(order).combine_chunks()
            self.short, self.bytes = self._held.select(columns), _bytes(self._held)
        else:
            short, pages, sizes = list[pa.RecordBatch](), list[Any](), list[Numbers]()
            for batch in batches():
                short.append(batch.select(columns).take(np.arange(batch.num_rows)))  # a copy, so that strings can go
                pages.append(batch["page_url"].dictionary_encode())
                sizes.append(_bytes(batch))
            rows, page = pa.Table.from_batches(short), cast(Any, pa.chunked_array(pages)).unify_dictionaries()
            page = page.combine_chunks()
            ranks = np.empty(len(page.dictionary), np.int32)  # the place of each URL among all of them
            ranks[pc.sort_indices(page.dictionary).to_numpy()] = np.arange(len(ranks), dtype=np.int32)
            order = _order(rows, pa.array(ranks).take(page.indices))
            self.short, self.bytes = rows.take(order).combine_chunks(), np.concatenate(sizes)[order.to_numpy()]
        self._order: Numbers = order.to_numpy().astype(np.int64)
        self.repeated = _equals_previous(arrays.ids_of(self.short["key"]))

    def take(self, at: Numbers) -> pa.Table:
        """Rows by their places in the order, rising (`SURVIVOR`)."""
        if self._held is not None:
            return self._held.take(at).combine_chunks()
        rows, first, taken = self._order[at], 0, list[pa.RecordBatch]()
        rising = np.sort(rows)
        for batch in self._batches():
            begin, end = np.searchsorted(rising, [first, first + batch.num_rows]).tolist()
            if begin < end:
                taken.append(batch.take(rising[begin:end] - first))
            first += batch.num_rows
        return pa.Table.from_batches(taken, SURVIVOR).take(np.searchsorted(rising, rows)).combine_chunks()

    def stretches(self, at: Numbers) -> Iterator[pa.Table]:
        """The same in parts of a bounded size; all at once where all are in memory."""
        if self._held is not None:
            yield self.take(at)
            return
        number = np.cumsum(self.bytes[at]) // STRETCH_BYTES
        for part in np.split(at, np.flatnonzero(np.diff(number)) + 1):
            yield self.take(part)


def _order(rows: pa.Table, page: Any) -> Any:
    columns = {"image_id": rows["image_id"], "key": rows["key"], "page_url": page}
    columns |= {"file": rows["file"], "row": rows["row"]}
    by: Any = [(name, "ascending", "at_start") for name in columns]  # the stubs do not know where nulls may be placed
    return pc.sort_indices(pa.table(columns), by)


def _bytes(rows: pa.RecordBatch | pa.Table) -> Numbers:
    lengths: Any = (pc.binary_length(cast(Any, rows[name])).fill_null(0) for name in STRINGS)
    return sum((column.to_numpy(zero_copy_only=False) for column in lengths), np.zeros(rows.num_rows, np.int64))


def _equals_previous(ids: Ids) -> npt.NDArray[np.bool_]:
    """Whether each of n ids is the one before it: bool[n]."""
    return np.r_[np.zeros(min(1, len(ids)), bool), (ids[1:] == ids[:-1]).all(axis=1)]


def group(run: Run, partition: int, spilled: Spilled) -> GroupFacts:
    """Sort the survivors of a partition, drop repeated pairs, join the places of images, and cut fetch units."""
    buckets, name = buckets_of(run), f"{partition:05d}"
    bucket = buckets.bucket(partition, OF_SURVIVORS)
    places = b"".join(part for _, part in spilled.slices([buckets.bucket(partition, OF_PLACES)]))

    def batches() -> Iterator[pa.RecordBatch]:
        for _, messages in spilled.slices([bucket]):
            reader = pa.BufferReader(messages)
            while reader.tell() < len(messages):
                yield pa.ipc.read_record_batch(pa.ipc.read_message(reader), SURVIVOR)

    rows = Sorted(batches, spilled.size([bucket]))
    kept, dropped = np.flatnonzero(~rows.repeated), np.flatnonzero(rows.repeated)
    if run.config.audit.keep_dropped and len(dropped):
        with parquet.writing(outputs.DROPPED_ROWS[Stage.JUDGE].path(run, f"repeated-{name}"), DROPPED) as file:
            for stretch in rows.stretches(dropped):
                file.write_row_group(as_dropped(run, stretch))
    groups = _write_grouped(run, name, rows, kept, in_order(np.frombuffer(places, PLACE)))
    failed_counts = FailedCounts()
    for failed, at in (([], kept), ([DropReason.PAIR_REPEATED], dropped)):
        for file, file_rows in parquet.tally(rows.short.take(at)["file"]):
            failed_counts.add_rows(Stage.JUDGE, run.source_of(file), failed, file_rows)
    return GroupFacts(groups, **failed_counts.facts())


def as_dropped(run: Run, rows: pa.Table) -> pa.Table:
    """Survivors that repeat a pair, as rows of `DROPPED`."""
    key, reason = identity.hexed(arrays.ids_of(rows["key"])), DropReason.PAIR_REPEATED.value
    columns = {
        **{column: rows[column] for column in (*STRINGS, "words")},
        **{"key": key, "image_id": identity.hexed(arrays.ids_of(rows["image_id"])), "kept_key": key},
        **{"source": pool.sources(run, rows["file"]), "stage": Stage.JUDGE.value, "reason": reason},
        "failed": pa.array([[reason]] * len(rows), pa.list_(pa.string())),
    }
    return parquet.table(columns, DROPPED)


def _write_grouped(run: Run, name: str, rows: Sorted, kept: Numbers, places: npt.NDArray[np.void]) -> list[RowGroup]:
    """Write the survivors that are kept with the places of their images, of which `places` (`PLACE`) are sorted.

    A row group has so many images, or rows of so many bytes.
    """
    ids = arrays.ids_of(rows.short["image_id"])[kept]
    place, has_place = first_of_each(places, as_bytes(ids))
    first_rows = np.append(np.flatnonzero(~_equals_previous(ids)), len(kept))
    bytes_before = np.concatenate([[0], np.cumsum(rows.bytes[kept])])[first_rows]
    images, first, groups = len(first_rows) - 1, 0, list[RowGroup]()
    with parquet.writing(GROUPED_SURVIVORS.path(run, name), PLACED_SURVIVOR) as file:
        while first < images:
            within = int(np.searchsorted(bytes_before, bytes_before[first] + UNIT_BYTES, side="right")) - 1
            last = min(max(within, first + 1), first + IMAGES_PER_UNIT, images)
            begin, end = first_rows[[first, last]].tolist()
            of_group = rows.take(kept[begin:end])
            for field in ("file", "kind", "offset", "length"):
                of_schema = PLACED_SURVIVOR.field(f"place_{field}")
                values = place[field][begin:end].astype(np.int64)
                column = pa.array(values, of_schema.type, mask=~has_place[begin:end])
                of_group = of_group.append_column(of_schema, column)
            file.write_row_group(of_group)
            groups.append({"rows": end - begin, "images": last - first})
            first = last
    return groups


def conclude(run: Run) -> None:
    """Write histograms of what was measured, frequent strings, edge n-grams and scripts."""
    units = [unit["name"] for unit in pool.units(run)]
    measures = storage.each(partial(text_tables.MEASURED_TEXTS.read, run), units, place=run.folder)
    outputs.write_audit(run, TEXT_MEASURES, text_figures.sum_of(measures, TEXT_MEASURES.schema))
    strings, scripts = {kind: dict[int, str]() for kind in text_figures.STRINGS_SOUGHT}, Counter[tuple[str, str]]()
    paths = [text_tables.SEEN_STRINGS.path(run, unit) for unit in units]
    for part in storage.each(storage.read_json, paths, place=run.folder):
        scripts += Counter({(script, verdict): rows for script, verdict, rows in part["scripts"]})
        for kind, first in strings.items():  # of each string the first in input order
            strings[kind] = dict(part[kind]) | first
    text_figures.write_scripts(run, scripts, one_in=_scripts_of_one_in(run))
    text_figures.write_strings(run, strings)
