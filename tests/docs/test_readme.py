"""The README's config for one's own data works: on a table whose images a server has, and on a folder of archives."""

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.conftest import altalign
from tests.docs.blocks import ROOT, blocks


def config() -> str:
    (block,) = [block for block in blocks(ROOT / "README.md") if block.kind == "toml"]
    return block.text


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Of a server that has two images."""
    (tmp_path / "served").mkdir()
    for name in ("1.jpg", "2.jpg"):
        Image.radial_gradient("L").resize((320, 240)).save(tmp_path / "served" / name)
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "served")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.guides
@pytest.mark.everyday
def test_a_table_of_urls_and_alt_texts(tmp_path: Path, port: int) -> None:
    urls = [f"http://127.0.0.1:{port}/{name}" for name in ("1.jpg", "2.jpg", "gone.png")]
    texts = ["a red bicycle against a white wall", "logo", "a picture that nobody has kept"]
    (tmp_path / "pairs").mkdir()
    pq.write_table(pa.table({"url": urls, "alt": texts}), tmp_path / "pairs" / "0.parquet")
    (tmp_path / "mine.toml").write_text(config(), encoding="utf-8")
    here = [f"fetch.ports=[{port}]", 'fetch.allow_addresses=["127.0.0.1"]']  # a server on the web needs neither
    done = altalign(tmp_path, "curate", "mine.toml", *(word for each in here for word in ("--set", each)))
    assert done.returncode == 0, done.stderr
    assert "1 pair of 1 image" in done.stdout
    assert re.search("text_too_short +│ +1", done.stdout)
    assert re.search("http_status +│ +1", done.stdout)


@pytest.mark.guides
def test_a_folder_of_archives(tmp_path: Path) -> None:
    """As the README says: another kind and paths, no columns, no `[fetch]`."""
    (tmp_path / "crawl").symlink_to(ROOT / "examples/handbook")
    text = config().partition("[fetch]")[0]
    text = re.sub(r"(?m)^\w+_column = .*\n", "", text)
    text = re.sub(r"(?m)^kind = .*$", 'kind = "warc"', text)
    text = re.sub(r"(?m)^paths = .*$", 'paths = ["crawl/*.warc.gz"]', text)
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    done = altalign(tmp_path, "curate", "mine.toml")
    assert done.returncode == 0, done.stderr
    assert "83 pairs of 83 images" in done.stdout
