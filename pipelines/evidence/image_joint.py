"""Exact counts of what the image rules measured, for the audit; they add up over units and are bounded in size.

They count candidates whose image was fetched. From `audit/image_joint.parquet` a report can say what other limits of
size and shape would keep; `audit/image_values.parquet` has the rest.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from altalign.audit_tables import IMAGE_JOINT, IMAGE_VALUES
from altalign.dedup.hash_tables import log2_counts
from altalign.reasons import KEPT, DropReason
from altalign.slider_stops import ASPECT_AT_MOST, SHORT_SIDE_AT_MOST

_AT_ONCE = 1 << 20  # rows that are added up at a time
_OF_SIZE = (DropReason.IMAGE_TOO_SMALL.value, DropReason.IMAGE_TOO_ELONGATED.value)


def joint(rows: pa.Table) -> pa.Table:
    """The rows of `IMAGE_JOINT` for candidates with the columns source, width, height and failed."""
    short, long = pc.min_element_wise(rows["width"], rows["height"]), pc.max_element_wise(rows["width"], rows["height"])
    aspect = pc.divide(pc.multiply(long.cast(pa.int64()), 100), pc.max_element_wise(short.cast(pa.int64()), 1))
    columns = {
        "source": rows["source"],
        "short_side_px": pc.min_element_wise(short, SHORT_SIDE_AT_MOST, skip_nulls=False),
        "aspect_percent": pc.min_element_wise(aspect, ASPECT_AT_MOST, skip_nulls=False),
        "fails_otherwise": fails_otherwise(rows["failed"]),
        "rows": pa.repeat(pa.scalar(1, pa.int64()), len(rows)),
    }
    return total([pa.table(columns)], IMAGE_JOINT.schema)


def fails_otherwise(failed: "pa.ChunkedArray[Any]") -> Any:
    """Whether a rule other than size and shape holds, n booleans; `failed` lists the reasons that hold."""
    others = pc.subtract(pc.list_value_length(failed), pc.add(*(held.cast(pa.int32()) for held in _held(failed))))
    return pc.greater(others, pa.scalar(0))


def _held(failed: "pa.ChunkedArray[Any]") -> list[pa.BooleanArray]:
    """Whether each list holds each reason of size and shape."""
    lists: Any = failed.combine_chunks()
    rows = pc.list_parent_indices(lists)
    every = pa.array(range(len(lists)), rows.type)
    return [pc.is_in(every, value_set=rows.filter(pc.equal(lists.flatten(), pa.scalar(reason)))) for reason in _OF_SIZE]


def values(rows: pa.Table) -> pa.Table:
    """The rows of `IMAGE_VALUES` for candidates with source, reason (null: kept), format, blob_bytes, nsfw_score."""
    sizes = log2_counts(rows["blob_bytes"].to_numpy())
    columns = {
        "source": rows["source"],
        "verdict": pc.fill_null(rows["reason"], pa.scalar(KEPT)),
        "format": rows["format"],
        "bytes_log2": pa.array(sizes).cast(pa.int32()),
        "nsfw_percent": pc.floor(pc.multiply(rows["nsfw_score"], pa.scalar(100, pa.float32()))).cast(pa.int32()),
        "rows": pa.repeat(pa.scalar(1, pa.int64()), len(rows)),
    }
    return total([pa.table(columns)], IMAGE_VALUES.schema)


def total(parts: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """The sum of tables whose last column counts, sorted by all others; about a million rows are in memory at once."""
    waiting = [schema.empty_table()]
    for part in parts:
        waiting.append(part.cast(schema))
        if sum(map(len, waiting[1:])) > max(_AT_ONCE, len(waiting[0])):
            waiting = [_summed(waiting, schema)]
    return _summed(waiting, schema)


def _summed(parts: list[pa.Table], schema: pa.Schema) -> pa.Table:
    *names, counted = schema.names
    summed = pa.concat_tables(parts).group_by(names, use_threads=False).aggregate([(counted, "sum")])
    summed = summed.rename_columns(schema.names)
    return summed.sort_by([(name, "ascending") for name in names]).cast(schema)
