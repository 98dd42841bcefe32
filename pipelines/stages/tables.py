"""Tables: one pass over the pool counts all unigrams and bigrams, images of every text and texts of every image, exactly.

A unit hashes its words in columns and spills the hashes by partition (their top bits, so that partitions in order are
one sorted table); a partition is counted once; the histogram of all counts gives the K-th largest and so the
vocabulary.
"""

import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import PCollection

from altalign import storage
from altalign.dedup.hash_tables import HashTable, log2_counts
from altalign.dedup.merge import CountHistogram, merge_ngrams, merge_pairs
from altalign.dedup.spill import Flush, NgramBuffers, PairBuffers
from altalign.filters import identity, words
from altalign.pipelines.engine.map_units import pooled
from altalign.pipelines.engine.spilled_groups import Element, Groups, MergePartitions, Spilled, SpillWriter, elements
from altalign.pipelines.evidence.frequent_strings import MOST, Edges, Seen, Top, write_wanted
from altalign.pipelines.files import arrays, parquet
from altalign.pipelines.run import pool
from altalign.pipelines.run.units import Facts, Run, Unit, map_unit
from altalign.schema import RULES_VERSION

BLOCK = 8_192  # rows whose n-grams are hashed at a time: they stay in the CPU's cache
ROWS_PER_PARTITION = 200_000  # about 30 MB of hashes in one thread of a merge

# Kinds of slices in a spill file; after these, one of images for each source.
KINDS = ("ngrams", "hot", "texts")
TABLES = {"ngrams": "vocabulary", "texts": "over_shared_texts", "images": "over_captioned_images"}


def buckets_of(run: Run) -> Groups:
    """The buckets of a spill file: partitions of each kind, of the size of the pool alone."""
    kinds = len(KINDS) + len(sources(run))
    return Groups.of(
        pool.partitions(run, ROWS_PER_PARTITION, at_least=16, at_most=4096), run.config.engine.shuffle, kinds=kinds
    )


def sources(run: Run) -> list[str]:
    """All sources, in the order of their first inputs."""
    return list(dict.fromkeys(each.source for each in run.config.input))


# Counting -------------------------------------------------------------------------------------------------------------


class _Buffers:
    """What a thread counts with, unit after unit: fresh memory for every unit would cost more than the counting."""

    def __init__(self, parts: int):
        self.parts = parts
        self.ngrams, self.texts, self.images = NgramBuffers(parts), PairBuffers(parts), PairBuffers(parts)


_THREAD = threading.local()
_LOADING = threading.Lock()


def scratch() -> words.Scratch:
    """The scratch memory of this thread."""
    if not hasattr(_THREAD, "scratch"):
        _THREAD.scratch = words.Scratch()
    return _THREAD.scratch


def count(run: Run, unit: Unit) -> Facts:
    """Hash the n-grams and pairs of a unit into its spill file; facts: where slices lie, rows, histogram of words."""
    buckets = buckets_of(run)
    # put back only after a whole unit: one that failed leaves rests in them
    buffers = _THREAD.__dict__.pop("buffers", None)
    if buffers is None or buffers.parts != buckets.partitions:
        buffers = _Buffers(buckets.partitions)
    histogram = np.zeros(1, np.int64)
    with storage.write(run.work("tables/units", f"{unit['name']}.spill")) as file:
        spill = SpillWriter(file)
        kinds = (*KINDS, "images")  # of the source of the unit's file
        numbers = (*range(len(KINDS)), len(KINDS) + sources(run).index(run.source_of(unit["file"])))
        into = {kind: _flush_to(spill, buckets, number) for kind, number in zip(kinds, numbers, strict=True)}
        for batch in pool.candidates(run, unit):
            histogram = _add(histogram, _count_batch(batch, buffers, into))
        buffers.ngrams.finish(into["ngrams"], into["hot"])
        buffers.texts.finish(into["texts"])
        buffers.images.finish(into["images"])
        spilled = spill.finish()
    _THREAD.buffers = buffers
    return {"rows": unit["rows"], "spilled": spilled, "words": CountHistogram.of_tally(histogram).to_json()}


def _count_batch(batch: pa.RecordBatch, buffers: _Buffers, into: dict[str, Flush]) -> np.ndarray:
    """Count candidates; returns how many have each number of words."""
    image_hashes = identity.image_hash(parquet.strings(batch, "image_identity"))
    is_known = batch["image_identity"].is_valid().to_numpy(zero_copy_only=False)
    captions, tally = parquet.strings(batch, "caption"), np.zeros(1, np.int64)
    for begin in range(0, batch.num_rows, BLOCK):
        found = words.scan(captions.slice(begin, BLOCK), scratch())
        buffers.ngrams.add(found.ngrams, into["ngrams"])
        known = is_known[begin : begin + BLOCK]
        texts, images = found.texts[known], image_hashes[begin : begin + BLOCK][known]
        buffers.texts.add(texts, images, into["texts"])
        buffers.images.add(images, texts, into["images"])
        tally = _add(tally, np.bincount(found.words))
    return tally


def _flush_to(spill: SpillWriter, buckets: Groups, kind: int) -> Flush:
    return lambda partition, data: spill.add(buckets.bucket(partition, kind), data)


def _add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if len(a) < len(b):
        a, b = b, a
    a[: len(b)] += b
    return a


def merge(run: Run, partition: int, spilled: Spilled) -> Facts:
    """Count one partition of each kind; facts: the histograms. Candidates for the tables go to files."""
    buckets = buckets_of(run)
    ngrams, hot, texts, *images = spilled.arrays(
        [buckets.bucket(partition, kind) for kind in range(buckets.kinds)], np.uint64
    )
    hashes, counts, histogram = merge_ngrams(ngrams, hot.reshape(-1, 2))
    facts: Facts = {"ngrams": histogram.to_json(), "ngrams_rows": len(hashes)}
    _save(run, "ngrams", partition, hashes, counts)
    limits = {"texts": run.config.text.images_per_text_at_most, "images": run.config.image.texts_per_image_at_most}
    for kind, pairs in {"texts": texts, "images": images[0] if len(images) == 1 else np.concatenate(images)}.items():
        hashes, counts, histogram = merge_pairs(pairs.reshape(-1, 2), limit=limits[kind])
        facts |= {kind: histogram.to_json(), f"{kind}_rows": len(hashes)}
        _save(run, kind, partition, hashes, counts)
    if len(images) > 1:
        facts["images_of_sources"] = [
            merge_pairs(pairs.reshape(-1, 2), limit=limits["images"])[2].keys for pairs in images
        ]
    return facts


def _part(run: Run, kind: str, partition: int) -> str:
    return run.work("tables/merged", f"{partition:05d}.{kind}")


def _save(run: Run, kind: str, partition: int, hashes: np.ndarray, counts: np.ndarray) -> None:
    storage.write_bytes(_part(run, kind, partition), np.stack([hashes, counts.astype(np.uint64)], axis=1).tobytes())


class Count(beam.PTransform[Any, Any]):
    """Units of the pool in, numbers of merged partitions out."""

    def __init__(self, run: Run, step: str):
        super().__init__()
        self._run, self._step = run, step
        self._groups = buckets_of(run)

    def expand(self, input_or_inputs: PCollection[Any]) -> PCollection[Any]:
        """Count every unit, merge every partition."""
        spilled = input_or_inputs | "CountUnits" >> pooled(self._run, self._count).with_output_types(tuple[int, bytes])
        return (spilled,) | "MergePartitions" >> MergePartitions(self._run, "tables/merged", self._groups, merge)

    def _count(self, unit: Unit) -> Iterator[Element]:
        facts = map_unit(self._run, self._step, unit, count)
        path = self._run.work("tables/units", f"{unit['name']}.spill")
        yield from elements(path, unit["order"], path, facts["spilled"], self._groups, self._run.config.engine.shuffle)


# The tables -----------------------------------------------------------------------------------------------------------


def conclude(run: Run) -> None:
    """`tables/`: the vocabulary, over-shared texts and over-captioned images; and the histograms for the audit."""
    merged = [facts for _, facts in run.all_facts("tables/merged")]
    histograms = {
        kind: CountHistogram.total(CountHistogram.from_json(facts[kind]) for facts in merged) for kind in TABLES
    }
    size = run.config.text.vocabulary_size
    threshold = histograms["ngrams"].threshold(size)
    # With a threshold of 1, or fewer than K distinct n-grams, every n-gram is in it: there is no table and the rule
    # drops nothing.
    is_all = threshold <= 1
    edges, most = Edges(threshold), {"texts": Top(MOST), "images": Top(MOST)}
    _write_table(
        run,
        "ngrams",
        0 if is_all else threshold,
        {"vocabulary_size": size, "threshold": threshold, "distinct": histograms["ngrams"].keys, "all": is_all},
        edges.add,
        is_empty=is_all,
    )
    limits = {"texts": run.config.text.images_per_text_at_most, "images": run.config.image.texts_per_image_at_most}
    more: dict[str, Any] = {
        "images": {"distinct_by_source": _images_of_sources(run, merged, histograms["images"].keys)}
    }
    for kind, limit in limits.items():
        _write_table(
            run,
            kind,
            limit + 1,
            {"threshold": limit, "distinct": histograms[kind].keys, **more.get(kind, {})},
            most[kind].add,
        )
    write_wanted(run, edges, **most)
    counted = CountHistogram.total(
        CountHistogram.from_json(facts["words"]) for _, facts in run.all_facts("tables/units")
    )
    names = {
        "words": counted,
        "images_per_text": histograms["texts"],
        "texts_per_image": histograms["images"],
        "ngram_count": histograms["ngrams"],
    }
    storage.write_json(
        run.path("audit", "histograms.json"), {name: histogram.to_json() for name, histogram in names.items()}
    )


def _images_of_sources(run: Run, merged: list[Facts], of_all: int) -> dict[str, int]:
    """Distinct images of each source."""
    names = sources(run)
    return {
        name: sum(facts["images_of_sources"][place] for facts in merged) if len(names) > 1 else of_all
        for place, name in enumerate(names)
    }


def _write_table(
    run: Run,
    kind: str,
    at_least: int,
    facts: dict[str, Any],
    look: Callable[[np.ndarray], None],
    *,
    is_empty: bool = False,
) -> None:
    """One table of the entries with at least this count, partition by partition: hashes, counts (of n-grams in 8 bits), JSON. `look` is shown all entries."""
    parts = [] if is_empty else [name for name, _ in run.all_facts("tables/merged")]
    rows = sum(int((_part_entries(run, kind, part)[:, 1] >= at_least).sum()) for part in parts)
    path = run.path("tables", TABLES[kind])
    counts_name, counts_type = ("log2", np.uint8) if kind == "ngrams" else ("counts", np.int64)
    with storage.write(f"{path}.npy") as hashes, storage.write(f"{path}_{counts_name}.npy") as counts:
        for file, dtype in ((hashes, np.uint64), (counts, counts_type)):
            np.lib.format.write_array_header_1_0(
                file, {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (rows,)}
            )
        for part in parts:
            entries = _part_entries(run, kind, part)
            look(entries)
            entries = entries[entries[:, 1] >= at_least]
            hashes.write(np.ascontiguousarray(entries[:, 0]).tobytes())
            exact = entries[:, 1].astype(np.int64)
            counts.write((log2_counts(exact) if kind == "ngrams" else exact).tobytes())
    storage.write_json(
        f"{path}.json", {"hash_versions": identity.HASH_VERSIONS, "rules_version": RULES_VERSION, "rows": rows, **facts}
    )


def _part_entries(run: Run, kind: str, part: str) -> np.ndarray:
    return np.frombuffer(storage.read_bytes(_part(run, kind, int(part))), np.uint64).reshape(-1, 2)


class Tables(NamedTuple):
    """The finished tables, mapped into memory; one of each in a process."""

    vocabulary: HashTable | None  # None: every n-gram is in it
    texts: HashTable
    images: HashTable

    @classmethod
    def of(cls, run: Run) -> "Tables":
        """The tables of a run; the first thread that asks loads them, the others wait."""
        folder = storage.absolute(run.path("tables"))
        with _LOADING:
            return _tables(folder, storage.stamp(run.path("tables", "vocabulary.json")))


@lru_cache(maxsize=1)
def _tables(folder: str, _changed: storage.Stamp) -> Tables:
    def table(name: str, counts: str) -> HashTable:
        return HashTable(arrays.mapped(f"{folder}/{name}.npy"), arrays.mapped(f"{folder}/{name}_{counts}.npy"))

    facts = storage.read_json(f"{folder}/vocabulary.json")
    return Tables(
        None if facts["all"] else table("vocabulary", "log2"),
        table("over_shared_texts", "counts"),
        table("over_captioned_images", "counts"),
    )


class Measured(NamedTuple):
    """What the text rules hold against their limits, n rows."""

    words: pa.Int32Array
    has_rare_ngram: pa.BooleanArray
    # uint8: log2 of the smallest count of a row's n-grams, as the vocabulary has it; 0: not in it; 255: no table
    rarest: np.ndarray
    images_per_text: pa.Int64Array  # null: within the limit
    texts_per_image: pa.Int64Array  # null: within the limit, or no image is known


def measure(batch: pa.RecordBatch, tables: Tables, seen: Seen) -> Measured:
    """Measure candidates against the tables; `seen` is shown them."""
    n, captions = batch.num_rows, parquet.strings(batch, "caption")
    row_words, images_per_text = np.empty(n, np.int32), np.empty(n, np.int64)
    is_rare, rarest = np.zeros(n, np.bool_), np.full(n, 255, np.uint8)
    for begin in range(0, n, BLOCK):
        block, end = captions.slice(begin, BLOCK), min(n, begin + BLOCK)
        found = words.scan(block, scratch())
        row_words[begin:end] = found.words
        images_per_text[begin:end] = tables.texts.lookup(found.texts)
        if tables.vocabulary is not None:
            is_rare[begin:end], rarest[begin:end] = tables.vocabulary.measure_rows(found.ngrams, found.ends)
        seen.captions(block, found, images_per_text[begin:end])
    image_hashes = identity.image_hash(parquet.strings(batch, "image_identity"))
    texts_per_image = tables.images.lookup(image_hashes)
    is_known = batch["image_identity"].is_valid().to_numpy(zero_copy_only=False)
    texts_per_image[~is_known] = 0
    seen.images(parquet.strings(batch, "image_url"), image_hashes, texts_per_image)
    return Measured(
        pa.array(row_words, pa.int32()),
        pa.array(is_rare),
        rarest,
        pa.array(images_per_text, pa.int64(), mask=images_per_text == 0),
        pa.array(texts_per_image, pa.int64(), mask=texts_per_image == 0),
    )
