"""Pairs that a pool has very often: they are few where they are grouped, and the rows are what they were."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from altalign.pipelines.stages import group_survivors, judge
from altalign.pipelines.stages.group_survivors import Sorted

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
