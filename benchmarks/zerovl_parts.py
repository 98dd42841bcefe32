"""Steps or batches with some of ZeroVL's parts, timed. Prints a line of JSON.

python -m benchmarks.zerovl_parts NAME [--run RUN]
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from altalign.train.data import tokenizer, undecodable
from altalign.train.data.batches import Batch
from altalign.train.data.loader import batches
from altalign.train.data.order import OneSource, Order, Sampler
from altalign.train.data.samples import Samples
from altalign.train.ranks import Ranks
from altalign.train.settings import DataSettings, TokenizerSettings, TrainConfig
from altalign.train.step.learner import Learner
from benchmarks.zerovl import ALIGN, ALL_PARTS, AUGMENTED, ONE_SOURCE, RANDOM, STEP, WITHOUT_DROP

BATCH, PX, TOKENS, VOCABULARY, STEPS, WARM_UP = 32, 96, 24, 30_522, 8, 2
SOURCES = ["one", "other"]
MIXUP: dict[str, Any] = {"mixup": 0.1, "mixup_group": 16}
PARTS = {STEP: ({}, 0.0), ALL_PARTS: (MIXUP, 0.25), WITHOUT_DROP: (MIXUP, 0.0)}
CROPPED = {"resize_px": 256, "crop_px": 224, "crop_area_at_least": 0.6, "word_corruption": 0.2, "flip": False}
SETTINGS: dict[str, dict[str, Any]] = {
    ALIGN: {"resize_px": 256, "crop_px": 224},
    RANDOM: CROPPED,
    ONE_SOURCE: CROPPED,
    AUGMENTED: {**CROPPED, "auto_augment": True},
}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*PARTS, *SETTINGS])
    parser.add_argument("--run", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(steps(arguments.name) if arguments.name in PARTS else loading(arguments.name, arguments.run)))
    return 0


def steps(name: str) -> dict[str, float]:
    """Steps of a batch in memory; with parts, the negatives of each source are measured at each step."""
    mixup, token_drop = PARTS[name]
    values = {
        "image_tower": {
            "architecture": "vit_ti16",
            "positions_px": PX,
            "embedding_width": 256,
            "token_drop": token_drop,
        },
        "data": {"resize_px": PX, "crop_px": PX},
        "text_tower": {"layers": 4, "width": 256, "heads": 4},
        "tokenizer": {"tokens_at_most": TOKENS + 1},
        "loss": {"directions": "mean", "label_smoothing": 0.0, "temperature": 0.02, **mixup},
        "optimizer": {"name": "adamw", "weight_decay": 1e-3},
        "loop": {"global_batch": BATCH, "chunk": BATCH, "precision": "float32"},
    }
    ranks = Ranks(0, 1, torch.device("cpu"))
    learner = Learner(TrainConfig.from_values(values, where="benchmark"), vocabulary=VOCABULARY, ranks=ranks)
    held, numbers = _batch(), itertools.count(1)
    sources = SOURCES if mixup else []
    return _timed(lambda: learner.step(next(numbers), held, sources=sources), BATCH, STEPS)


def _batch() -> Batch:
    images = torch.randint(0, 256, (BATCH, 3, PX, PX), dtype=torch.uint8).to(memory_format=torch.channels_last)
    tokens = torch.randint(5, VOCABULARY, (BATCH, TOKENS))
    keys = [f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}" for number in range(BATCH)]
    sources = [SOURCES[number % 2] for number in range(BATCH)]
    return Batch(keys, sources, [0] * BATCH, images, tokens, torch.ones(BATCH, TOKENS, dtype=torch.bool))


def loading(name: str, run: str) -> dict[str, float]:
    """Batches of 64 pairs of a run, made by this process."""
    with tempfile.TemporaryDirectory() as folder:
        samples = Samples.open(folder, [run])
        words = tokenizer.train(samples.captions, TokenizerSettings(vocabulary_size=1000, tokens_at_most=25))
        order = Order(samples.sources, {}, 0)
        sampler = (OneSource if name in (ONE_SOURCE, AUGMENTED) else Sampler)(order, 64)
        chosen, log = DataSettings(**SETTINGS[name], workers=0), undecodable.log(folder)
        running = batches(samples, sampler, words, chosen, seed=0, first_batch=0, undecodable=log)
        return _timed(lambda: next(running), 64, STEPS)


def _timed(work: Callable[[], object], pairs: int, times: int) -> dict[str, float]:
    for _ in range(WARM_UP):
        work()
    began, began_cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        work()
    wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    return {"pairs_per_cpu_s": pairs * times / cpu, "pairs_per_s": pairs * times / wall}


if __name__ == "__main__":
    sys.exit(main())
