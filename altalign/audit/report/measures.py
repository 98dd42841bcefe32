"""What the rules measured, as the run counted it: `MEASURED` tables in arrays."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign.audit.report import files
from altalign.audit.run_folder import RunFolder
from altalign.data.audit_tables import IMAGE_MEASURES, MEASURED, TEXT_MEASURES

OF_IMAGE = ("short_side_px", "aspect_percent", "nsfw_percent")

Numbers = npt.NDArray[np.int64]  # int64[n]
Truths = npt.NDArray[np.bool_]  # bool[n]


@dataclass(frozen=True)
class Measured:
    """n values of a measure: how many candidates have each, and whether no rule on anything else drops them."""

    values: Numbers
    rows: Numbers
    passes_others: Truths

    def where(self, chosen: Truths) -> "Measured":
        """Some of the values."""
        return Measured(self.values[chosen], self.rows[chosen], self.passes_others[chosen])


def measured(run: RunFolder, name: str) -> Measured:
    """A measure of text or image that has values; without any where nothing was measured, or the run has no file.

    Raises UnreadableError: the file is damaged.
    """
    table = files.table(run, IMAGE_MEASURES if name in OF_IMAGE else TEXT_MEASURES)
    table = MEASURED.empty_table() if table is None else table
    table = table.filter(pc.and_(pc.equal(table["measure"], pa.scalar(name)), pc.is_valid(table["value"])))
    value, rows, fails = (files.numbers(table, column) for column in ("value", "rows", "fails_otherwise"))
    return Measured(value, rows, fails == 0)


def equals(column: "pa.ChunkedArray[Any]", value: str) -> Truths:
    """Which rows of a column have this value."""
    return np.asarray(pc.equal(column, pa.scalar(value))).astype(bool)


def hundredths(limit: float) -> int:
    """A limit in hundredths, rounded up; values compared with it are rounded down.

    The limit counts as it is written in decimals: in binary, 100 * 2.2 is more than 220.
    """
    return ceil(100 * Fraction(str(limit)))
