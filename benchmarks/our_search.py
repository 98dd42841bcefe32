"""Pairs of a pool and a test side, ours, in one thread. Prints one line of JSON.

    python -m benchmarks.our_search TESTS.npy POOL.npy PAIRS.npy [--passes 10]

Both are int16[n, d]; `us_per_image` is CPU time of the search alone, pool in blocks of 1,000.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from altalign.dedup.near_duplicates import TestSide, find_pairs
from benchmarks.search import ABOVE, BLOCK


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("tests", "pool", "pairs"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--passes", type=int, default=10, help="times over the pool")
    arguments = parser.parse_args()
    tests, pool = np.load(arguments.tests), np.load(arguments.pool)
    # kernels are compiled, or read, on first use
    find_pairs(pool[:1], TestSide.build(tests[:1], above=ABOVE), above=ABOVE)
    begin = time.process_time()
    side = TestSide.build(tests, above=ABOVE)
    built = time.process_time()
    for _ in range(arguments.passes):
        found = [find_pairs(pool[first : first + BLOCK], side, above=ABOVE) for first in range(0, len(pool), BLOCK)]
    searched = time.process_time()
    rows = [pairs.rows + number * BLOCK for number, pairs in enumerate(found)]
    np.save(arguments.pairs, np.stack([np.concatenate(rows), np.concatenate([pairs.tests for pairs in found])], axis=1))
    beside = sum(array.nbytes for array in side.arrays().values()) - side.vectors.nbytes
    figures = {
        "build_s": built - begin,
        "index_bytes": beside,
        "us_per_image": (searched - built) / arguments.passes / len(pool) * 1e6,
    }
    print(json.dumps(figures | {"columns": 2 * side.strips.shape[1]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
