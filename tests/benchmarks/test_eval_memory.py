"""Search holds the scores of some queries at a time, whatever there is to search."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")

FEATURES, QUERIES = 40_000, 10_000


@pytest.mark.parametrize("task", ["knn", "retrieval"])
def test_neighbours_and_retrieval_hold_a_part_of_the_scores(task: str) -> None:
    sizes = ["--features", str(FEATURES), "--queries", str(QUERIES), "--width", "16"]
    command = [sys.executable, "-m", "benchmarks.eval_memory", "--one", task, *sizes]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    scores = 4 * QUERIES * (FEATURES - QUERIES)  # bytes of all, 1.2 GB
    assert found["peak_bytes"] - found["before_bytes"] < scores / 3
