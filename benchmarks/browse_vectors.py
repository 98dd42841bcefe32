"""One index of vectors: what it takes, how long a query takes, how many of the ten nearest it finds. One line of JSON.

    python -m benchmarks.browse_vectors ours|flat|autofaiss FOLDER ROWS

`flat` is faiss's exact index, `autofaiss` the graph that clip-retrieval's autofaiss 2.18.0 chooses for up to a million
vectors (a NumPy as old as it wants is not there). Vectors stand for CLIP's: clusters of Zipf's sizes, variances that
fall off (84 dimensions count), a mean that gives two images a cosine of 0.5; texts have another mean and 0.3 of an
image, which makes cosines of 0.31 with it, and of 0.18 +- 0.035 with others.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

D, PER, CENTRES, QUERIES, K, SHARE = 512, 100_000, 20_000, 25, 10, 0.01
AUTOFAISS, VISITED = "HNSW32", 256
KINDS = ("image", "text", "image_filtered", "text_filtered")
Search = Callable[[np.ndarray, Any], np.ndarray]  # of a query and a filter, which Filter makes for so many rows
Filter = Callable[[int], Any]


def unit(x: np.ndarray) -> np.ndarray:
    """Vectors of length 1."""
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


class Recipe:
    """Draws vectors as they are described above."""

    def __init__(self):
        random = np.random.default_rng(0)
        basis = np.linalg.qr(random.standard_normal((D, D)))[0].astype(np.float32)

        def drawn(n: int, power: float) -> np.ndarray:
            falling = np.arange(1, D + 1, dtype=np.float32) ** -power
            return random.standard_normal((n, D), np.float32) * np.sqrt(falling / falling.sum()) @ basis

        self.centres, self.within, self.of_texts = drawn(CENTRES, 0.8), drawn(PER, 0.5), drawn(QUERIES, 0.3)
        sizes = np.cumsum(np.arange(1, CENTRES + 1) ** -0.9)
        self.sizes, loud = sizes / sizes[-1], np.zeros(D)
        loud[[92, 133]] = 12, -9
        self.mean, other = (unit(random.standard_normal(D) + at) for at in (loud, 0))
        self.of_text = 0.33 * self.mean + 0.944 * unit(other - other @ self.mean * self.mean)

    def latents(self, n: int, random: np.random.Generator) -> np.ndarray:
        """Images without their mean; a sum of two of the kept noises is new."""
        noise = 0.8 * self.within[random.integers(0, PER, n)] + 0.6 * self.within[random.integers(0, PER, n)]
        at = np.searchsorted(self.sizes, random.random(n)).clip(0, CENTRES - 1)
        return unit(self.centres[at] + random.uniform(0.2, 1, (n, 1)).astype(np.float32) * noise)

    def images(self, n: int, seed: int) -> np.ndarray:
        """Float32 [n, D]."""
        return unit(self.mean + self.latents(n, np.random.default_rng([1, seed])))

    def queries(self) -> tuple[np.ndarray, np.ndarray]:
        """Images, and texts."""
        paired = 0.3 * self.latents(QUERIES, np.random.default_rng(3)) + 0.954 * unit(self.of_texts)
        return self.images(QUERIES, 7), unit(0.775 * self.of_text + 0.632 * paired)


def filtered(rows: int) -> np.ndarray:
    """The rows that a filter leaves."""
    return np.flatnonzero(np.random.default_rng(5).random(rows) < SHARE).astype(np.uint32)


def generated(rows: int, folder: Path) -> Path:
    """A folder with `vectors.parquet` (list<float16>[512]) and `exact.npz`: queries, and their nearest of each kind."""
    made = folder / f"browse-{rows}"
    if (made / "exact.npz").exists():
        return made
    made.mkdir(parents=True, exist_ok=True)
    recipe, allowed = Recipe(), filtered(rows)
    queries = np.concatenate([*recipe.queries()] * 2)
    best, cosines = np.zeros((len(queries), K), np.int64), np.full((len(queries), K), -2, np.float32)
    kind = pa.list_(pa.float32(), D)  # of values of float16, as `altalign score` writes them
    schema = pa.schema({"vector": kind})
    with pq.ParquetWriter(made / "vectors.parquet", schema, compression="zstd") as out:
        for first in range(0, rows, PER):
            chunk = recipe.images(min(PER, rows - first), first).astype(np.float16)
            column = pa.FixedSizeListArray.from_arrays(pa.array(chunk.ravel().astype(np.float32)), type=kind)
            out.write_table(pa.table({"vector": column}), row_group_size=10_000)
            found = queries @ chunk.astype(np.float32).T
            found[2 * QUERIES :, ~np.isin(np.arange(first, first + len(chunk)), allowed)] = -2
            every = np.concatenate([cosines, found], axis=1)
            top = np.argpartition(-every, K, axis=1)[:, :K]
            numbers = np.concatenate([best, np.broadcast_to(np.arange(first, first + len(chunk)), found.shape)], axis=1)
            best, cosines = np.take_along_axis(numbers, top, 1), np.take_along_axis(every, top, 1)
    np.savez(made / "exact.npz", queries=queries, **{k: best[i * QUERIES :][:QUERIES] for i, k in enumerate(KINDS)})
    return made


def chunks(folder: Path) -> Iterator[np.ndarray]:
    """The vectors of a Parquet file, float32 [n, D]."""
    for batch in pq.ParquetFile(folder / "vectors.parquet").iter_batches(50_000, use_threads=False):
        yield batch.column(0).flatten().to_numpy(zero_copy_only=False).reshape(-1, D)


def ours(folder: Path) -> tuple[Search, Filter, int]:
    """Of altalign."""
    from altalign.browse.vectors import Vectors

    index = Vectors.build(chunks(folder), folder)
    return lambda query, allowed: index.search(query, K, allowed)[0], filtered, index.bytes_in_memory


def of_faiss(way: str) -> Callable[[Path], tuple[Search, Filter, int]]:
    """Of faiss."""

    def build(folder: Path) -> tuple[Search, Filter, int]:
        import faiss

        index = faiss.index_factory(D, "Flat" if way == "flat" else AUTOFAISS, faiss.METRIC_INNER_PRODUCT)
        index.add(np.concatenate([chunk.astype(np.float32) for chunk in chunks(folder)]))
        parameters, size = faiss.SearchParameters, index.ntotal * D * 4
        if way == "autofaiss":
            index.hnsw.efSearch, size = VISITED, len(faiss.serialize_index(index))
            parameters = partial(faiss.SearchParametersHNSW, efSearch=VISITED)

        def chosen(rows: int) -> Any:
            bits = np.packbits(np.isin(np.arange(rows), filtered(rows)), bitorder="little")
            return parameters(sel=faiss.IDSelectorBitmap(bits))

        return lambda query, only: index.search(query[None], K, params=only)[1][0], chosen, size

    return build


WAYS = {"ours": ours, "flat": of_faiss("flat"), "autofaiss": of_faiss("autofaiss")}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=int)
    arguments = parser.parse_args()
    folder, rows = generated(arguments.rows, arguments.folder), arguments.rows
    exact = np.load(folder / "exact.npz")
    if arguments.way == "ours":  # kernels are compiled, or read, on first use
        search, _, _ = ours(generated(30_000, arguments.folder))
        search(exact["queries"][0], None)
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in chunks(folder):
        pass
    figures: dict[str, Any] = {"read_s": time.perf_counter() - begin, "read_cpu_s": time.process_time() - cpu}
    begin, cpu = time.perf_counter(), time.process_time()
    search, prepare, size = WAYS[arguments.way](folder)
    figures |= {"build_s": time.perf_counter() - begin, "build_cpu_s": time.process_time() - cpu}
    figures["bytes_a_vector"] = size / rows
    only = prepare(rows)
    search(exact["queries"][0], None)
    for place, kind in enumerate(KINDS):
        found, walls, cpus = 0, list[float](), list[float]()
        for query, nearest in zip(exact["queries"][place * QUERIES :], exact[kind], strict=False):
            begin, cpu = time.perf_counter(), time.process_time()
            answer = search(query, only if "filtered" in kind else None)
            walls.append((time.perf_counter() - begin) * 1000)
            cpus.append((time.process_time() - cpu) * 1000)
            found += len(set(answer.tolist()) & set(nearest.tolist()))
        figures |= {f"{kind}_recall": found / QUERIES / K, f"{kind}_ms": statistics.median(walls)}
        figures |= {f"{kind}_cpu_ms": statistics.median(cpus)}
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
