"""Judging: what is measured and dropped, and pairs in most rows of a pool."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from altalign.data.preferences import as_text
from altalign.data.reasons import REASONS, Stage, drop_where, reasons_of
from altalign.data.schema import CANDIDATE, DROPPED
from altalign.pipelines.run.text_tables import SURVIVOR
from altalign.pipelines.stages import group_survivors, judge
from altalign.pipelines.stages.group_survivors import Sorted
from altalign.pipelines.stages.judge import Judged, TextMeasures
from altalign.storage import parquet

CONFIG = """
[run]
folder = "run"

[[input]]
kind = "table"
paths = ["pairs.parquet"]
caption_column = "caption"
page_url_column = "page"
"""


def rows_of(folder: Path) -> Sequence[Sequence[Any]]:
    """Reason, key, page and what is kept instead, of all dropped rows, and those of the grouped ones."""
    found = [
        row
        for pattern in ("run/dropped/judge/*.parquet", "run/work/judge/grouped/*.parquet")
        for path in folder.glob(pattern)
        for row in pq.read_table(path).to_pylist()
    ]
    return sorted(
        (str(row.get("reason")), str(row["key"]), str(row["page_url"]), str(row.get("kept_key")), row["caption"])
        for row in found
    )


def test_a_pair_in_most_rows_is_grouped_from_few_and_the_rows_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng, rows = np.random.default_rng(0), 3_000
    number = np.where(rng.random(rows) < 0.9, 0, rng.integers(1, 60, rows))
    pages = [f"http://p.example/{page}" if page else None for page in rng.integers(0, 400, rows).tolist()]
    captions = [f"a small red house number {each} by the sea" for each in number.tolist()]
    urls = [f"http://i.example/{each}.jpg" for each in number.tolist()]
    pq.write_table(pa.table({"url": urls, "caption": captions, "page": pages}), "pairs.parquet", row_group_size=1_000)
    Path("config.toml").write_text(CONFIG, encoding="utf-8")
    sorted_rows = list[int]()

    class Noted(Sorted):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            sorted_rows.append(len(self.short))

    for module in (judge, group_survivors):
        monkeypatch.setattr(module, "Sorted", Noted)
    found, most = [], []
    for at_most in (rows, 10):
        sorted_rows.clear()
        monkeypatch.setattr(judge, "REPEATS_AT_MOST", at_most)
        assert main(["curate", "config.toml", "--until", "judge", "--set", "fetch.source=web", "--restart"]) == 0
        found.append(rows_of(tmp_path))
        most.append(max(sorted_rows[-8:]))  # of the partitions, which come last
    assert found[0] == found[1]
    assert len(found[0]) == rows
    assert most[0] > rows // 2
    assert most[1] < rows // 10


NAMES = ("notation", "value", "where", "when")
RULES = REASONS[Stage.JUDGE][:-1]  # the last is asked of groups


def batch_of(rows: int, share: float, seed: int) -> tuple[Judged, list[dict[str, Any]]]:
    """Candidates of which about this share is dropped, and what should stand in the file."""
    rng = np.random.default_rng(seed)
    holds = rng.random((len(RULES), rows)) < 1 - (1 - share) ** (1 / len(RULES))
    _, failed = reasons_of([drop_where(pa.array(mask), rule) for rule, mask in zip(RULES, holds, strict=True)])
    urls = [None if i % 11 == 3 else f"http://a.example/{seed}/{i}" for i in range(rows)]
    identities = [url if url and i % 5 else None for i, url in enumerate(urls)]
    captions = [f"caption {i} 画" * (i % 4) for i in range(rows)]
    page_urls = [None if i % 2 else f"http://p.example/{i}" for i in range(rows)]
    names = [f"part.parquet#{i}" for i in range(rows)]
    extras = [f'{{"id":{i}}}' for i in range(rows)]
    statement = ("meta-robots", "nofollow", "page meta", None)
    said = [None if i % 3 == 0 else as_text([statement] * (i % 3 - 1)) for i in range(rows)]
    columns = [pa.array(column, pa.string()) for column in (urls, identities, captions, page_urls, names, extras, said)]
    words, counts = rng.integers(0, 40, rows, np.int32), rng.integers(0, 3, (2, rows)) * 11
    ids = rng.integers(0, 256, (2, rows, 16), np.uint8)
    nullable = [pa.array(each, pa.int64(), mask=each == 0) for each in counts]
    measured = TextMeasures(
        pa.array(words, pa.int32()), pa.array(holds[0].tolist(), pa.bool_()), np.zeros(rows, np.uint8), *nullable
    )
    expected = []
    for i in np.flatnonzero(holds.any(axis=0)).tolist():
        reasons = [rule for rule, mask in zip(RULES, holds, strict=True) if mask[i]]
        found = {
            "key": ids[1, i].tobytes().hex(),
            "image_id": ids[0, i].tobytes().hex() if identities[i] else None,
            "image_url": urls[i],
        }
        found |= {
            "caption": captions[i],
            "page_url": page_urls[i],
            "source_key": names[i],
            "extra": extras[i],
            "preferences": None if i % 3 == 0 else [dict(zip(NAMES, statement, strict=True))] * (i % 3 - 1),
            "source": "mine",
            "stage": "judge",
            "reason": reasons[0],
            "failed": reasons,
        }
        found |= {
            "words": int(words[i]),
            "images_per_text": int(counts[0, i]) or None,
            "texts_per_image": int(counts[1, i]) or None,
        }
        expected.append(dict.fromkeys(DROPPED.names) | found)
    candidates = pa.record_batch(columns, schema=CANDIDATE)
    return Judged(candidates, measured, failed, ids[0], ids[1], RULES), expected


@pytest.mark.parametrize(
    "batches",
    [
        [],
        [(5, 0.0)],
        [(1, 1.0)],
        [(300, 0.9)],
        [(300, 0.02), (200, 0.98), (0, 0.0), (100, 0.0), (250, 0.5)],
        [(20_000, 0.97), (20_000, 0.9), (7, 0.5), (40_000, 0.99), (3, 1.0)],
    ],
    ids=["none", "none dropped", "one", "one batch", "few and many", "several row groups"],
)
def test_dropped_rows_are_those_of_a_loop(tmp_path: Path, batches: list[tuple[int, float]]) -> None:
    expected = []
    plain = parquet.writing(str(tmp_path / "plain"), DROPPED)  # strings, of which Arrow makes the dictionaries
    with parquet.writing(str(tmp_path / "dropped.parquet"), judge.DROPPED_TEXT) as file, plain as of_strings:
        for seed, (rows, share) in enumerate(batches):
            judged, of_batch = batch_of(rows, share, seed)
            dropped = judged.to_arrow("mine")
            file.write(dropped)
            of_strings.write(dropped.cast(DROPPED))
            expected += of_batch
            assert dropped.to_pylist() == of_batch
            assert [RULES[number] for number in judged.reasons] == [row["reason"] for row in of_batch]
    table = pq.read_table(tmp_path / "dropped.parquet")
    assert table.schema == DROPPED
    assert table.to_pylist() == expected
    assert (tmp_path / "dropped.parquet").read_bytes() == (tmp_path / "plain").read_bytes()
    assert duckdb.sql(f"from '{tmp_path}/dropped.parquet'").to_arrow_table().to_pylist() == expected


# Survivors in order, all in memory or by stretches ------------------------------------------------------------------


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
    monkeypatch.setattr(group_survivors, "STRETCH_BYTES", 1_000)
    apart = Sorted(again, size=group_survivors.HELD_BYTES + 1)
    assert times == 2
    assert apart.short.equals(held.short)
    assert apart.bytes.tolist() == held.bytes.tolist()
    assert apart.repeated.tolist() == held.repeated.tolist()
    for at in (np.flatnonzero(held.repeated), np.flatnonzero(~held.repeated)):
        ((number, whole),), stretches = held.stretches(at, 0, is_held=True), list(apart.stretches(at, 0, is_held=False))
        assert (number, stretches[0][0]) == (0, 0)
        parts = [part for _, part in stretches]
        assert pa.concat_tables(parts).combine_chunks().equals(whole)
        assert apart.take(at[:7]).equals(whole.slice(0, 7).combine_chunks())
    assert times > 4  # in parts


def test_the_order_is_that_of_image_key_page_file_and_row() -> None:
    rows = Sorted(lambda: _batches(3), size=0).take(np.arange(sum(batch.num_rows for batch in _batches(3))))
    found = [tuple(row[name] for name in ("image_id", "key", "page_url", "file", "row")) for row in rows.to_pylist()]
    assert found == sorted(found, key=lambda row: (*row[:2], row[2] is not None, (row[2] or "").encode(), *row[3:]))
