"""What went is looked for in every file: each kind of entry, wherever it is."""

import io
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from altalign import storage
from altalign.pipelines.change import absence
from altalign.pipelines.run.removal_list import Request, hashed
from altalign.pipelines.run.shard_files import write_shard

URL, PAGE = "https://images.example/1.jpg", "https://pages.example/1"
IMAGE = b"an image"
TAR, SIDE_CAR, TEXT = "shards/00000.tar", "shards/00000.parquet", "log/words.txt"


def write_one(folder: Path, row: Mapping[str, str]) -> None:
    """A shard of one sample, and what says that it is one."""
    texts = {"image_url": URL, "caption": "a red kite", "page_url": PAGE, "source": "table", "source_key": None}
    names = {"key": "1" * 32, "image_id": hashed(URL), "extra": None, "format": "jpeg"}
    digests = {"sha256": "2" * 64, "found_sha256": "3" * 64}
    sizes = {"width": 300, "height": 201, "bytes": len(IMAGE), "words": 3}
    write_shard(str(folder / "shards"), "00000", [({**texts, **names, **digests, **sizes, **row}, IMAGE)])
    storage.write_json(str(folder / "manifest.json"), {"pairs": 1})


@pytest.fixture
def run(tmp_path: Path) -> str:
    write_one(tmp_path, {})
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


@given(st.text(st.characters(codec="utf-8"), min_size=1))
@example('"')
@example('https://images.example/"1"\\.jpg')
@example("\n\x00é")
def test_a_string_of_a_row_is_found_in_its_tar_however_it_is_escaped(said: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_one(Path(folder), {"page_url": said})
        for wanted, found in ((said, {TAR, SIDE_CAR}), (f"{said} ", set[str]())):
            looked = absence.look(folder, Request(urls={hashed(wanted): wanted}), but="removed.parquet")
            assert looked.found.keys() == found


def rewrite(tar: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
    """The members of a tar as they come out of a function of names and contents."""
    with tarfile.open(tar) as before:
        contents = {member.name: before.extractfile(member).read() for member in before}  # type: ignore[union-attr]
    with tarfile.open(tar, "w", format=tarfile.USTAR_FORMAT) as after:
        for name, content in change(contents).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            after.addfile(member, io.BytesIO(content))


def renamed(contents: dict[str, bytes]) -> dict[str, bytes]:
    """The caption's member has another key."""
    return {name.replace("1" * 32, "6" * 32) if name.endswith(".txt") else name: of for name, of in contents.items()}


def reordered(contents: dict[str, bytes]) -> dict[str, bytes]:
    """The row comes first."""
    return dict(sorted(contents.items(), key=lambda of: not of[0].endswith(".json")))


def without_a_quotation_mark(contents: dict[str, bytes]) -> dict[str, bytes]:
    """That which ends the page's URL is damaged."""
    damaged = {name: of.replace(f'"{PAGE}"'.encode(), f'"{PAGE}#'.encode()) for name, of in contents.items()}
    assert damaged != contents
    return damaged


@pytest.mark.parametrize("change", [renamed, reordered, without_a_quotation_mark])
def test_a_sample_that_is_damaged_hides_nothing(change: Callable[[Any], Any], run: str) -> None:
    rewrite(Path(run, TAR), change)
    found = absence.look(
        run, Request(keys=frozenset(["4" * 32]), urls={hashed(PAGE): PAGE}), but="removed.parquet"
    ).found
    assert found[TAR].startswith("it cannot be read (")


def test_the_names_of_members_are_looked_at_too(run: str) -> None:
    rewrite(Path(run, TAR), lambda all_of: {name.replace("1" * 32, "6" * 32): of for name, of in all_of.items()})
    found = absence.look(run, Request(keys=frozenset(["6" * 32])), but="removed.parquet").found
    assert found.keys() == {TAR}
