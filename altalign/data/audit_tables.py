"""The Parquet files of a run's audit: where each is, and its columns. Written by `pipelines`, read by `audit`.

The comment behind or above a column is its line in docs/reference/files.md (`make docs`).
"""

from typing import NamedTuple

import pyarrow as pa

from altalign.data.schema import DROPPED, FAILED


class AuditTable(NamedTuple):
    """A Parquet file of the audit: its path inside the run, and its schema."""

    path: str
    schema: pa.Schema


def _table(path: str, *columns: tuple[str, pa.DataType]) -> AuditTable:
    return AuditTable(path, pa.schema(list(columns)))


WORDS_AT_MOST = 1_023  # more words are counted as this many
EXACT_BELOW = 1_024  # images of a text, texts of an image; larger counts n become 1,024 + 8 log2(n), rounded
SHORT_SIDE_AT_MOST = 1_024  # pixels; more are counted as this many
ASPECT_AT_MOST = 1_001  # hundredths; more are counted as this many

# What a stage measured of its candidates: a histogram of each measure.
MEASURED = pa.schema(
    [
        ("measure", pa.string()),  # What was measured.
        ("value", pa.int32()),  # The value; null where there is none.
        ("fails_otherwise", pa.bool_()),  # A rule that ignores this measure holds.
        ("rows", pa.int64()),  # Candidates.
    ]
)

TEXT_MEASURES = AuditTable("audit/text_measures.parquet", MEASURED)

IMAGE_MEASURES = AuditTable("audit/image_measures.parquet", MEASURED)

FREQUENT = _table(
    "audit/frequent.parquet",
    ("kind", pa.string()),  # `text` or `image`.
    ("value", pa.string()),  # Caption or image URL, first 1,000 characters.
    ("count", pa.int64()),  # Images of the text, or texts of the image.
)

EDGE_NGRAMS = _table(
    "audit/edge_ngrams.parquet",
    ("ngram", pa.string()),  # One or two folded words.
    ("count", pa.int64()),  # In the pool.
    ("rarest_log2", pa.int32()),  # Eight times log2, rounded.
    ("is_in", pa.bool_()),  # In the vocabulary.
)

BALANCED = _table(
    "audit/balanced.parquet",
    ("entry", pa.string()),  # A concept; the 10,000 in most captions.
    ("before", pa.int64()),  # Captions that `--where` keeps.
    ("after", pa.int64()),  # Captions of the new run.
)

SCRIPTS = _table(
    "audit/scripts.parquet",
    ("script", pa.string()),  # Main script of the first 1,000 characters (Unicode 16.0), or `none`.
    ("verdict", pa.string()),  # Of `judge`, repeated pairs included.
    ("rows", pa.int64()),  # Candidates.
    ("sampled_one_in", pa.int64()),  # One of so many is in the sample.
)

HOSTS = _table(
    "audit/hosts.parquet",
    ("host", pa.string()),  # Of the URL, or empty.
    ("images", pa.int64()),  # Images asked for.
    ("fetched", pa.int64()),  # Images that came.
    ("kept", pa.int64()),  # Images that passed the image rules.
    ("sampled_one_in", pa.int64()),  # One of so many is in the sample.
)

FUNNEL = _table(
    "audit/funnel.parquet",
    ("step", pa.string()),  # `pool`, a stage, or `shards`.
    ("source", pa.string()),  # An input; null: all.
    ("images", pa.int64()),  # Distinct images; null for the pool.
    ("bytes", pa.int64()),  # Pool: of its files; from `fetch` on: of images as found; `shards`: of tars.
)

DROPPED_IMAGES = _table(
    "audit/dropped_images.parquet",
    ("stage", pa.string()),  # `fetch`, `image` or `decontaminate`.
    ("reason", pa.string()),  # The reason.
    ("images", pa.int64()),  # Distinct images.
)

SIMILARITY = _table(
    "audit/near_duplicates/similarity.parquet",
    ("cosine_permille", pa.int32()),  # Thousandths, rounded down.
    ("verdict", pa.string()),  # `above` the threshold, or `below`: in a sample, the 25 nearest of each unit.
    ("pairs", pa.int64()),  # Pairs of a pool image and a test image.
)

NEAR_TEST_IMAGES = _table(
    "audit/near_duplicates/test_images.parquet",
    ("test_set", pa.string()),  # The test set.
    ("test_image", pa.string()),  # Its image.
    ("images", pa.int64()),  # Pool images dropped for it.
    ("similarity", pa.float64()),  # Largest cosine; 1 for equal bytes.
)

GALLERY = _table(
    "audit/near_duplicates/gallery.parquet",
    ("kind", pa.string()),  # `just above` the threshold; `just below` it or `dropped`: of a sample.
    ("similarity", pa.float64()),  # Cosine; 1 for equal bytes.
    ("shares_bucket", pa.bool_()),  # The two images share a bucket.
    ("image_id", pa.string()),  # Pool image.
    ("image_url", pa.string()),  # Its URL, or null.
    ("test_set", pa.string()),  # The test set.
    ("test_image", pa.string()),  # Its image.
    ("image", pa.binary()),  # Pool image as WebP, 192 px at most.
    ("test", pa.binary()),  # Test image, likewise.
)


# Dropped rows that people look at, with a thumbnail (WebP) where an image was in hand.
SAMPLES = AuditTable("audit/samples.parquet", DROPPED.append(pa.field("picture", pa.binary())))

FAILED_ROWS = AuditTable("audit/failed.parquet", FAILED)
