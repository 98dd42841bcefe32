"""Shards to batches, ours: all pairs of a run, over and over. Prints one line of JSON.

python -m benchmarks.our_loader RUN --batch 64 --workers 2 --epochs 2
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from altalign.train.data import loader, tokenizer
from altalign.train.data.loader import batches
from altalign.train.data.order import Order, Sampler
from altalign.train.data.samples import Samples
from altalign.train.settings.training import DataSettings, TokenizerSettings


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    for name in ("batch", "workers", "epochs"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        samples = Samples.open(folder, [str(arguments.run)])
        words = tokenizer.train(samples.captions, TokenizerSettings(vocabulary_size=1000))
        running = batches(
            samples,
            Sampler(Order(samples.sources, {}, 0), arguments.batch),
            words,
            DataSettings(workers=arguments.workers),
            seed=0,
            first_batch=0,
            after_batch=len(samples) * arguments.epochs // arguments.batch,
            undecodable=loader.log(folder),
        )
        next(running)
        began = time.perf_counter()
        images = sum(len(batch) for batch in running)
        took = time.perf_counter() - began
    print(json.dumps({"images": images, "work_s": took, "images_per_s": images / took}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
