"""Arrow schema of what each stage reads and writes, and the versions of schema and rules.

Column names are spelled here and nowhere else; stages bind them, filters never see them. The comment behind a column of
a run's file is its line in docs/reference/files.md (`make docs`).
"""

from typing import Any, TypedDict

import pyarrow as pa

SCHEMA_VERSION = 4
ROWS_VERSION = 3  # of what stages before `write` hand on and drop: the version above when that changed last
RULES_VERSION = "7 (Unicode 16.0)"  # raised by whatever changes which samples survive, their order or their bytes

# Statements of rights holders, as `filters.reservations.Said`. Null: nobody looked; empty: nothing was said.
# The name of the list's items is the one that Parquet gives back.
_STATEMENT = pa.struct([(name, pa.string()) for name in ("notation", "value", "where", "when")])
PREFERENCES = pa.list_(pa.field("element", _STATEMENT))

# What a reader found in one stretch of an input file, in input order. `reason` is the verdict of extract (null keeps),
# `failed` every rule of it that holds.
# image_identity is null where there is none: an invalid URL and no image in hand.
# page_said has the statements of the page, as `preferences.as_text` writes them.
EXTRACTED = pa.schema(
    [
        ("image_url", pa.string()),
        ("image_identity", pa.string()),
        ("caption", pa.string()),
        ("page_url", pa.string()),
        ("source_key", pa.string()),
        ("extra", pa.string()),
        ("page_said", pa.string()),
        ("reason", pa.string()),
        ("failed", pa.list_(pa.string())),
    ]
)

# The strings of a candidate, which every stage hands on as they are.
STRINGS = ("image_url", "caption", "page_url", "source_key", "extra")

CARRIED = (*STRINGS, "page_said")  # and what its page says, up to the stage that drops by it

# A candidate of the pool: cleaned caption (never null), URL trimmed and without its fragment where it is valid.
CANDIDATE = pa.schema([field for field in EXTRACTED if field.name not in ("reason", "failed")])

# Where an archive, tar or table holds the image of an identity, in input order. Either a place in the file itself
# (offset in bytes: of the record of a WARC, of the image's bytes in a tar, or the row of a Parquet table; length in
# bytes, null for a WARC record) or, where the file cannot be read at an offset, the bytes themselves.
IMAGE_PLACE = pa.schema(
    [("image_identity", pa.string()), ("offset", pa.int64()), ("length", pa.int64()), ("bytes", pa.large_binary())]
)

# What the payload of a place is called (its number in the same stretch; digest, record, or date and URL), or what the
# one of an image is called that a revisit record names; in order of the places, the surest first.
PAYLOAD = pa.schema([("place", pa.int64()), ("image_identity", pa.string()), ("name", pa.string())])

# A record, line or row that cannot be read. Offset: bytes from the start of the file (uncompressed where the file
# cannot be read at an offset), or the number of the row.
BROKEN = pa.schema([("file", pa.string()), ("offset", pa.int64()), ("error", pa.string())])

# One row a dropped candidate, the same columns for every stage; null where a value was not measured.
DROPPED = pa.schema(
    [
        ("key", pa.string()),  # The pair: hash of its image identity and caption.
        ("image_id", pa.string()),  # The image; null where it has no identity.
        ("image_url", pa.string()),  # Absolute, without fragment; as written where invalid.
        ("caption", pa.string()),  # Cleaned; empty where there is no alt-text.
        ("page_url", pa.string()),  # The page that shows the image, where known.
        ("source", pa.string()),  # `[[input]] name`, or its kind.
        # The row's unique name: `FILE#ROW` (from 0; img2dataset: `key`), `FILE#SAMPLE` of a tar, or a path in a folder.
        # FILE is relative to the folder of all the input's files. Null in web archives.
        ("source_key", pa.string()),
        ("extra", pa.string()),  # `[[input]] keep_columns` as a JSON object, or null.
        # What rights holders said of its use: notation, value as written, where it stood, and when (UTC). Null: nobody
        # looked; empty: nothing was found.
        ("preferences", PREFERENCES),
        ("stage", pa.string()),  # The stage that dropped it.
        ("reason", pa.string()),  # The first rule that holds.
        ("failed", pa.list_(pa.string())),  # Every rule of the stage that holds.
        ("kept_key", pa.string()),  # The pair kept instead of a repeated one, or of a near-duplicate.
        ("words", pa.int32()),  # Unigrams of the caption.
        ("images_per_text", pa.int64()),  # Images of the text, where above the limit.
        ("texts_per_image", pa.int64()),  # Texts of the image, where above the limit.
        ("found_sha256", pa.string()),  # Of the image as found, where its bytes came.
        ("http_code", pa.int32()),  # Web: status of the last answer.
        ("width", pa.int32()),  # Pixels in the file.
        ("height", pa.int32()),  # The same.
        ("nsfw_score", pa.float32()),  # Of the classifier.
        # Near-duplicate: cosine, 1 for equal bytes; null where only other images connect two of the pool.
        ("similarity", pa.float32()),
        ("test_set", pa.string()),  # Near-duplicate of a test image: name of the set.
        # Its nearest image: path, `FILE#ROW` of a table, or `FILE/MEMBER` of a tar.
        ("test_image", pa.string()),
        ("file", pa.string()),  # Broken record: input file.
        ("offset", pa.int64()),  # Broken record: bytes from the start of the file, or row number.
        ("error", pa.string()),  # Broken record: why it cannot be read.
    ]
)

SampleRow = dict[str, Any]  # of `SAMPLE`, in Python

# A pair: its row in KEY.json, and in the side-car.
SAMPLE = pa.schema(
    [
        ("key", pa.string()),  # Name of the members in the tar; with `captions = "all"`, of an image's first pair.
        ("image_id", pa.string()),  # The image.
        ("image_url", pa.string()),  # Null if unknown.
        ("caption", pa.string()),  # As in KEY.txt, or among `captions` of KEY.json.
        ("page_url", pa.string()),  # Null if unknown.
        ("source", pa.string()),  # `[[input]] name`, or its kind.
        # The row's unique name: `FILE#ROW` (from 0; img2dataset: `key`), `FILE#SAMPLE` of a tar, or a path in a folder.
        # FILE is relative to the folder of all the input's files. Null in web archives.
        ("source_key", pa.string()),
        ("extra", pa.string()),  # `[[input]] keep_columns` as a JSON object, or null.
        # What rights holders said of its use: notation, value as written, where it stood, and when (UTC). Null: nobody
        # looked; empty: nothing was found.
        ("preferences", PREFERENCES),
        ("width", pa.int32()),  # Pixels of the stored image.
        ("height", pa.int32()),  # The same.
        # Stored image: `jpeg`; with `portable = false` also `png`, `webp`, `gif`, `avif`, `bmp`, `tiff`.
        ("format", pa.string()),
        ("bytes", pa.int64()),  # Of the stored image.
        ("sha256", pa.string()),  # Of the stored image.
        ("found_sha256", pa.string()),  # Of the bytes as found.
        ("words", pa.int32()),  # Unigrams of the caption.
        ("tar_offset", pa.int64()),  # Offset of the image's bytes in the tar.
        ("tar_bytes", pa.int64()),  # Their number.
    ]
)

# The group that Parquet annotates as FILE (LogicalTypes.md after 2.13.0); `inline` is left out.
_FILE = pa.struct(
    [
        ("uri", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("content_type", pa.string()),
        ("checksum", pa.string()),
    ]
)

# The side-car of a shard: one row a pair, in the order of the tar.
_PLACED = pa.schema(
    [
        # Where the image lies, once more, as Parquet's type FILE has it: `uri` (the tar, from the side-car on),
        # `offset`, `size`, `content_type`, `checksum` (`SHA-256:` and hex). Not in KEY.json.
        ("image", _FILE),
    ]
)
SIDE_CAR = pa.unify_schemas([SAMPLE, _PLACED])

# The clusters of a shard's images, by `altalign score --clusters`: one row a sample, in the order of the tar.
CLUSTER = pa.schema(
    [
        ("key", pa.string()),  # The sample.
        ("cluster", pa.int32()),  # Of its image, from 0.
    ]
)

# What `altalign remove` has taken out of a run: hashes, never a URL or a text.
REMOVED = pa.schema(
    [
        # `pair`: a removed pair. Else a request, which also holds for later `altalign add`: `key`, `image_id`, `url`,
        # `sha256`, `domain`, `source_key`.
        ("kind", pa.string()),
        # Pair key, image_id (also of a URL), SHA-256 of an image's bytes, or BLAKE2b-128 of a domain or source_key.
        ("hash", pa.string()),
        ("stage", pa.string()),  # Pair: `select` if it was in a shard, else the stage that dropped it.
        ("source", pa.string()),  # Of the pair.
        ("reason", pa.string()),  # Pair: `removed` if it was in a shard, else why it was dropped.
        ("shard", pa.string()),  # Its shard, if any.
        ("row", pa.int64()),  # Its row there, from 0.
        ("manifest_sha256", pa.string()),  # Manifest before the removal.
        ("time", pa.string()),  # Time in UTC.
        ("by", pa.string()),  # Who asked (`--by`).
        ("because", pa.string()),  # Why (`--because`).
    ]
)


class Try(TypedDict):
    """A line of a log of fetching: a try of an image, or why it was not asked for."""

    image_id: str
    url: str | None
    address: str | None
    started: float  # seconds since 1970
    seconds: float
    status: int | None
    reason: str | None
    detail: str
    bytes: int


COUNTS = pa.schema(
    [
        ("stage", pa.string()),  # `extract`, `judge`, `fetch`, `image`, `decontaminate` or `select`.
        ("source", pa.string()),  # `[[input]] name`, or its kind.
        ("reason", pa.string()),  # A reason, or `kept`.
        ("rows", pa.int64()),  # Number of pairs.
    ]
)

FAILED = pa.schema(
    [
        ("stage", pa.string()),  # `extract`, `judge`, `fetch`, `image`, `decontaminate` or `select`.
        ("source", pa.string()),  # `[[input]] name`, or its kind.
        # Every rule of the stage that holds, in their order; the first is the reason. Empty: the stage keeps them.
        ("failed", pa.list_(pa.string())),
        ("rows", pa.int64()),  # Number of pairs.
    ]
)
