"""Makes the runs that `benchmarks.scores` measures: side-cars and scores, and no images; a classifier and concepts.

python -m benchmarks.score_runs FOLDER ROWS CAPTIONS DATA
"""

import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import scores, storage
from altalign.counts import Counts
from altalign.pipelines.files import parquet
from altalign.reasons import CURATED, KEPT
from altalign.schema import RULES_VERSION, SAMPLE, SCHEMA_VERSION
from benchmarks.processes import ProgramError

PER_SHARD, DISTINCT = 10_000, 16
LABELS, DIMENSIONS, BUCKETS = 176, 16, 2_000_000  # of lid.176
ENTRIES = 500_000  # about as many as MetaCLIP's
_STEP = re.compile(r"score/\w+: .* ([\d.,]+) s\s*$", re.MULTILINE)  # what the step of `altalign score` says at its end


def main() -> int:
    """Make both runs, the classifier and the concepts."""
    place, data = Path(sys.argv[1]), Path(sys.argv[4])
    selected_from(place / "selected", int(sys.argv[2]))
    scored(place / "scored", texts(data, int(sys.argv[3])))
    (place / "lid.bin").write_bytes(classifier())
    (place / "entries.txt").write_text("\n".join(entries(texts(data, 5_000_000))), encoding="utf-8")
    return 0


def took(output: str) -> float:
    """Seconds of the step, by what `altalign score` has said."""
    if not (step := _STEP.search(output)):
        raise ProgramError(output)
    return float(step[1].replace(",", ""))


def selected_from(folder: Path, count: int) -> None:
    """A run of so many samples with three scores."""
    rng = np.random.default_rng(0)
    tables = [samples(rng, PER_SHARD, ["a red house near the sea"] * PER_SHARD) for _ in range(DISTINCT)]
    values = [
        {
            "similarity": {"similarity": steps(rng.normal(0.25, 0.08, PER_SHARD))},
            "watermark": {"watermark": steps(rng.beta(0.5, 2, PER_SHARD))},
            "language": {
                "language": pa.array(rng.choice(["en", "de", "fr", "und"], PER_SHARD, p=[0.6, 0.2, 0.1, 0.1])),
                "language_probability": steps(rng.random(PER_SHARD)),
                "language_margin": steps(rng.random(PER_SHARD)),
            },
        }
        for _ in tables
    ]
    shards = run_of(folder, tables, count // PER_SHARD)
    for name, kind in (("similarity", "similarity"), ("watermark", "linear"), ("language", "language")):
        write_score(folder / "scores" / name, kind, tables, [each[name] for each in values], shards)


def steps(values: "np.ndarray[Any, np.dtype[np.float64]]") -> Any:
    """Values as scores are stored."""
    return pa.array((np.round(values * 4096) / 4096).astype(np.float32))


def scored(folder: Path, captions: Iterable[list[str]]) -> None:
    """A run of these captions, a list a shard."""
    rng = np.random.default_rng(1)
    tables = [samples(rng, len(each), each) for each in captions]
    run_of(folder, tables, len(tables))


def texts(data: Path, captions: int) -> Iterator[list[str]]:
    """So many captions, a shard at a time."""
    for path in sorted(data.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(PER_SHARD, columns=["text"]):
            if captions <= 0:
                return
            found = [str(text or "") for text in batch["text"].to_pylist()][:captions]
            captions -= len(found)
            yield found


def entries(captions: Iterable[list[str]]) -> list[str]:
    """Words of captions, and up to three side by side, each once."""
    rng, found = np.random.default_rng(3), dict[str, None]()
    for caption in (text.split() for part in captions for text in part):
        for size in range(1, 1 + min(3, len(caption))):
            first = int(rng.integers(0, len(caption) - size + 1))
            found[" ".join(caption[first : first + size])] = None
        if len(found) >= ENTRIES:
            break
    return list(found)[:ENTRIES]


def samples(rng: np.random.Generator, number: int, captions: Sequence[str]) -> pa.Table:
    """Rows of a side-car, each of an image of its own."""
    keys = [format(int.from_bytes(rng.bytes(16), "big"), "032x") for _ in range(number)]
    columns = {name: pa.nulls(number, SAMPLE.field(name).type) for name in SAMPLE.names}
    columns |= {"key": pa.array(keys), "image_id": pa.array(sorted(keys)), "caption": pa.array(captions)}
    return pa.table(columns | {"source": pa.array(["web"] * number)}, schema=SAMPLE)


def run_of(folder: Path, tables: Sequence[pa.Table], shards: int) -> list[dict[str, Any]]:
    """A finished run, without images; gives what its manifest says of the shards, which take turns among the tables."""
    (folder / "shards").mkdir(parents=True)
    facts = []
    for number in range(shards):
        place, table = folder / "shards" / f"{number:05}.parquet", tables[number % len(tables)]
        first = folder / "shards" / f"{number % len(tables):05}.parquet"
        if number < len(tables):
            parquet.write(str(place), table, SAMPLE)
        else:
            os.link(first, place)
        digest = facts[number % len(tables)]["parquet_sha256"] if number >= len(tables) else _sha256(place)
        of = {"rows": len(table), "bytes": 0, "sha256": "0" * 64, "parquet_sha256": digest}
        facts.append({"name": f"{number:05}.tar", **of})
    pairs = sum(of["rows"] for of in facts)
    stated = {"shards": facts, "pairs": pairs, "schema_version": SCHEMA_VERSION, "rules_version": RULES_VERSION}
    storage.write_sealed(str(folder / "manifest.json"), {**stated, "files": {"sha256": "0" * 64}})
    storage.write_sealed(str(folder / "run.json"), {"stages": {}, "engine": {"workers": 0}})
    (folder / "config.toml").write_text('[[input]]\nkind = "table"\npaths = ["-"]\n', encoding="utf-8")
    counts = Counts()
    for stage in CURATED:
        counts.add_rows(stage, "web", KEPT, pairs)
    pq.write_table(counts.to_arrow(), folder / "counts.parquet")
    return facts


def write_score(
    folder: Path, kind: str, tables: Sequence[pa.Table], values: Sequence[dict[str, Any]], shards: Sequence[Any]
) -> None:
    """A score of a run that `run_of` has made, as `altalign score` leaves it."""
    folder.mkdir(parents=True)
    entries = []
    for number, shard in enumerate(shards):
        place, of = folder / f"{number:05}.parquet", number % len(tables)
        if number < len(tables):
            rows = pa.table({"key": tables[of]["key"], **values[of]})
            parquet.write(str(place), rows, rows.schema)
        else:
            os.link(folder / f"{of:05}.parquet", place)
        nulls = dict.fromkeys(values[of], 0)
        said = {"of": shard["parquet_sha256"], "rows": shard["rows"], "nulls": nulls, "bytes": place.stat().st_size}
        entries.append({"name": f"{number:05}", **said, "sha256": "0" * 64})
    columns = {name: str(of.type) for name, of in values[0].items()}
    stated = {"name": folder.name, "kind": kind, "columns": columns, "settings": {}, "rests_on": {}}
    stated = scores.manifest({**stated, "digest": "0" * 64}, entries)
    storage.write_sealed(str(folder / "manifest.json"), stated)


def _sha256(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def classifier() -> bytes:
    """A model file of fastText with the shape of lid.176: n-grams of 2 to 4 characters, a tree; weights at random."""
    rng = np.random.default_rng(2)
    # dimensions, window, epochs, least count, negatives, n-grams of words, tree, supervised, buckets, n-grams, rate
    head = struct.pack("<2i12id", 793712314, 12, DIMENSIONS, 5, 5, 1, 5, 1, 1, 3, BUCKETS, 2, 4, 100, 1e-4)
    names = [("</s>", 0), *((f"__label__{number:03}", 1) for number in range(LABELS))]
    entries = b"".join(
        name.encode() + b"\0" + struct.pack("<qb", 10_000_000 // (1 + number), kind)
        for number, (name, kind) in enumerate(names)
    )
    words = struct.pack("<3i2q", len(names), 1, LABELS, 1_000_000, -1) + entries
    rows = rng.normal(0, 0.1, (1 + BUCKETS, DIMENSIONS)).astype("<f4")
    output = rng.normal(0, 1, (LABELS, DIMENSIONS)).astype("<f4")
    matrices = b"".join(b"\0" + struct.pack("<2q", *of.shape) + of.tobytes() for of in (rows, output))
    return head + words + matrices


if __name__ == "__main__":
    sys.exit(main())
