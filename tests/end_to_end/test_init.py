"""The first hour of a user: what `altalign init` writes for files that people have runs as written, to shards."""

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from tests.pipelines.read.tables.test_arrow import saved
from tests.support import archives
from tests.support.curations import rows_in
from tests.support.img2dataset import Asked, write
from tests.web_server.pictures import picture
from tests.web_server.running import WebServer

pytestmark = [pytest.mark.runs, pytest.mark.everyday]

TEXTS = ["a red dog on the grass", "logo", "two boats at the old pier", "snow over the quiet village"]
KEPT = {text for text in TEXTS if len(text.split()) > 2}


def _csv(urls: list[str]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([("URL", "TEXT"), *zip(urls, TEXTS, strict=True)])
    Path("in/pairs.csv").write_text(text.getvalue(), encoding="utf-8")


def _lists(urls: list[str]) -> None:
    """Two rows, of two captions each."""
    pq.write_table(pa.table({"image_url": urls[:2], "captions": [TEXTS[:2], TEXTS[2:]]}), "in/pairs.parquet")


def _photos(_: list[str]) -> None:
    for number, text in enumerate(TEXTS):
        Path(f"in/{number}.png").write_bytes(picture(text))
        Path(f"in/{number}.txt").write_text(text, encoding="utf-8")


def _warc(_: list[str]) -> None:
    images = "".join(f'<img src="{number}.png" alt="{text}">' for number, text in enumerate(TEXTS))
    of_images = [
        archives.response(f"http://a/{number}.png", picture(text), "image/png") for number, text in enumerate(TEXTS)
    ]
    archives.write(Path("in/crawl.warc.gz"), [archives.response("http://a/", images.encode()), *of_images])


def _img2dataset(urls: list[str]) -> None:
    came = [Asked(url, text, picture(text)) for url, text in zip(urls, TEXTS, strict=True)]
    write(Path("in"), 0, [*came, Asked(f"{urls[0]}?gone", "this did not come then")])


def _saved(_: list[str]) -> None:
    images = pa.StructArray.from_arrays(
        [pa.array(list(map(picture, TEXTS))), pa.array([f"{number}.png" for number in range(len(TEXTS))])],
        names=["bytes", "path"],
    )
    Path("in").rmdir()
    saved(Path("in"), pa.table({"image": images, "text": TEXTS}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    with WebServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.mark.parametrize(
    "make", [_csv, _lists, _photos, _warc, _img2dataset, _saved], ids=lambda make: make.__name__.strip("_")
)
def test_the_first_config_runs_as_it_is_written(
    make: Callable[[list[str]], None], server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    make([server.url(f"/png/{number}") for number in range(len(TEXTS))])
    assert main(["init", "in"]) == 0
    of_loopback = ["--set", f"fetch.ports=[{server.port}]", "--set", 'fetch.allow_addresses=["127.0.0.0/8"]']
    assert main(["curate", "altalign.toml", *of_loopback]) == 0
    assert {row["caption"] for row in rows_in(Path("runs/in/shards"))} == KEPT
