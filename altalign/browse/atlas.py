"""What a run kept as a map: a Parquet file with places, neighbours and pictures, as Embedding Atlas opens it."""

import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage, terminal
from altalign.audit import rows as run_rows
from altalign.audit.run_folder import RunFolder
from altalign.browse.pairs import renamed
from altalign.browse.vectors import Floats, of_lists
from altalign.data import scores
from altalign.data.columns import TYPES, check_measured, joined
from altalign.data.schema import SAMPLE
from altalign.data.scores import Score
from altalign.errors import UsageError, check_package
from altalign.filters import thumbnails
from altalign.machine.cores import cores
from altalign.models.model import normal
from altalign.storage import parquet

AT_MOST = 200_000  # pairs on a map, where no other number is asked for: the exact search takes the square of it
OPTIONS = {"x": "x", "y": "y", "neighbors": "neighbors", "text": "caption", "image": "image"}  # of Embedding Atlas
SEED = 0  # of the sample, and of UMAP, which then uses one thread
PRODUCT_BYTES = 1 << 28  # of the cosines of a block of rows
_LEAST = 4  # UMAP places no fewer
_BAR = "{desc} {bar} {n_fmt}/{total_fmt} epochs {rate_fmt} {elapsed} {remaining}"  # of UMAP
_GROUPED = 64  # cosines of which the largest is looked at first: a search of all takes as long as the products

_COLUMNS = ("key", "caption", "image_url", "page_url", "source", "width", "height", "words")
_PLACE = ("tar_offset", "tar_bytes")  # of an image
_NEAR = pa.struct([("ids", pa.list_(pa.int32())), ("distances", pa.list_(pa.float32()))])  # ids: numbers of rows
_OF_MAP = {"x": pa.float32(), "y": pa.float32(), "neighbors": _NEAR, "image": pa.binary()}
_OF_ATLAS = ("file_name", "__row_index__", "pagerank")  # it adds these, and DuckDB ignores case

_Numbers = npt.NDArray[np.int64]


def write(run_folder: str, name: str, path: str, *, neighbours: int = 15, sample: int = AT_MOST) -> tuple[int, int]:
    """Write the map of a finished run by a score of vectors, the one of this name, or the only one.

    A row is a kept pair that has a vector, in the order of shards; where more were kept, `sample` random ones. `x` and
    `y` are UMAP's; `neighbors` are the rows nearest by cosine, the row itself first, which counts as UMAP counts it;
    `image` is WebP of at most 192 px. Returns how many pairs are on the map, and how many the run kept.

    Raises:
        UsageError: the run is not finished, or has no such score; fewer than four pairs; `path` is inside the run, or
            does not end in .parquet; umap-learn is not installed.
        UnreadableError: a file of the run is damaged.
    """
    check_package("umap", f"--atlas {path}", extra="map")
    run = RunFolder.open(run_folder)
    run.check_finished("there is nothing to map yet")
    storage.check(path)
    if sample < _LEAST:
        raise UsageError(f"--sample {sample}: a map takes {_LEAST} pairs or more")
    if storage.is_inside(path, run.folder):
        raise UsageError(f"--atlas {path}: inside the run, which stays as it is; give another place")
    if not path.endswith(".parquet"):
        raise UsageError(f"--atlas {path}: Embedding Atlas knows a table by its ending; give a name with .parquet")
    score, sidecars = _score(run.folder, name), scores.sidecars(run.json("manifest.json"))
    check_measured(list(sidecars.items()), [score])
    others = [each for each in scores.all_of(run.folder) if all(each.has(*shard) for shard in sidecars.items())]
    of_column = {column: each for each in others for column, kind in each.columns.items() if kind in TYPES}
    kept = score.sums()[0]
    chosen = np.sort(np.random.default_rng(SEED).choice(kept, min(kept, sample), replace=False))
    parts = dict(_parts(run, {**of_column, score.name: score}, chosen))
    if (count := sum(map(len, parts.values()))) < _LEAST:
        raise UsageError(f"{score.folder}: {count} vectors, and a map takes {_LEAST} or more")
    vectors = normal(of_lists(pa.concat_tables(parts.values())[score.name])[1])  # float16 has rounded them
    ids, distances = nearest(vectors, min(neighbours, count - 1))
    places, begin = _places(vectors, ids, distances), 0
    named = renamed(list(of_column), {*_COLUMNS, *_OF_MAP, *_OF_ATLAS})
    types = {each: SAMPLE.field(each).type for each in _COLUMNS}
    types |= {named[each]: TYPES[score.columns[each]] for each, score in of_column.items()} | _OF_MAP
    with parquet.writing(path, pa.schema(list(types.items()))) as file, ThreadPoolExecutor(cores()) as threads:
        for shard, rows in terminal.followed(parts.items(), "writing", "shards"):
            part = slice(begin, begin := begin + len(rows))
            near = [pa.array(list(each[part]), kind.type) for each, kind in zip((ids, distances), _NEAR, strict=True)]
            pictures = threads.map(partial(_picture, run, shard), *(rows[each].to_pylist() for each in _PLACE))
            of_map = [*places[part].T, pa.StructArray.from_arrays(near, fields=list(_NEAR)), list(pictures)]
            file.write(pa.table([*(rows[each] for each in (*_COLUMNS, *of_column)), *of_map], list(types)))
    return count, kept


def nearest(vectors: Floats, count: int) -> tuple[_Numbers, Floats]:
    """Of n vectors of length 1, the `count` nearest to each, itself first, and 1 less their cosines: [n, count]."""
    number, groups = len(vectors), -(-len(vectors) // _GROUPED)
    block = min(number, max(1, PRODUCT_BYTES // (4 * number)))
    cosines = np.full((block, _GROUPED * groups), -np.inf, np.float32)
    ids, found = np.empty((number, count), np.int64), np.empty((number, count), np.float32)
    for begin in terminal.followed(range(0, number, block), "comparing", "blocks"):
        rows = np.arange(min(block, number - begin))
        some, part = cosines[: len(rows)], slice(begin, begin + len(rows))
        np.matmul(vectors[part], vectors.T, out=some[:, :number])
        some[rows, begin + rows] = np.inf  # itself
        # the nearest are in the groups whose largest are the largest
        of_groups = _most(some.reshape(-1, _GROUPED, groups).max(axis=1), min(count, groups))[:, None]
        near = (of_groups + np.arange(_GROUPED)[:, None] * groups).reshape(len(rows), -1)
        near = np.sort(np.take_along_axis(near, _most(np.take_along_axis(some, near, 1), count), 1), axis=1)
        ids[part] = np.take_along_axis(near, np.argsort(-np.take_along_axis(some, near, 1), 1, "stable"), 1)
        found[part] = np.take_along_axis(some, ids[part], axis=1)
    return ids, 1 - found.clip(-1, 1)


def _most(values: Floats, count: int) -> _Numbers:
    """The numbers of the `count` largest values of each row, in no order."""
    return np.argpartition(values, -count, axis=1)[:, -count:]


def _places(vectors: Floats, ids: _Numbers, distances: Floats) -> Floats:
    """Where UMAP puts each vector: float32[n, 2]."""
    with warnings.catch_warnings():
        # of TensorFlow, for another part of it, and of a search for new vectors, which is not asked for
        warnings.simplefilter("ignore")
        with terminal.stderr().status("loading UMAP"):
            umap: Any = import_module("umap")  # it compiles at first
        known = {"precomputed_knn": (ids, distances), "n_neighbors": ids.shape[1], "metric": "cosine"}
        bar = {"desc": "placing", "leave": False, "dynamic_ncols": True, "bar_format": _BAR, "unit": ""}
        bar["disable"] = not terminal.shows_bars()
        return umap.UMAP(**known, random_state=SEED, n_jobs=1, tqdm_kwds=bar).fit_transform(vectors)


def _score(run_folder: str, name: str) -> Score:
    found = {each.name: each for each in scores.all_of(run_folder) if each.is_embedding}
    if name not in found and (name or len(found) != 1):
        there = f"there are {', '.join(found)}; name one by --with" if found else "`altalign score` makes one"
        raise UsageError(f"{run_folder}: {f'no embedding {name}' if name else 'embeddings to map by'}: {there}")
    return found[name or next(iter(found))]


def _parts(run: RunFolder, of_column: Mapping[str, Score], chosen: _Numbers) -> Iterator[tuple[str, pa.Table]]:
    """By shards, the samples of these numbers that have a vector, which is the last of these columns of scores."""
    begin, names = 0, list(of_column)
    for shard in terminal.followed(scores.sidecars(run.json("manifest.json")), "reading", "shards"):
        rows = pa.concat_tables(run_rows.row_groups(run.path("shards", f"{shard}.parquet"), [*_COLUMNS, *_PLACE]))
        first, last = np.searchsorted(chosen, (begin, begin + len(rows)))
        some = joined(rows, shard, names, of_column).take(chosen[first:last] - begin)
        begin += len(rows)
        yield shard, some.filter(pc.is_valid(some[names[-1]]))


def _picture(run: RunFolder, shard: str, offset: int, size: int) -> bytes | None:
    image = run_rows.image(run, f"{shard}.tar", offset, size)
    return thumbnails.picture(image, pixels_at_most=run.config.image.pixels_at_most)
