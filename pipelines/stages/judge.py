"""Judge: every candidate against the text rules, map-only; then survivors are grouped by image (`group_survivors`).

The pass reads every candidate, so it also notes for the audit what is measured, and samples what is dropped.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.pvalue import PCollection

from altalign import storage
from altalign.data import preferences
from altalign.data.audit_tables import TEXT_MEASURES
from altalign.data.counts import FailedCounts, combinations
from altalign.data.reasons import DropReason, Stage, Verdict, ask, reasons_of
from altalign.data.schema import CARRIED, DROPPED, STRINGS
from altalign.dedup.hash_tables import HashTable
from altalign.filters import identity, personal, words
from altalign.pipelines.engine.jobs import create
from altalign.pipelines.engine.map_units import pooled
from altalign.pipelines.engine.spilled_groups import OFFSET, Element, Groups, MergePartitions, SpillWriter, elements
from altalign.pipelines.figures import text_figures
from altalign.pipelines.figures.text_figures import Seen
from altalign.pipelines.run import outputs, pool, text_tables
from altalign.pipelines.run.image_places import PLACE
from altalign.pipelines.run.text_tables import JUDGED, SURVIVOR, SURVIVORS, JudgeFacts, PoolUnit
from altalign.pipelines.run.units import Run, map_unit
from altalign.pipelines.stages.group_survivors import (
    OF_SURVIVORS,
    Ids,
    Sorted,
    as_dropped,
    buckets_of,
    group,
    partition_of,
)
from altalign.rules import own
from altalign.storage import arrays, parquet

READS = (
    text_tables.CANDIDATES,
    text_tables.PLACES,
    text_tables.REVISITS,
    text_tables.POOL_SIZE,
    *text_tables.FINAL,
)

SURVIVORS_BYTES = 192 << 20  # a unit's survivors are spilled when they have so many; most units' have fewer
LONG_SURVIVORS_BYTES = 32 << 20  # the same where rows are long
REPEATS_AT_MOST = 4096  # of a batch that are grouped: all rows of a pair meet in one partition, and may be millions
FOLLOWED = -1  # in place of a file's number: what revisit records lead to
DROPPED_TEXT = parquet.with_dictionaries(DROPPED)  # as it is written: Arrow would hash these strings again

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
        scan = words.scan(block)
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
        spill = SpillWriter(stack.enter_context(storage.write(SURVIVORS.path(run, name))), buckets)
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
        "has_personal": personal.has_any(caption, run.config.text),
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
        texts = self._candidates.select(list(CARRIED)).take(rows)
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
            "preferences": preferences.of_texts(texts["page_said"]),
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
            **{name: rows[name] for name in CARRIED},
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
    partitions = partition_of(arrays.ids_of(rows["image_id"]), buckets.partitions)
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


# The stage ------------------------------------------------------------------------------------------------------------


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
        yield from elements(path, unit["order"], path, facts.spilled)

    def _places(self, file: int) -> Iterator[Element]:
        """Write how partitions cut the places of a file, which are sorted by image_id."""
        name = "revisits" if file == FOLLOWED else self._run.files[file].name
        table = text_tables.REVISITS if file == FOLLOWED else text_tables.PLACES
        ids = table.array(self._run, name)["image_id"]
        partitions = partition_of(np.ascontiguousarray(ids).view(np.uint8).reshape(-1, 16), self._groups.partitions)
        begins = np.searchsorted(partitions, np.arange(self._groups.partitions + 1)) * PLACE.itemsize
        offsets = np.repeat(begins, self._groups.kinds)[:-1]  # nothing of the kind before, survivors
        text_tables.OFFSETS_OF_PLACES.save(self._run, offsets.astype(OFFSET), name)
        index = text_tables.OFFSETS_OF_PLACES.path(self._run, name)
        yield from elements(table.path(self._run, name), file, index, (0, 1))


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
