"""A partition that is merged part by part, as of a very large pool, leaves the bytes of one that is merged at once."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign import storage
from altalign.cli import main
from altalign.pipelines.engine import spilled_groups
from altalign.pipelines.stages import group_survivors
from tests.support.curations import tree, write_input

RUN = """
[run]
folder = "run"
"""
INPUT = """
[[input]]
name = "{source}"
paths = ["pairs-{source}.parquet"]
kind = "table"
url_column = "url"
caption_column = "caption"
page_url_column = "page"
"""


def bytes_of(run: Path) -> dict[str, bytes]:
    """All that a run has left of its text stages, but marks and what is spilled."""
    paths = [Path(path) for path in storage.files_below(str(run))]
    kept = [path for path in paths if not {"log", "marks", "spilled", "config.toml"} & {*path.relative_to(run).parts}]
    kept = [path for path in kept if path.name not in ("done.json", "run.json")]
    return {str(path.relative_to(run)): path.read_bytes() for path in kept}


@pytest.mark.parametrize("stretch", [1_000, 1 << 25])
def test_text_stages_leave_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stretch: int) -> None:
    monkeypatch.chdir(tmp_path)
    rng, config = np.random.default_rng(0), RUN
    for source in ("one", "two"):
        number = np.minimum(rng.zipf(1.3, 6_000), 900)  # one image has a third of the rows
        captions = [f"a small red house number {each % 40} by the sea" for each in number.tolist()]
        urls = [f"http://i.example/{each}.jpg" for each in number.tolist()]
        pages = [f"http://p.example/{page}" if page else None for page in rng.integers(0, 300, len(urls)).tolist()]
        table = pa.table({"url": urls, "caption": captions, "page": pages})
        pq.write_table(table, f"pairs-{source}.parquet", row_group_size=1_000)
        config += INPUT.format(source=source)
    Path("config.toml").write_text(config, encoding="utf-8")
    monkeypatch.setattr(group_survivors, "IMAGES_PER_UNIT", 7)
    monkeypatch.setattr(group_survivors, "STRETCH_BYTES", stretch)
    monkeypatch.setattr(group_survivors, "HELD_BYTES", stretch)
    passes = {}
    for merged_bytes in (1 << 30, 1 << 16):
        monkeypatch.setattr(spilled_groups, "MERGED_BYTES", merged_bytes)
        command = ["curate", "config.toml", "--until", "judge", "--set", "fetch.source=web", "--restart"]
        assert main([*command, "--set", "text.images_per_text_at_most=20"]) == 0
        passes[merged_bytes] = bytes_of(Path("run"))
    one, two = passes.values()
    assert {path for path in one if one[path] != two.get(path)} == set()
    assert one.keys() == two.keys()
    assert any("repeated-" in path for path in one)


def test_a_whole_run_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_input(tmp_path, rows=90)
    monkeypatch.chdir(tmp_path)
    assert main(["curate", "config.toml"]) == 0
    once = tree(Path("run"))
    monkeypatch.setattr(spilled_groups, "MERGED_BYTES", 256)
    assert main(["curate", "config.toml", "--restart"]) == 0
    assert tree(Path("run")) == once
