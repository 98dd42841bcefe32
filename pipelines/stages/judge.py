"""Judge: every candidate against the text rules, map-only; then survivors are grouped by image (`group_survivors`).

This is the pass that reads every candidate, so it also notes for the audit what is measured, and samples what is
dropped.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, cast

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
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
from altalign.pipelines.engine.spilled_groups import Element, MergePartitions, SpillWriter, elements
from altalign.pipelines.figures import text_figures
from altalign.pipelines.figures.text_figures import Seen
from altalign.pipelines.run import outputs, pool, text_tables
from altalign.pipelines.run.text_tables import JUDGED, SURVIVOR, SURVIVORS, JudgeFacts, PoolUnit
from altalign.pipelines.run.units import Run, map_unit
from altalign.pipelines.stages.group_survivors import (
    OF_SURVIVORS,
    Sorted,
    as_dropped,
    as_message,
    buckets_of,
    group,
    partitioned,
    slices_of_places,
)
from altalign.rules import own, reason_words
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
FOLLOWED = -1  # in place of a file's number: what revisit records lead to

# The schema of dropped rows as they are written; the file is that of `DROPPED`. With dictionaries in hand Arrow hashes
# none of these strings, which took one in ten CPU seconds of its writing.
DROPPED_TEXT = parquet.with_dictionaries(DROPPED)

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


# What is dropped, and what is noted -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """n candidates, what was measured of them, all reasons that hold (`reasons_of`), and their ids (uint8[n, 16]).

    `names` are all reasons of the stage, in order.
    """

    candidates: pa.RecordBatch
    measured: TextMeasures
    failed: "pa.DictionaryArray[Any, Any]"
    image_ids: np.ndarray
    keys: np.ndarray
    names: Sequence[str]

    @cached_property
    def combinations(self) -> list[tuple[str, ...]]:
        """The combinations of reasons that occur."""
        dictionary: Any = self.failed.dictionary
        return [tuple(reasons) for reasons in dictionary.to_pylist()]

    @cached_property
    def numbered(self) -> list[list[int]]:
        """The same, each reason by its number in `names`."""
        number = {name: at for at, name in enumerate(self.names)}
        return [[number[reason] for reason in reasons] for reasons in self.combinations]

    @property
    def codes(self) -> npt.NDArray[np.integer]:
        """The combination of each row, by its number in `combinations`: integers[n]."""
        return self.failed.indices.to_numpy()

    @cached_property
    def dropped(self) -> npt.NDArray[np.int64]:
        """Numbers of the rows that have a reason: int64[m], rising."""
        return np.flatnonzero(np.array([bool(reasons) for reasons in self.combinations], np.bool_)[self.codes])

    @property
    def reasons(self) -> npt.NDArray[np.uint8]:
        """The verdict of each dropped row, by its number in `names`: uint8[m]."""
        first = [next(iter(numbers), 0) for numbers in self.numbered]
        return np.array(first, np.uint8)[self.codes[self.dropped]]

    def to_arrow(self, source: str) -> pa.Table:
        """The dropped rows, of schema `DROPPED_TEXT`."""
        rows = self.dropped
        texts = self.candidates.select(list(STRINGS)).take(rows)
        is_known = cast(pa.BooleanArray, self.candidates["image_identity"].is_valid().take(rows))
        failed: Any = pa.array(self.numbered, pa.list_(pa.int8())).take(self.failed.indices.take(rows))
        measures = ("words", "images_per_text", "texts_per_image")
        columns: dict[str, object] = {
            "key": identity.hexed(identity.rows_of(self.keys, rows)),
            "image_id": identity.hexed(identity.rows_of(self.image_ids, rows), is_known),
            **{name: texts[name] for name in STRINGS},
            **{name: getattr(self.measured, name).take(rows) for name in measures},
            "reason": self._named(failed.flatten().take(failed.offsets[:-1])),
            "failed": pa.ListArray.from_arrays(failed.offsets, self._named(failed.flatten())),
        }
        return parquet.table({**columns, "source": source, "stage": Stage.JUDGE.value}, DROPPED_TEXT)

    def _named(self, numbers: "pa.Array[Any]") -> "pa.DictionaryArray[Any, Any]":
        """Reasons by their numbers, as a dictionary of those that occur, in the order in which they do."""
        encoded: Any = numbers.dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(self.names).take(encoded.dictionary))


class _Notes:
    """What is noted of a unit for the audit; `seen` has to be shown the candidates as they are measured."""

    def __init__(self, run: Run, reasons: int):
        self._run, self._one_in = run, _scripts_of_one_in(run)
        self.seen = Seen(text_figures.sought_hashes(run))
        self._measures = text_figures.Histograms(text_figures.OF_TEXT)
        self._scripts: Counter[tuple[str, str]] = Counter()
        self._smallest, self._samples = text_figures.Smallest(reasons), DROPPED.empty_table()

    def add(self, judged: Judged, verdict: Verdict) -> None:
        measured = judged.measured
        values = text_figures.values_of(
            measured.words, measured.rarest, measured.images_per_text, measured.texts_per_image
        )
        self._measures.add(values, judged.combinations, judged.codes)
        captions = parquet.strings(judged.candidates, "caption")
        self._scripts += text_figures.count_scripts(captions, verdict, judged.keys, one_in=self._one_in)

    def add_dropped(self, judged: Judged, dropped: pa.Table) -> None:
        chosen = self._smallest.choose(judged.reasons, identity.rows_of(judged.keys, judged.dropped))
        if len(chosen):
            rows = text_figures.shortened(dropped.take(chosen).cast(DROPPED))
            self._samples = text_figures.smallest_pairs(pa.concat_tables([self._samples, rows]))

    def write(self, unit: str) -> None:
        text_tables.MEASURED_TEXTS.write(self._run, self._measures.to_arrow(), unit)
        scripts = [(*name, rows) for name, rows in sorted(self._scripts.items())]
        seen = {**self.seen.to_json(), "scripts": scripts}
        storage.write_json(text_tables.SEEN_STRINGS.path(self._run, unit), seen)
        text_tables.JUDGE_SAMPLE.write(self._run, self._samples, unit)


def _scripts_of_one_in(run: Run) -> int:
    """One candidate in so many is looked at for scripts."""
    return text_figures.one_in(pool.rows(run), text_figures.CANDIDATES_AT_MOST)


# Judging a unit ---------------------------------------------------------------------------------------------------


def judge(run: Run, unit: PoolUnit) -> JudgeFacts:
    """Judge the candidates of a unit: dropped ones go to dropped/, survivors to the unit's spill file."""
    source, row, tables = run.source_of(unit["file"]), unit["row"], tables_of(run)
    failed_counts, names = FailedCounts(), reason_words.of_stage(Stage.JUDGE, run.config)
    notes, survivors = _Notes(run, len(names)), _Survivors(run)
    with ExitStack() as stack:
        spill = SpillWriter(stack.enter_context(storage.write(SURVIVORS.path(run, unit["name"]))))
        path = outputs.DROPPED_ROWS[Stage.JUDGE].path(run, unit["name"])
        keeps_dropped = run.config.audit.keep_dropped
        dropped = stack.enter_context(parquet.writing(path, DROPPED_TEXT)) if keeps_dropped else None
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
            rows = _survivors(judged, verdict, file=unit["file"], first_row=row)
            first_bytes = np.ascontiguousarray(arrays.ids_of(rows["key"])[:, :8]).view("<u8")
            if len(rows) - len(np.unique(first_bytes)) > REPEATS_AT_MOST:
                every = Sorted(rows.to_batches, rows.nbytes)  # each pair stays once, as grouping chooses it
                rows, repeats = (every.take(np.flatnonzero(chosen)) for chosen in (~every.repeated, every.repeated))
                failed_counts.add_rows(Stage.JUDGE, source, [DropReason.PAIR_REPEATED], len(repeats))
                if dropped is not None:
                    dropped.write(as_dropped(run, repeats).cast(DROPPED_TEXT))
            survivors.add(rows, spill)
            row += batch.num_rows
        survivors.spill(spill)
        spilled = spill.finish()
    notes.write(unit["name"])
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


def _survivors(judged: Judged, verdict: Verdict, *, file: int, first_row: int) -> pa.Table:
    """Rows of `SURVIVOR` for the candidates that no rule drops."""
    kept = np.flatnonzero(verdict.is_null().to_numpy(zero_copy_only=False))
    rows = judged.candidates.take(kept)

    def ids(of_all: np.ndarray) -> "pa.Array[Any]":
        data = pa.py_buffer(np.ascontiguousarray(identity.rows_of(of_all, kept)).data)
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(kept), [None, data])

    columns = {
        **{name: rows[name] for name in STRINGS},
        **{"key": ids(judged.keys), "image_id": ids(judged.image_ids)},
        "file": pa.repeat(pa.scalar(file, pa.int32()), len(kept)),
        "row": pa.array(first_row + kept, pa.int64()),
        "words": judged.measured.words.take(kept),
    }
    return parquet.table(columns, SURVIVOR)


class _Survivors:
    """The survivors of a unit, until they are spilled: all at once, or when they have many bytes."""

    def __init__(self, run: Run):
        self._buckets, self._waiting = buckets_of(run), [SURVIVOR.empty_table()]

    def add(self, rows: pa.Table, spill: SpillWriter) -> None:
        self._waiting.append(rows)
        size = sum(part.nbytes for part in self._waiting)
        is_long = size > sum(map(len, self._waiting)) * pool.BYTES_PER_ROW
        if size >= (LONG_SURVIVORS_BYTES if is_long else SURVIVORS_BYTES):
            self.spill(spill)

    def spill(self, spill: SpillWriter) -> None:
        """Write what waits in the order of buckets: a partition is one range, which a store reads in one request."""
        for partition, rows in partitioned(pa.concat_tables(self._waiting), self._buckets.partitions):
            spill.add(self._buckets.bucket(partition, OF_SURVIVORS), as_message(rows))
        self._waiting = [SURVIVOR.empty_table()]


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
        name = "revisits" if file == FOLLOWED else self._run.files[file].name
        table = text_tables.REVISITS if file == FOLLOWED else text_tables.PLACES
        path, index = table.path(self._run, name), text_tables.SLICES_OF_PLACES.path(self._run, name)
        slices = slices_of_places(path, self._groups)
        storage.write_bytes(index, slices.tobytes())
        yield from elements(path, file, index, (0, len(slices)), self._groups)


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
