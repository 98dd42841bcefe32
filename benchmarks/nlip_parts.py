"""Steps with some of NLIP's parts, timed. Prints a line of JSON.

python -m benchmarks.nlip_parts NAME
"""

import argparse
import itertools
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from altalign.train.data.batches import Batch
from altalign.train.ranks import Ranks
from altalign.train.settings import TrainConfig
from altalign.train.step.learner import Learner
from benchmarks.nlip import MASKED, PLAIN, RECONSTRUCTED, STEPS, WHOLE

BATCH, PX, TOKENS, VOCABULARY, TIMES, WARM_UP = 32, 96, 24, 30_522, 8, 2
RECONSTRUCTION: dict[str, Any] = {"reconstruction": {"weight": 1.0, "width": 128}}
CAPTIONER: dict[str, Any] = {"captioner": {"weight": 1.0, "layers": 4, "tokens_at_most": TOKENS}}
PARTS: dict[str, tuple[float, dict[str, Any]]] = {
    PLAIN: (0.0, {}),
    MASKED: (0.5, {}),
    RECONSTRUCTED: (0.5, RECONSTRUCTION),
    WHOLE: (0.5, RECONSTRUCTION | CAPTIONER),
}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=STEPS)
    print(json.dumps(steps(parser.parse_args().name)))
    return 0


def steps(name: str) -> dict[str, float]:
    """Steps of a batch in memory, on one thread."""
    torch.set_num_threads(1)
    token_drop, decoders = PARTS[name]
    values = {
        "image_tower": {
            "architecture": "vit_ti16",
            "positions_px": PX,
            "embedding_width": 256,
            "token_drop": token_drop,
        },
        "data": {"resize_px": PX, "crop_px": PX},
        "text_tower": {"architecture": "bart", "layers": 4, "width": 256, "heads": 4},
        "tokenizer": {"tokens_at_most": TOKENS + 1},
        "loss": {"directions": "mean", "label_smoothing": 0.0, "temperature": 0.07},
        "optimizer": {"name": "adamw", "weight_decay": 0.05},
        "loop": {"global_batch": BATCH, "chunk": BATCH, "precision": "float32", "device": "cpu"},
        **decoders,
    }
    batch, before = _batch(), _peak_bytes()
    config = TrainConfig.from_values(values, where="benchmark")
    learner = Learner(config, vocabulary=VOCABULARY, ranks=Ranks(0, 1, torch.device("cpu")))
    numbers = itertools.count(1)
    cpu = _cpu_s(lambda: learner.step(next(numbers), batch), TIMES)
    parameters = sum(values.numel() for values in learner.model.parameters())
    return {"step_cpu_s": cpu / TIMES, "step_bytes": _peak_bytes() - before, "parameters": parameters}


def _batch() -> Batch:
    images = torch.randint(0, 256, (BATCH, 3, PX, PX), dtype=torch.uint8).to(memory_format=torch.channels_last)
    tokens, prompted = (torch.randint(5, VOCABULARY, (BATCH, TOKENS)) for _ in range(2))
    keys, is_token = [f"{number:032x}" for number in range(BATCH)], torch.ones(BATCH, TOKENS, dtype=torch.bool)
    return Batch(keys, ["one"] * BATCH, [0] * BATCH, images, tokens, is_token, (prompted, is_token))


def _cpu_s(work: Callable[[], object], times: int) -> float:
    for _ in range(WARM_UP):
        work()
    began = time.process_time()
    for _ in range(times):
        work()
    return time.process_time() - began


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
