"""One contestant's training steps on the CPU, of `benchmarks.train_contestants`.

The towers are EfficientNet-B0 and BERT-Mini, with embeddings of B0's 320 numbers.

Dropout 0.1, LAMB and float32 for all; captions of as many tokens. Prints a line of JSON.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

from benchmarks.train_contestants import PEERS, Contestant, Sizes, Way, ours

VOCABULARY, WIDTH = 30_522, 320  # BERT's; of the embeddings
WARM_UP = 1  # steps
LAST = Way(channels_last=True)
CONTESTANTS: dict[str, Callable[[Sizes, int], Contestant]] = {
    "altalign": lambda sizes, batch: ours(sizes, Way(), batch),
    "altalign, batch norm over the batch": lambda sizes, batch: ours(sizes, Way(), batch, batch_norm="local"),
    "open_clip": lambda sizes, batch: PEERS["open_clip"](sizes, Way(), batch),
    "open_clip, channels last": lambda sizes, batch: PEERS["open_clip"](sizes, LAST, batch),
    "AlignModel": lambda sizes, batch: PEERS["AlignModel"](sizes, Way(), batch),
    "AlignModel, channels last": lambda sizes, batch: PEERS["AlignModel"](sizes, LAST, batch),
}


def main() -> int:
    """Time steps of one contestant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CONTESTANTS)
    for name, value in {"batch": 32, "px": 96, "tokens": 64, "steps": 3, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes = Sizes("b0-mini", arguments.px, arguments.tokens, VOCABULARY, WIDTH)
    contestant = CONTESTANTS[arguments.name](sizes, arguments.batch)
    seconds, losses, cpu = [], [], []
    for _ in range(WARM_UP + arguments.steps):
        began, began_cpu = time.perf_counter(), time.process_time()
        losses.append(contestant.step())
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
    step_s, step_cpu_s = statistics.median(seconds[WARM_UP:]), statistics.median(cpu[WARM_UP:])
    figures = {
        "samples_per_s": arguments.batch / step_s,
        "samples_per_cpu_s": arguments.batch / step_cpu_s,
        "step_s": step_s,
        "parameters": sum(parameter.numel() for parameter in contestant.model.parameters()),
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
