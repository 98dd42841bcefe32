"""The index of a training run: which pairs are trained on and held out, by hashes alone; what is read is what was
written.
"""

import hashlib
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign import storage
from altalign.data.schema import CLUSTER
from altalign.errors import AltalignError, DamagedError, UnreadableError, UsageError
from altalign.eval.sets import captioned_set
from altalign.train.data import index
from altalign.train.data.runs import Runs
from altalign.train.data.samples import Samples, key_of
from altalign.train.settings.training import DataSettings
from tests.support.run_folders import Pair, pairs, write_run


def everything(samples: Samples) -> list[tuple[str, str, str, bytes]]:
    """Source, key, caption and image of all pairs in their order."""
    numbers = np.arange(len(samples))
    rows = samples.pairs(numbers)
    read = samples.read(rows)
    return [
        (source, key_of(row), caption, image)
        for source, row, (image, caption) in zip(samples.sources_of(numbers), rows, read, strict=True)
    ]


def opened(folder: Path, of: list[Pair], *, per_shard: int = 10, **given: Any) -> Samples:
    """The pairs of a run of their own."""
    return Samples.open(str(folder / "index"), [write_run(folder / "run", of, per_shard=per_shard)], **given)


def as_written(of: list[Pair]) -> list[tuple[str, str, str, bytes]]:
    return [(pair.source, pair.key, pair.caption, pair.image) for pair in sorted(of, key=lambda pair: pair.source)]


def test_pairs_are_numbered_by_source_then_in_the_order_of_the_runs(tmp_path: Path) -> None:
    first, second = pairs(25, sources=("web", "archive", "tables")), pairs(12, first=100, sources=("tables", "more"))
    runs = [write_run(tmp_path / "a", first), write_run(tmp_path / "b", second, per_shard=5)]
    samples = Samples.open(str(tmp_path / "index"), runs)
    assert list(samples.sources) == ["archive", "more", "tables", "web"]
    assert samples.sources == dict(sorted(Counter(pair.source for pair in first + second).items()))
    assert everything(samples) == as_written(first + second)
    assert len(samples) == 37
    with pytest.raises(UsageError, match=r"held_out = 0 keeps no image of these runs"):
        samples.held_out()


def clustered(folder: Path, of: list[Pair], clusters: int, *, per_shard: int = 10) -> str:
    """A run with clusters in turn, as `altalign score --clusters` leaves them."""
    run = write_run(folder, of, per_shard=per_shard)
    (folder / "clusters").mkdir()
    for first in range(0, len(of), per_shard):
        part = range(first, min(first + per_shard, len(of)))
        table = pa.table([[of[n].key for n in part], [n % clusters for n in part]], schema=CLUSTER)
        pq.write_table(table, folder / "clusters" / f"{first // per_shard:05}.parquet")
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    storage.write_json(str(folder / "clusters" / "clusters.json"), {"manifest_sha256": digest, "clusters": clusters})
    return run


def test_clusters_are_sources(tmp_path: Path) -> None:
    first, second = pairs(36), pairs(12, first=100)
    runs = [clustered(tmp_path / "a", first, 11), clustered(tmp_path / "b", second, 2, per_shard=5)]
    samples = Samples.open(str(tmp_path / "index"), Runs(runs, DataSettings(sources="clusters")))
    names = [f"{runs[0]}#{number % 11:02}" for number in range(36)] + [f"{runs[1]}#{n % 2}" for n in range(12)]
    expected = sorted(zip(names, first + second, strict=True), key=lambda one: one[0])
    assert [(source, key) for source, key, *_ in everything(samples)] == [(name, of.key) for name, of in expected]
    assert Samples.open(str(tmp_path / "index"), runs).sources == {"web": 48}


def test_clusters_that_are_not_there_or_of_other_shards_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", pairs(10))
    with pytest.raises(
        UsageError,
        match=r'^\[data\] sources = "clusters", and .*/run has none; `altalign score .* --clusters 100` makes them',
    ):
        Samples.open(str(tmp_path / "index"), Runs([run], DataSettings(sources="clusters")))
    stale = clustered(tmp_path / "stale", pairs(10), 2)
    place = tmp_path / "stale" / "manifest.json"
    place.write_text(place.read_text(encoding="utf-8") + " ", encoding="utf-8")
    with pytest.raises(UsageError, match=r"clusters\.json: the clusters of other shards than there are now; `altalign"):
        Samples.open(str(tmp_path / "index"), Runs([stale], DataSettings(sources="clusters")))
    of = pairs(10)
    mixed = clustered(tmp_path / "mixed", of, 2)
    pq.write_table(pa.table([[of[0].key] * 10, [0] * 10], schema=CLUSTER), f"{mixed}/clusters/00000.parquet")
    with pytest.raises(UnreadableError, match=r"clusters/00000\.parquet: not the clusters of 00000\.tar; `altalign"):
        Samples.open(str(tmp_path / "index"), Runs([mixed], DataSettings(sources="clusters")))
    Path(mixed, "clusters", "00000.parquet").unlink()
    with pytest.raises(UnreadableError, match=r"clusters/00000\.parquet: .*; `altalign score"):
        Samples.open(str(tmp_path / "index"), Runs([mixed], DataSettings(sources="clusters")))


def test_numbers_are_looked_up_in_any_order(tmp_path: Path) -> None:
    of = pairs(30, sources=("a", "b"))
    samples = opened(tmp_path, of)
    numbers = np.array([29, 0, 15, 15, 3])
    assert [key_of(row) for row in samples.pairs(numbers)] == [everything(samples)[number][1] for number in numbers]
    images = {pair.key: int(pair.image_id[:16], 16) for pair in of}
    assert samples.images_of(numbers).tolist() == [images[key_of(row)] for row in samples.pairs(numbers)]


def test_captions_of_any_script_and_images_of_any_size_are_read(tmp_path: Path) -> None:
    of = [
        Pair(bytes(size), caption, f"https://example.org/{size}")
        for size, caption in ((0, "leer"), (1, "日本語の凧"), (512, ""), (513, "ένα"), (1024, "x" * 600))
    ]
    samples = opened(tmp_path, of)
    assert everything(samples) == as_written(of)


def test_held_out_are_the_images_of_the_smallest_ids_with_all_their_captions(tmp_path: Path) -> None:
    of = pairs(200, images=60)
    samples = opened(tmp_path, of, held_out=0.25)
    out = {pair.image_id for pair in of if int(pair.image_id[:16], 16) < 2**64 * 0.25}
    assert 5 < len(out) < 25
    assert everything(samples) == as_written([pair for pair in of if pair.image_id not in out])
    expected = [
        (
            image,
            next(pair.image for pair in of if pair.image_id == image),
            [pair.caption for pair in sorted(of, key=lambda pair: pair.key) if pair.image_id == image],
        )
        for image in sorted(out)
    ]
    assert [(held.name, held.image, held.captions) for held in samples.held_out()] == expected
    assert [(held.name, held.image, held.captions) for held in samples.held_out(3)] == expected[:3]
    assert samples.facts["held_out_pairs"] == sum(len(captions) for _, _, captions in expected)


def test_all_may_be_held_out(tmp_path: Path) -> None:
    samples = opened(tmp_path, pairs(150), held_out=1.0)
    assert (len(samples), len(list(samples.held_out())), len(list(samples.held_out(70)))) == (0, 150, 70)


@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_exactly_n_pairs_of_the_smallest_keys_so_that_fewer_are_among_more(tmp_path: Path, held_out: float) -> None:
    of = pairs(120, images=40, sources=("a", "b", "c"))
    run = write_run(tmp_path / "run", of)
    there = [pair for pair in of if int(pair.image_id[:16], 16) >= 2**64 * held_out]
    smaller: set[str] = set()
    for n in (1, 2, 30, len(there)):
        samples = Samples.open(str(tmp_path / f"index-{n}"), [run], held_out=held_out, pairs=n)
        expected = sorted(pair.key for pair in there)[:n]
        assert everything(samples) == as_written([pair for pair in of if pair.key in expected])
        assert smaller < set(expected)
        smaller = set(expected)
        assert not storage.names(str(tmp_path / f"index-{n}"), ".parquet")
        assert all(
            name.startswith(("pairs-", "held_out", "index")) for name in storage.names(str(tmp_path / f"index-{n}"))
        )
    with pytest.raises(UsageError, match=rf"pairs = {len(there) + 1}: there are {len(there)} that are not held out"):
        Samples.open(str(tmp_path / "too-many"), [run], held_out=held_out, pairs=len(there) + 1)
    assert not storage.exists(str(tmp_path / "too-many" / "index.json"))


def test_a_pair_of_two_runs_counts_twice_and_n_stays_exact(tmp_path: Path) -> None:
    of = pairs(20)
    runs = [write_run(tmp_path / "a", of), write_run(tmp_path / "b", of)]
    for n in (5, 6, 7):
        samples = Samples.open(str(tmp_path / f"index-{n}"), runs, pairs=n)
        assert Counter(key for _, key, _, _ in everything(samples)) == Counter(
            sorted(2 * [pair.key for pair in of])[:n]
        )


@given(
    st.lists(st.integers(0, 2**128 - 1) | st.integers(0, 5).map(lambda half: half << 64), min_size=1, max_size=80),
    st.data(),
)
@settings(derandomize=True, deadline=None, max_examples=40)
def test_the_nth_key_is_that_of_a_sorted_list(keys: list[int], data: st.DataObject) -> None:
    rows = np.zeros(len(keys), index.PAIR)
    rows["key"] = [(key >> 64, key & 2**64 - 1) for key in keys]
    n = data.draw(st.integers(1, len(keys)))
    halves = sorted(key >> 64 for key in keys)
    assert index.nth_key([rows], n) == (halves[n - 1], halves[:n].count(halves[n - 1]))


def test_captions_are_those_of_the_pairs_trained_on(tmp_path: Path) -> None:
    of = pairs(90, images=30)
    samples = opened(tmp_path, of, held_out=0.2, pairs=40)
    mine = {key: caption for _, key, caption, _ in everything(samples)}
    assert sorted(caption for part in samples.captions() for caption in part) == sorted(mine.values())
    assert sorted(caption for part in samples.captions(15) for caption in part) == sorted(
        mine[key] for key in sorted(mine)[:15]
    )
    assert sum(map(len, samples.captions(1000))) == 40


def test_the_index_is_used_again_until_manifests_or_choices_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = write_run(tmp_path / "run", pairs(30)), str(tmp_path / "index")
    before = everything(Samples.open(folder, [run], held_out=0.1))
    written = []
    monkeypatch.setattr(index, "_write", lambda *given, write=index._write: (written.append(1), write(*given))[1])
    assert everything(Samples.open(folder, [run], held_out=0.1)) == before
    assert not written
    assert len(Samples.open(folder, [run])) == 30
    assert len(written) == 1
    other = write_run(tmp_path / "other", pairs(31))
    assert len(Samples.open(folder, [other])) == 31
    assert len(written) == 2


def test_the_same_runs_give_the_same_index_wherever_they_are(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name / "run", pairs(30, sources=("b", "a"))) for name in ("here", "there")]
    for number, run in enumerate(folders):
        Samples.open(str(tmp_path / f"index-{number}"), [run], held_out=0.1, pairs=20)
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / f"index-{number}").iterdir()} for number in (0, 1)
    )
    assert first == second


def test_samples_travel_to_other_processes(tmp_path: Path) -> None:
    samples = opened(tmp_path, pairs(12))
    before = everything(samples)
    data = pickle.dumps(samples)
    assert len(data) < 4000
    assert everything(pickle.loads(data)) == before


def refused(runs: list[Path], folder: Path, error: type[AltalignError], says: str) -> None:
    with pytest.raises(error, match=says) as raised:
        Samples.open(str(folder / "index"), [str(run) for run in runs])
    assert "\n" not in str(raised.value)
    assert not (folder / "index" / "index.json").exists()


def test_folders_that_are_no_finished_runs_are_refused(tmp_path: Path) -> None:
    run = Path(write_run(tmp_path / "run", pairs(12)))
    (tmp_path / "empty").mkdir()
    refused([tmp_path / "nowhere"], tmp_path, UsageError, "nowhere: no such run folder")
    refused([tmp_path / "empty"], tmp_path, UsageError, "empty: no run of altalign")
    refused([run, run], tmp_path, UsageError, "run is there twice")
    manifest = (run / "manifest.json").read_text()
    (run / "manifest.json").write_text(json.dumps({**json.loads(manifest), "schema_version": 99}))
    refused([run], tmp_path, UsageError, "schema_version 99")
    (run / "manifest.json").write_text("{")
    refused([run], tmp_path, DamagedError, "manifest.json: damaged: no manifest of shards")
    (run / "manifest.json").unlink()
    refused([run], tmp_path, UsageError, "run: not finished")


def test_a_run_that_disagrees_with_its_manifest_is_refused(tmp_path: Path) -> None:
    run = Path(write_run(tmp_path / "run", pairs(12)))
    sidecar, tar, manifest = run / "shards" / "00001.parquet", run / "shards" / "00001.tar", run / "manifest.json"
    kept = {path: path.read_bytes() for path in (sidecar, tar, manifest)}
    sidecar.write_bytes(kept[sidecar][:-1])
    refused([run], tmp_path, DamagedError, "00001.parquet: damaged: its SHA-256")
    sidecar.unlink()
    refused([run], tmp_path, DamagedError, "00001.parquet: damaged: it is not there")
    sidecar.write_bytes(kept[sidecar])
    tar.write_bytes(kept[tar][:-512])
    refused([run], tmp_path, DamagedError, "00001.tar: damaged: .* bytes, and manifest.json says")
    tar.unlink()
    refused([run], tmp_path, DamagedError, "00001.tar: damaged: it is not there")
    tar.write_bytes(kept[tar])
    wrong = json.loads(kept[manifest])
    wrong["shards"][1]["rows"] = 3
    manifest.write_text(json.dumps(wrong))
    refused([run], tmp_path, DamagedError, "00001.parquet: damaged: 2 rows, and manifest.json says 3")


def test_a_tar_that_was_exchanged_later_is_noticed_at_the_pair(tmp_path: Path) -> None:
    run = Path(write_run(tmp_path / "run", pairs(12)))
    samples = Samples.open(str(tmp_path / "index"), [str(run)])
    (run / "shards" / "00000.tar").write_bytes(bytes(100_000))
    with pytest.raises(UnreadableError, match=r"00000.tar: .* does not have this pair where its side-car says"):
        everything(samples)
    samples = Samples.open(str(tmp_path / "index"), [str(run)])
    (run / "shards" / "00000.tar").unlink()
    with pytest.raises(UnreadableError, match=r"00000.tar: No such file"):
        everything(samples)


def test_a_cut_index_is_noticed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", pairs(12))
    samples = Samples.open(str(tmp_path / "index"), [run])
    path = tmp_path / "index" / "pairs-0.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UnreadableError, match=r"pairs-0.bin: 575 bytes, no whole number of pairs"):
        everything(samples)


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_runs_in_a_store_are_read_as_those_of_a_disk(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = request.getfixturevalue(kind)
    run = Path(write_run(tmp_path / "run", pairs(30, sources=("b", "a"))))
    for path in run.rglob("*.*"):
        storage.write_bytes(f"{store.url}/run/{path.relative_to(run)}", path.read_bytes())
    local, remote = (
        Samples.open(str(tmp_path / name), [folder], held_out=0.2)
        for name, folder in (("here", str(run)), ("there", f"{store.url}/run"))
    )
    assert everything(remote) == everything(local)
    assert list(remote.held_out()) == list(local.held_out())
    assert [image.captions for image in captioned_set([f"{store.url}/run"], "folder")] == [
        image.captions for image in captioned_set([str(run)])
    ]
