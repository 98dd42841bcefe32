"""Pairs of a run read batch by batch in a random order, in one process. Prints one line of JSON.

python -m benchmarks.our_reads RUN_IN_A_STORE RUN_ON_A_DISK --together 16
"""

import argparse
import json
import sys
import tempfile
import time

from altalign.train.data.order import Order, Sampler
from altalign.train.data.samples import Samples

BATCH = 64


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("disk")
    parser.add_argument("--together", type=int, required=True)
    arguments = parser.parse_args()
    from_disk, from_store = (pairs_per_s(run, arguments.together) for run in (arguments.disk, arguments.store))
    print(json.dumps({"pairs_per_s": from_store, "pairs_per_s_from_disk": from_disk}))
    return 0


def pairs_per_s(run: str, together: int) -> float:
    """Of all pairs, once."""
    with tempfile.TemporaryDirectory() as folder:
        samples = Samples.open(folder, [run])
        sampler = Sampler(Order(samples.sources, {}, 0, together=together), BATCH)
        began, read = time.perf_counter(), 0
        for number in range(len(samples) // BATCH):
            read += len(samples.read(samples.pairs(sampler.batch(number)[0])))
        return read / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main())
