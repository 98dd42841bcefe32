"""The vectors and the run that the browse benchmark makes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks import browse_vectors
from benchmarks.browse_vectors import QUERIES, K


def test_the_exact_answers_are_those_of_a_plain_product_and_ours_finds_them(tmp_path: Path):
    made = browse_vectors.generated(2_000, tmp_path)
    vectors, exact = np.concatenate(list(browse_vectors.chunks(made))), np.load(made / "exact.npz")
    cosines = exact["queries"] @ vectors.astype(np.float32).T
    some = browse_vectors.filtered(2_000)
    for place, (kind, rows) in enumerate(zip(browse_vectors.KINDS, [np.arange(2_000)] * 2 + [some] * 2, strict=True)):
        for query, nearest in zip(cosines[place * QUERIES :], exact[kind], strict=False):
            assert set(rows[np.argsort(-query[rows])[:K]].tolist()) == set(nearest.tolist())
    assert 0.45 < cosines[:QUERIES].mean() < 0.55
    assert 0.15 < cosines[QUERIES : 2 * QUERIES].mean() < 0.21
    argv = [sys.executable, "-m", "benchmarks.browse_vectors", "ours", str(tmp_path), "2000"]
    said = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    assert all(said[f"{kind}_recall"] > 0.99 for kind in browse_vectors.KINDS)
