"""Measures candidates for `judge`: their words, and the counts of their texts, images and n-grams in the tables."""

import threading
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign import storage
from altalign.dedup.hash_tables import HashTable
from altalign.filters import identity, words
from altalign.pipelines.figures.frequent_strings import Seen
from altalign.pipelines.run.units import Run
from altalign.storage import arrays, parquet

_LOADING = threading.Lock()


class Tables(NamedTuple):
    """The finished tables, mapped into memory; each process has one of each."""

    vocabulary: HashTable | None  # None: it has every n-gram
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
        found = words.scan(block, words.thread_scratch())
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
    return TextMeasures(
        pa.array(row_words, pa.int32()),
        pa.array(is_rare),
        rarest,
        pa.array(images_per_text, pa.int64(), mask=images_per_text == 0),
        pa.array(texts_per_image, pa.int64(), mask=texts_per_image == 0),
    )
