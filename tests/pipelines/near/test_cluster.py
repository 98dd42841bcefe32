"""Clusters of a run's images: those that look alike are together, whatever shards and threads there are."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from altalign import cli
from altalign.data.stages import maker
from altalign.dedup import clusters as k_means
from altalign.filters import pixels
from altalign.pipelines.images import embedders
from tests.support.run_folders import Pair, pairs, picture, write_run

ALIKE, OTHERS = 70, 70


def two_kinds() -> list[Pair]:
    """Pairs of two pictures, each saved at many sizes; every third image has two captions."""
    made = []
    for number in range(ALIKE + OTHERS):
        image = picture(1 if number < ALIKE else 2, (40 + number % 35, 40))
        url = f"https://example.org/{number}.jpg"
        made += [Pair(image, f"{caption} {number}", url) for caption in ("a kite", "a ring")[: 1 + (number % 3 == 0)]]
    return sorted(made, key=lambda pair: (pair.image_id, pair.key))


def clusters(folder: Path) -> dict[str, int]:
    """The cluster of each key."""
    tables = [pq.read_table(path) for path in sorted((folder / "clusters").glob("*.parquet"))]
    return {row["key"]: row["cluster"] for table in tables for row in table.to_pylist()}


def facts(folder: Path) -> dict[str, object]:
    return json.loads((folder / "clusters" / "clusters.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("embedder", ["dct", "phash"])
def test_images_that_look_alike_are_together_whatever_their_captions(tmp_path: Path, embedder: str) -> None:
    samples = two_kinds()
    write_run(tmp_path / "run", samples, per_shard=40)
    assert cli.main(["score", str(tmp_path / "run"), "--clusters", "2", "--embedder", embedder]) == 0
    by_key = clusters(tmp_path / "run")
    assert list(by_key) == [pair.key for pair in samples]
    kinds = {pair.key: int(pair.caption.split()[-1]) < ALIKE for pair in samples}
    assert len({(by_key[key], kinds[key]) for key in by_key}) == 2
    assert facts(tmp_path / "run")["pairs"] == [list(by_key.values()).count(cluster) for cluster in (0, 1)]


def test_each_image_is_in_the_cluster_of_the_nearest_centroid(tmp_path: Path) -> None:
    samples = sorted(pairs(200), key=lambda pair: pair.image_id)
    write_run(tmp_path / "run", samples)
    assert cli.main(["score", str(tmp_path / "run"), "--clusters", "3", "--embedder", "phash"]) == 0
    embedder = embedders.load("phash")
    vectors: list[npt.NDArray[np.int16]] = []
    for pair in samples:
        seen = pixels.decode(pair.image, pixels_at_most=10**9, colour=False, short_side_px=128).pixels
        assert seen is not None
        features = embedder.features(seen)
        vectors.append(np.zeros(embedder.dimensions, np.int16) if features is None else features)
    centroids = k_means.train(np.stack(vectors)[: 3 * k_means.SAMPLES_PER_CLUSTER], 3).astype(float)
    expected = []
    for vector in vectors:
        products = [sum(a * b for a, b in zip(vector.tolist(), row, strict=True)) for row in centroids.tolist()]
        expected.append(products.index(max(products)))
    assert clusters(tmp_path / "run") == dict(zip((pair.key for pair in samples), expected, strict=True))


def test_neither_the_shards_nor_the_number_of_threads_change_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = sorted(pairs(150), key=lambda pair: pair.image_id)
    for name, per_shard, threads in (("a", 20, 1), ("b", 77, 4)):
        write_run(tmp_path / name, samples, per_shard=per_shard)
        monkeypatch.setattr("altalign.pipelines.near.shard_images.cores", lambda threads=threads: threads)
        assert cli.main(["score", str(tmp_path / name), "--clusters", "2"]) == 0
    assert clusters(tmp_path / "a") == clusters(tmp_path / "b")


def test_few_images_make_fewer_clusters_and_flat_ones_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = picture(0, (1, 1))
    samples = [*pairs(70), *(Pair(flat, f"nothing {n}", f"https://flat.example/{n}") for n in range(5))]
    write_run(tmp_path / "run", sorted(samples, key=lambda pair: pair.image_id))
    assert cli.main(["score", str(tmp_path / "run"), "--clusters", "100"]) == 0
    assert "1 cluster instead of 100 (each needs 64 images) of 75 to 75 pairs" in capsys.readouterr().out
    assert facts(tmp_path / "run")["flat_images"] == 5
    assert set(clusters(tmp_path / "run").values()) == {0}


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            ["nothing", "--clusters", "2"],
            "nothing: no finished run (it has no manifest.json); give the [run] folder of a curation",
        ),
        (["run", "--clusters", "0"], "argument --clusters: 0: not a whole number of 1 or more; "),
        (
            ["run", "--clusters", "2", "--embedder", "sift"],
            '--embedder embedder = "sift": not of the form ',
        ),
        (
            ["run", "--clusters", "2", "--embedder", "run:nothing"],
            '[decontaminate] embedder = "run:nothing": nothing: no such training run',
        ),
        (["flat", "--clusters", "2"], "flat: dct sees no structure in any of its images; give another --embedder"),
    ],
)
def test_what_cannot_be_clustered_is_one_line(
    argv: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", pairs(3))
    write_run(tmp_path / "flat", [Pair(picture(0, (1, 1)), "nothing", "https://flat.example")])
    assert cli.main(["score", *argv]) == 2
    output = capsys.readouterr().err
    assert output.startswith(f"altalign: {line}")
    assert output.count("\n") == 1


def test_clusters_go_with_the_shards_that_they_are_of() -> None:
    assert maker("clusters/00000.parquet") == maker("shards/00000.tar") == "write"
