"""Small finished runs of curation, as `altalign curate` leaves them, for tests of what reads them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from altalign import storage
from altalign.data import scores
from altalign.data.key import image_id, sample_key
from altalign.data.schema import SCHEMA_VERSION
from altalign.data.shards import ShardWriter, write_sidecar
from tests.support.pictures import encoded


@dataclass(frozen=True)
class Pair:
    """A pair of a run to be written."""

    image: bytes
    caption: str
    url: str
    source: str = "web"
    format: str = "jpeg"

    @property
    def key(self) -> str:
        return sample_key(self.url, self.caption)

    @property
    def image_id(self) -> str:
        return image_id(self.url)


def picture(number: int, size: tuple[int, int] = (24, 20), image_format: str = "JPEG") -> bytes:
    """A smooth picture of its own for each number."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return encoded(coarse.resize(size, Image.Resampling.BICUBIC), image_format)


def pairs(count: int, *, images: int = 0, sources: Sequence[str] = ("web",), first: int = 0) -> list[Pair]:
    """Pairs of `images` pictures in turn (0: each of its own), of sources in turn."""
    return [
        Pair(
            picture(number % (images or count) + first),
            f"caption {number + first} of a kite",
            f"https://example.org/{number % (images or count) + first}.jpg",
            sources[number % len(sources)],
        )
        for number in range(count)
    ]


def write_run(
    folder: Path,
    of: Sequence[Pair],
    *,
    per_shard: int = 10,
    manifest: Mapping[str, Any] | None = None,
    whole: bool = False,
) -> str:
    """A finished run of these pairs, in their order; gives its folder. Its samples may be `whole` images."""
    (folder / "shards").mkdir(parents=True)
    shards = [
        _write_shard(folder / "shards" / f"{number:05}", of[first : first + per_shard], whole=whole)
        for number, first in enumerate(range(0, len(of), per_shard))
    ]
    facts = {"shards": shards, "pairs": len(of), "schema_version": SCHEMA_VERSION, **(manifest or {})}
    (folder / "manifest.json").write_text(json.dumps(facts))
    (folder / "run.json").write_text(json.dumps({"stages": {}}))
    return str(folder)


def write_score(run: str, name: str, of: Mapping[str, Mapping[str, Any]], types: Mapping[str, pa.DataType]) -> None:
    """A score with these columns beside a run, as `altalign score` leaves it; `of` has the values of each key."""
    folder, shards = Path(run) / "scores" / name, []
    folder.mkdir(parents=True)
    for shard in json.loads((Path(run) / "manifest.json").read_bytes())["shards"]:
        stem = shard["name"].removesuffix(".tar")
        keys: list[Any] = pq.read_table(Path(run) / "shards" / f"{stem}.parquet", columns=["key"])["key"].to_pylist()
        columns = {column: pa.array([of[key][column] for key in keys], kind) for column, kind in types.items()}
        pq.write_table(pa.table({"key": keys, **columns}), folder / f"{stem}.parquet")
        data = (folder / f"{stem}.parquet").read_bytes()
        nulls = {column: values.null_count for column, values in columns.items()}
        facts = {"of": shard["parquet_sha256"], "rows": shard["rows"], "nulls": nulls}
        shards.append({"name": stem, **facts, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    stated = {"name": name, "kind": "own", "columns": {name: str(kind) for name, kind in types.items()}}
    storage.write_sealed(str(folder / "manifest.json"), scores.manifest({**stated, "digest": "d" * 64}, shards))


def _write_shard(stem: Path, of: Sequence[Pair], *, whole: bool) -> dict[str, Any]:
    with stem.with_suffix(".tar").open("wb") as file:
        writer = ShardWriter(file)
        rows = list[dict[str, Any]]()
        for _, same in groupby(of, lambda pair: pair.image_id if whole else pair.key):
            pairs = list(same)
            if whole:
                rows += writer.write_all(pairs[0].image, [*map(_row, pairs)], [1 / len(pairs)] * len(pairs))
            else:
                rows += [writer.write(pair.image, _row(pair)) for pair in pairs]
        writer.end()
    with stem.with_suffix(".parquet").open("wb") as file:
        write_sidecar(rows, file, f"{stem.name}.tar")
    sidecar = hashlib.sha256(stem.with_suffix(".parquet").read_bytes()).hexdigest()
    return {
        "name": f"{stem.name}.tar",
        "rows": len(of),
        "bytes": writer.bytes,
        "sha256": writer.sha256,
        "parquet_sha256": sidecar,
    }


def _row(pair: Pair) -> dict[str, Any]:
    digest = hashlib.sha256(pair.image).hexdigest()
    return {
        "key": pair.key,
        "image_id": pair.image_id,
        "image_url": pair.url,
        "caption": pair.caption,
        "page_url": None,
        "source_key": None,
        "extra": None,
        "preferences": None,
        "source": pair.source,
        "width": 24,
        "height": 20,
        "format": pair.format,
        "bytes": len(pair.image),
        "sha256": digest,
        "found_sha256": digest,
        "words": len(pair.caption.split()),
        "tar_offset": 0,
        "tar_bytes": 0,
    }
