"""Tables: one pass counts exactly all unigrams and bigrams, the images of every text and the texts of every image.

A unit hashes its words in columns and spills the hashes by partition: their top bits, so that the partitions in order
are one sorted table. Each partition is counted once. The histogram of all counts gives the K-th largest count, and so
the vocabulary.
"""

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.pvalue import PCollection

from altalign import storage
from altalign.data.schema import RULES_VERSION
from altalign.dedup.hash_tables import log2_counts
from altalign.dedup.merge import CountHistogram, Entries, merge_ngrams, merge_pairs
from altalign.dedup.spill import Flush, NgramBuffers, PairBuffers
from altalign.filters import identity, words
from altalign.pipelines.engine.map_units import pooled
from altalign.pipelines.engine.spilled_groups import Element, Groups, MergePartitions, Spilled, SpillWriter, elements
from altalign.pipelines.figures.frequent_strings import MOST, Edges, Top, write_wanted
from altalign.pipelines.opening.inputs import named_tables
from altalign.pipelines.run import pool
from altalign.pipelines.run.tables import counted
from altalign.pipelines.run.tables.extracted import CANDIDATES, POOL_SIZE
from altalign.pipelines.run.units import Run, map_unit
from altalign.storage import parquet

READS = (CANDIDATES, POOL_SIZE)
WRITES = (counted.HASHES, *counted.ENTRIES.values(), *counted.FINAL, counted.HISTOGRAMS)

ROWS_PER_PARTITION = 200_000  # about 30 MB of hashes in one thread of a merge

# kinds of slices in a spill file; one kind of images follows for each source
KINDS = ("ngrams", "hot", "texts")


def buckets_of(run: Run) -> Groups:
    """The buckets of a spill file: partitions of each kind, whose number depends on the size of the pool alone."""
    partitions = pool.partitions(run, ROWS_PER_PARTITION, at_least=16, at_most=4096)
    return Groups.of(partitions, kinds=len(KINDS) + len(sources(run)))


def sources(run: Run) -> list[str]:
    """All sources, in the order of their first inputs."""
    return list(dict.fromkeys(each.source for each in run.config.input))


Tally = npt.NDArray[np.int64]  # rows by number of words


# Counting -------------------------------------------------------------------------------------------------------------


class _Buffers:
    """The buffers of one thread, used for unit after unit: fresh memory for each would cost more than the counting."""

    def __init__(self, parts: int):
        self.parts = parts
        self.ngrams, self.texts, self.images = NgramBuffers(parts), PairBuffers(parts), PairBuffers(parts)


_THREAD = threading.local()


def count(run: Run, unit: counted.PoolUnit) -> counted.CountFacts:
    """Hash the n-grams and pairs of a unit into its spill file."""
    buckets = buckets_of(run)
    buffers = _THREAD.__dict__.pop("buffers", None)  # put back after a whole unit: a failed one leaves hashes in them
    if buffers is None or buffers.parts != buckets.partitions:
        buffers = _Buffers(buckets.partitions)
    histogram = np.zeros(1, np.int64)
    with storage.write(counted.HASHES.path(run, unit["name"])) as file:
        spill = SpillWriter(file)
        kinds = (*KINDS, "images")  # of the source of the unit's file
        numbers = (*range(len(KINDS)), len(KINDS) + sources(run).index(run.source_of(unit["file"])))
        into = {kind: _flush_to(spill, buckets, number) for kind, number in zip(kinds, numbers, strict=True)}
        for batch in pool.candidates(run, unit, texts_alone=True):
            histogram = _add(histogram, _count_batch(batch, buffers, into))
        buffers.ngrams.finish(into["ngrams"], into["hot"])
        buffers.texts.finish(into["texts"])
        buffers.images.finish(into["images"])
        spilled = spill.finish()
    _THREAD.buffers = buffers
    return counted.CountFacts(unit["rows"], spilled, CountHistogram.of_tally(histogram).to_json())


def _count_batch(batch: pa.RecordBatch, buffers: _Buffers, into: dict[str, Flush]) -> Tally:
    """Count candidates; returns how many of them have each number of words."""
    image_hashes = identity.image_hash(parquet.strings(batch, "image_identity"))
    is_known = batch["image_identity"].is_valid().to_numpy(zero_copy_only=False)
    captions, tally = parquet.strings(batch, "caption"), np.zeros(1, np.int64)
    for begin in range(0, batch.num_rows, words.BLOCK):
        found = words.scan(captions.slice(begin, words.BLOCK), words.thread_scratch())
        buffers.ngrams.add(found.ngrams, into["ngrams"])
        known = is_known[begin : begin + words.BLOCK]
        texts, images = found.texts[known], image_hashes[begin : begin + words.BLOCK][known]
        buffers.texts.add(texts, images, into["texts"])
        buffers.images.add(images, texts, into["images"])
        tally = _add(tally, np.bincount(found.words))
    return tally


def _flush_to(spill: SpillWriter, buckets: Groups, kind: int) -> Flush:
    return lambda partition, data: spill.add(buckets.bucket(partition, kind), data)


def _add(a: Tally, b: Tally) -> Tally:
    if len(a) < len(b):
        a, b = b, a
    a[: len(b)] += b
    return a


Kinds = list[npt.NDArray[np.uint64]]  # the slices of each kind


def merge(run: Run, partition: int, spilled: Spilled) -> counted.MergeFacts:
    """Count one partition of each kind, and write its entries to files."""
    buckets, name = buckets_of(run), f"{partition:05d}"
    of_kinds = [buckets.bucket(partition, kind) for kind in range(buckets.kinds)]
    found, of_sources = _merged(spilled.arrays(of_kinds, np.uint64), _limits(run))
    for kind, (hashes, counts, _) in found.items():
        counted.ENTRIES[kind].save(run, np.stack([hashes, counts.astype(np.uint64)], axis=1), name)
    ngrams, texts, images = ((histogram.to_json(), len(hashes)) for hashes, _, histogram in found.values())
    return counted.MergeFacts(*ngrams, *texts, *images, of_sources if len(of_sources) > 1 else None)


def _merged(spilled: Kinds, limits: Mapping[str, int]) -> tuple[dict[str, Entries], list[int]]:
    """The entries of each kind of table, and how many images each source has."""
    ngrams, hot, *pairs = spilled
    texts, *images = (each.reshape(-1, 2) for each in pairs)
    of_sources = [merge_pairs(each, limit=limits["images"])[2].keys for each in images] if len(images) > 1 else []
    entries = {
        "ngrams": merge_ngrams(ngrams, hot.reshape(-1, 2)),
        "texts": merge_pairs(texts, limit=limits["texts"]),
        "images": merge_pairs(_one(images), limit=limits["images"]),
    }
    return entries, of_sources


def _one(parts: Kinds) -> npt.NDArray[np.uint64]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Count(beam.PTransform[Any, Any]):
    """Units of the pool in, numbers of merged partitions out."""

    def __init__(self, run: Run):
        super().__init__()
        self._run = run
        self._groups = buckets_of(run)

    def expand(self, input_or_inputs: PCollection[Any]) -> PCollection[Any]:
        """Count every unit, merge every partition."""
        spilled = input_or_inputs | "CountUnits" >> pooled(self._run, self._count).with_output_types(tuple[int, bytes])
        return (spilled,) | "MergePartitions" >> MergePartitions(self._run, counted.MERGED, self._groups, merge)

    def _count(self, unit: counted.PoolUnit) -> Iterator[Element]:
        facts = map_unit(self._run, counted.COUNTED, unit, count)
        path = counted.HASHES.path(self._run, unit["name"])
        yield from elements(path, unit["order"], path, facts.spilled, self._groups)


# The tables -----------------------------------------------------------------------------------------------------------


def conclude(run: Run) -> None:
    """Write `tables/` (vocabulary, over-shared texts, over-captioned images) and the histograms for the audit."""
    merged = [facts for _, facts in run.all_facts(counted.MERGED)]
    ngrams, texts, images = (_total(getattr(facts, kind) for facts in merged) for kind in counted.TABLES)
    size = run.config.text.vocabulary_size
    threshold = ngrams.threshold(size)
    # With a threshold of 1, or fewer than K distinct n-grams, the vocabulary has every n-gram: there is no table, and
    # the rule drops nothing.
    is_all = threshold <= 1
    edges, most = Edges(threshold), {"texts": Top(MOST), "images": Top(MOST)}
    facts = {"vocabulary_size": size, "threshold": threshold, "distinct": ngrams.keys, "all": is_all}
    _write_table(run, "ngrams", 0 if is_all else threshold, facts, edges.add)
    more: dict[str, dict[str, object]] = {
        "texts": {"distinct": texts.keys},
        "images": {"distinct": images.keys, "distinct_by_source": _images_of_sources(run, merged, images.keys)},
    }
    for kind, limit in _limits(run).items():
        _write_table(run, kind, limit + 1, {"threshold": limit, **more[kind]}, most[kind].add)
    write_wanted(run, edges, **most)
    words_of_rows = _total(facts.words for _, facts in run.all_facts(counted.COUNTED))
    shown = {"words": words_of_rows, "images_per_text": texts, "texts_per_image": images, "ngram_count": ngrams}
    histograms = {name: histogram.to_json() for name, histogram in shown.items()}
    storage.write_json(counted.HISTOGRAMS.path(run), histograms)


def _total(parts: Iterable[list[list[int]]]) -> CountHistogram:
    return CountHistogram.total(map(CountHistogram.from_json, parts))


def _limits(run: Run) -> dict[str, int]:
    return {"texts": run.config.text.images_per_text_at_most, "images": run.config.image.texts_per_image_at_most}


def _images_of_sources(run: Run, merged: list[counted.MergeFacts], of_all: int) -> dict[str, int]:
    """Distinct images of each source."""
    names = sources(run)
    if len(names) == 1:
        return {names[0]: of_all}
    return {name: sum((facts.images_of_sources or [])[at] for facts in merged) for at, name in enumerate(names)}


def _write_table(
    run: Run, kind: str, at_least: int, facts: Mapping[str, object], look: Callable[[npt.NDArray[np.uint64]], None]
) -> None:
    """Write the table of the entries with at least this count: hashes, counts (of n-grams in 8 bits), and JSON.

    Args:
        run: whose partitions are merged.
        kind: of `TABLES`.
        at_least: the smallest count in the table; 0: the table is empty, and no entry is looked at.
        facts: further values for the JSON.
        look: is shown all entries of each partition, uint64[n, 2].
    """
    parts = run.finished(counted.MERGED.step) if at_least else []
    written = counted.TABLES[kind], counted.COUNTS[kind]
    if run.config.text.tables:
        for part in parts:
            look(counted.entries(run, part, kind))
        _copy_table(run, kind, facts)
        return
    rows = sum(int((counted.entries(run, part, kind)[:, 1] >= at_least).sum()) for part in parts)
    with storage.write(written[0].path(run)) as hashes, storage.write(written[1].path(run)) as counts:
        for file, table in zip((hashes, counts), written, strict=True):
            header = {"descr": np.lib.format.dtype_to_descr(table.dtype), "fortran_order": False, "shape": (rows,)}
            np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            of_part = counted.entries(run, part, kind)
            look(of_part)
            of_part = of_part[of_part[:, 1] >= at_least]
            hashes.write(np.ascontiguousarray(of_part[:, 0]).tobytes())
            exact = of_part[:, 1].astype(np.int64)
            counts.write((log2_counts(exact) if kind == "ngrams" else exact).tobytes())
    versions = {"hash_versions": identity.HASH_VERSIONS, "rules_version": RULES_VERSION}
    storage.write_json(counted.TABLE_FACTS[kind].path(run), {**versions, "rows": rows, **facts})


def _copy_table(run: Run, kind: str, facts: Mapping[str, object]) -> None:
    """Copy a table of another run; its JSON says how much is distinct in this pool."""
    about = counted.TABLE_FACTS[kind].path(run)
    paths = [counted.TABLES[kind].path(run), counted.COUNTS[kind].path(run)]
    others = {path: storage.join(named_tables(run), storage.name(path)) for path in (*paths, about)}
    for path in paths:
        with storage.open_read(others[path]) as file, storage.write(path) as copy:
            shutil.copyfileobj(file, copy)
    of_pool = {name: facts[name] for name in ("distinct", "distinct_by_source") if name in facts}
    storage.write_json(about, {**storage.read_json(others[about]), **of_pool})
