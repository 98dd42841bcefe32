"""Survivors in order, all in memory or by stretches."""

from collections.abc import Iterator
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from altalign.pipelines.run.text_tables import SURVIVOR
from altalign.pipelines.stages import judge
from altalign.pipelines.stages.judge import Sorted


def _batches(seed: int, count: int = 5) -> list[pa.RecordBatch]:
    """Rows of few images, keys and pages, so that each repeats; some pages are null."""
    rng, found = Random(seed), list[pa.RecordBatch]()
    for number in range(count):
        rows = rng.randrange(0 if number else 1, 40)
        columns = {
            "image_id": [bytes([rng.randrange(3)]) * 16 for _ in range(rows)],
            "key": [bytes([rng.randrange(4)]) * 16 for _ in range(rows)],
            "page_url": [rng.choice([None, "", "http://b/", "http://a/", "http://a/ü"]) for _ in range(rows)],
            "caption": ["x" * rng.randrange(200) for _ in range(rows)],
            "image_url": [rng.choice([None, "http://i/1"]) for _ in range(rows)],
            "file": [rng.randrange(2) for _ in range(rows)],
            "row": [rng.randrange(1_000) for _ in range(rows)],
        }
        arrays = [
            pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
            for field in SURVIVOR
        ]
        found.append(pa.record_batch(arrays, schema=SURVIVOR))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_are_read_again_are_those_in_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, times = _batches(seed), 0

    def again() -> Iterator[pa.RecordBatch]:
        nonlocal times
        times += 1
        return iter(batches)

    held = Sorted(again, size=0)
    monkeypatch.setattr(judge, "STRETCH_BYTES", 1_000)
    apart = Sorted(again, size=judge.HELD_BYTES + 1)
    assert times == 2
    assert apart.short.equals(held.short)
    assert apart.bytes.tolist() == held.bytes.tolist()
    assert apart.repeated.tolist() == held.repeated.tolist()
    for at in (np.flatnonzero(held.repeated), np.flatnonzero(~held.repeated)):
        (whole,), parts = list(held.stretches(at)), list(apart.stretches(at))
        assert pa.concat_tables(parts).combine_chunks().equals(whole)
        assert apart.take(at[:7]).equals(whole.slice(0, 7).combine_chunks())
    assert times > 4  # in parts


def test_the_order_is_that_of_image_key_page_file_and_row() -> None:
    rows = Sorted(lambda: _batches(3), size=0).take(np.arange(sum(batch.num_rows for batch in _batches(3))))
    found = [tuple(row[name] for name in ("image_id", "key", "page_url", "file", "row")) for row in rows.to_pylist()]
    assert found == sorted(found, key=lambda row: (*row[:2], row[2] is not None, (row[2] or "").encode(), *row[3:]))
