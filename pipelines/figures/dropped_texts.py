"""The rows that the text rules drop, as they go to `dropped/judge/`: most of what a large pool holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.data.reasons import Stage
from altalign.data.schema import DROPPED, STRINGS
from altalign.filters import identity
from altalign.pipelines.figures.text_measures import TextMeasures
from altalign.storage import parquet

_NUMBERS = ("words", "images_per_text", "texts_per_image")  # as they were measured
# The schema of rows to be written; the file is that of `DROPPED`. With dictionaries in hand Arrow hashes none of these
# strings, which took one in ten CPU seconds of its writing.
WRITTEN = parquet.with_dictionaries(DROPPED)


@dataclass(frozen=True)
class Judged:
    """n candidates, what was measured of them, all reasons that hold (`reasons_of`), and their ids (uint8[n, 16]).

    `names` are all reasons of the stage, in order.
    """

    candidates: pa.RecordBatch
    measured: TextMeasures
    failed: "pa.DictionaryArray[Any, Any]"
    image_ids: np.ndarray
    keys: np.ndarray
    names: Sequence[str]

    @cached_property
    def combinations(self) -> list[tuple[str, ...]]:
        """The combinations of reasons that occur."""
        dictionary: Any = self.failed.dictionary
        return [tuple(reasons) for reasons in dictionary.to_pylist()]

    @cached_property
    def numbered(self) -> list[list[int]]:
        """The same, each reason by its number in `names`."""
        number = {name: at for at, name in enumerate(self.names)}
        return [[number[reason] for reason in reasons] for reasons in self.combinations]

    @property
    def codes(self) -> npt.NDArray[np.integer]:
        """The combination of each row, by its number in `combinations`: integers[n]."""
        return self.failed.indices.to_numpy()

    @cached_property
    def dropped(self) -> npt.NDArray[np.int64]:
        """Numbers of the rows that have a reason: int64[m], rising."""
        return np.flatnonzero(np.array([bool(reasons) for reasons in self.combinations], np.bool_)[self.codes])

    @property
    def reasons(self) -> npt.NDArray[np.uint8]:
        """The verdict of each dropped row, by its number in `names`: uint8[m]."""
        first = [next(iter(numbers), 0) for numbers in self.numbered]
        return np.array(first, np.uint8)[self.codes[self.dropped]]

    def to_arrow(self, source: str) -> pa.Table:
        """The dropped rows, of schema `WRITTEN`."""
        rows = self.dropped
        texts = self.candidates.select(list(STRINGS)).take(rows)
        is_known = cast(pa.BooleanArray, self.candidates["image_identity"].is_valid().take(rows))
        failed: Any = pa.array(self.numbered, pa.list_(pa.int8())).take(self.failed.indices.take(rows))
        first = failed.flatten().take(failed.offsets[:-1])
        columns: dict[str, object] = {
            "key": identity.hexed(identity.rows_of(self.keys, rows)),
            "image_id": identity.hexed(identity.rows_of(self.image_ids, rows), is_known),
            **{name: texts[name] for name in STRINGS},
            **{name: getattr(self.measured, name).take(rows) for name in _NUMBERS},
            "reason": self._named(first),
            "failed": pa.ListArray.from_arrays(failed.offsets, self._named(failed.flatten())),
        }
        return parquet.table({**columns, "source": source, "stage": Stage.JUDGE.value}, WRITTEN)

    def _named(self, numbers: "pa.Array[Any]") -> "pa.DictionaryArray[Any, Any]":
        """Reasons by their numbers, as a dictionary of those that occur, in the order in which they do."""
        found: Any = numbers.dictionary_encode()
        return pa.DictionaryArray.from_arrays(found.indices, pa.array(self.names).take(found.dictionary))
