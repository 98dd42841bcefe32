"""What went is looked for in every file: each kind of entry, wherever it is."""

from hashlib import sha256
from pathlib import Path

import pytest

from altalign import storage
from altalign.pipelines.living import absence
from altalign.pipelines.living.request import Request, hashed
from altalign.pipelines.run.shard_files import write_shard

URL, PAGE = "https://images.example/1.jpg", "https://pages.example/1"
IMAGE = b"an image"
TAR, SIDE_CAR, TEXT = "shards/00000.tar", "shards/00000.parquet", "log/words.txt"


@pytest.fixture
def run(tmp_path: Path) -> str:
    texts = {"image_url": URL, "caption": "a red kite", "page_url": PAGE, "source": "table", "source_key": None}
    names = {"key": "1" * 32, "image_id": hashed(URL), "extra": None, "format": "jpeg"}
    digests = {"sha256": "2" * 64, "found_sha256": "3" * 64}
    sizes = {"width": 300, "height": 201, "bytes": len(IMAGE), "words": 3}
    write_shard(str(tmp_path / "shards"), "00000", [({**texts, **names, **digests, **sizes}, IMAGE)])
    storage.write_json(str(tmp_path / "manifest.json"), {"pairs": 1})
    (tmp_path / "log").mkdir()
    (tmp_path / TEXT).write_text(f"{'1' * 32} of {URL} {'2' * 64}", encoding="utf-8")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (Request(keys=frozenset(["1" * 32])), {TAR, SIDE_CAR, TEXT}),
        (Request(image_ids=frozenset([hashed(URL)])), {TAR, SIDE_CAR}),
        (Request(hashes=frozenset(["2" * 64])), {TAR, SIDE_CAR, TEXT}),
        (Request(hashes=frozenset(["3" * 64])), {TAR, SIDE_CAR}),
        (Request(hashes=frozenset([sha256(IMAGE).hexdigest()])), {TAR}),  # of the bytes alone
        (Request(urls={hashed(URL): URL}), {TAR, SIDE_CAR, TEXT}),
        (Request(urls={hashed(PAGE): PAGE}), {TAR, SIDE_CAR}),
        (Request(domains={hashed("images.example"): "images.example"}), {TAR, SIDE_CAR, TEXT}),
        (Request(domains={hashed("pages.example"): "pages.example"}), {TAR, SIDE_CAR}),
        (Request(keys=frozenset(["4" * 32]), hashes=frozenset(["5" * 64])), set[str]()),
    ],
)
def test_each_kind_is_found_in_every_file_that_has_it(run: str, request_: Request, found: set[str]) -> None:
    looked = absence.look(run, request_, but="removed.parquet")
    assert looked.found.keys() == found
    assert looked.files == 4


def test_a_tar_that_is_cut_is_named(run: str) -> None:
    tar = Path(run, TAR)
    tar.write_bytes(tar.read_bytes()[:2000])
    found = absence.look(run, Request(keys=frozenset(["4" * 32])), but="removed.parquet").found
    assert found.keys() == {TAR}
    assert found[TAR].startswith("it cannot be read (not a whole tar")
