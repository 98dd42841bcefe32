"""Columns of text that may be dictionaries: each value that occurs is worked on once, and rows are made of it last."""

from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


class Values(NamedTuple):
    """The values that occur in a column of n rows, and which of them each row has (null: none)."""

    values: pa.StringArray
    of_rows: "pa.Int32Array | None"  # None: the values are the rows

    def rows(self, values: pa.StringArray) -> pa.StringArray:
        """The column with these values in place of its own."""
        return values if self.of_rows is None else cast(pa.StringArray, values.take(self.of_rows))

    def flags(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """What is said of each value (bool[m]), of each row (bool[n]); false of null."""
        if self.of_rows is None:
            return flags
        return np.append(flags, False)[self.of_rows.fill_null(len(flags)).to_numpy()]


def occurring(column: Any) -> Values:
    """The values of a column of strings, of any kind that Arrow has of them.

    Raises:
        pa.ArrowIndexError: a row of a dictionary has a value that is not there.
    """
    if not pa.types.is_dictionary(column.type):
        return Values(strings(column), None)
    used = pc.unique(column.indices).drop_null()
    return Values(strings(column.dictionary.take(used)), cast(Any, pc.index_in(column.indices, used)))


def strings(column: Any) -> pa.StringArray:
    """Any column of strings as plain strings."""
    return cast(pa.StringArray, column if pa.types.is_string(column.type) else column.cast(pa.string(), safe=False))


def longest_of_dictionaries(column: Any) -> int:
    """The bytes of the longest value of the dictionaries in a column; it may have lists or structs of them."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        is_text = pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type)
        is_known = is_text or pa.types.is_binary(kind.value_type)
        return (pc.max(pc.binary_length(column.dictionary)).as_py() or 0) if is_known else 0
    if pa.types.is_struct(kind):
        return max((longest_of_dictionaries(column.field(number)) for number in range(kind.num_fields)), default=0)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return longest_of_dictionaries(column.values)
    return 0
