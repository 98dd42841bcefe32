"""What img2dataset itself writes, in three of its formats, curated from it.

The program runs in an environment of its own, for it wants older libraries than altalign: `make test-readers`.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from tests.support.curations import rows_in
from tests.web_server.running import WebServer

PROGRAM = os.environ.get("IMG2DATASET", "") or shutil.which("img2dataset")
pytestmark = [
    pytest.mark.runs,
    pytest.mark.skipif(not PROGRAM, reason="no img2dataset here: make test-readers"),
]

CAPTIONS = ["a red dog on the grass", "logo", "two boats at the old pier", "snow over the quiet village"]
KEPT = {caption for caption in CAPTIONS if len(caption.split()) > 2}
LOST = "this image was not there"
TOO_SHORT = {"logo": "text_too_short"}
DROPPED = {  # among files there is no trace of an image that did not come
    "webdataset": {LOST: "not_in_archive", **TOO_SHORT},
    "parquet": {LOST: "not_in_archive", **TOO_SHORT},
    "files": TOO_SHORT,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A table of URLs of a server, the last of which answers 404."""
    folder = tmp_path_factory.mktemp("server")
    with WebServer(folder) as server:
        urls = [server.url(f"/png/{number}") for number in range(len(CAPTIONS))]
        table = pa.table({"url": [*urls, server.url("/nowhere/9.png")], "text": [*CAPTIONS, LOST]})
        pq.write_table(table, folder / "pairs.parquet")
        yield folder / "pairs.parquet"


def downloaded(pairs: Path, output_format: str) -> None:
    """Let img2dataset write `out`."""
    settings = {
        "url_list": pairs,
        "input_format": "parquet",
        "url_col": "url",
        "caption_col": "text",
        "output_format": output_format,
        "output_folder": "out",
        "processes_count": 1,
        "thread_count": 2,
        "resize_mode": "no",
        "enable_wandb": False,
    }
    program = [str(PROGRAM), *(f"--{name}={value}" for name, value in settings.items())]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("output_format", DROPPED)
def test_the_first_config_curates_its_output(
    pairs: Path, output_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    downloaded(pairs, output_format)
    assert main(["init", "out"]) == 0
    assert main(["curate", "altalign.toml", "--set", 'fetch.source="archive"']) == 0
    assert {row["caption"] for row in rows_in(Path("runs/out/shards"))} == KEPT
    dropped = rows_in(Path("runs/out/dropped"))
    assert {row["caption"]: row["reason"] for row in dropped} == DROPPED[output_format]
