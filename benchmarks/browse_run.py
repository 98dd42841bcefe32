"""The pairs of a large run as `altalign browse` opens them: one line of JSON.

    python -m benchmarks.browse_run DEMO FOLDER PAIRS

The run is made of the demo's: as many kept pairs as dropped ones, with keys, hosts and sizes of their own.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from altalign.audit.run_folder import RunFolder
from altalign.browse.pairs import opened
from altalign.browse.what_if import what_if
from altalign.data.schema import DROPPED, SAMPLE

PER = 50_000
THRESHOLDS = {"text.words_at_least": 4, "text.words_at_most": 25, "image.short_side_above_px": 250}
FACETS = ("reason", "stage", "host", "source", "words", "short_side")


def generated(demo: Path, out: Path, pairs: int) -> Path:
    """The run's folder."""
    if (out / "manifest.json").exists():
        return out
    for folder in ("shards", "dropped/judge"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for name in ("run.json", "config.toml"):
        (out / name).write_bytes((demo / name).read_bytes())
    random = np.random.default_rng(1)
    kept, dropped = (
        pa.concat_tables([pq.read_table(file, schema=schema) for file in sorted((demo / folder).rglob("*.parquet"))])
        for folder, schema in (("shards", SAMPLE), ("dropped", DROPPED))
    )

    def some(table: pa.Table, **columns: Any) -> pa.Table:
        table = table.take(pa.array(random.integers(0, len(table), PER)))
        for name, values in columns.items():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))
        return table

    def keys() -> list[str]:
        return [word.hex() for word in np.frombuffer(random.bytes(16 * PER), "V16").tolist()]

    shards = []
    for shard in range(pairs // 2 // PER):
        urls = [f"https://host-{host % 20_000}.example/{i}.jpg" for i, host in enumerate(random.zipf(1.5, PER))]
        width, height = random.integers(201, 2_000, (2, PER))
        of_kept = some(kept, key=keys(), image_id=keys(), image_url=urls, width=width, height=height)
        pq.write_table(of_kept, out / f"shards/{shard:05}.parquet", compression="zstd", row_group_size=10_000)
        of_dropped = some(dropped, key=keys(), image_id=keys())
        name = out / f"dropped/judge/{shard:06}-00000.parquet"
        pq.write_table(of_dropped, name, compression="zstd", row_group_size=10_000)
        shards.append({"name": f"{shard:05}.tar", "rows": PER, "bytes": 0, "sha256": "", "parquet_sha256": ""})
    manifest = json.loads((demo / "manifest.json").read_text(encoding="utf-8")) | {"shards": shards}
    (out / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return out


def main(demo: Path, folder: Path, count: int) -> None:
    """Measure and print; of what is asked twice the second time counts, as a page has it while one moves about."""
    run = RunFolder.open(str(generated(demo, folder / f"run-{count}", count)))
    begin, figures = time.perf_counter(), dict[str, float]()
    with opened(run) as pairs:

        def timed(name: str, ask: Callable[[], object]) -> None:
            for _ in range(2):
                start = time.perf_counter()
                ask()
                figures[name] = time.perf_counter() - start

        while not (pairs.read or pairs.trouble):
            time.sleep(0.01)
        pairs.rows(pairs.matching({})[:60].tolist())
        figures["first_rows_s"] = time.perf_counter() - begin
        while not (pairs.is_read or pairs.trouble):
            time.sleep(0.05)
        figures |= {"read_s": time.perf_counter() - begin, "pairs": pairs.read}
        for facet in FACETS:
            timed(f"facet_{facet}_s", lambda facet=facet: pairs.facet({}, facet))
        figures["facet_s"] = max(figures[f"facet_{facet}_s"] for facet in FACETS)
        every = pairs.matching({})
        timed("window_s", lambda: pairs.rows(every[len(every) * 7 // 10 :][:60].tolist()))
        timed("what_if_s", lambda: what_if(pairs, {}, THRESHOLDS))
        figures["resident_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
