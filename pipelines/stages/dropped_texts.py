"""The rows that the text rules drop, as they go to `dropped/judge/`: most of what a large pool holds, so each column is written the shortest way."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from altalign.filters import identity
from altalign.pipelines.files import parquet
from altalign.pipelines.files import parquet_pages as pages
from altalign.pipelines.stages.text_measures import Measured
from altalign.reasons import REASONS, Stage
from altalign.schema import DROPPED

_ROWS_AT_LEAST = 32_768  # of a row group, but of the last one

_REASONS = [reason.value for reason in REASONS[Stage.JUDGE]]
_STRINGS = ("image_url", "caption", "page_url")  # as candidates have them
_NUMBERS = ("words", "images_per_text", "texts_per_image")  # as they were measured


@dataclass(frozen=True)
class Judged:
    """n candidates, what was measured of them, every reason that holds (as `reasons_of` has it), and their ids (uint8[n, 16])."""

    candidates: pa.RecordBatch
    measured: Measured
    failed: "pa.DictionaryArray[Any, Any]"
    image_ids: np.ndarray
    keys: np.ndarray

    @cached_property
    def combinations(self) -> list[tuple[str, ...]]:
        """The combinations of reasons that occur."""
        dictionary: Any = self.failed.dictionary
        return [tuple(reasons) for reasons in dictionary.to_pylist()]

    @property
    def codes(self) -> np.ndarray:
        """Which of these each row has."""
        return self.failed.indices.to_numpy()

    @cached_property
    def dropped(self) -> np.ndarray:
        """Numbers of the rows that have a reason."""
        return np.flatnonzero(np.array([bool(reasons) for reasons in self.combinations], np.bool_)[self.codes])

    @property
    def reasons(self) -> np.ndarray:
        """The verdict of each dropped row, by its number in REASONS."""
        return _first(self.combinations)[self.codes[self.dropped]]

    def only(self, rows: np.ndarray) -> "Judged":
        """These rows alone."""
        words, is_rare, rarest, *counts = self.measured
        measured = Measured(words.take(rows), is_rare.take(rows), rarest[rows], *(each.take(rows) for each in counts))
        ids = identity.rows_of(self.image_ids, rows), identity.rows_of(self.keys, rows)
        return Judged(self.candidates.take(rows), measured, cast(Any, self.failed.take(rows)), *ids)

    def to_arrow(self, source: str) -> pa.Table:
        """A few rows, all dropped, as their file has them."""
        failed: Any = self.failed.dictionary.take(self.failed.indices)
        columns = {name: self.candidates[name] for name in _STRINGS} | {
            name: getattr(self.measured, name) for name in _NUMBERS
        }
        ids = {
            "key": identity.hexed(self.keys),
            "image_id": identity.hexed(self.image_ids, self.candidates["image_identity"].is_valid()),
        }
        reasons = {"reason": pc.list_element(failed, 0), "failed": failed}
        return parquet.table({**columns, **ids, **reasons, "source": source, "stage": Stage.JUDGE.value}, DROPPED)


def _first(combinations: list[tuple[str, ...]]) -> np.ndarray:
    return np.array([_REASONS.index(reasons[0]) if reasons else 0 for reasons in combinations], np.uint8)


class Writer:
    """Writes the rows of one source that are dropped."""

    def __init__(self, file: pages.Writer, source: str):
        self._file, self._source = file, source
        self._waiting: list[tuple[Judged, np.ndarray]] = []
        self._rows = 0

    def write(self, judged: Judged) -> None:
        """Add what is dropped of these; it is written when enough rows wait."""
        rows = judged.dropped
        if 2 * len(rows) < len(judged.codes):  # the others need not wait with them
            judged, rows = judged.only(rows), np.arange(len(rows))
        if len(rows):
            self._waiting.append((judged, rows))
            self._rows += len(rows)
        if self._rows >= _ROWS_AT_LEAST:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._rows:
            self._file.write_row_group(self._rows, self._columns())
        self._waiting, self._rows = [], 0

    def _columns(self) -> dict[str, pages.Column]:
        combinations, codes = self._combinations()
        of_reasons = [[_REASONS.index(reason) for reason in combination] for combination in combinations]
        constant = np.zeros(self._rows, np.uint8)
        is_known = self._each(
            lambda judged, rows: judged.candidates["image_identity"].is_valid().to_numpy(zero_copy_only=False)[rows]
        )
        return {
            "key": pages.hex_digits(self._each(lambda judged, rows: identity.rows_of(judged.keys, rows))),
            "image_id": pages.hex_digits(
                self._each(lambda judged, rows: identity.rows_of(judged.image_ids, rows)),
                None if is_known.all() else is_known,
            ),
            **{name: self._strings(name) for name in _STRINGS},
            "source": pages.coded([self._source], constant),
            "stage": pages.coded([Stage.JUDGE.value], constant),
            "reason": pages.coded(_REASONS, _first(combinations)[codes]),
            "failed": pages.lists(_REASONS, of_reasons, codes),
            "words": pages.numbers(self._each(lambda judged, rows: judged.measured.words.to_numpy()[rows])),
            "images_per_text": self._counts("images_per_text"),
            "texts_per_image": self._counts("texts_per_image"),
        }

    def _combinations(self) -> tuple[list[tuple[str, ...]], np.ndarray]:
        """The combinations of all that waits, and which of them each row has."""
        numbers: dict[tuple[str, ...], int] = {}
        parts = []
        for judged, rows in self._waiting:
            known = np.array(
                [numbers.setdefault(each, len(numbers)) if each else 0 for each in judged.combinations], np.uint8
            )
            parts.append(known[judged.codes[rows]])
        return list(numbers), np.concatenate(parts)

    def _each(self, found: Any) -> np.ndarray:
        """What a function of what was judged and the rows that are dropped gives, of all that waits."""
        parts = [found(judged, rows) for judged, rows in self._waiting]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _strings(self, name: str) -> pages.Column:
        parts = (pages.strings(parquet.strings(judged.candidates, name), rows) for judged, rows in self._waiting)
        # not joined first: a batch may hold 2 GiB
        return pages.Column([page for part in parts for page in part.pages])

    def _counts(self, name: str) -> pages.Column:
        """A number that is null where it is within its limit."""
        counts = self._each(lambda judged, rows: getattr(judged.measured, name).fill_null(0).to_numpy()[rows])
        return pages.numbers(counts, counts > 0)


@contextmanager
def writing(path: str, source: str) -> Iterator[Writer]:
    """A file of dropped rows that is at `path`, whole, once the block ended well."""
    with pages.writing(path, DROPPED) as file:
        writer = Writer(file, source)
        yield writer
        writer.flush()
