"""The report of a run of 100 million candidates: the files that it reads are bounded, whatever the pool has, and so are
its memory and its size.
"""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.altalign.audit.report import report_run
from tests.altalign.audit.report.report_run import Candidate
from tests.support.curations import environ

pytestmark = pytest.mark.runs

DIFFERENT, EACH = 100_000, 1_000
TAKES_AT_MOST_S = 600  # watchdog

# What `altalign audit` does but for the checks, which read shards and are sampled.
PROGRAM = """
import sys, time
begin = time.perf_counter()
from altalign.audit.report import page
from altalign.audit.run_folder import RunFolder
from tests.peak import peak_bytes
html = page.html(page.gather(RunFolder.open(sys.argv[1]), []))
print(len(html), peak_bytes() >> 10, round(time.perf_counter() - begin, 1))
"""


def varied(rng: random.Random, each: Candidate) -> Candidate:
    """The candidate with values of the web: far more combinations than the few of a small test."""
    short = rng.randrange(1, 1_100)
    return replace(
        each,
        words=min(260, int(rng.paretovariate(0.7))) if rng.random() < 0.5 else each.words,
        rarest=int(rng.paretovariate(0.15)) % 10**8,
        images_per_text=int(rng.paretovariate(0.8)) % 10**6,
        texts_per_image=int(rng.paretovariate(0.9)) % 10**6,
        width=short,
        height=int(short * rng.uniform(1, 6)),
    )


def multiplied(run: Path) -> None:
    """Every candidate of the run so many times."""
    for path in (run / "counts.parquet", *run.glob("audit/*.parquet")):
        table = pq.read_table(path)
        for name in ("rows", "pairs"):
            if name in table.column_names:
                table = table.set_column(
                    table.column_names.index(name), name, pc.multiply(table[name], pa.scalar(EACH, pa.int64()))
                )
        pq.write_table(table, path)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    (run / "summary.json").write_text(json.dumps({**summary, "pairs": summary["pairs"] * EACH}), encoding="utf-8")
    histograms = json.loads((run / "audit/histograms.json").read_text(encoding="utf-8"))
    histograms = {name: [[value, n * EACH] for value, n in entries] for name, entries in histograms.items()}
    (run / "audit/histograms.json").write_text(json.dumps(histograms), encoding="utf-8")


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read from /proc")
def test_the_report_of_100_million_candidates_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    rng = random.Random(3)
    run = report_run.write(tmp_path, [varied(rng, each) for each in report_run.candidates(DIFFERENT)])
    multiplied(run)
    assert pc.sum(pq.read_table(run / "audit/text_measures.parquet")["rows"]).as_py() > 4 * 80_000_000
    assert len(pq.read_table(run / "audit/image_measures.parquet")) > 1_000
    command = [sys.executable, "-c", PROGRAM, str(run)]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=TAKES_AT_MOST_S, check=True)
    size, kilobytes, _ = done.stdout.split()
    assert int(kilobytes) < 1_000_000, done.stdout  # and the seconds that it took
    assert int(size) < 5_000_000
