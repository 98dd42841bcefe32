"""Shards in an object store are trained on as those of a disk: the same index, the same batches."""

from multiprocessing import forkserver
from pathlib import Path

import pytest

from altalign import storage
from altalign.train.data import tokenizer
from altalign.train.data.batches import Batch
from altalign.train.data.loader import Undecodable, batches
from altalign.train.data.order import Order, Sampler
from altalign.train.data.samples import Samples
from altalign.train.settings.training import DataSettings, TokenizerSettings
from tests.object_stores.servers import Server
from tests.support.run_folders import pairs, write_run

pytestmark = pytest.mark.stores


def no_undecodable(found: Undecodable) -> None:
    raise AssertionError(found)


def all_batches(folder: Path, run: str, *, workers: int, together: int = 1) -> tuple[Samples, list[Batch]]:
    """Two epochs and a half of a run, with 10 % held out."""
    samples = Samples.open(str(folder), [run], held_out=0.1)
    words = tokenizer.train(samples.captions, TokenizerSettings(vocabulary_size=100))
    chosen = DataSettings(resize_px=20, crop_px=16, workers=workers)
    sampler = Sampler(Order(samples.sources, {}, 3, together=together), 16)
    return samples, list(
        batches(samples, sampler, words, chosen, seed=3, first_batch=0, after_batch=8, undecodable=no_undecodable)
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_store_are_those_of_a_disk(workers: int, s3: Server, tmp_path: Path):
    forkserver._forkserver._stop()  # one that an earlier test has left does not know the address of this store
    run = Path(write_run(tmp_path / "run", pairs(60, images=40, sources=("a", "b"))))
    for path in filter(Path.is_file, run.rglob("*")):
        storage.write_bytes(f"{s3.url}/run/{path.relative_to(run)}", path.read_bytes())
    on_disk, expected = all_batches(tmp_path / "index of the disk", str(run), workers=0)
    before = s3.requests().count("GetObject")
    in_store, found = all_batches(tmp_path / "index of the store", f"{s3.url}/run", workers=workers)
    # ranges, some of which hold neighbours: nothing was copied to this machine
    asked = s3.requests().count("GetObject") - before
    assert len(found) < asked <= sum(map(len, found)) + len(in_store.runs.shards)
    assert list(in_store.runs.manifests.values()) == list(on_disk.runs.manifests.values())
    for file in ("pairs-0.bin", "pairs-1.bin", "held_out.bin"):
        assert (tmp_path / "index of the store" / file).read_bytes() == (
            tmp_path / "index of the disk" / file
        ).read_bytes()
    assert [(b.keys, b.sources, b.epochs) for b in found] == [(b.keys, b.sources, b.epochs) for b in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.images.equal(theirs.images)
        assert mine.tokens.equal(theirs.tokens)
        assert mine.mask.equal(theirs.mask)
    assert [one.name for one in in_store.held_out()] == [one.name for one in on_disk.held_out()]


def test_pairs_that_come_together_are_one_request(s3: Server, tmp_path: Path):
    """Of 54 pairs in shards of 27 a batch of 16 has two runs of 8, and a run crosses at most one border."""
    run = Path(write_run(tmp_path / "run", pairs(60), per_shard=30))
    for path in filter(Path.is_file, run.rglob("*")):
        storage.write_bytes(f"{s3.url}/run/{path.relative_to(run)}", path.read_bytes())
    _, expected = all_batches(tmp_path / "index of the disk", str(run), workers=0, together=8)
    asked = s3.requests().count("GetObject")
    _, found = all_batches(tmp_path / "index of the store", f"{s3.url}/run", workers=0, together=8)
    asked = s3.requests().count("GetObject") - asked
    assert [one.keys for one in found] == [one.keys for one in expected]
    assert all(mine.images.equal(theirs.images) for mine, theirs in zip(found, expected, strict=True))
    assert asked < sum(map(len, found)) / 2
