"""Tables: one pass counts exactly all unigrams and bigrams, the images of every text and the texts of every image.

A unit hashes its words in columns and spills the hashes by partition: their top bits, so that the partitions in order
are one sorted table. Each partition is counted once. The histogram of all counts gives the K-th largest count, and so
the vocabulary.
"""

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import apache_beam as beam
import numpy as np
import numpy.typing as npt
from apache_beam.pvalue import PCollection

from altalign import storage
from altalign.data.schema import RULES_VERSION
from altalign.dedup.hash_tables import log2_counts
from altalign.dedup.merge import CountHistogram, Entries, merge_ngrams, merge_pairs
from altalign.dedup.spill import NgramBuffers, PairBuffers
from altalign.filters import identity, words
from altalign.pipelines.engine.map_units import pooled
from altalign.pipelines.engine.spilled_groups import (
    Element,
    Groups,
    MergePartitions,
    Spilled,
    SpillWriter,
    by_part,
    elements,
    parted,
)
from altalign.pipelines.figures.text_figures import MOST, Edges, Top
from altalign.pipelines.opening.find import named_tables
from altalign.pipelines.run import pool, text_tables
from altalign.pipelines.run.text_tables import CANDIDATES, POOL_SIZE
from altalign.pipelines.run.units import Run, map_unit
from altalign.storage import parquet

READS = (CANDIDATES, POOL_SIZE)

ROWS_PER_PARTITION = 200_000  # about 30 MB of hashes in one thread of a merge
NGRAMS, HOT, TEXTS, IMAGES = range(4)  # kinds of slices in a spill file; those of images have one kind for each source

_THREAD = threading.local()  # `buffers`, for unit after unit: fresh memory for each would cost more than the counting


def buckets_of(run: Run) -> Groups:
    """The buckets of a spill file: partitions of each kind, whose number depends on the size of the pool alone."""
    partitions = pool.partitions(run, ROWS_PER_PARTITION, at_least=16, at_most=4096)
    return Groups(partitions, kinds=IMAGES + len(_sources(run)))


def _sources(run: Run) -> list[str]:
    """All sources, in the order of their first inputs."""
    return list(dict.fromkeys(each.source for each in run.config.input))


# Counting -------------------------------------------------------------------------------------------------------------


def count(run: Run, unit: text_tables.PoolUnit) -> text_tables.CountFacts:
    """Hash the n-grams and pairs of a unit into its spill file."""
    buckets, row_words = buckets_of(run), [np.zeros(0, np.int32)]
    parts = buckets.partitions
    buffers = vars(_THREAD).pop("buffers", None)  # put back after a whole unit: a failed one leaves hashes in them
    if buffers is None or buffers[0] != parts:
        buffers = parts, NgramBuffers(parts), PairBuffers(parts), PairBuffers(parts)
    _, of_ngrams, of_texts, of_images = buffers
    with storage.write(text_tables.HASHES.path(run, unit["name"])) as file:
        spill = SpillWriter(file, buckets)

        def into(kind: int) -> Callable[[int, Any], None]:
            return lambda partition, data: spill.add(buckets.bucket(partition, kind), data)

        ngrams, hot, texts = into(NGRAMS), into(HOT), into(TEXTS)
        images = into(IMAGES + _sources(run).index(run.source_of(unit["file"])))
        for batch in pool.candidates(run, unit, texts_alone=True):
            image_hashes = identity.image_hash(parquet.strings(batch, "image_identity"))
            is_known = batch["image_identity"].is_valid().to_numpy(zero_copy_only=False)
            captions = parquet.strings(batch, "caption")
            for begin in range(0, batch.num_rows, words.BLOCK):
                scan = words.scan(captions.slice(begin, words.BLOCK))
                of_ngrams.add(scan.ngrams, ngrams)
                known = is_known[begin : begin + words.BLOCK]
                text_hashes, of_known = scan.texts[known], image_hashes[begin : begin + words.BLOCK][known]
                of_texts.add(text_hashes, of_known, texts)
                of_images.add(of_known, text_hashes, images)
                row_words.append(scan.words.copy())
        of_ngrams.finish(ngrams, hot)
        of_texts.finish(texts)
        of_images.finish(images)
        spilled = spill.finish()
    _THREAD.buffers = buffers
    histogram = CountHistogram.from_counts(np.concatenate(row_words).astype(np.int64))
    return text_tables.CountFacts(unit["rows"], spilled, histogram.to_json())


def merge(run: Run, partition: int, spilled: Spilled) -> text_tables.MergeFacts:
    """Count one partition of each kind, and write its entries to files."""
    buckets, name = buckets_of(run), f"{partition:05d}"
    of_kinds = [buckets.bucket(partition, kind) for kind in range(buckets.kinds)]
    histograms, rows = {kind: CountHistogram() for kind in text_tables.KINDS}, dict.fromkeys(text_tables.KINDS, 0)
    of_sources = np.zeros(len(_sources(run)), np.int64)
    with ExitStack() as stack:
        files = {kind: stack.enter_context(storage.write(text_tables.ENTRIES[kind].path(run, name))) for kind in rows}
        for of_part, kinds in stack.enter_context(parted(spilled, of_kinds, partial(_cut, buckets.partitions))):
            merged, of_sources_here = _merged(run, of_part.arrays(kinds, np.uint64))
            of_sources += of_sources_here
            for kind, (hashes, counts, histogram) in merged.items():
                files[kind].write(np.stack([hashes, counts.astype(np.uint64)], axis=1).tobytes())
                histograms[kind] = CountHistogram.total([histograms[kind], histogram])
                rows[kind] += len(hashes)
    of_ngrams, of_texts, of_images = ((histograms[kind].to_json(), rows[kind]) for kind in text_tables.KINDS)
    return text_tables.MergeFacts(
        *of_ngrams, *of_texts, *of_images, of_sources.tolist() if len(of_sources) > 1 else None
    )


def _merged(run: Run, arrays: Sequence[npt.NDArray[np.uint64]]) -> tuple[dict[str, Entries], list[int]]:
    """The entries of each kind of a part, from its slices; and how many distinct images each source has."""
    limits, (ngrams, hot, *pairs) = _limits(run), arrays
    texts, *images = (each.reshape(-1, 2) for each in pairs)
    every_image = images[0] if len(images) == 1 else np.concatenate(images)
    merged = {
        "ngrams": merge_ngrams(ngrams, hot.reshape(-1, 2)),
        "texts": merge_pairs(texts, limit=limits["texts"]),
        "images": merge_pairs(every_image, limit=limits["images"]),
    }
    if len(images) == 1:
        return merged, [merged["images"][2].keys]
    return merged, [merge_pairs(each, limit=limits["images"])[2].keys for each in images]


def _cut(partitions: int, kind: int, data: bytes, parts: int) -> Iterator[tuple[int, npt.NDArray[np.uint64]]]:
    """Cut a slice of a partition into parts, by the bits of hashes that follow those of the partition."""
    rows = np.frombuffer(data, np.uint64).reshape(-1, 1 if kind == NGRAMS else 2)
    used, bits = partitions.bit_length() - 1, parts.bit_length() - 1
    yield from by_part(rows, (rows[:, 0] << np.uint64(used) >> np.uint64(64 - bits)).astype(np.int64))


class Count(beam.PTransform[Any, Any]):
    """Units of the pool in, numbers of merged partitions out: counts every unit, and merges every partition."""

    def __init__(self, run: Run):
        super().__init__()
        self._run, self._groups = run, buckets_of(run)

    def expand(self, input_or_inputs: PCollection[Any]) -> PCollection[Any]:  # noqa: D102
        spilled = input_or_inputs | "CountUnits" >> pooled(self._run, self._count).with_output_types(tuple[int, bytes])
        return (spilled,) | "MergePartitions" >> MergePartitions(self._run, text_tables.MERGED, self._groups, merge)

    def _count(self, unit: text_tables.PoolUnit) -> Iterator[Element]:
        facts = map_unit(self._run, text_tables.COUNTED, unit, count)
        path = text_tables.HASHES.path(self._run, unit["name"])
        yield from elements(path, unit["order"], path, facts.spilled)


# The tables -----------------------------------------------------------------------------------------------------------


def conclude(run: Run) -> None:
    """Write `tables/` (vocabulary, over-shared texts, over-captioned images) and the histograms for the audit."""
    merged = [facts for _, facts in run.all_facts(text_tables.MERGED)]
    ngrams, texts, images = (_total(getattr(facts, kind) for facts in merged) for kind in text_tables.TABLES)
    size = run.config.text.vocabulary_size
    threshold = ngrams.threshold(size)
    # With a threshold of 1, or fewer than K distinct n-grams, the vocabulary has every n-gram: there is no table, and
    # the rule drops nothing.
    is_all = threshold <= 1
    edges, most = Edges(threshold), {"texts": Top(MOST), "images": Top(MOST)}
    facts = {"vocabulary_size": size, "threshold": threshold, "distinct": ngrams.keys, "all": is_all}
    _write_table(run, "ngrams", 0 if is_all else threshold, facts, edges.add)
    names = _sources(run)
    of_sources = {name: sum((each.images_of_sources or [0])[at] for each in merged) for at, name in enumerate(names)}
    of_sources = of_sources if len(names) > 1 else {names[0]: images.keys}
    more: dict[str, dict[str, object]] = {
        "texts": {"distinct": texts.keys},
        "images": {"distinct": images.keys, "distinct_by_source": of_sources},
    }
    for kind, limit in _limits(run).items():
        _write_table(run, kind, limit + 1, {"threshold": limit, **more[kind]}, most[kind].add)
    sought = {"ngrams": edges.to_json(), **{kind: top.entries.tolist() for kind, top in most.items()}}
    storage.write_json(text_tables.WANTED_HASHES.path(run), sought)
    words_of_rows = _total(facts.words for _, facts in run.all_facts(text_tables.COUNTED))
    shown = {"words": words_of_rows, "images_per_text": texts, "texts_per_image": images, "ngram_count": ngrams}
    histograms = {name: histogram.to_json() for name, histogram in shown.items()}
    storage.write_json(text_tables.HISTOGRAMS.path(run), histograms)


def _total(parts: Iterable[list[list[int]]]) -> CountHistogram:
    return CountHistogram.total(map(CountHistogram.from_json, parts))


def _limits(run: Run) -> dict[str, int]:
    return {"texts": run.config.text.images_per_text_at_most, "images": run.config.image.texts_per_image_at_most}


def _write_table(
    run: Run, kind: str, at_least: int, facts: Mapping[str, object], look: Callable[[npt.NDArray[np.uint64]], None]
) -> None:
    """Write the table of the entries with at least this count: hashes, counts (of n-grams in 8 bits), and JSON.

    `look` is shown all entries of each partition, uint64[n, 2]; with 0 the table is empty, and it is shown none. Where
    settings name tables of another run they are copied, and their JSON says how much is distinct in this pool.
    """
    parts, about = run.finished(text_tables.MERGED.step) if at_least else [], text_tables.TABLE_FACTS[kind].path(run)
    written = text_tables.TABLES[kind], text_tables.COUNTS[kind]
    if others := named_tables(run):
        for part in parts:
            look(text_tables.entries_of(run, part, kind))
        for path in (table.path(run) for table in written):
            with storage.open_read(storage.join(others, storage.name(path))) as file, storage.write(path) as copy:
                shutil.copyfileobj(file, copy)
        of_pool = {name: facts[name] for name in ("distinct", "distinct_by_source") if name in facts}
        storage.write_json(about, storage.read_json(storage.join(others, storage.name(about))) | of_pool)
        return
    rows = sum(int((text_tables.entries_of(run, part, kind)[:, 1] >= at_least).sum()) for part in parts)
    with storage.write(written[0].path(run)) as hashes, storage.write(written[1].path(run)) as counts:
        for file, table in zip((hashes, counts), written, strict=True):
            dtype = np.lib.format.dtype_to_descr(cast(Any, table.columns))
            header = {"descr": dtype, "fortran_order": False, "shape": (rows,)}
            np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            of_part = text_tables.entries_of(run, part, kind)
            look(of_part)
            of_part = of_part[of_part[:, 1] >= at_least]
            hashes.write(np.ascontiguousarray(of_part[:, 0]).tobytes())
            exact = of_part[:, 1].astype(np.int64)
            counts.write((log2_counts(exact) if kind == "ngrams" else exact).tobytes())
    versions = {"hash_versions": identity.HASH_VERSIONS, "rules_version": RULES_VERSION}
    storage.write_json(about, {**versions, "rows": rows, **facts})
