"""`altalign browse --atlas`: its file against plain loops over the run, and in Embedding Atlas itself."""

import hashlib
import http.client
import io
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.browse import atlas
from altalign.cli import main
from altalign.data import scores
from altalign.errors import UsageError
from altalign.filters import thumbnails
from altalign.pipelines.run.shard_files import conclude_score, write_score
from tests.support import run_folders
from tests.support.curations import ROOT, tree

ATLAS = ROOT / ".cache" / "embedding-atlas"  # `make test-readers` puts it there
PAIRS, DIMENSIONS = 75, 8
CONFIG = '[run]\nfolder = "run"\n[[input]]\nkind = "table"\npaths = ["pairs.parquet"]\nimage_column = "image"\n'
needs_umap = pytest.mark.skipif(
    not any(Path(place, "umap").is_dir() for place in sys.path), reason="umap-learn is not installed: make setup-dev"
)


def write_vectors(run: Path, name: str, of: Mapping[str, Sequence[float] | None], *, of_shard: str = "") -> None:
    """An embedding of a run, as `altalign score` leaves it; `of_shard` is not the side-car that there is."""
    entries, folder = [], run / "scores" / name
    folder.mkdir(parents=True)
    kind = pa.list_(pa.float16(), DIMENSIONS)
    for shard, sidecar in scores.sidecars(json.loads((run / "manifest.json").read_bytes())).items():
        keys: list[str] = pq.read_table(run / "shards" / f"{shard}.parquet")["key"].to_pylist()
        halves = [None if (vector := of[key]) is None else [np.float16(each) for each in vector] for key in keys]
        path = folder / f"{shard}.parquet"
        nulls = write_score(str(path), pa.table({"key": keys, name: pa.array(halves, kind)}))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        facts = {"rows": len(keys), "nulls": nulls, "bytes": path.stat().st_size, "sha256": digest}
        entries.append({"name": shard, "of": of_shard or sidecar, **facts})
    stated = {"name": name, "kind": "embedding", "columns": {name: str(kind)}, "digest": "d" * 64}
    conclude_score(str(folder), stated, entries, durable=False)


def drawn(count: int, seed: int = 0, *, distinct: int = 0) -> list[list[float]]:
    """Vectors of length 1 as float16 has them, some of them more than once."""
    rng = random.Random(seed)
    made = [[rng.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(distinct or count)]
    return [
        [float(np.float16(each / sum(x * x for x in row) ** 0.5)) for each in row] for row in (made * count)[:count]
    ]


def distances(vectors: Sequence[Sequence[float]], row: int) -> list[float]:
    """Of a row to each, by a plain loop: 1 less the cosine."""
    norms = [sum(x * x for x in each) ** 0.5 for each in vectors]
    products = (sum(x * y for x, y in zip(vectors[row], each, strict=True)) for each in vectors)
    return [1 - product / norm / norms[row] for product, norm in zip(products, norms, strict=True)]


def check_neighbours(
    vectors: Sequence[Sequence[float]], found: Sequence[tuple[Sequence[int], Sequence[float]]]
) -> None:
    """Each row's are itself, and the nearest others in order; of those equally far, any."""
    for row, (ids, far) in enumerate(found):
        expected = distances(vectors, row)
        others = sorted(each for other, each in enumerate(expected) if other != row)
        assert ids[0] == row
        assert far[0] == 0
        assert len(set(ids)) == len(ids)
        assert far[1:] == pytest.approx(others[: len(ids) - 1], abs=3e-6)
        assert [expected[each] for each in ids] == pytest.approx(far, abs=3e-6)


@pytest.mark.parametrize(
    ("count", "distinct", "most"), [(4, 0, 3), (63, 0, 15), (64, 0, 15), (65, 0, 15), (200, 0, 7), (150, 12, 15)]
)
def test_neighbours_are_those_of_a_plain_loop(
    count: int, distinct: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atlas, "PRODUCT_BYTES", 4 * count * 7)  # blocks of seven rows
    vectors = drawn(count, distinct=distinct)
    of_length_one = np.array(vectors, np.float32)
    of_length_one /= np.linalg.norm(of_length_one, axis=1, keepdims=True)
    ids, far = atlas.nearest(of_length_one, most)
    check_neighbours(vectors, list(zip(ids.tolist(), far.tolist(), strict=True)))


@pytest.fixture(scope="module")
def vectors() -> dict[str, list[float] | None]:
    """By keys, of all pairs but two."""
    keys = [pair.key for pair in run_folders.pairs(PAIRS)]
    return {**dict(zip(keys, drawn(PAIRS), strict=True)), keys[11]: None, keys[-1]: None}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, vectors: dict[str, list[float] | None]) -> Path:
    """A finished run with an embedding, and scores whose names are taken on a map, or by Embedding Atlas."""
    folder = tmp_path_factory.mktemp("mapped") / "run"
    run_folders.write_run(folder, run_folders.pairs(PAIRS))
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")
    write_vectors(folder, "clip", vectors)
    values = {key: {"x": number, "FILE_name": f"{number}.jpg"} for number, key in enumerate(vectors)}
    run_folders.write_score(str(folder), "own", values, {"x": pa.float32(), "FILE_name": pa.string()})
    return folder


@pytest.fixture(scope="module")
def written(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("map") / "run.parquet"
    assert main(["browse", str(run), "--atlas", str(path)]) == 0
    return path


@pytest.mark.runs
@needs_umap
def test_a_map_has_what_the_run_has_with_places_neighbours_and_pictures(
    run: Path, written: Path, vectors: dict[str, list[float] | None]
) -> None:
    rows = pq.read_table(written).to_pylist()
    expected = [
        (row, (run / "shards" / f"{path.stem}.tar").read_bytes()[row["tar_offset"] :][: row["tar_bytes"]])
        for path in sorted((run / "shards").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
        if vectors[row["key"]] is not None
    ]
    assert len(rows) == len(expected) == PAIRS - 2
    numbers = {key: number for number, key in enumerate(vectors)}
    for row, (kept, image) in zip(rows, expected, strict=True):
        own = {"x_": numbers[kept["key"]], "FILE_name_": f"{numbers[kept['key']]}.jpg"}
        columns = ("key", "caption", "image_url", "page_url", "source", "width", "height", "words")
        assert {name: row[name] for name in (*columns, *own)} == {**{name: kept[name] for name in columns}, **own}
        assert row["image"] == thumbnails.picture(image, pixels_at_most=10**6)
        with Image.open(io.BytesIO(row["image"])) as picture:
            assert picture.format == "WEBP"
            assert max(picture.size) <= 192
    mapped = [vector for row in rows if (vector := vectors[row["key"]]) is not None]
    check_neighbours(mapped, [(row["neighbors"]["ids"], row["neighbors"]["distances"]) for row in rows])
    assert {len(row["neighbors"]["ids"]) for row in rows} == {15}
    places = {(row["x"], row["y"]) for row in rows}
    assert len(places) > len(rows) / 2
    assert np.isfinite(list(places)).all()


@pytest.mark.runs
@needs_umap
def test_duckdb_finds_the_neighbours_of_a_row_by_their_numbers(written: Path) -> None:
    query = f"""
        WITH rows AS (SELECT * FROM read_parquet('{written}', file_row_number = true)),
             near AS (SELECT file_row_number AS n, unnest(neighbors.ids) AS id FROM rows)
        SELECT count(*), count(DISTINCT n), count(*) FILTER (n = id) FROM near JOIN rows ON id = rows.file_row_number
    """
    assert duckdb.sql(query).fetchall() == [((PAIRS - 2) * 15, PAIRS - 2, PAIRS - 2)]


@pytest.mark.runs
@needs_umap
def test_a_map_is_the_same_again_and_the_run_stays_as_it_is(
    run: Path, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(run)
    again = tmp_path / "a map.parquet"
    assert main(["browse", str(run), "--atlas", str(again), "--with", "clip"]) == 0
    out, err = capsys.readouterr()
    assert shlex.split(out)[:2] == ["embedding-atlas", str(again)]
    assert f"{PAIRS - 2} of {PAIRS} pairs" in err
    assert again.read_bytes() == written.read_bytes()
    assert tree(run) == before


@pytest.mark.runs
@needs_umap
def test_a_sample_is_of_random_pairs_and_the_same_again(run: Path, written: Path, tmp_path: Path) -> None:
    keys = []
    for name in ("one", "two"):
        atlas.write(str(run), "", str(tmp_path / f"{name}.parquet"), sample=30)
        rows = pq.read_table(tmp_path / f"{name}.parquet").to_pylist()
        keys.append([row["key"] for row in rows])
        assert {each for row in rows for each in row["neighbors"]["ids"]} <= set(range(len(rows)))
    everyone = pq.read_table(written)["key"].to_pylist()
    assert keys[0] == keys[1] == [key for key in everyone if key in keys[0]] != everyone[: len(keys[0])]
    assert 28 <= len(keys[0]) <= 30  # two have no vector


@needs_umap
@pytest.mark.parametrize(
    ("change", "name", "file", "more", "error"),
    [
        ("", "", "run/map.parquet", {}, "run/map.parquet: inside the run, which stays as it is"),
        ("", "", "map.csv", {}, "map.csv: Embedding Atlas knows a table by its ending"),
        ("", "", "map.parquet", {"sample": 3}, "--sample 3: a map takes 4 pairs or more"),
        ("", "dino", "map.parquet", {}, "no embedding dino: there are clip; name one by --with"),
        ("another", "", "map.parquet", {}, "embeddings to map by: there are clip, other; name one by --with"),
        ("none", "", "map.parquet", {}, "embeddings to map by: `altalign score` makes one"),
        ("few", "", "map.parquet", {}, "scores/clip: 3 vectors, and a map takes 4 or more"),
        ("stale", "", "map.parquet", {}, "8 of 8 shards are not measured, such as 00000"),
        ("unfinished", "", "map.parquet", {}, "not finished, so there is nothing to map yet"),
    ],
)
def test_what_cannot_be_mapped_is_refused_in_one_line(
    change: str, name: str, file: str, more: dict[str, int], error: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run_folders.write_run(run, run_folders.pairs(PAIRS))
    of = dict(zip((pair.key for pair in run_folders.pairs(PAIRS)), drawn(PAIRS), strict=True))
    few = {key: vector if number < 3 else None for number, (key, vector) in enumerate(of.items())}
    if change != "none":
        write_vectors(run, "clip", few if change == "few" else of, of_shard="0" * 64 if change == "stale" else "")
    if change == "another":
        write_vectors(run, "other", of)
    if change == "unfinished":
        (run / "manifest.json").unlink()
    with pytest.raises(UsageError, match=re.escape(error)) as refused:
        atlas.write(str(run), name, str(tmp_path / file), **more)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / file).exists()


def test_without_its_package_a_map_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)  # as where it is not installed
    with pytest.raises(UsageError, match=r"the package umap is missing; .*EXTRAS=map"):
        atlas.write("run", "", "map.parquet")


def test_its_options_belong_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["browse", "run", "--sample", "10"]) == UsageError.exit_code
    assert "--with, --sample: belong to --atlas" in capsys.readouterr().err


@contextmanager
def embedding_atlas(command: Sequence[str], folder: Path) -> Iterator[http.client.HTTPConnection]:
    """The server of this command, as its user starts it, until Ctrl-C."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    there = {"PYTHONPATH": os.pathsep.join([str(ATLAS), *sys.path]), "PYTHONUNBUFFERED": "1", "HOME": str(folder)}
    words = [sys.executable, "-W", "ignore", "-m", "embedding_atlas.cli", *command]
    words += ["--host", "127.0.0.1", "--port", str(port), "--no-auto-port"]
    with subprocess.Popen(
        words, cwd=folder, env={**os.environ, **there}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = list[str]()
        for line in process.stdout:
            said.append(line)
            if "CTRL+C" in line:  # which it says before it listens
                break
        assert "CTRL+C" in said[-1], "".join(said)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            while process.poll() is None:
                with suppress(ConnectionRefusedError):
                    connection.connect()
                    break
            yield connection
        finally:
            connection.close()
            process.send_signal(signal.SIGINT)
            process.communicate()


def asked(connection: http.client.HTTPConnection, path: str, query: Mapping[str, str] | None = None) -> bytes:
    connection.request("POST" if query else "GET", path, json.dumps(query) if query else None)
    answer = connection.getresponse()
    data = answer.read()
    assert answer.status == 200, data
    return data


@pytest.mark.runs
@needs_umap
@pytest.mark.skipif(
    not (ATLAS.is_dir() and find_spec("pandas")),
    reason=f"no Embedding Atlas in {ATLAS} or no pandas: make test-readers",
)
def test_embedding_atlas_opens_a_map(
    run: Path, tmp_path: Path, vectors: dict[str, list[float] | None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["browse", str(run), "--atlas", str(tmp_path / "map.parquet")]) == 0
    program, *command = shlex.split(capsys.readouterr().out)
    assert program == "embedding-atlas"
    rows = pq.read_table(tmp_path / "map.parquet").to_pylist()
    with embedding_atlas(command, tmp_path) as connection:
        data = json.loads(asked(connection, "/data/metadata.json"))["props"]["data"]
        names = {"text": "caption", "image": "image", "neighbors": "neighbors", "importance": "pagerank"}
        assert data == {"id": "__row_index__", "projection": {"x": "x", "y": "y"}, **names}
        # as its page asks for the pairs like one
        sql = f"SELECT neighbors AS knn, image, x_, FILE_name_, page_url FROM dataset WHERE {data['id']} = 20"
        answer = asked(connection, "/data/query", {"type": "arrow", "sql": sql})
        (row,) = pa.ipc.open_stream(answer).read_all().to_pylist()
    assert row["knn"] == rows[20]["neighbors"]
    assert {name: row[name] for name in ("image", "x_", "FILE_name_", "page_url")}.items() <= rows[20].items()
