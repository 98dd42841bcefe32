"""One call of a curation of 500,000 candidates a unit whose work is faked: what `benchmarks.scale` measures.

Units do nothing, but leave files, marks and facts as real ones do: one for one in `tables`; one stands for a hundred in
`extract` and `judge`. Everything around them is the curation's own: planning, the engine, progress, marks, conclusions.

    python -m benchmarks.scale_run FOLDER --units 200000 [--rerun tables] [--killed-at 100000] [--first FILE]
    python -m benchmarks.scale_run FOLDER --units 200000 --merge
"""

import argparse
import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

from altalign import storage
from altalign.data.counts import FailedCounts
from altalign.data.reasons import REASONS, Stage
from altalign.data.schema import DROPPED
from altalign.machine import startup
from altalign.pipelines import curate
from altalign.pipelines.engine.options import options
from altalign.pipelines.engine.spilled_groups import Groups, Spilled, SpillWriter, elements, listed
from altalign.pipelines.figures import text_figures
from altalign.pipelines.opening import reopen
from altalign.pipelines.run import outputs, pool, text_tables
from altalign.pipelines.run.text_tables import PLACED_SURVIVOR
from altalign.pipelines.run.units import IMAGES_PER_UNIT, ROWS_PER_UNIT, InputFile, Run, Unit
from altalign.pipelines.stages import extract, fetch, judge, tables
from altalign.settings.curate import CurateConfig
from altalign.storage import parquet

STANDS_FOR = 100
KEPT, IMAGES = 0.25, 0.2  # of the candidates: what `judge` keeps, and their images
NGRAM_BYTES, PAIR_BYTES = 74, 16  # spilled a candidate: of n-grams, and of each of two pairs
BEGUN_S = float(os.environ.get("SCALE_BEGUN_S", time.time()))


class Fakes:
    """The work of units that do nothing."""

    def __init__(self, units: int, killed_at: int, first: str):
        self.units, self._killed_at, self._first = units, killed_at, first
        self._numbers, self._lock = itertools.count(1), threading.Lock()

    def counts(self, stage: Stage, rows: dict[str, int]) -> FailedCounts:
        """Rows of the one source by reason; kept ones have none."""
        counts = FailedCounts()
        for reason, number in rows.items():
            counts.add_rows(stage, "pool", [reason] if reason else [], number)
        return counts

    def extract(self, run: Run, unit: Unit) -> text_tables.ExtractFacts:
        """A table that is its own pool."""
        groups = [ROWS_PER_UNIT] * STANDS_FOR
        facts = self.counts(Stage.EXTRACT, {"": sum(groups)}).facts()
        return text_tables.ExtractFacts(
            pool.stamp(run, unit["file"]), direct=True, row_groups=groups, rows_at_once=65_536, bytes=0, places=None,
            broken=None, **facts,
        )  # fmt: skip

    def count(self, run: Run, unit: Unit) -> text_tables.CountFacts:
        """A spill file; the first of a call notes when it comes, one of them ends the process."""
        with self._lock:
            number = next(self._numbers)
        if number == 1 and self._first:
            Path(self._first).write_text(str(time.time() - BEGUN_S), encoding="utf-8")
        if number == self._killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        storage.write_bytes(text_tables.HASHES.path(run, unit["name"]), bytes(64))
        return text_tables.CountFacts(unit["rows"], [64, 1], [[8, unit["rows"]]])

    def merge(self, run: Run, partition: int, _: Spilled) -> text_tables.MergeFacts:
        """Four entries of each kind."""
        hashes = (partition << 52) + np.arange(4, dtype=np.uint64)
        for table in text_tables.ENTRIES.values():
            table.save(run, np.stack([hashes, np.full(4, 2, np.uint64)], axis=1), f"{partition:05d}")
        return text_tables.MergeFacts([[2, 4]], 4, [[2, 4]], 4, [[2, 4]], 4)

    def judge(self, run: Run, unit: Unit) -> text_tables.JudgeFacts:
        """All files of a unit."""
        name, rows = unit["name"], STANDS_FOR * unit["rows"]
        storage.write_bytes(text_tables.SURVIVORS.path(run, name), bytes(64))
        text_tables.MEASURED_TEXTS.write(run, text_figures.Histograms(text_figures.OF_TEXT).to_arrow(), name)
        seen = {kind: [] for kind in text_figures.STRINGS_SOUGHT}
        storage.write_json(text_tables.SEEN_STRINGS.path(run, name), {**seen, "scripts": []})
        text_tables.JUDGE_SAMPLE.write(run, DROPPED.empty_table(), name)
        parquet.write(outputs.dropped(run, Stage.JUDGE, name), judge.DROPPED_TEXT.empty_table(), judge.DROPPED_TEXT)
        dropped = self.counts(Stage.JUDGE, {REASONS[Stage.JUDGE][0]: rows - int(KEPT * rows)})
        return text_tables.JudgeFacts(unit["rows"], [64, 1], **dropped.facts())

    def group(self, run: Run, partition: int, _: Spilled) -> text_tables.GroupFacts:
        """As many fetch units as there would be."""
        parquet.write(
            text_tables.GROUPED_SURVIVORS.path(run, f"{partition:05d}"), PLACED_SURVIVOR.empty_table(), PLACED_SURVIVOR
        )
        partitions, rows = judge.buckets_of(run).partitions, pool.rows(run)
        kept = int(KEPT * rows) * (partition + 1) // partitions - int(KEPT * rows) * partition // partitions
        images, a_unit = int(IMAGES * rows) // partitions, pool.enlarged(run) * IMAGES_PER_UNIT
        groups = [{"rows": a_unit, "images": a_unit}] * -(-images // a_unit)
        return text_tables.GroupFacts(groups, **self.counts(Stage.JUDGE, {"": kept}).facts())


def curated(folder: str, fakes: Fakes, rerun: str | None) -> Run:
    """Run or continue a curation up to `judge`."""
    # whoever waits for the disk here measures the disk: that is the units' own time
    config = CurateConfig.from_values(
        {
            "run": {"folder": folder, "durable": False},
            "engine": {"workers": 2},
            "input": [{"name": "pool", "kind": "table", "paths": ["input/*.parquet"]}],
        },
        where="scale",
    )
    inputs = sorted(Path("input").iterdir())
    run = Run(folder, config, tuple(InputFile(number, str(path), 0) for number, path in enumerate(inputs)))
    steps = curate.PIPELINE["judge"][0]

    def of_judge(run: Run) -> list[Unit]:
        return [{**unit, "order": order} for order, unit in enumerate(units(run)[::STANDS_FOR])]

    def conclude_judge(run: Run) -> None:
        with patch.object(pool, "units", of_judge):
            judge.conclude(run)

    units = pool.units
    faked = {
        "extract": ([curate.each(text_tables.EXTRACTED, extract.plan, fakes.extract)], extract.conclude),
        "judge": ([steps[0]._replace(plan=of_judge)], conclude_judge),
    }
    with (
        patch.dict(curate.PIPELINE, faked),
        patch.multiple(tables, count=fakes.count, merge=fakes.merge),
        patch.multiple(judge, judge=fakes.judge, group=fakes.group),
        storage.locked(folder),
    ):
        grounds = reopen.open_run(run, rerun=rerun, is_restart=False)
        curate.finish(run, grounds, options(config.engine, []), until="judge")
    return run


def merged(folder: Path, units: int) -> dict[str, float]:
    """What a thread takes that merges one of 4,096 partitions, to which every unit has spilled as much as a real one.

    They all have the spill file of the first; its hashes are drawn.
    """
    rng, groups, path = np.random.default_rng(0), Groups(4_096, kinds=4), str(folder / "one.spill")
    with Path(path).open("wb") as file:
        spill = SpillWriter(file, groups)
        for kind, size in ((tables.NGRAMS, NGRAM_BYTES), (tables.TEXTS, PAIR_BYTES), (tables.IMAGES, PAIR_BYTES)):
            width = 1 if kind == tables.NGRAMS else 2
            rows = rng.integers(0, 1 << 63, (ROWS_PER_UNIT * size // 8 // width, width), np.uint64) * np.uint64(2)
            order = np.argsort(rows[:, 0])
            cuts = np.searchsorted(rows[order, 0] >> np.uint64(52), np.arange(4_097))
            for partition in range(4_096):
                some = order[cuts[partition] : cuts[partition + 1]]
                spill.add(groups.bucket(partition, kind), rows[some])
        where = spill.finish()
    values = (value for order in range(units) for _, value in elements(path, order, path, where))
    every = listed(values)
    spilled = Spilled(lambda: every, groups, 3)
    config = CurateConfig.from_values({"input": [{"name": "pool", "kind": "table", "paths": ["*"]}]}, where="scale")
    run = Run(str(folder / "run"), config, ())
    storage.write_json(text_tables.POOL_SIZE.path(run), {"rows": units * ROWS_PER_UNIT, "bytes": 0})
    partition, before, begin = 3 * groups.size, resident("VmRSS"), time.monotonic()
    buckets = [groups.bucket(partition, kind) for kind in range(groups.kinds)]
    size = spilled.size(buckets)
    places = resident("VmRSS") - before
    tables.merge(run, partition, spilled)
    seconds = time.monotonic() - begin
    offsets = 8 * units * where[1] * (groups.size * groups.kinds + 1)
    return {
        "bytes": size, "offsets_bytes": offsets, "places_bytes": places, "merge_s": seconds,
        "merge_bytes": resident("VmHWM") - before,
    }  # fmt: skip


def resident(which: str) -> int:
    """Bytes of this process in memory: now (VmRSS), or at most so far (VmHWM)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith(which))


def main() -> int:
    """One call; prints a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--units", type=int, required=True)
    parser.add_argument("--rerun")
    parser.add_argument("--killed-at", type=int, default=0)
    parser.add_argument("--first", default="")
    parser.add_argument("--merge", action="store_true")
    given = parser.parse_args()
    startup.prepare()
    if given.merge:
        print(json.dumps(merged(Path(given.folder), given.units)))
        return 0
    run = curated(given.folder, Fakes(given.units, given.killed_at, given.first), given.rerun)
    begin = time.monotonic()
    planned = fetch.plan(run)
    print(json.dumps({"fetch_units": len(planned), "fetch_plan_s": time.monotonic() - begin}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
