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


WORDS_AT_MOST = 1_023  # more words are counted as this many
EXACT_BELOW = 1_024  # images of a text, texts of an image; larger counts n become 1,024 + 8 log2(n), rounded
SHORT_SIDE_AT_MOST = 1_024  # pixels; more are counted as this many
ASPECT_AT_MOST = 1_001  # hundredths; more are counted as this many

# What a stage measured of its candidates: a histogram of each measure.
MEASURED = pa.schema(
    [
        ("measure", pa.string()),  # What was measured.
        ("value", pa.int32()),  # The value; null where there is none.
        ("fails_otherwise", pa.bool_()),  # A rule of the stage holds that does not look at this measure.
        ("rows", pa.int64()),  # Candidates.
    ]
)

TEXT_MEASURES = AuditTable("audit/text_measures.parquet", MEASURED)

IMAGE_MEASURES = AuditTable("audit/image_measures.parquet", MEASURED)

IMAGE_VALUES = AuditTable(
    "audit/image_values.parquet",
    pa.schema(
        [
            ("source", pa.string()),  # `[[input]] name`, or its kind.
            ("verdict", pa.string()),  # `kept`, or the reason.
            ("format", pa.string()),  # Of the image as found; null where it is no known one.
            ("bytes_log2", pa.int32()),  # Eight times log2, rounded, of the bytes as found.
            ("rows", pa.int64()),  # Candidates with this combination.
        ]
    ),
)

FREQUENT = AuditTable(
    "audit/frequent.parquet",
    pa.schema(
        [
            ("kind", pa.string()),  # `text` or `image`.
            # The caption, or the image's URL, as it comes first in the pool; its first 1,000 characters.
            ("value", pa.string()),
            ("count", pa.int64()),  # Images of the text, texts of the image.
        ]
    ),
)

EDGE_NGRAMS = AuditTable(
    "audit/edge_ngrams.parquet",
    pa.schema(
        [
            ("ngram", pa.string()),  # One word, or two; folded.
            ("count", pa.int64()),  # How often it is in the pool.
            ("rarest_log2", pa.int32()),  # Eight times log2, rounded.
            ("is_in", pa.bool_()),  # Whether the vocabulary has it.
        ]
    ),
)

BALANCED = AuditTable(
    "audit/balanced.parquet",
    pa.schema(
        [
            ("entry", pa.string()),  # A concept, as its file has it; the 10,000 in most captions.
            ("before", pa.int64()),  # Captions with it among those that `--where` keeps.
            ("after", pa.int64()),  # Captions with it in the new run.
        ]
    ),
)

SCRIPTS = AuditTable(
    "audit/scripts.parquet",
    pa.schema(
        [
            # Of most letters of the caption's first 1,000 characters (Unicode 16.0); `none`: it has no letters.
            ("script", pa.string()),
            ("verdict", pa.string()),  # Of `judge`: a reason, or `kept`; repeated pairs are among these.
            ("rows", pa.int64()),  # Candidates of the sample.
            ("sampled_one_in", pa.int64()),  # The sample is one candidate in so many.
        ]
    ),
)

HOSTS = AuditTable(
    "audit/hosts.parquet",
    pa.schema(
        [
            ("host", pa.string()),  # Of the images' URLs; empty where an image has none.
            ("images", pa.int64()),  # Images of the sample that were asked for.
            ("fetched", pa.int64()),  # Of these, those whose bytes came.
            ("kept", pa.int64()),  # Of these, those that passed the image rules.
            ("sampled_one_in", pa.int64()),  # The sample is one image in so many.
        ]
    ),
)

FUNNEL = AuditTable(
    "audit/funnel.parquet",
    pa.schema(
        [
            ("step", pa.string()),  # `pool`, then what each stage keeps, then `shards`.
            ("source", pa.string()),  # `[[input]] name`, or its kind; null: all of them.
            ("images", pa.int64()),  # Distinct ones; null of the pool, whose images have no identity yet.
            # Of the pool: of its files, as they lie there. From `fetch` on: of images as found. Of `shards`: of the
            # tars.
            ("bytes", pa.int64()),
        ]
    ),
)

DROPPED_IMAGES = AuditTable(
    "audit/dropped_images.parquet",
    pa.schema(
        [
            ("stage", pa.string()),  # `fetch`, `image` or `decontaminate`: extract and the text rules drop pairs.
            ("reason", pa.string()),  # The reason, which all rows of an image have in common.
            ("images", pa.int64()),  # Distinct images.
        ]
    ),
)

SIMILARITY = AuditTable(
    "audit/near_duplicates/similarity.parquet",
    pa.schema(
        [
            ("cosine_permille", pa.int32()),  # Thousandths, rounded down.
            # `above` the threshold; `below`: of a sample of the images, of each unit the 25 nearest to it.
            ("verdict", pa.string()),
            ("pairs", pa.int64()),  # Pairs of an image of the pool and a test image.
        ]
    ),
)

NEAR_TEST_IMAGES = AuditTable(
    "audit/near_duplicates/test_images.parquet",
    pa.schema(
        [
            ("test_set", pa.string()),  # The test set.
            ("test_image", pa.string()),  # The image of the test set.
            ("images", pa.int64()),  # How many images of the pool are near it, and go.
            ("similarity", pa.float64()),  # The largest cosine of theirs; 1 where the bytes are the same.
        ]
    ),
)

GALLERY = AuditTable(
    "audit/near_duplicates/gallery.parquet",
    pa.schema(
        [
            # `just above`: of all pairs above the threshold those nearest to it; `just below`: not above it, of a
            # sample; `dropped`: a sample.
            ("kind", pa.string()),
            ("similarity", pa.float64()),  # The cosine; 1 where the bytes are the same.
            ("shares_bucket", pa.bool_()),  # Whether the two images share a bucket.
            ("image_id", pa.string()),  # The image of the pool.
            ("image_url", pa.string()),  # The same; null where a table has none.
            ("test_set", pa.string()),  # The test set.
            ("test_image", pa.string()),  # The image of the test set.
            ("image", pa.binary()),  # The pool's image as WebP, 192 px at most.
            ("test", pa.binary()),  # The test image, the same.
        ]
    ),
)


# Dropped rows that people look at, with a thumbnail (WebP) where an image was in hand.
SAMPLES = AuditTable("audit/samples.parquet", DROPPED.append(pa.field("picture", pa.binary())))

FAILED_ROWS = AuditTable("audit/failed.parquet", FAILED)
