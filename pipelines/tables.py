"""Tables: one pass over the pool counts all unigrams and bigrams, images of every text and texts of every image, exactly.

A unit hashes its words in columns and spills the hashes by partition (their top bits, so that partitions in order are one
sorted table); a partition is sorted once and merged; the histogram of all counts gives the K-th largest and so the vocabulary.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import apache_beam as beam
import numpy as np
import pyarrow as pa

from altalign import storage
from dedup.hash_tables import HASH_COUNT_VERSION, HashTable, log2_counts
from dedup.merge import CountHistogram, merge_ngrams, merge_pairs
from dedup.spill import NgramBuffers, PairBuffers
from filters import identity, words
from pipelines import pool
from pipelines.engines import pooled
from pipelines.shuffle import Element, SpillWriter, elements, slices
from pipelines.units import Facts, Run, Unit, map_unit

BLOCK = 8_192  # rows whose n-grams are hashed at a time: they stay in the CPU's cache
ROWS_PER_PARTITION = 100_000
MOST_KEYS = 64  # elements a unit and kind hands to the grouping: more cost Beam more than they spread the work
KINDS = ("ngrams", "texts", "images")
