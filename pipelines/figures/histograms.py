"""Histograms of what the rules measure: candidates by value, those apart that a rule on something else drops.

They add up over units and are bounded in size. From them a report draws what another threshold would keep, all else as
it is: the candidates on its side that no other rule drops.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.data.audit_tables import (
    ASPECT_AT_MOST,
    EXACT_BELOW,
    IMAGE_VALUES,
    MEASURED,
    SHORT_SIDE_AT_MOST,
    WORDS_AT_MOST,
)
from altalign.data.reasons import KEPT
from altalign.dedup.hash_tables import log2_counts
from altalign.filters import image, text
from altalign.rules.rule import by_measure

# Each measure, and the rules that compare it with a threshold.
OF_TEXT, OF_IMAGE = by_measure(text.RULES), by_measure(image.RULES)

_VALUES = 2_048  # of a measure: from 0, and the last stands for none
_UNKNOWN = _VALUES - 1
_AT_ONCE = 1 << 20  # rows of tables that are added up at a time

Numbers = npt.NDArray[np.integer]  # integers[n]
Values = Mapping[str, Numbers]  # of n candidates, by measure


class Histograms:
    """Counts candidates by the values of these measures (`OF_TEXT`, `OF_IMAGE`)."""

    def __init__(self, measures: Mapping[str, set[str]]):
        self._rules = measures
        self._rows = {name: np.zeros((2, _VALUES), np.int64) for name in measures}  # by whether it fails otherwise

    def add(self, values: Values, failed: Sequence[Sequence[str]], failed_of: Numbers) -> None:
        """Add n candidates.

        Args:
            values: what was measured of each, as `of_text` and `of_images` return it.
            failed: lists of reasons.
            failed_of: which of these lists holds for each candidate: integers[n].
        """
        for name, rules in self._rules.items():
            fails_otherwise = np.array([not rules.issuperset(reasons) for reasons in failed], np.int64)
            places = values[name].astype(np.int64) + _VALUES * fails_otherwise[failed_of]
            self._rows[name] += np.bincount(places, minlength=2 * _VALUES).reshape(2, _VALUES)

    def to_arrow(self) -> pa.Table:
        """The counts as rows of `MEASURED`."""
        tables = [MEASURED.empty_table()]
        for name, rows in self._rows.items():
            fails_otherwise, value = np.nonzero(rows)
            columns = {
                "measure": pa.repeat(pa.scalar(name), len(value)),
                "value": pa.array(value.astype(np.int32), mask=value == _UNKNOWN),
                "fails_otherwise": pa.array(fails_otherwise.astype(bool)),
                "rows": rows[fails_otherwise, value],
            }
            tables.append(pa.table(columns, schema=MEASURED))
        return pa.concat_tables(tables)


def of_text(
    words: pa.Int32Array,
    rarest: npt.NDArray[np.uint8],
    images_per_text: pa.Int64Array,
    texts_per_image: pa.Int64Array,
) -> Values:
    """The values of n candidates, from what the text rules measure (`text_measures.TextMeasures`)."""
    return {
        "words": np.minimum(words.to_numpy(), WORDS_AT_MOST),
        "rarest_log2": rarest,
        "images_per_text": _bounded(images_per_text),
        "texts_per_image": _bounded(texts_per_image),
    }


def of_images(rows: pa.Table) -> Values:
    """The values of n candidates with the columns width, height and nsfw_score."""
    short = pc.min_element_wise(rows["width"], rows["height"], skip_nulls=False)
    long = pc.max_element_wise(rows["width"], rows["height"], skip_nulls=False)
    aspect = pc.divide(pc.multiply(long.cast(pa.int64()), 100), pc.max_element_wise(short.cast(pa.int64()), 1))
    nsfw = pc.floor(pc.multiply(rows["nsfw_score"], pa.scalar(100, pa.float32())))
    known = {
        "short_side_px": pc.min_element_wise(short, SHORT_SIDE_AT_MOST, skip_nulls=False),
        "aspect_percent": pc.if_else(short.is_valid(), pc.min_element_wise(aspect, ASPECT_AT_MOST), None),
        "nsfw_percent": nsfw,
    }
    return {name: column.cast(pa.int64()).fill_null(_UNKNOWN).to_numpy() for name, column in known.items()}


def image_values(rows: pa.Table) -> pa.Table:
    """The rows of `IMAGE_VALUES` for candidates with source, reason (null: kept), format and blob_bytes."""
    sizes: Any = pa.array(log2_counts(rows["blob_bytes"].to_numpy()))
    columns = {
        "source": rows["source"],
        "verdict": pc.fill_null(rows["reason"], pa.scalar(KEPT)),
        "format": rows["format"],
        "bytes_log2": sizes.cast(pa.int32()),
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


def _bounded(counts: pa.Int64Array) -> Numbers:
    """Counts as `MEASURED` has them: null, within the limit, is 0; large ones are `EXACT_BELOW` + 8 log2, rounded."""
    bounded = counts.fill_null(0).to_numpy()
    large = np.flatnonzero(bounded >= EXACT_BELOW)
    if len(large):
        bounded = bounded.copy()
        bounded[large] = EXACT_BELOW + log2_counts(bounded[large]).astype(np.int64)
    return bounded
