"""Arrow schema of what each stage reads and writes, and the versions of schema and rules.

Column names are spelled here and nowhere else; stages bind them, filters never see them.
"""

import pyarrow as pa

SCHEMA_VERSION = 1
RULES_VERSION = "1 (Unicode 16.0)"  # raised by whatever changes which samples survive, their order or their bytes

# What a reader found in one stretch of an input file, in input order. `reason` is the verdict of extract (null keeps),
# `failed` every rule of it that holds.
# image_identity is null where there is none: an invalid URL and no image in hand.
EXTRACTED = pa.schema(
    [
        ("image_url", pa.string()),
        ("image_identity", pa.string()),
        ("caption", pa.string()),
        ("page_url", pa.string()),
        ("reason", pa.string()),
        ("failed", pa.list_(pa.string())),
    ]
)

# A candidate of the pool: cleaned caption (never null), URL trimmed and without its fragment where it is valid.
CANDIDATE = pa.schema([field for field in EXTRACTED if field.name not in ("reason", "failed")])

# Where an archive, tar or table holds the image of an identity, in input order. Either a place in the file itself
# (offset in bytes: of the record of a WARC, of the image's bytes in a tar, or the row of a Parquet table; length in bytes, null for
# a WARC record) or, where the file cannot be read at an offset, the bytes themselves.
IMAGE_PLACE = pa.schema([("image_identity", pa.string()), ("offset", pa.int64()), ("length", pa.int64()), ("bytes", pa.large_binary())])

# A record, line or row that cannot be read. Offset: bytes from the start of the file (uncompressed where the file cannot be read at
# an offset), or the number of the row.
BROKEN = pa.schema([("file", pa.string()), ("offset", pa.int64()), ("error", pa.string())])

# One row a dropped candidate, the same columns for every stage; null where a value was not measured.
DROPPED = pa.schema(
    [
        ("key", pa.string()),
        ("image_id", pa.string()),
        ("image_url", pa.string()),
        ("caption", pa.string()),
        ("page_url", pa.string()),
        ("source", pa.string()),
        ("stage", pa.string()),
        ("reason", pa.string()),
        ("failed", pa.list_(pa.string())),
        ("kept_key", pa.string()),
        ("words", pa.int32()),
        ("images_per_text", pa.int64()),
        ("texts_per_image", pa.int64()),
        ("http_code", pa.int32()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("nsfw_score", pa.float32()),
        ("similarity", pa.float32()),
        ("test_set", pa.string()),
        ("test_image", pa.string()),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("error", pa.string()),
    ]
)

# The side-car of a shard: one row a sample, in the order of the tar.
SAMPLE = pa.schema(
    [
        ("key", pa.string()),
        ("image_id", pa.string()),
        ("image_url", pa.string()),
        ("caption", pa.string()),
        ("page_url", pa.string()),
        ("source", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("format", pa.string()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
        ("found_sha256", pa.string()),
        ("words", pa.int32()),
        ("tar_offset", pa.int64()),
        ("tar_bytes", pa.int64()),
    ]
)

COUNTS = pa.schema([("stage", pa.string()), ("source", pa.string()), ("reason", pa.string()), ("rows", pa.int64())])
